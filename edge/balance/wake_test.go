package balance_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/balance"
)

const (
	stopped   = hangar.MachineStopped
	suspended = hangar.MachineSuspended
)

func (w *world) slow(n int, delay time.Duration, err error) {
	w.gate.set(id(n), func(g *guest) { g.wakeDelay, g.wakeErr = delay, err })
}

// TestWakeFromZero: requests are held and enter together when the Machine is up, also if
// rows say so later.
func TestWakeFromZero(t *testing.T) {
	for _, lag := range []time.Duration{0, time.Second} {
		within(t, nil, func(t *testing.T, w *world) {
			w.lag = lag
			w.put(1, state(stopped), limits(20, 50))
			w.put(2, state(suspended), limits(20, 50))
			w.put(3, state(suspended), limits(20, 50), region("fra"))
			w.slow(2, 300*time.Millisecond, nil)
			var held []*outcome
			for range 50 {
				held = append(held, w.ask(balance.Selector{}))
			}
			for _, o := range held {
				permit := o.got(t)
				if o.took != 300*time.Millisecond || permit.Woken != o.took || permit.Row.Machine.ID != id(2) {
					t.Errorf("machine %s after %s, of which %s waking", permit.Row.Machine.ID, o.took, permit.Woken)
				}
				defer permit.Release()
			}
			w.wantWoken(t, 2)
			if permit := w.acquire(); permit.Woken != 0 {
				t.Error("who did not wait says it did")
			}
		})
	}
}

// TestWakesAreMeasured: how long a wake took, how it ended, and how many waiters there are.
// Requests that do not wait are not measured.
func TestWakesAreMeasured(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(w.b)
		measured := func() map[string]float64 {
			t.Helper()
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			all := map[string]float64{}
			for _, f := range families {
				for _, m := range f.GetMetric() {
					key := strings.TrimPrefix(f.GetName(), "hangar_edge_")
					for _, l := range m.GetLabel() {
						key += " " + l.GetValue()
					}
					all[key] = m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
					all[key+" sum"] = m.GetHistogram().GetSampleSum()
				}
			}
			return all
		}
		expect := func(want map[string]float64) {
			t.Helper()
			got := measured()
			for key, value := range want {
				if n, ok := got[key]; n != value || !ok {
					t.Errorf("%s is %v, %t, want %v", key, n, ok, value)
				}
			}
		}
		expect(map[string]float64{"wake_duration_seconds ok": 0, "wake_duration_seconds failed": 0, "wait_duration_seconds": 0, "waiting_requests": 0})
		w.put(1, state(stopped), limits(20, 50))
		w.slow(1, time.Second, nil)
		held := []*outcome{w.ask(balance.Selector{}), w.ask(balance.Selector{})}
		synctest.Wait()
		expect(map[string]float64{"waiting_requests": 2})
		for _, o := range held {
			o.got(t).Release()
		}
		w.acquire().Release()
		expect(map[string]float64{
			"wake_duration_seconds ok": 1, "wake_duration_seconds ok sum": 1, "wake_duration_seconds failed": 0,
			"wait_duration_seconds": 2, "wait_duration_seconds sum": 2, "waiting_requests": 0,
		})
	})
}

// TestWakeAsMany: as many are woken as the waiters need by the hard limits, and no more.
func TestWakeAsMany(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		for n := 1; n <= 5; n++ {
			w.put(n, state(stopped), limits(2, 4))
			w.slow(n, time.Second, nil)
		}
		var held []*outcome
		for range 9 {
			held = append(held, w.ask(balance.Selector{}))
		}
		synctest.Wait()
		if n := len(w.gate.woken()); n != 3 {
			t.Errorf("%d are woken, want 3", n)
		}
		for _, o := range held {
			defer o.got(t).Release()
		}
	})
}

