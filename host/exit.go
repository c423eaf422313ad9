package host

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/journal"
)

// watch waits for the main process of a started Machine to end.
func (m *machine) watch(ctx context.Context, rec *journal.Record) error {
	m.clean = false
	exit, err := m.agent.o.Driver.Wait(ctx, rec.Handle)
	if ctx.Err() != nil {
		return errOvertaken
	}
	if errors.Is(err, driver.ErrNotFound) {
		exit, err = lost(m.agent.o.Now()), nil
	}
	if err != nil {
		return err
	}
	return m.exited(ctx, rec, exit)
}

// lost is the exit of a sandbox that is gone without a trace.
func lost(now time.Time) driver.Exit {
	return driver.Exit{Code: 137, Signal: int(sigKill), Unknown: true, At: now}
}

// exited records an exit that nobody asked for, and what follows it.
func (m *machine) exited(ctx context.Context, rec *journal.Record, exit driver.Exit) error {
	now := m.agent.o.Now()
	policy, maxRetries := rec.Machine.Config.RestartPolicy()
	restarts := slices.DeleteFunc(slices.Clone(rec.Restarts), func(t time.Time) bool { return now.Sub(t) > restartWindow })
	wanted := policy == hangar.RestartAlways || policy == hangar.RestartOnFailure && exit.Code != 0
	exhausted := policy == hangar.RestartOnFailure && len(restarts) >= maxRetries
	restarting := wanted && !exhausted && !rec.Machine.Config.AutoDestroy
	m.noteExit(exit)
	if wanted && exhausted {
		m.note("warn", "machine has reached its max restart count of %d", maxRetries)
	}
	return m.advance(ctx, rec, func(next *journal.Record) []hangar.Event {
		next.Stop = nil
		switch {
		case rec.Machine.Config.AutoDestroy:
			next.Machine.State = hangar.MachineDestroying
		case restarting:
			next.Machine.State = hangar.MachineRestarting
			next.Restarts = append(restarts, now)
			next.RestartAt = now.Add(restartPause(len(restarts)))
		default:
			next.Machine.State = hangar.MachineStopped
		}
		return []hangar.Event{exitEvent(exit, false, restarting, len(next.Restarts))}
	})
}

func (m *machine) noteExit(exit driver.Exit) {
	switch {
	case exit.Unknown:
		m.note("error", "Machine is gone and left no exit status")
	case exit.OOMKilled:
		m.note("error", "Main child was killed: out of memory")
	case exit.Signal != 0:
		m.note("info", "Main child exited with signal (with signal '%s', core dumped? false)", hangar.Signal(exit.Signal))
	default:
		m.note("info", "Main child exited normally with code: %d", exit.Code)
	}
}

// restartWindow is the time within which restarts are counted against MaxRetries.
const restartWindow = 5 * time.Minute

// restartPause is how long the n-th restart within the window waits.
func restartPause(n int) time.Duration {
	return min(time.Second<<min(n, 10), 10*time.Second)
}

// exitEvent tells of an exit, in both places where clients look.
func exitEvent(exit driver.Exit, requested, restarting bool, restarts int) hangar.Event {
	signal := -1
	if exit.Signal != 0 {
		signal = exit.Signal
	}
	e := &hangar.ExitEvent{
		ExitCode: exit.Code, GuestExitCode: exit.Code, GuestSignal: signal, Signal: signal, OOMKilled: exit.OOMKilled,
		RequestedStop: requested, Restarting: restarting, ExitedAt: exit.At.UTC(),
	}
	if exit.Unknown {
		e.Error = "the sandbox is gone and left no exit status"
	}
	return hangar.Event{
		Type: hangar.EventExit, Source: hangar.SourceAgent,
		Request: &hangar.EventRequest{ExitEvent: e, MonitorEvent: &hangar.MonitorEvent{ExitEvent: e}, RestartCount: restarts},
	}
}

// halt ends the sandbox as the record's Stop says and returns how it ended, or nil
// when there was none.
func (m *machine) halt(ctx context.Context, rec *journal.Record) (*driver.Exit, error) {
	if rec.Handle == nil {
		return nil, m.clear(ctx, rec)
	}
	stop := rec.Stop
	if stop == nil {
		stop = howToStop(rec.Machine.Config, hangar.MachineStop{})
	}
	d := m.agent.o.Driver
	err := d.Stop(ctx, rec.Handle, stop.Signal, stop.Grace)
	if err != nil && !errors.Is(err, driver.ErrNotFound) {
		return nil, err
	}
	exit, err := d.Wait(ctx, rec.Handle)
	if errors.Is(err, driver.ErrNotFound) {
		exit, err = lost(m.agent.o.Now()), nil
	}
	if err != nil {
		return nil, err
	}
	m.clean = false
	return &exit, m.clear(ctx, rec)
}

// end brings a Machine from stopping to stopped.
func (m *machine) end(ctx context.Context, rec *journal.Record) error {
	exit, err := m.halt(ctx, rec)
	if err != nil {
		return err
	}
	if exit != nil {
		m.noteExit(*exit)
	}
	return m.advance(ctx, rec, func(next *journal.Record) []hangar.Event {
		next.Machine.State = hangar.MachineStopped
		next.Stop, next.Handle = nil, nil
		dropSnapshot(next)
		if exit != nil {
			return []hangar.Event{exitEvent(*exit, true, false, 0)}
		}
		return []hangar.Event{{Type: hangar.EventStop, Source: hangar.SourceAgent}}
	})
}

// again brings a Machine from restarting to starting: after its pause, when the
// policy restarts it, or after its stop, when somebody asked.
func (m *machine) again(ctx context.Context, rec *journal.Record) error {
	if rec.Stop != nil {
		exit, err := m.halt(ctx, rec)
		if err != nil {
			return err
		}
		if exit != nil {
			m.noteExit(*exit)
		}
		return m.advance(ctx, rec, func(next *journal.Record) []hangar.Event {
			next.Stop, next.Handle = nil, nil
			if exit == nil {
				return nil
			}
			return []hangar.Event{exitEvent(*exit, true, true, 0)}
		})
	}
	if err := m.clear(ctx, rec); err != nil {
		return err
	}
	pause := time.NewTimer(rec.RestartAt.Sub(m.agent.o.Now()))
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
		return errOvertaken
	}
	return m.advance(ctx, rec, func(next *journal.Record) []hangar.Event {
		next.Machine.State = hangar.MachineStarting
		next.Handle, next.RestartAt = nil, time.Time{}
		return []hangar.Event{{Type: hangar.EventStart, Source: hangar.SourceAgent}}
	})
}

// tidy releases what a Machine at rest does not need.
func (m *machine) tidy(ctx context.Context, rec *journal.Record) error {
	if err := m.clear(ctx, rec); err != nil {
		return err
	}
	if !rec.Snapshot {
		if err := os.RemoveAll(m.path(snapshotDir)); err != nil {
			return err
		}
	}
	if err := m.agent.o.Logs.Release(m.id); err != nil {
		return err
	}
	if rec.Handle == nil {
		return nil
	}
	return m.advance(ctx, rec, func(next *journal.Record) []hangar.Event {
		next.Handle = nil
		return nil
	})
}
