package balance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar"
)

// For how long a Machine that let nobody in gets no requests, unless something changes.
const (
	refusalPause = 250 * time.Millisecond // it is not started, or about to be stopped
	limitPause   = 50 * time.Millisecond  // it is at its hard limit
)

// Bounds of the time for which a Machine is avoided whose connections failed. It doubles with
// each failure in a row.
const (
	MinAvoidance = time.Second
	MaxAvoidance = 10 * time.Second
)

// maxRefusals is by how many Machines a request is refused before it is given up.
const maxRefusals = 40

// Seat is the right to send one request, or open one connection, to a Machine: it counts
// until Leave. What it says never changes.
type Seat struct {
	Row     *hangar.MachineRow
	Service *hangar.Service
	Options *hangar.ServicePort // the Machine's own
	Port    int                 // internal
	// Woken is for how long the request waited for the Machine to be started; 0: it was
	// running.
	Woken           time.Duration
	PreferredMissed bool // Wish.Prefer could not be had

	app    *app
	slot   *slot
	gate   hangar.MachineGate
	leave  func()
	epoch  int    // the slot's, when the seat was taken
	shared bool   // others were in the Machine when it was taken
	taken  uint64 // the Machine's, then
	left   atomic.Bool
	failed bool // guarded by app.mu
}

// Seat finds a Machine for a request, and enters it. If it has to, it wakes one, or waits
// for one. Every error is a *hangar.EdgeError; if ctx ended, that is its cause.
func (b *Balancer) Seat(ctx context.Context, ep *Endpoint, w Wish) (*Seat, error) {
	var wt *waiter
	for range maxRefusals {
		a := b.current(ep)
		a.mu.Lock()
		now := b.now()
		var s *slot
		g := ep.segment(a.top.Load())
		if g != nil {
			if s = a.pick(g, &w); s != nil {
				if s.place.tier != below {
					a.relieve(g, s, now)
				}
				a.grab(s, now)
			}
		}
		if s == nil {
			var err *hangar.EdgeError
			if wt, err = a.wait(wt, ep, g, &w, now); err != nil {
				a.mu.Unlock()
				return nil, err
			}
			a.mu.Unlock()
			if err = wt.await(ctx, a); err != nil {
				return nil, err
			}
			s = wt.slot
			wt.slot = nil
			a.mu.Lock()
		}
		seat, ok := a.seat(ep, s)
		a.mu.Unlock()
		if !ok {
			continue // it has been changed since
		}
		err := seat.enter()
		if err == nil {
			if wt != nil && s.wokenSince(wt.since, a) {
				seat.Woken = time.Duration(b.now() - wt.since)
			}
			seat.PreferredMissed = w.Prefer != "" && w.Prefer != seat.Row.Machine.ID
			return seat, nil
		}
		a.refused(s, err)
	}
	return nil, ep.giveUp(fmt.Sprintf("could not find a good candidate within %d attempts", maxRefusals))
}

// seat describes what was grabbed. It is false, and the slot let go, if that does not serve
// the endpoint any more.
func (a *app) seat(ep *Endpoint, s *slot) (*Seat, bool) {
	var src *shapePort
	if g := ep.segment(a.top.Load()); g != nil && s.crowd != nil {
		src = g.source(s.crowd)
	}
	if src == nil {
		a.release(s, a.b.now())
		return nil, false
	}
	service := &s.m.row.Machine.Config.Services[src.service]
	return &Seat{
		Row: s.m.row, Service: service, Options: &service.Ports[src.port], Port: s.crowd.port,
		app: a, slot: s, epoch: s.epoch, shared: s.m.load() > 1, taken: s.m.taken,
	}, true
}

// enter asks the host.
func (t *Seat) enter() (err error) {
	if t.gate, err = t.app.b.o.Gates.Gate(t.Row.Machine.Host); err != nil {
		return err
	}
	t.leave, err = t.gate.EnterMachine(t.Row.Machine.Ref(), t.Port)
	return err
}

// grab takes a seat of an open slot.
func (a *app) grab(s *slot, now int64) {
	s.load++
	s.m.taken++
	a.move(s, now)
}

// release gives a seat back.
func (a *app) release(s *slot, now int64) {
	s.load--
	s.limitUntil = 0
	a.settle(s, now)
	a.review(now)
}

// refused takes note that the host let nobody into a slot that was grabbed.
func (a *app) refused(s *slot, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.b.now()
	s.load--
	if hangar.ReasonOf(err) == hangar.ReasonAtLimit {
		s.limitUntil = now + int64(limitPause)
		a.alarms.add(s.limitUntil, s)
	} else {
		if s.up && s.crowd != nil {
			s.up = false
			s.byRow = s.prospect(&s.m.row.Machine)
		}
		s.refusals++
		s.refusedUntil = now + int64(refusalPause)
		a.alarms.add(s.refusedUntil, s)
	}
	a.settle(s, now)
	a.review(now)
	a.setTimer(now)
}

