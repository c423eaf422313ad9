package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/pause"
)

const (
	// fullPause is how long recordEnd waits for room on the disk between two attempts.
	fullPause = time.Second
	// minPause and maxPause bound the growing pauses between attempts of other work.
	minPause = time.Second
	maxPause = time.Minute
)

// volume is one volume in memory. Its mu is taken after that of a Machine,
// and of several volumes in the order of their ids.
type volume struct {
	store *Store
	id    hangar.VolumeID

	rec atomic.Pointer[journal.VolumeRecord] // replaced under mu, never changed in place

	mu        sync.Mutex // held while a change is decided and committed
	forgotten bool       // the record is gone from the journal; guarded by mu

	open opened

	claims  *semaphore.Weighted             // held from a claim until it is committed or undone
	still   *semaphore.Weighted             // held while there is a view of the device, of which there is one at a time
	reading atomic.Pointer[hangar.Progress] // of the snapshot that is being taken; nil: none is
	filling atomic.Pointer[hangar.Progress] // of a volume that is being filled; nil: it is not

	forking atomic.Int32 // forks of this one that are about to be recorded; increased under mu

	dailyWaits atomic.Bool                        // for the disk to have room, which was logged for the volume
	endFilling atomic.Pointer[context.CancelFunc] // nil: filling has not begun
}

// change alters a copy of a volume's record and returns the events. It must replace slices, not
// change them.
type change func(next *journal.VolumeRecord) []hangar.VolumeEvent

// draft is a change that is committed together with something else.
type draft struct {
	v    *volume
	next *journal.VolumeRecord
}

// draft applies a change to a copy of the record. v.mu is held until the draft is settled or
// dropped.
func (v *volume) draft(alter change) draft {
	next := *v.rec.Load()
	now := v.store.o.Now()
	if events := alter(&next); len(events) > 0 {
		next.Volume.UpdatedAt = wholeMillisecond(now)
		next.Events = withEvents(next.Events, events, now)
	}
	return draft{v, &next}
}

// withEvents returns the events of a volume with some more, the oldest of these first.
func withEvents(events, more []hangar.VolumeEvent, now time.Time) []hangar.VolumeEvent {
	list := make([]hangar.VolumeEvent, 0, len(more)+len(events))
	for _, e := range more {
		e.ID, e.Timestamp = hangar.NewEventID(now), now.UnixMilli()
		if e.Source == "" {
			e.Source = hangar.SourceAgent
		}
		list = append(list, e)
	}
	slices.Reverse(list)
	list = append(list, events...)
	return slices.Clip(list[:min(len(list), hangar.MaxVolumeEvents)])
}

func wholeMillisecond(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }

// settle makes a draft visible that has been committed.
func (d draft) settle() { d.v.rec.Store(d.next) }

// commit makes a change durable and then visible, and returns the new record. v.mu is
// held.
func (v *volume) commit(alter change) (*journal.VolumeRecord, error) {
	if v.forgotten {
		return nil, hangar.VolumeNotFound(v.id)
	}
	d := v.draft(alter)
	err := v.store.o.Journal.Commit(func(tx *journal.Tx) error { return tx.PutVolume(d.next) })
	if err != nil {
		return nil, notRecorded(v.id, err)
	}
	d.settle()
	return d.next, nil
}

// record is commit for callers that do not hold v.mu.
func (v *volume) record(alter change) (*journal.VolumeRecord, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.commit(alter)
}

// recordEnd is record for the end of work that cannot be repeated at once. While the disk is full, it tries
// again until ctx ends.
func (v *volume) recordEnd(ctx context.Context, alter change) error {
	for {
		_, err := v.record(alter)
		if hangar.ReasonOf(err) != hangar.ReasonDiskFull || pause.For(ctx, fullPause) != nil {
			return err
		}
	}
}

// recordEvents is record for events alone.
func (v *volume) recordEvents(events ...hangar.VolumeEvent) error {
	_, err := v.record(func(*journal.VolumeRecord) []hangar.VolumeEvent { return events })
	return err
}

func notRecorded(id hangar.VolumeID, err error) error {
	if errors.Is(err, journal.ErrClosed) {
		return &hangar.Error{Code: hangar.CodeUnavailable, Message: "the server is shutting down", Err: err}
	}
	return fmt.Errorf("commit volume %s: %w", id, err)
}

// row returns the row of the volume, with its usage.
func (v *volume) row(ctx context.Context) *hangar.VolumeRow {
	rec := v.rec.Load()
	row := rowOf(rec)
	if usage, ok := v.open.usage(ctx); ok {
		row.Volume.Usage = usage
	}
	row.Snapshots = v.snapshots(rec)
	if p := v.filling.Load(); p != nil && row.Volume.State == hangar.VolumeRestoring {
		row.Volume.Filling.Progress = *p
	}
	return &row
}

func rowOf(rec *journal.VolumeRecord) hangar.VolumeRow {
	row := hangar.VolumeRow{Volume: rec.Volume, Org: rec.Org, OrgID: rec.OrgID, Snapshots: rec.Snapshots, Seq: rec.Seq}
	row.Volume.HostStatus = "ok"
	return row
}

func wholeSecond(t time.Time) time.Time { return t.UTC().Truncate(time.Second) }