// TestWakeCodes: the errors of failed wakes, after another Machine was tried.
func TestWakeCodes(t *testing.T) {
	for _, tc := range []struct {
		name string
		err  error
		code hangar.EdgeCode
	}{
		{"no room", hangar.Errorf(hangar.CodeConflict, hangar.ReasonInsufficientCapacity, "full"), hangar.EdgeWake},
		{"state", hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "no"), hangar.EdgeNotStartable},
		{"start failed", hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonStartFailed, "no"), hangar.EdgeStateChange},
		{"timeout", hangar.Errorf(hangar.CodeTimeout, "", "late"), hangar.EdgeWakeTimeout},
		{"away", hangar.Errorf(hangar.CodeUnavailable, "", "away"), hangar.EdgeHostUnreachable},
		{"odd", hangar.Errorf(hangar.CodeInternal, "", "odd"), hangar.EdgeWakeInternal},
	} {
		t.Run(tc.name, func(t *testing.T) {
			within(t, nil, func(t *testing.T, w *world) {
				w.put(1, state(stopped))
				w.put(2, state(stopped))
				w.slow(1, 0, tc.err)
				w.slow(2, 0, tc.err)
				_, err := w.tryAcquire(balance.Selector{})
				wantCode(t, err, tc.code, 503)
				w.wantWoken(t, 1, 2)
				_, err = w.tryAcquire(balance.Selector{Instance: id(1)}) // not tried again at once
				wantCode(t, err, tc.code, 503)
				w.wantWoken(t, 1, 2)
				w.slow(1, 0, nil)
				time.Sleep(1100 * time.Millisecond)
				w.acquire().Release()
			})
		})
	}
}

// TestWakeAnother: if one cannot be started, another is.
func TestWakeAnother(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		w.put(1, state(stopped), region("fra"))
		w.put(2, state(suspended))
		w.slow(2, 0, hangar.Errorf(hangar.CodeConflict, hangar.ReasonInsufficientCapacity, "full"))
		if permit := w.acquire(); permit.Row.Machine.ID != id(1) {
			t.Errorf("got machine %s", permit.Row.Machine.ID)
		}
		w.wantWoken(t, 1, 2)
	})
}

// TestWakeTimeout: a request waits at most WakeWait for a start that hangs, and the start
// continues.
func TestWakeTimeout(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		w.put(1, state(stopped))
		w.slow(1, 15*time.Second, nil)
		first := w.ask(balance.Selector{})
		time.Sleep(7 * time.Second)
		second := w.ask(balance.Selector{})
		<-first.done
		if wantCode(t, first.err, hangar.EdgeWakeTimeout, 503); first.took != 10*time.Second {
			t.Errorf("it waited %s", first.took)
		}
		second.got(t).Release()
		w.wantWoken(t, 1)
	})
}

// TestWakeGivenUp: a start continues after its waiters have given up.
func TestWakeGivenUp(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		w.put(1, state(stopped))
		w.slow(1, time.Second, nil)
		o := w.ask(balance.Selector{})
		o.cancel()
		<-o.done
		time.Sleep(2 * time.Second)
		if permit := w.acquire(); permit.Woken != 0 {
			t.Error("it was woken again")
		}
		w.wantWoken(t, 1)
	})
}

// TestWakeForLoad: with running Machines, one more is started when all are at their soft limits,
// no request waits for it, and no other is started for a while.
func TestWakeForLoad(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		w.put(1, limits(2, 100))
		w.put(2, state(stopped), limits(2, 100), region("fra")) // soft limits send no request far away
		w.put(3, state(stopped), limits(2, 100))
		w.put(4, state(stopped), limits(2, 100))
		w.put(5, state(suspended), limits(2, 100))
		for n := 3; n <= 5; n++ {
			w.slow(n, 500*time.Millisecond, nil)
		}
		w.acquire()
		w.acquire()
		w.wantWoken(t)
		for range 10 {
			if permit := w.acquire(); permit.Row.Machine.ID != id(1) {
				t.Errorf("got machine %s", permit.Row.Machine.ID)
			}
		}
		w.wantWoken(t, 5)
		time.Sleep(time.Second)
		for range 10 {
			w.acquire()
		}
		w.wantInFlight(t, 12, 0, 0, 0, 10)
		w.wantWoken(t, 5)
		time.Sleep(balance.StartGrace)
		w.acquire()
		synctest.Wait()
		if n := len(w.gate.woken()); n != 2 {
			t.Errorf("%d were woken, want 2", n)
		}
	})
}