// Leave ends the stay. It may be repeated.
func (t *Seat) Leave() {
	if !t.left.CompareAndSwap(false, true) {
		return
	}
	t.leave() // first, so that the host lets in whoever gets the seat
	a, s := t.app, t.slot
	a.mu.Lock()
	defer a.mu.Unlock()
	if !t.failed && t.epoch == s.epoch && s.failures > 0 {
		s.failures, s.avoidUntil = 0, 0
	}
	s.refusals = 0
	delete(s.m.tell, t)
	a.release(s, a.b.now())
}

// Failed says that a connection to the Machine failed: for a while, it is avoided if there is
// another one. That the caller gave up, says nothing of the Machine.
func (t *Seat) Failed(err error) {
	if err == nil || errors.Is(err, context.Canceled) {
		return
	}
	a, s := t.app, t.slot
	a.mu.Lock()
	defer a.mu.Unlock()
	if t.failed {
		return
	}
	t.failed = true
	if t.epoch != s.epoch {
		return // what failed together counts once
	}
	s.epoch++
	s.failures++
	now := a.b.now()
	s.avoidUntil = now + int64(min(MinAvoidance<<min(s.failures-1, 10), MaxAvoidance))
	a.alarms.add(s.avoidUntil, s)
	a.settle(s, now)
	a.setTimer(now)
}

// Dial connects to the Machine. An error is a *hangar.EdgeError, and has been told to Failed.
func (t *Seat) Dial(ctx context.Context) (net.Conn, error) {
	conn, err := t.gate.DialService(ctx, t.Row.Machine.Ref(), t.Port)
	if err == nil {
		return conn, nil
	}
	id, port := t.Row.Machine.ID, t.Port
	e := &hangar.EdgeError{Code: hangar.EdgeIO, Status: http.StatusBadGateway, Message: fmt.Sprintf("the connection to port %d of machine %s failed", port, id), Err: err}
	switch code := hangar.CodeOf(err); {
	case errors.Is(err, context.Canceled):
		return nil, e
	case hangar.ReasonOf(err) == hangar.ReasonConnectionRefused:
		e.Code, e.Message = hangar.EdgeRefusedPort, fmt.Sprintf("nothing listens on port %d of machine %s at an address that is reachable: it should listen on 0.0.0.0 or ::", port, id)
	case code == hangar.CodeTimeout:
		e.Code, e.Message = hangar.EdgeConnectTimeout, fmt.Sprintf("port %d of machine %s did not take the connection in time", port, id)
	case code == hangar.CodeUnavailable:
		e.Code, e.Message = hangar.EdgeHostUnreachable, fmt.Sprintf("the host of machine %s cannot be reached", id)
	}
	t.Failed(err)
	return nil, e
}

// wokenSince reports whether the Machine was woken after a moment.
func (s *slot) wokenSince(since int64, a *app) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return s.wokenAt >= since && s.wokenAt != 0
}

// wait puts a request in the queue, unless there is nothing to wait for. A waiter that was in
// it before keeps its place.
func (a *app) wait(wt *waiter, ep *Endpoint, g *segment, w *Wish, now int64) (*waiter, *hangar.EdgeError) {
	if g == nil {
		return nil, ep.unserved()
	}
	n := a.hope(g, w)
	switch {
	case none(n):
		return nil, a.hopeless(ep, g, w, now)
	case wt != nil && now >= wt.until:
		wt.seg = g
		return nil, a.expired(wt, now)
	case w.NoWait:
		return nil, ep.giveUp("no machine can take the request at once")
	case wt == nil && a.queue.n >= a.b.o.QueueLimit:
		return nil, &hangar.EdgeError{
			Code: hangar.EdgeQueueFull, Status: http.StatusServiceUnavailable,
			Message: fmt.Sprintf("all machines are busy, and %d requests wait already", a.queue.n),
		}
	}
	fresh := wt == nil
	if fresh {
		wt = &waiter{ep: ep, wish: *w, ready: make(chan struct{}, 1), since: now}
	}
	wt.seg = g
	a.enqueue(wt)
	a.wakeFor(g, w, now)
	if fresh {
		bound := a.b.o.WakeWait
		if n = a.hope(g, w); n[full] > 0 && n[waking]+n[starting]+n[pending] == 0 {
			bound = a.b.o.QueueWait
		}
		wt.timer, wt.until = time.NewTimer(bound), now+int64(bound)
	}
	a.setTimer(now)
	return wt, nil
}

// await returns when the waiter has a slot, or an error.
func (w *waiter) await(ctx context.Context, a *app) *hangar.EdgeError {
	select {
	case <-w.ready:
		return w.err
	case <-w.timer.C:
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.b.now()
	switch {
	case w.queued:
		a.dequeue(w)
	case w.err != nil:
		return w.err
	case ctx.Err() == nil:
		<-w.ready // it was in time after all
		return nil
	default:
		a.release(w.slot, now)
		a.setTimer(now)
	}
	if err := ctx.Err(); err != nil {
		e := w.ep.giveUp("the client gave up")
		e.Err = err
		return e
	}
	return a.expired(w, now)
}
