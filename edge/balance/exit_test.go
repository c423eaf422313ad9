package balance_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/balance"
)

// A program exits when its Machine is stopped, crashes or gets another version, not while the
// Machine is suspended or the program may still answer.
func TestOnExit(t *testing.T) {
	const (
		started    = hangar.MachineStarted
		starting   = hangar.MachineStarting
		stopping   = hangar.MachineStopping
		suspending = hangar.MachineSuspending
		suspended  = hangar.MachineSuspended
		restarting = hangar.MachineRestarting
	)
	lost := func(r *hangar.MachineRow) {
		r.Machine.State = started
		r.Losses++
	}
	for _, tt := range []struct {
		name  string
		ends  bool // with the last of steps
		steps []option
	}{
		{"suspended", false, []option{state(suspending), state(suspended), state(starting), state(started)}},
		{"not suspended after all", false, []option{state(suspending), state(started)}},
		{"suspended and then stopped", true, []option{state(suspended), state(hangar.MachineStopped)}},
		{"stopping", false, []option{state(stopping)}},
		{"stopped", true, []option{state(stopping), state(hangar.MachineStopped)}},
		{"crashed", true, []option{state(restarting), state(starting)}},
		{"crashed for good", true, []option{state(hangar.MachineStopped)}},
		{"another version", true, []option{state(hangar.MachineReplacing), state(starting)}},
		{"cordoned", false, []option{cordoned(true)}},
		{"destroyed", true, []option{state(hangar.MachineDestroying)}},
		{"crashed and started between two rows", true, []option{lost}},
		{"resumed without its memory", true, []option{state(suspended), state(starting), lost}},
		{"forgotten", true, []option{nil}},
	} {
		within(t, nil, func(t *testing.T, w *world) {
			w.put(1)
			permit, taken, late := w.acquire(), w.acquire(), w.acquire()
			ends := 0
			stop := permit.OnExit(func() { ends++ })
			taken.OnExit(func() { t.Errorf("%s: called although it was taken back", tt.name) })()
			for i, step := range tt.steps {
				if ends > 0 {
					t.Errorf("%s: ended before step %d", tt.name, i)
				}
				if step == nil {
					w.forget(1)
				} else {
					w.put(1, step)
				}
				synctest.Wait()
			}
			if (ends == 1) != tt.ends {
				t.Errorf("%s: %d ends", tt.name, ends)
			}
			// A call after the exit is called at once.
			afterwards := false
			stopLate := late.OnExit(func() { afterwards = true })
			synctest.Wait()
			if afterwards != tt.ends {
				t.Errorf("%s: told afterwards: %t", tt.name, afterwards)
			}
			stop()
			stopLate()
			for _, p := range []*balance.Permit{permit, taken, late} {
				p.Release()
			}
		})
	}
}

// A Machine that crashes in a loop, or whose image is being fetched, does not keep requests from
// waking another.
func TestPendingMachineHoldsUpNoOther(t *testing.T) {
	for _, s := range []hangar.MachineState{hangar.MachineRestarting, hangar.MachineCreated, hangar.MachineReplacing} {
		within(t, nil, func(t *testing.T, w *world) {
			w.put(1, state(s))
			w.put(2, state(hangar.MachineStopped))
			permit := w.acquire()
			if permit.Row.Machine.ID != id(2) {
				t.Errorf("%s: got machine %s", s, permit.Row.Machine.ID)
			}
			w.wantWoken(t, 2)
			permit.Release()
		})
		within(t, nil, func(t *testing.T, w *world) { // but alone it is waited for
			w.put(1, state(s))
			o := w.ask(balance.Selector{})
			if !o.waits() {
				t.Fatalf("%s: %v", s, o.err)
			}
			w.put(1, state(hangar.MachineStarting))
			w.put(1, state(hangar.MachineStarted))
			o.got(t).Release()
		})
	}
}

// A permit that was given by a stale row, which still shows the Machine at rest, does not belong to
// the program that the row says has ended.
func TestOnExitOfAWokenMachine(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		w.lag = time.Second
		w.put(1, state(hangar.MachineStopped))
		permit := w.acquire()
		ended := false
		defer permit.OnExit(func() { ended = true })()
		w.put(1, state(hangar.MachineStopped), cordoned(false))
		for _, s := range []hangar.MachineState{hangar.MachineStarting, hangar.MachineStarted} {
			w.put(1, state(s))
			synctest.Wait()
			if ended {
				t.Fatalf("ended when it was %s", s)
			}
		}
		w.put(1, state(hangar.MachineStopped))
		synctest.Wait()
		if !ended {
			t.Error("it has not ended")
		}
		permit.Release()
	})
}
