package volumes

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/archive"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/extent"
	"github.com/hangar-platform/hangar/internal/finish"
)

// Archive is the store of snapshots, with the methods of archive.Archive that a Store needs. It is opened on first use,
// so that the rest works while it cannot be reached.
type Archive interface {
	Open(ctx context.Context) error
	Close() error
	Write(ctx context.Context, meta archive.Meta, src archive.Source, data extent.List, base *archive.Base, progress func(hangar.Progress)) (archive.Entry, error)
	Read(ctx context.Context, id hangar.SnapshotID, dst io.WriterAt, progress func(hangar.Progress)) (archive.Entry, error)
	Digest(ctx context.Context, src archive.Source, data extent.List) (string, error)
	Entry(ctx context.Context, id hangar.SnapshotID) (archive.Entry, error)
	Remove(ctx context.Context, ids ...hangar.SnapshotID) error
	Collect(ctx context.Context) (freed int64, err error)
}

const (
	// archiveOpening bounds an attempt to open the archive.
	archiveOpening = time.Minute
	// archiveTries bounds the attempts that a caller waits for.
	archiveTries = 12
	// Pauses between collections. After a removal there are more of them, because a store that
	// others also write to frees content only after a safety period.
	collectDaily = day
	collectOften = time.Hour
	collectSoon  = time.Minute // after a removal
)

// archiver opens the archive on first use, and collects its garbage.
type archiver struct {
	o        *Options
	lifetime context.Context //nolint:containedctx // the archive is not opened after its end; set by Open

	opening *semaphore.Weighted // held while the archive is opened
	open    bool                // guarded by opening
	failed  time.Time           // of the last attempt; guarded by opening
	fault   error               // of the last attempt; guarded by opening

	collect chan struct{} // buffered 1: something was removed

	mu   sync.Mutex
	pins map[hangar.SnapshotID]int // readers of each; guarded by mu
}

func newArchiver(o *Options) *archiver {
	return &archiver{o: o, opening: semaphore.NewWeighted(1), collect: make(chan struct{}, 1), pins: make(map[hangar.SnapshotID]int)}
}

// get returns the archive, open.
func (a *archiver) get(ctx context.Context) (Archive, error) {
	if a.o.Archive == nil {
		return nil, errNoArchive()
	}
	if err := a.opening.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer a.opening.Release(1)
	if a.open {
		return a.o.Archive, nil
	}
	if a.lifetime.Err() != nil {
		return nil, &hangar.Error{Code: hangar.CodeUnavailable, Message: "the server is shutting down"}
	}
	if a.fault == nil || time.Since(a.failed) >= a.o.ArchivePatience/archiveTries {
		bounded, cancel := context.WithTimeout(ctx, archiveOpening)
		defer cancel()
		if a.fault = a.o.Archive.Open(bounded); a.fault == nil {
			a.open = true
			return a.o.Archive, nil
		}
		if ctx.Err() != nil {
			a.fault = nil // the caller's end is no fault of the archive
			return nil, ctx.Err()
		}
		a.failed = time.Now()
		a.o.Log.Error("open the archive of snapshots", keyError, a.fault)
	}
	return nil, &hangar.Error{Code: hangar.CodeUnavailable, Message: "the archive of snapshots cannot be used", Err: a.fault}
}

// TryArchive opens the archive of snapshots early, so that the log reports an unusable one at once.
// A failure is retried on the next use.
func (a *archiver) TryArchive(ctx context.Context) {
	if _, err := a.get(ctx); err != nil && ctx.Err() == nil {
		a.o.Log.Warn("no snapshots can be taken or restored until that is fixed; see --snapshots")
	}
}

// getSoon is get for callers that can wait while the archive cannot be reached.
func (a *archiver) getSoon(ctx context.Context) (Archive, error) {
	pause := time.NewTicker(a.o.ArchivePatience / archiveTries)
	defer pause.Stop()
	for began := time.Now(); ; {
		store, err := a.get(ctx)
		if err == nil || time.Since(began) >= a.o.ArchivePatience {
			return store, err
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// close releases the archive, if it was opened, once the lifetime has ended. It is
// not opened again.
func (a *archiver) close() error {
	if err := finish.Do(a.lifetime, archiveOpening, func(ctx finish.Context) error { return a.opening.Acquire(ctx, 1) }); err != nil {
		return err
	}
	defer a.opening.Release(1)
	if !a.open {
		return nil
	}
	a.open = false
	return a.o.Archive.Close()
}

// pin keeps a snapshot in the archive until the returned function is called, even if it is
// discarded meanwhile.
func (a *archiver) pin(id hangar.SnapshotID) (unpin func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pins[id]++
	return sync.OnceFunc(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.pins[id]--; a.pins[id] == 0 {
			delete(a.pins, id)
		}
	})
}

func (a *archiver) pinned(id hangar.SnapshotID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pins[id] > 0
}

// unneeded returns the snapshots among ids without a reader, present or imminent.
func (s *Store) unneeded(ids []hangar.SnapshotID) []hangar.SnapshotID {
	if len(ids) == 0 {
		return nil
	}
	filling := make(map[hangar.SnapshotID]bool)
	for _, v := range s.all() {
		if rec := v.rec.Load(); rec.Volume.State == hangar.VolumeCreating || rec.Volume.State == hangar.VolumeRestoring {
			filling[rec.Volume.Filling.Snapshot] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id hangar.SnapshotID) bool { return filling[id] || s.archiver.pinned(id) || s.drills.reads(id) })
}

func errNoArchive() error {
	return hangar.Errorf(hangar.CodeUnimplemented, hangar.ReasonUnsupported, "snapshots are not offered by this server")
}

// removeDiscarded removes from the archive the snapshots that were taken off the volume's list.
func (v *volume) removeDiscarded(ctx context.Context) error {
	ids := v.store.unneeded(v.rec.Load().Discarded)
	if len(ids) == 0 {
		return nil
	}
	store, err := v.store.archiver.get(ctx)
	if err != nil {
		return err
	}
	if err := store.Remove(ctx, ids...); err != nil && !errors.Is(err, archive.ErrNotFound) {
		return err
	}
	select {
	case v.store.archiver.collect <- struct{}{}:
	default:
	}
	_, err = v.record(func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		next.Discarded = slices.DeleteFunc(slices.Clone(next.Discarded), func(id hangar.SnapshotID) bool { return slices.Contains(ids, id) })
		return nil
	})
	return err
}

// keep frees the room of removed snapshots: once a day, soon after some were removed, and every
// hour for a day from then on.
func (a *archiver) keep(ctx context.Context) {
	next := time.NewTimer(collectDaily)
	defer next.Stop()
	var often time.Time // end of the hourly collections
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.collect:
			often = time.Now().Add(collectDaily)
			next.Reset(collectSoon)
			continue
		case <-next.C:
		}
		err := a.Collect(ctx)
		if err != nil && ctx.Err() == nil {
			a.o.Log.Warn("free the room of removed snapshots", keyError, err)
		}
		if err != nil || time.Now().Before(often) {
			next.Reset(collectOften)
		} else {
			next.Reset(collectDaily)
		}
	}
}

// Collect frees the room of removed snapshots.
func (a *archiver) Collect(ctx context.Context) error {
	store, err := a.get(ctx)
	if err != nil {
		return err
	}
	freed, err := store.Collect(ctx)
	if err == nil && freed > 0 {
		a.o.Log.Info("freed the room of removed snapshots", "bytes", freed)
	}
	return err
}
