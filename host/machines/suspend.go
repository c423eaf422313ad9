package machines

import (
	"context"
	"errors"
	"os"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/host/rootfs"
	"github.com/hangar-platform/hangar/internal/diskspace"
)

// suspend brings a Machine from suspending to suspended. If that fails and the Machine still runs,
// it returns to started.
func (w *worker) suspend(ctx context.Context, rec *journal.Record) error {
	if err := w.recoverHandle(ctx, rec); err != nil {
		return err
	}
	// An existing snapshot was completed before the daemon was killed: the directory appears
	// complete or not at all, and booted removes it.
	if !w.hasMemory() {
		release, err := w.store.o.Space.Hold(diskspace.SuspendMachine, snapshotSize(rec))
		if err != nil {
			return w.notSuspended(ctx, rec, err)
		}
		bounded, cancel := w.patiently(ctx, w.store.limits.suspend)
		// The caller may be the Machine itself, whose connections do not survive the suspend (ADR
		// 16).
		w.store.o.Local.Settle(bounded, w.id)
		err = w.store.o.Driver.(driver.Suspender).Suspend(bounded, rec.Handle, w.path(snapshotDir))
		cancel()
		release()
		switch {
		case err == nil:
			w.kept = true
		case ctx.Err() != nil:
			return errOvertaken
		default:
			return w.notSuspended(ctx, rec, err)
		}
	}
	return w.suspended(ctx, rec)
}

// hasMemory reports whether a snapshot is on disk.
func (w *worker) hasMemory() bool {
	_, err := os.Stat(w.path(snapshotDir))
	return err == nil
}

// suspended records that the memory is on disk, after it has synced the volumes and the writable
// layer, without which the memory could not be resumed: if that lost writes, the memory is dropped.
func (w *worker) suspended(ctx context.Context, rec *journal.Record) error {
	if err := w.store.o.Volumes.Unmount(ctx, w.id, &rec.Machine.Config); err != nil {
		return err
	}
	lost := w.store.o.Layers.Sync(w.id)
	if err := w.onDisk(lost); err != nil {
		return err
	}
	if lost != nil { // before the record: a second sync would not report the loss again
		if err := os.RemoveAll(w.path(snapshotDir)); err != nil {
			return err
		}
	}
	w.noRoom.Store(false)
	return w.advance(rec, func(next *journal.Record) []hangar.Event {
		next.Machine.State = hangar.MachineSuspended
		next.Snapshot, next.Resuming = true, false
		if lost != nil {
			forgetMemory(next, rootfs.ErrLost.Error())
		}
		next.Ended = true
		return []hangar.Event{{Type: hangar.EventSuspend, Source: hangar.SourceAgent}}
	})
}

// notSuspended handles a failed suspend: the Machine either still runs, or has ended, which Wait
// reports.
func (w *worker) notSuspended(ctx context.Context, rec *journal.Record, cause error) error {
	if errors.Is(cause, driver.ErrNotFound) {
		exit, err := w.store.o.Driver.Wait(ctx, rec.Handle)
		switch {
		case errors.Is(err, driver.ErrNotFound):
			exit = lostExit(w.store.o.Now())
		case err != nil:
			return err
		case exit.Suspended: // a suspend that an earlier daemon requested has completed
			return w.suspended(ctx, rec)
		}
		w.note("error", "Failed to suspend: %s", hangar.MessageOf(cause))
		return w.exited(rec, exit)
	}
	cause = diskspace.Explain(cause)
	w.noRoom.Store(hangar.ReasonOf(cause) == hangar.ReasonDiskFull)
	w.note("error", "Failed to suspend: %s", hangar.MessageOf(cause))
	return w.advance(rec, func(next *journal.Record) []hangar.Event {
		next.Machine.State = hangar.MachineStarted
		return []hangar.Event{failure(hangar.EventSuspend, cause)}
	})
}
