package machines

import (
	"context"
	"errors"
	"os"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/diskspace"
)

// suspend brings a Machine from suspending to suspended. When that fails and the
// Machine still runs, it is started as before.
func (m *machine) suspend(ctx context.Context, rec *journal.Record) error {
	snapshot := m.path(snapshotDir)
	if err := m.attached(ctx, rec); err != nil {
		return err
	}
	// A snapshot that is there was written before the daemon was killed: the
	// directory appears complete or not at all, and booted leaves none.
	if _, err := os.Stat(snapshot); err != nil {
		release, err := m.store.o.Space.Hold(suspending, snapshotSize(rec))
		if err != nil {
			return m.notSuspended(ctx, rec, err)
		}
		bounded, cancel := m.patiently(ctx, m.store.limits.suspend)
		// Whoever asked may be the Machine itself: its connections do not survive.
		m.store.o.Local.Settle(bounded, m.id)
		err = m.store.o.Driver.(driver.Suspender).Suspend(bounded, rec.Handle, snapshot)
		cancel()
		release()
		switch {
		case err == nil:
			m.kept = true
		case ctx.Err() != nil:
			return errOvertaken
		default:
			return m.notSuspended(ctx, rec, err)
		}
	}
	return m.suspended(ctx, rec)
}

// suspended records that memory is on the disk. So is what it knows of the volumes and of
// the writable layer by then: else it is of no use.
func (m *machine) suspended(ctx context.Context, rec *journal.Record) error {
	if err := errors.Join(m.store.o.Volumes.Unmount(ctx, m.id, &rec.Machine.Config), m.syncLayer()); err != nil {
		return err
	}
	m.noRoom.Store(false)
	return m.advance(rec, func(next *journal.Record) []hangar.Event {
		next.Machine.State = hangar.MachineSuspended
		next.Snapshot, next.Resuming = true, false
		next.Ended = true
		return []hangar.Event{{Type: hangar.EventSuspend, Source: hangar.SourceAgent}}
	})
}

// notSuspended goes on after a suspend that failed: the Machine either still runs,
// or has ended as Wait tells.
func (m *machine) notSuspended(ctx context.Context, rec *journal.Record, cause error) error {
	if errors.Is(cause, driver.ErrNotFound) {
		exit, err := m.store.o.Driver.Wait(ctx, rec.Handle)
		switch {
		case errors.Is(err, driver.ErrNotFound):
			exit = lostExit(m.store.o.Now())
		case err != nil:
			return err
		case exit.Suspended: // what a daemon before this one asked for has come true
			return m.suspended(ctx, rec)
		}
		m.note("error", "Failed to suspend: %s", hangar.MessageOf(cause))
		return m.exited(rec, exit)
	}
	cause = diskspace.Explain(cause)
	m.noRoom.Store(hangar.ReasonOf(cause) == hangar.ReasonDiskFull)
	m.note("error", "Failed to suspend: %s", hangar.MessageOf(cause))
	return m.advance(rec, func(next *journal.Record) []hangar.Event {
		next.Machine.State = hangar.MachineStarted
		return []hangar.Event{failure(hangar.EventSuspend, cause)}
	})
}
