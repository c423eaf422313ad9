package balance_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/balance"
)

// TestQueue: first come, first served.
func TestQueue(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		w.put(1, limits(1, 2), autostart(false))
		permits := []*balance.Permit{w.acquire(), w.acquire()}
		var waiting []*outcome
		for range 5 {
			waiting = append(waiting, w.ask(balance.Selector{}))
		}
		waiting[1].cancel() // it leaves the queue
		synctest.Wait()
		if err := waiting[1].err; !errors.Is(err, context.Canceled) {
			t.Errorf("who gave up got %v", err)
		}
		for _, n := range []int{0, 2, 3, 4} {
			for i, o := range waiting[n:] {
				if i > 0 || n > 0 {
					break
				}
				if !o.waits() {
					t.Error("a request got in before its turn")
				}
			}
			permits[0].Release()
			permits = append(permits[1:], waiting[n].got(t))
		}
		for _, p := range permits {
			p.Release()
		}
		w.wantInFlight(t, 0)
		w.acquire().Release()
	})
}

// TestQueueGrants: everything that makes a candidate available admits a waiter at once.
func TestQueueGrants(t *testing.T) {
	for _, tc := range []struct {
		name string
		free func(w *world, permit *balance.Permit)
	}{
		{"release", func(_ *world, permit *balance.Permit) { permit.Release() }},
		{"another machine", func(w *world, _ *balance.Permit) { w.put(2) }},
		{"uncordon", func(w *world, _ *balance.Permit) { w.put(3, cordoned(false)) }},
		{"checks pass", func(w *world, _ *balance.Permit) { w.put(4, checked(hangar.CheckPassing)) }},
		{"a higher limit", func(w *world, _ *balance.Permit) { w.put(1, version("2"), limits(1, 2)) }},
		{"another service", func(w *world, _ *balance.Permit) {
			w.put(5, version("2"), services(web(hangar.ServicePort{Port: 80, Handlers: []string{"http"}})))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			within(t, nil, func(t *testing.T, w *world) {
				w.put(1, limits(1, 1), autostart(false))
				w.put(3, cordoned(true), autostart(false))
				w.put(4, checked(hangar.CheckCritical), autostart(false))
				w.put(5, services())
				permit := w.acquire()
				o := w.ask(balance.Selector{})
				if !o.waits() {
					t.Fatal("a candidate was available")
				}
				start := time.Now()
				tc.free(w, permit)
				o.got(t).Release()
				if took := time.Since(start); took > 0 {
					t.Errorf("it took %s", took)
				}
				permit.Release()
			})
		})
	}
}

// TestQueueEnds: every wait ends, and one without a prospect at once.
func TestQueueEnds(t *testing.T) {
	within(t, func(o *balance.Options) { o.QueueLimit = 2 }, func(t *testing.T, w *world) {
		w.put(1, limits(1, 1), autostart(false))
		permit := w.acquire()
		_, err := w.tryAcquire(balance.Selector{NoWait: true})
		wantCode(t, err, hangar.EdgeNoCandidate, 503)
		first, second := w.ask(balance.Selector{}), w.ask(balance.Selector{Instance: id(1)})
		_, err = w.tryAcquire(balance.Selector{})
		wantCode(t, err, hangar.EdgeQueueFull, 503)
		<-first.done
		wantCode(t, first.err, hangar.EdgeNoCandidate, 503)
		<-second.done
		wantCode(t, second.err, hangar.EdgeNoCandidate, 503)
		if first.took != 5*time.Second {
			t.Errorf("it waited %s", first.took)
		}
		third := w.ask(balance.Selector{})
		w.put(1, state(hangar.MachineStopped))
		<-third.done
		wantCode(t, third.err, hangar.EdgeNoCandidate, 503)
		if third.took != 0 {
			t.Errorf("it waited %s without a prospect", third.took)
		}
		_, err = w.tryAcquire(balance.Selector{}) // nothing runs, and nothing may be started
		wantCode(t, err, hangar.EdgeNoCandidate, 503)
		w.put(1, state(hangar.MachineStarting))
		fourth := w.ask(balance.Selector{})
		time.Sleep(time.Second)
		w.put(1, state(hangar.MachineStarted))
		permit.Release()
		fourth.got(t).Release()
	})
}

// TestQueueTCP: a connection without HTTP gets another code.
func TestQueueTCP(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		w.put(1, services(web(hangar.ServicePort{Port: 80})), state(hangar.MachineStopped), autostart(false))
		_, err := w.tryAcquire(balance.Selector{})
		wantCode(t, err, hangar.EdgeNoneHealthy, 503)
	})
}

// TestQueueRefused: a waiter whose candidate the host refuses keeps its place.
func TestQueueRefused(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		w.put(1, limits(1, 1), autostart(false))
		permit := w.acquire()
		first, second := w.ask(balance.Selector{}), w.ask(balance.Selector{})
		w.gate.set(id(1), func(g *guest) { g.in++ }) // by another edge
		permit.Release()
		if !first.waits() || !second.waits() {
			t.Error("a request got in beside another")
		}
		time.Sleep(200 * time.Millisecond)
		w.gate.set(id(1), func(g *guest) { g.in-- })
		p := first.got(t)
		if first.took > 300*time.Millisecond || !second.waits() {
			t.Errorf("the first waited %s", first.took)
		}
		p.Release()
		second.got(t).Release()
	})
}