// TestWakeAtHardLimits: the grace period after a start does not hold at hard limits.
func TestWakeAtHardLimits(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		for n := 1; n <= 3; n++ {
			w.put(n, state(stopped), limits(1, 1))
			w.slow(n, 100*time.Millisecond, nil)
		}
		for range 3 {
			if permit := w.acquire(); permit.Woken != 100*time.Millisecond {
				t.Errorf("waited %s", permit.Woken)
			}
		}
		w.wantWoken(t, 1, 2, 3)
	})
}

// TestWakeUnready: Machines whose checks fail are passed over; one that was just started
// is given time to pass them.
func TestWakeUnready(t *testing.T) {
	within(t, func(o *balance.Options) { o.WakeWait = 30 * time.Second }, func(t *testing.T, w *world) {
		w.put(1, checked(hangar.CheckCritical))
		w.put(2, state(stopped), checked(hangar.CheckWarning))
		w.put(3, state(stopped), checked(hangar.CheckWarning))
		o := w.ask(balance.Selector{})
		synctest.Wait()
		if n := len(w.gate.woken()); n != 1 {
			t.Fatalf("%d are woken", n)
		}
		up := w.gate.woken()[0]
		time.Sleep(2 * time.Second)
		if !o.waits() || len(w.gate.woken()) != 1 {
			t.Error("it did not wait for the checks")
		}
		n := 2
		if up == id(3) {
			n = 3
		}
		w.put(n, state(hangar.MachineStarted), checked(hangar.CheckPassing))
		if permit := o.got(t); permit.Row.Machine.ID != up || permit.Woken != 2*time.Second {
			t.Errorf("got machine %s, woken %s", permit.Row.Machine.ID, permit.Woken)
		}
	})
}

// TestWakeAfterStopping: a request that comes while the last Machine is being stopped has it
// started again.
func TestWakeAfterStopping(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		w.put(1)
		w.acquire().Release()
		w.gate.set(id(1), func(g *guest) { g.draining = true }) // the host has decided, rows say nothing yet
		o := w.ask(balance.Selector{})
		time.Sleep(10 * time.Millisecond)
		w.put(1, state(hangar.MachineSuspending))
		time.Sleep(100 * time.Millisecond)
		if !o.waits() {
			t.Fatal(o.err)
		}
		w.put(1, state(suspended))
		o.got(t)
		w.wantWoken(t, 1)
		if o.took != 110*time.Millisecond {
			t.Errorf("it took %s", o.took)
		}
	})
}

// TestWakeNot: Machines that a request may not start.
func TestWakeNot(t *testing.T) {
	for name, options := range map[string][]option{
		"autostart is off": {state(stopped), autostart(false)},
		"cordoned":         {state(stopped), cordoned(true)},
		"failed":           {state(hangar.MachineFailed)},
		"a standby":        {state(stopped), func(r *hangar.MachineRow) { r.Machine.Config.Standbys = []hangar.MachineID{id(9)} }},
	} {
		within(t, nil, func(t *testing.T, w *world) {
			w.put(1, options...)
			_, err := w.tryAcquire(balance.Selector{})
			if wantCode(t, err, hangar.EdgeNoCandidate, 503); t.Failed() {
				t.Error(name)
			}
			w.wantWoken(t)
		})
	}
}

// TestWakeOnly: without a word on autostart, a Machine is started by a request while it is the
// only one of its App.
func TestWakeOnly(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		w.put(1, state(stopped), autostartAbsent)
		w.acquire().Release()
		w.wantWoken(t, 1)
		w.put(1, state(suspended))
		w.put(2, state(stopped), services())
		_, err := w.tryAcquire(balance.Selector{})
		wantCode(t, err, hangar.EdgeNoCandidate, 503)
		w.forget(2)
		w.acquire().Release()
		w.wantWoken(t, 1, 1)
		w.put(1, state(hangar.MachineStopping))
		o := w.ask(balance.Selector{})
		w.put(1, state(stopped))
		o.got(t).Release()
		w.wantWoken(t, 1, 1, 1)
	})
	within(t, nil, func(t *testing.T, w *world) {
		disabled := true
		w.put(1, state(stopped), autostartAbsent, func(r *hangar.MachineRow) { r.Machine.Config.DisableMachineAutostart = &disabled })
		_, err := w.tryAcquire(balance.Selector{})
		wantCode(t, err, hangar.EdgeNoCandidate, 503)
		w.wantWoken(t)
	})
}

