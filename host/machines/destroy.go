package machines

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// destroy brings a Machine from destroying to destroyed: only its record and its log remain.
func (w *worker) destroy(ctx context.Context, rec *journal.Record) error {
	s := w.store
	w.clean = false
	if err := w.clear(ctx, rec); err != nil {
		return err
	}
	s.o.Local.Close(w.id)
	if err := s.o.Logs.Retire(w.id); err != nil {
		return err
	}
	if err := s.o.Network.Detach(w.id); err != nil {
		return fmt.Errorf("detach machine %s: %w", w.id, err)
	}
	if err := errors.Join(s.o.Layers.Remove(w.id), os.RemoveAll(w.path(""))); err != nil {
		return err
	}
	return w.advance(rec, func(next *journal.Record) []hangar.Event {
		next.Machine.State = hangar.MachineDestroyed
		next.Handle, next.Ended, next.Stop, next.Previous, next.Prepared = nil, false, nil, nil, false
		dropSnapshot(next)
		next.DestroyedAt = s.o.Now()
		return []hangar.Event{{Type: hangar.EventDestroy, Source: hangar.SourceAgent}}
	})
}

// destroyedFor is how long a destroyed Machine stays readable.
const destroyedFor = 24 * time.Hour

// forgetAtOnce is how many Machines one commit removes.
const forgetAtOnce = 256

// ForgetDestroyed removes the records of Machines that were destroyed longer than destroyedFor ago. It continues after
// a failure, and returns the first one; a later call retries.
func (s *Store) ForgetDestroyed() error {
	before := s.o.Now().Add(-destroyedFor)
	ids, err := s.o.Journal.DestroyedBefore(before)
	if err != nil {
		return err
	}
	failed := s.o.Logs.Forget(before)
	for some := range slices.Chunk(ids, forgetAtOnce) {
		some = slices.DeleteFunc(some, func(id hangar.MachineID) bool {
			err := s.o.Logs.Remove(id)
			if err != nil {
				failed = cmp.Or(failed, fmt.Errorf("machine %s: %w", id, err))
			}
			return err != nil
		})
		if forget(s.o.Journal, some...) == nil {
			continue
		}
		for _, id := range some { // the failed one must not keep the others
			if err := forget(s.o.Journal, id); err != nil {
				failed = cmp.Or(failed, fmt.Errorf("machine %s: %w", id, err))
			}
		}
	}
	return failed
}

// forget removes the journal's records of destroyed Machines, all or none.
func forget(j *journal.Journal, ids ...hangar.MachineID) error {
	return j.Commit(func(tx *journal.Tx) error {
		for _, id := range ids {
			if err := tx.ForgetDestroyed(id); err != nil {
				return err
			}
		}
		return nil
	})
}
