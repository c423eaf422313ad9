package machines

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/pause"
)

// errRetaken ends the wait for a Machine whose volumes are back: the step begins again, with them.
var errRetaken = errors.New("its volumes were taken back")

// watch waits for the main process of a started Machine to end.
func (w *worker) watch(ctx context.Context, rec *journal.Record) error {
	w.clean = false
	if err := w.recoverHandle(ctx, rec); err != nil {
		return err
	}
	var retaking sync.WaitGroup
	again, begin := context.WithCancelCause(ctx)
	defer begin(nil)
	switch err := w.store.o.Volumes.Retake(ctx, w.id, &rec.Machine.Config); {
	case errors.As(err, new(VolumeLost)):
		return w.withoutVolume(ctx, rec, err)
	case ctx.Err() != nil:
		return errOvertaken
	case err != nil:
		w.store.o.Log.Error("take back the volumes of a machine", keyMachine, w.id, keyError, err)
		retaking.Go(func() {
			if retakeVolumes(again, w.store.o.Volumes, rec) {
				begin(errRetaken)
			}
		})
	}
	watched, end := w.store.o.Volumes.Watch(again, w.id, &rec.Machine.Config)
	if len(w.missing) > 0 {
		retaking.Go(func() { w.retakeMissing(watched) })
	}
	exit, err := w.store.o.Driver.Wait(watched, rec.Handle)
	lostVolume := context.Cause(watched)
	begin(nil)
	end()
	retaking.Wait()
	if ctx.Err() != nil {
		return errOvertaken
	}
	if errors.As(lostVolume, new(VolumeLost)) {
		return w.withoutVolume(ctx, rec, lostVolume)
	}
	if err != nil && errors.Is(lostVolume, errRetaken) {
		return nil
	}
	if errors.Is(err, driver.ErrNotFound) {
		exit, err = lostExit(w.store.o.Now()), nil
	}
	if err != nil {
		return err
	}
	if exit.Suspended && w.hasMemory() { // a suspend that was given up has completed after all
		return w.advance(rec, func(next *journal.Record) []hangar.Event {
			next.Machine.State = hangar.MachineSuspending
			return []hangar.Event{{Type: hangar.EventSuspend, Source: hangar.SourceAgent}}
		})
	}
	return w.exited(rec, exit)
}

// lostExit is the exit of a sandbox that left no exit status.
func lostExit(now time.Time) driver.Exit {
	return driver.Exit{Code: 137, Signal: int(sigKill), Unknown: true, At: now}
}

// exited records an unrequested exit and its consequences.
func (w *worker) exited(rec *journal.Record, exit driver.Exit) error {
	return w.exitedBecause(rec, exit, "")
}

// exitedBecause is exited with a reason; empty: the exit's own.
func (w *worker) exitedBecause(rec *journal.Record, exit driver.Exit, why string) error {
	r := nextRestart(rec, exit.Code != 0, w.store.o.Now())
	restarting := r.wanted && !rec.Machine.Config.AutoDestroy
	w.noteExit(exit)
	if r.exhausted {
		w.note("warn", "machine has reached its max restart count of %d", r.most)
	}
	return w.advance(rec, func(next *journal.Record) []hangar.Event {
		next.Stop = nil
		next.Ended = true
		if why == "" {
			next.Crashes++
		}
		switch {
		case rec.Machine.Config.AutoDestroy:
			next.Machine.State = hangar.MachineDestroying
		case restarting:
			next.Machine.State = hangar.MachineRestarting
			next.Restarts, next.RestartAt = r.times, r.at
		default:
			next.Machine.State = hangar.MachineStopped
		}
		e := exitEvent(exit, false, restarting, len(next.Restarts))
		if why != "" {
			e.Request.ExitEvent.Error = why
		}
		return []hangar.Event{e}
	})
}

// restart is the policy's decision about an unrequested exit.
type restart struct {
	wanted    bool
	exhausted bool        // the limit of restarts was reached
	most      int         // restarts within the window; 0: no limit
	times     []time.Time // of the restarts within the window, including a wanted one
	at        time.Time
}

// nextRestart decides about an exit at now; failed means a non-zero exit code.
func nextRestart(rec *journal.Record, failed bool, now time.Time) restart {
	policy, most := rec.Machine.Config.RestartPolicy()
	r := restart{most: most}
	r.times = slices.DeleteFunc(slices.Clone(rec.Restarts), func(t time.Time) bool { return now.Sub(t) > restartWindow })
	switch {
	case policy != hangar.RestartAlways && (policy != hangar.RestartOnFailure || !failed):
	case most > 0 && len(r.times) >= most:
		r.exhausted = true
	default:
		r.wanted, r.at = true, now.Add(restartPause(len(r.times)))
		r.times = append(r.times, now)
	}
	return r
}

func (w *worker) noteExit(exit driver.Exit) {
	switch {
	case exit.Unknown:
		w.note("error", "Machine is gone and left no exit status")
	case exit.OOMKilled:
		w.note("error", "Main child was killed: out of memory")
	case exit.Signal != 0:
		w.note("info", "Main child exited with signal (with signal '%s', core dumped? false)", hangar.Signal(exit.Signal))
	default:
		w.note("info", "Main child exited normally with code: %d", exit.Code)
	}
}

