package host

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/journal"
)

// suspendDeadline bounds the writing of a Machine's memory.
const suspendDeadline = 5 * time.Minute

// suspend brings a Machine from suspending to suspended. When that fails and the
// Machine still runs, it is started as before.
func (m *machine) suspend(ctx context.Context, rec *journal.Record) error {
	snapshot := m.path(snapshotDir)
	_, err := os.Stat(snapshot)
	written := err == nil // before the daemon was killed: the directory appears complete or not at all
	if !written {
		bounded, cancel := context.WithTimeout(ctx, suspendDeadline)
		err = m.agent.o.Driver.(driver.Suspender).Suspend(bounded, rec.Handle, snapshot)
		cancel()
		if ctx.Err() != nil {
			return errOvertaken
		}
		if err != nil {
			return m.notSuspended(ctx, rec, err)
		}
	}
	return m.advance(ctx, rec, func(next *journal.Record) []hangar.Event {
		next.Machine.State = hangar.MachineSuspended
		next.Snapshot, next.Resuming = true, false
		return []hangar.Event{{Type: hangar.EventSuspend, Source: hangar.SourceAgent}}
	})
}

// notSuspended goes on after a suspend that failed: the Machine either still runs,
// or has ended as Wait tells.
func (m *machine) notSuspended(ctx context.Context, rec *journal.Record, cause error) error {
	m.note("error", "Failed to suspend: %s", userText(cause))
	if errors.Is(cause, driver.ErrNotFound) {
		exit, err := m.agent.o.Driver.Wait(ctx, rec.Handle)
		if errors.Is(err, driver.ErrNotFound) {
			exit, err = lost(m.agent.o.Now()), nil
		}
		if err != nil {
			return err
		}
		return m.exited(ctx, rec, exit)
	}
	return m.advance(ctx, rec, func(next *journal.Record) []hangar.Event {
		next.Machine.State = hangar.MachineStarted
		return []hangar.Event{failure(hangar.EventSuspend, cause)}
	})
}
