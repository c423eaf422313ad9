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

// TestQueue: who comes first is served first.
func TestQueue(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		w.put(1, limits(1, 2), autostart(false))
		seats := []*balance.Seat{w.sit(), w.sit()}
		var waiting []*outcome
		for range 5 {
			waiting = append(waiting, w.ask(balance.Wish{}))
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
			seats[0].Leave()
			seats = append(seats[1:], waiting[n].got(t))
		}
		for _, s := range seats {
			s.Leave()
		}
		w.wantLoads(t, 0)
		w.sit().Leave()
	})
}

// TestQueueWakers: everything that makes a seat free lets in who waits, at once.
func TestQueueWakers(t *testing.T) {
	for _, tc := range []struct {
		name string
		free func(w *world, seat *balance.Seat)
	}{
		{"leave", func(_ *world, seat *balance.Seat) { seat.Leave() }},
		{"another machine", func(w *world, _ *balance.Seat) { w.put(2) }},
		{"uncordon", func(w *world, _ *balance.Seat) { w.put(3, cordoned(false)) }},
		{"checks pass", func(w *world, _ *balance.Seat) { w.put(4, checked(hangar.CheckPassing)) }},
		{"a higher limit", func(w *world, _ *balance.Seat) { w.put(1, version("2"), limits(1, 2)) }},
		{"another service", func(w *world, _ *balance.Seat) {
			w.put(5, version("2"), services(web(hangar.ServicePort{Port: 80, Handlers: []string{"http"}})))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			within(t, nil, func(t *testing.T, w *world) {
				w.put(1, limits(1, 1), autostart(false))
				w.put(3, cordoned(true), autostart(false))
				w.put(4, checked(hangar.CheckCritical), autostart(false))
				w.put(5, services())
				seat := w.sit()
				o := w.ask(balance.Wish{})
				if !o.waits() {
					t.Fatal("there was a seat")
				}
				start := time.Now()
				tc.free(w, seat)
				o.got(t).Leave()
				if took := time.Since(start); took > 0 {
					t.Errorf("it took %s", took)
				}
				seat.Leave()
			})
		})
	}
}

// TestQueueEnds: nobody waits for ever, nor in vain.
func TestQueueEnds(t *testing.T) {
	within(t, func(o *balance.Options) { o.QueueLimit = 2 }, func(t *testing.T, w *world) {
		w.put(1, limits(1, 1), autostart(false))
		seat := w.sit()
		_, err := w.wish(balance.Wish{NoWait: true})
		wantCode(t, err, hangar.EdgeNoCandidate, 503)
		first, second := w.ask(balance.Wish{}), w.ask(balance.Wish{Instance: id(1)})
		_, err = w.wish(balance.Wish{})
		wantCode(t, err, hangar.EdgeQueueFull, 503)
		<-first.done
		wantCode(t, first.err, hangar.EdgeNoCandidate, 503)
		<-second.done
		wantCode(t, second.err, hangar.EdgeNoCandidate, 503)
		if first.took != 5*time.Second {
			t.Errorf("it waited %s", first.took)
		}
		third := w.ask(balance.Wish{})
		w.put(1, state(hangar.MachineStopped))
		<-third.done
		wantCode(t, third.err, hangar.EdgeNoCandidate, 503)
		if third.took != 0 {
			t.Errorf("it waited %s in vain", third.took)
		}
		_, err = w.wish(balance.Wish{}) // nothing runs, and nothing may be started
		wantCode(t, err, hangar.EdgeNoCandidate, 503)
		w.put(1, state(hangar.MachineStarting))
		fourth := w.ask(balance.Wish{})
		time.Sleep(time.Second)
		w.put(1, state(hangar.MachineStarted))
		seat.Leave()
		fourth.got(t).Leave()
	})
}

// TestQueueTCP: what is not HTTP has another code.
func TestQueueTCP(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		w.put(1, services(web(hangar.ServicePort{Port: 80})), state(hangar.MachineStopped), autostart(false))
		_, err := w.wish(balance.Wish{})
		wantCode(t, err, hangar.EdgeNoneHealthy, 503)
	})
}

// TestQueueRefused: who was given a seat that the host refuses is still the first.
func TestQueueRefused(t *testing.T) {
	within(t, nil, func(t *testing.T, w *world) {
		w.put(1, limits(1, 1), autostart(false))
		seat := w.sit()
		first, second := w.ask(balance.Wish{}), w.ask(balance.Wish{})
		w.gate.set(id(1), func(g *guest) { g.in++ }) // by another edge
		seat.Leave()
		if !first.waits() || !second.waits() {
			t.Error("a request got in beside another")
		}
		time.Sleep(200 * time.Millisecond)
		w.gate.set(id(1), func(g *guest) { g.in-- })
		s := first.got(t)
		if first.took > 300*time.Millisecond || !second.waits() {
			t.Errorf("the first waited %s", first.took)
		}
		s.Leave()
		second.got(t).Leave()
	})
}
