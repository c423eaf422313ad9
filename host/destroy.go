package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/image"
	"github.com/hangar-platform/hangar/host/journal"
)

// destroy brings a Machine from destroying to destroyed: nothing but its record
// and its log remains.
func (m *machine) destroy(ctx context.Context, rec *journal.Record) error {
	a := m.agent
	m.clean = false
	if err := m.clear(ctx, rec); err != nil {
		return err
	}
	a.o.Local.Close(m.id)
	if err := a.o.Logs.Retire(m.id); err != nil {
		return err
	}
	if err := a.o.Network.Detach(m.id); err != nil {
		return fmt.Errorf("detach machine %s: %w", m.id, err)
	}
	if err := errors.Join(a.o.Layers.Remove(m.id), os.RemoveAll(m.path(""))); err != nil {
		return err
	}
	return m.advance(rec, func(next *journal.Record) []hangar.Event {
		next.Machine.State = hangar.MachineDestroyed
		next.Handle, next.Ended, next.Stop, next.Previous, next.Prepared = nil, false, nil, nil, false
		dropSnapshot(next)
		next.DestroyedAt = a.o.Now()
		return []hangar.Event{{Type: hangar.EventDestroy, Source: hangar.SourceAgent}}
	})
}

// How long a destroyed Machine stays readable, and how often that is looked at.
const (
	destroyedFor = 24 * time.Hour
	housekeeping = 10 * time.Minute
)

// imagePolicy is when images that no Machine uses are freed.
var imagePolicy = image.Policy{MaxAge: 7 * 24 * time.Hour, MinFreeBytes: 2 << 30}

// keepHouse forgets Machines that were destroyed long ago, frees images and removes
// what is left of volumes.
func (a *Agent) keepHouse(ctx context.Context) {
	tick := time.NewTicker(housekeeping)
	defer tick.Stop()
	for {
		if err := a.forgetDestroyed(); err != nil && ctx.Err() == nil {
			a.o.Log.Error("forget destroyed machines", keyError, err)
		}
		a.collectImages(ctx)
		a.volumes.Purge(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// collectImages frees images, unless there are Machines of which nobody can tell
// what they use.
func (a *Agent) collectImages(ctx context.Context) {
	if len(a.unread) > 0 {
		return
	}
	freed, err := a.o.Images.GC(ctx, imagePolicy)
	if err != nil && ctx.Err() == nil {
		a.o.Log.Error("collect images", keyError, err)
	}
	if freed > 0 {
		a.o.Log.Info("freed images", "bytes", freed)
	}
}

// forgetAtOnce is how many Machines are forgotten with one commit.
const forgetAtOnce = 256

// forgetDestroyed forgets all Machines that it can, and returns why it could not forget the first
// of the others, for which it is repeated.
func (a *Agent) forgetDestroyed() error {
	before := a.o.Now().Add(-destroyedFor)
	ids, err := a.o.Journal.DestroyedBefore(before)
	if err != nil {
		return err
	}
	failed := a.o.Logs.Forget(before)
	for some := range slices.Chunk(ids, forgetAtOnce) {
		some = slices.DeleteFunc(some, func(id hangar.MachineID) bool {
			err := a.o.Logs.Remove(id)
			if err != nil {
				failed = cmp.Or(failed, fmt.Errorf("machine %s: %w", id, err))
			}
			return err != nil
		})
		if a.forget(some...) == nil {
			continue
		}
		for _, id := range some { // one of which keeps none of the others
			if err := a.forget(id); err != nil {
				failed = cmp.Or(failed, fmt.Errorf("machine %s: %w", id, err))
			}
		}
	}
	return failed
}

// forget removes what the journal has of destroyed Machines, all of it or nothing.
func (a *Agent) forget(ids ...hangar.MachineID) error {
	return a.o.Journal.Commit(func(tx *journal.Tx) error {
		for _, id := range ids {
			if err := tx.ForgetDestroyed(id); err != nil {
				return err
			}
		}
		return nil
	})
}
