package machines

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/pause"
)

// worker carries out the record of a Machine, step by step. It has a goroutine while there is
// something to do or to watch; only that goroutine uses the fields below.
type worker struct {
	*machine

	clean      bool // the host has nothing of an earlier sandbox
	kept       bool // the host has at most what the driver keeps for a resume
	known      bool // the driver has recovered the record's handle
	unrecorded bool // a sandbox may run whose handle was not recorded
	untouched  bool // the last resume has not begun, so that the memory can be resumed
	released   bool // a Machine at rest holds no unneeded resources

	missing []func() error // take back what reattach could not
}

// advance commits a step's result, unless the Machine has changed since the step began.
func (w *worker) advance(from *journal.Record, alter change) error {
	_, err := w.proceed(from, alter)
	return err
}

// proceed is advance for a step that continues with the new record.
func (w *worker) proceed(from *journal.Record, alter change) (*journal.Record, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.began != from {
		return from, errOvertaken
	}
	next, err := w.commit(alter)
	if err != nil {
		return from, err
	}
	return next, nil
}

// patiently returns a context for an effect that should finish, because an interruption would lose
// something. It ends with another request to the Machine, or after limit, and outlives the end of
// the daemon for a while.
func (w *worker) patiently(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	patient, cancel := context.WithTimeout(w.store.effects, limit)
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(context.Cause(ctx), errOvertaken) {
			cancel()
		}
	})
	return patient, func() { stop(); cancel() }
}

// Pauses between attempts of a failing step.
const (
	minStepPause = 200 * time.Millisecond
	maxStepPause = 10 * time.Second
)

// work runs steps until none is left.
func (w *worker) work() {
	delay := minStepPause
	for {
		rec, ctx := w.begin()
		if rec == nil {
			return
		}
		err := w.step(ctx, rec)
		switch {
		case err == nil, errors.Is(err, errOvertaken):
			delay = minStepPause
			continue
		case ctx.Err() != nil:
			continue
		}
		w.store.o.Log.Error("machine step", keyMachine, w.id, keyState, rec.Machine.State, keyError, err)
		w.mu.Lock()
		w.dirty = true
		w.mu.Unlock()
		_ = pause.For(ctx, delay)
		delay = min(2*delay, maxStepPause)
	}
}

// begin returns the record to work on and a context that ends when the record is superseded, or nil
// when the worker may end.
func (w *worker) begin() (*journal.Record, context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.interrupt != nil {
		w.interrupt(nil)
		w.interrupt = nil
	}
	rec := w.rec.Load()
	if w.store.work.Context.Err() != nil || !w.dirty && w.idle(rec) {
		w.working = false
		return nil, nil
	}
	w.dirty = false
	w.began = rec
	ctx, cancel := context.WithCancelCause(w.store.work.Context)
	w.interrupt = cancel
	return rec, ctx
}

// idle reports whether the record requires no more work.
func (w *worker) idle(rec *journal.Record) bool {
	switch rec.Machine.State {
	case hangar.MachineStopped, hangar.MachineSuspended, hangar.MachineFailed:
		return rec.Handle == nil && w.released
	case hangar.MachineDestroyed:
		return true
	default:
		return false
	}
}

// step does the work of the record's state. It returns when the result is committed, or when ctx
// ends.
func (w *worker) step(ctx context.Context, rec *journal.Record) error {
	switch rec.Machine.State {
	case hangar.MachineCreated:
		return w.prepare(ctx, rec)
	case hangar.MachineStarting:
		return w.boot(ctx, rec)
	case hangar.MachineStarted:
		return w.watch(ctx, rec)
	case hangar.MachineStopping:
		return w.end(ctx, rec)
	case hangar.MachineSuspending:
		return w.suspend(ctx, rec)
	case hangar.MachineRestarting:
		return w.again(ctx, rec)
	case hangar.MachineReplacing:
		return w.replace(ctx, rec)
	case hangar.MachineDestroying:
		return w.destroy(ctx, rec)
	case hangar.MachineStopped, hangar.MachineSuspended, hangar.MachineFailed:
		return w.releaseUnneeded(ctx, rec)
	case hangar.MachineDestroyed:
		return nil
	default:
		return fmt.Errorf("machine %s is in unknown state %q", w.id, rec.Machine.State)
	}
}