// restartWindow is the time within which restarts count against MaxRetries.
const restartWindow = 5 * time.Minute

// restartPause is the pause before a restart after n others within the window. The first restart is
// immediate, because requests wait for it.
func restartPause(n int) time.Duration {
	if n == 0 {
		return 0
	}
	return min(time.Second<<min(n-1, 10), maxRestartPause)
}

const maxRestartPause = 10 * time.Second

// untilRestart is the rest of the pause before a restart that is due at a time of an earlier clock,
// which may have been set back since.
func untilRestart(at, now time.Time) time.Duration { return min(at.Sub(now), maxRestartPause) }

// exitEvent is the event of an exit, with the data in both places where clients look.
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

// halt ends the sandbox according to the record's Stop, by force if necessary. It returns how it
// ended, or nil if there was none or its end was already recorded.
func (w *worker) halt(ctx context.Context, rec *journal.Record) (*driver.Exit, error) {
	if rec.Handle == nil || rec.Ended {
		return nil, w.clear(ctx, rec)
	}
	w.clean = false
	exit, err := w.stopSandbox(ctx, rec)
	switch {
	case ctx.Err() != nil:
		return nil, errOvertaken
	case errors.Is(err, driver.ErrNotFound):
		exit = lostExit(w.store.o.Now())
	case err != nil:
		w.store.o.Log.Error("ending a machine by force", keyMachine, w.id, keyState, rec.Machine.State, keyError, err)
		w.note("warn", "Machine cannot be stopped, ending it by force")
		exit = lostExit(w.store.o.Now())
	}
	return &exit, w.clear(ctx, rec)
}

func (w *worker) stopSandbox(ctx context.Context, rec *journal.Record) (driver.Exit, error) {
	stop := rec.Stop
	if stop == nil {
		stop = howToStop(rec.Machine.Config, hangar.MachineStop{})
	}
	ctx, cancel := context.WithTimeout(ctx, stop.Grace+w.store.limits.stop)
	defer cancel()
	if err := w.recoverHandle(ctx, rec); err != nil {
		return driver.Exit{}, err
	}
	d := w.store.o.Driver
	if err := d.Stop(ctx, rec.Handle, stop.Signal, stop.Grace); err != nil && !errors.Is(err, driver.ErrNotFound) {
		return driver.Exit{}, err
	}
	return d.Wait(ctx, rec.Handle)
}

// end brings a Machine from stopping to stopped.
func (w *worker) end(ctx context.Context, rec *journal.Record) error {
	exit, err := w.halt(ctx, rec)
	if err != nil {
		return err
	}
	if exit != nil {
		w.noteExit(*exit)
	}
	return w.advance(rec, func(next *journal.Record) []hangar.Event {
		next.Machine.State = hangar.MachineStopped
		next.Stop, next.Handle, next.Ended = nil, nil, false
		dropSnapshot(next)
		if exit != nil {
			return []hangar.Event{exitEvent(*exit, true, false, 0)}
		}
		return []hangar.Event{{Type: hangar.EventStop, Source: hangar.SourceAgent}}
	})
}

// again brings a Machine from restarting to starting: after the policy's pause, or after the stop
// of a requested restart.
func (w *worker) again(ctx context.Context, rec *journal.Record) error {
	if rec.Stop != nil {
		exit, err := w.halt(ctx, rec)
		if err != nil {
			return err
		}
		if exit != nil {
			w.noteExit(*exit)
		}
		return w.advance(rec, func(next *journal.Record) []hangar.Event {
			next.Stop, next.Handle, next.Ended = nil, nil, false
			if exit == nil {
				return nil
			}
			return []hangar.Event{exitEvent(*exit, true, true, 0)}
		})
	}
	if err := w.clear(ctx, rec); err != nil {
		return err
	}
	if pause.For(ctx, untilRestart(rec.RestartAt, w.store.o.Now())) != nil {
		return errOvertaken
	}
	return w.advance(rec, func(next *journal.Record) []hangar.Event {
		next.Machine.State = hangar.MachineStarting
		next.Handle, next.Ended, next.RestartAt = nil, false, time.Time{}
		return []hangar.Event{{Type: hangar.EventStart, Source: hangar.SourceAgent}}
	})
}

// releaseUnneeded releases what a Machine at rest does not need.
func (w *worker) releaseUnneeded(ctx context.Context, rec *journal.Record) error {
	if err := w.clearUnlessKept(ctx, rec); err != nil {
		return err
	}
	unused := []string{w.path(usedDir)}
	if !rec.Snapshot {
		unused = append(unused, w.path(snapshotDir))
	}
	for _, dir := range unused {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	w.store.o.Local.Close(w.id)
	if err := w.store.o.Logs.Release(w.id); err != nil {
		return err
	}
	w.released = true
	if rec.Handle == nil {
		return nil
	}
	return w.advance(rec, func(next *journal.Record) []hangar.Event {
		next.Handle, next.Ended = nil, false
		return nil
	})
}