// TestWakeEnded: nothing is started when the edge ends.
func TestWakeEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		stop := w.run(t)
		w.put(1, state(stopped))
		w.put(2, state(stopped), region("fra"))
		w.slow(1, time.Hour, nil)
		o := w.ask(balance.Selector{})
		stop()
		<-o.done // the start continues
		wantCode(t, o.err, hangar.EdgeWakeTimeout, 503)
		_, err := w.tryAcquire(balance.Selector{Instance: id(2)})
		wantCode(t, err, hangar.EdgeStartCancelled, 503)
	})
}

// TestStartedByOthers: a Machine gets requests as soon as its port takes connections.
func TestStartedByOthers(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		w.put(1, state(hangar.MachineStarting), autostart(false))
		o := w.ask(balance.Selector{})
		w.gate.set(id(1), func(g *guest) {
			g.dialErr = hangar.Errorf(hangar.CodeUnavailable, hangar.ReasonConnectionRefused, "refused")
		})
		w.put(1, state(hangar.MachineStarted))
		time.Sleep(time.Second)
		if !o.waits() {
			t.Error("a request was sent to a port that takes none")
		}
		w.gate.set(id(1), func(g *guest) { g.dialErr = nil })
		o.got(t)
		if o.took > 1500*time.Millisecond {
			t.Errorf("it took %s", o.took)
		}
	})
}

// TestStoppedBeforeItServed: no request waits for the port of a Machine that was stopped again
// before it took connections; it is woken.
func TestStoppedBeforeItServed(t *testing.T) {
	for name, dialErr := range map[string]error{
		"refuses": hangar.Errorf(hangar.CodeUnavailable, hangar.ReasonConnectionRefused, "refused"),
		"silent":  hangar.Errorf(hangar.CodeTimeout, "", "no answer"),
	} {
		t.Run(name, func(t *testing.T) {
			within(t, nil, func(t *testing.T, w *world) {
				w.put(1, state(hangar.MachineStarting))
				o := w.ask(balance.Selector{})
				w.gate.set(id(1), func(g *guest) { g.dialErr = dialErr })
				w.put(1, state(hangar.MachineStarted))
				time.Sleep(time.Second)
				w.put(1, state(hangar.MachineStopping))
				w.put(1, state(stopped))
				o.got(t)
				if w.wantWoken(t, 1); o.took > 1500*time.Millisecond {
					t.Errorf("it took %s", o.took)
				}
			})
		})
	}
}

// TestWakeOldRow: when rows are not published, the host is asked.
func TestWakeOldRow(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		w.lag = time.Hour
		w.put(1)
		w.acquire().Release()
		w.gate.set(id(1), func(g *guest) { g.state = stopped })
		permit := w.acquire()
		if w.wantWoken(t, 1); permit.Woken == 0 || permit.Woken > time.Second {
			t.Errorf("woken after %s", permit.Woken)
		}
		permit.Release()
		w.gate.set(id(1), func(g *guest) { g.cordoned = true })
		_, err := w.tryAcquire(balance.Selector{})
		wantCode(t, err, hangar.EdgeNoCandidate, 503)
		w.wantWoken(t, 1)
	})
}

// TestPreferWakes: if a Machine has to be woken, it is the preferred one.
func TestPreferWakes(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		for n := 1; n <= 4; n++ {
			w.put(n, state(stopped))
		}
		permit, err := w.tryAcquire(balance.Selector{Prefer: id(2)})
		if err != nil || permit.PreferredMissed || permit.Row.Machine.ID != id(2) {
			t.Errorf("got %+v, %v", permit, err)
		}
		w.wantWoken(t, 2)
	})
}
