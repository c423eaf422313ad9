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
	refusalCooldown = 250 * time.Millisecond // it is not started, or about to be stopped
	limitCooldown   = 50 * time.Millisecond  // it is at its hard limit
)

// Bounds of the time for which a Machine is avoided whose connections failed. It doubles with
// each failure in a row.
const (
	MinCooldown = time.Second
	MaxCooldown = 10 * time.Second
)

// maxRefusals is by how many Machines a request is refused before it is given up.
const maxRefusals = 40

// Seat is the right to send one request, or open one connection, to a Machine: it counts
// until Leave. What it says never changes.
type Permit struct {
	Row     *hangar.MachineRow
	Service *hangar.Service
	Options *hangar.ServicePort // the Machine's own
	Port    int                 // internal
	// Woken is for how long the request waited for the Machine to be started; 0: it was
	// running.
	Woken           time.Duration
	PreferredMissed bool // Wish.Prefer could not be had

	app          *app
	candidate    *candidate
	gate         hangar.MachineGate
	leave        func()
	failureEpoch int    // the slot's, when the seat was taken
	shared       bool   // others were in the Machine when it was taken
	admitted     uint64 // the Machine's, then
	released     atomic.Bool
	failed       bool // guarded by app.mu
}

// Seat finds a Machine for a request, and enters it. If it has to, it wakes one, or waits
// for one. Every error is a *hangar.EdgeError; if ctx ended, that is its cause.
func (b *Balancer) Acquire(ctx context.Context, ep *Endpoint, sel Selector) (*Permit, error) {
	var wt *waiter
	for range maxRefusals {
		a := b.current(ep)
		a.mu.Lock()
		now := b.now()
		var c *candidate
		e := ep.entry(a.ports.Load())
		if e != nil {
			if c = a.pick(e, &sel); c != nil {
				if c.pos.tier != belowSoft {
					a.wakeForLoad(e, c, now)
				}
				a.reserve(c, now)
			}
		}
		if c == nil {
			var err *hangar.EdgeError
			if wt, err = a.wait(wt, ep, e, &sel, now); err != nil {
				a.mu.Unlock()
				return nil, err
			}
			a.mu.Unlock()
			if err = wt.await(ctx, a); err != nil {
				return nil, err
			}
			c = wt.candidate
			wt.candidate = nil
			a.mu.Lock()
		}
		permit, ok := a.permit(ep, c)
		a.mu.Unlock()
		if !ok {
			continue // it has been changed since
		}
		err := permit.enter()
		if err == nil {
			if wt != nil && c.wokenSince(wt.since, a) {
				permit.Woken = time.Duration(b.now() - wt.since)
			}
			permit.PreferredMissed = sel.Prefer != "" && sel.Prefer != permit.Row.Machine.ID
			return permit, nil
		}
		a.noteRefusal(c, err)
	}
	return nil, ep.noCandidate(fmt.Sprintf("could not find a good candidate within %d attempts", maxRefusals))
}

// seat describes what was grabbed. It is false, and the slot let go, if that does not serve
// the endpoint any more.
func (a *app) permit(ep *Endpoint, c *candidate) (*Permit, bool) {
	var src *setPort
	if e := ep.entry(a.ports.Load()); e != nil && c.group != nil {
		src = e.portOf(c.group)
	}
	if src == nil {
		a.release(c, a.b.now())
		return nil, false
	}
	service := &c.machine.row.Machine.Config.Services[src.service]
	return &Permit{
		Row: c.machine.row, Service: service, Options: &service.Ports[src.port], Port: c.group.port,
		app: a, candidate: c, failureEpoch: c.failureEpoch, shared: c.machine.inFlight() > 1, admitted: c.machine.admitted,
	}, true
}

// enter asks the host.
func (p *Permit) enter() (err error) {
	if p.gate, err = p.app.b.o.Gates.Gate(p.Row.Machine.Host); err != nil {
		return err
	}
	p.leave, err = p.gate.EnterMachine(p.Row.Machine.Ref(), p.Port)
	return err
}

// grab takes a seat of an open slot.
func (a *app) reserve(c *candidate, now int64) {
	c.inFlight++
	c.machine.admitted++
	a.reindex(c, now)
}

// release gives a seat back.
func (a *app) release(c *candidate, now int64) {
	c.inFlight--
	c.atLimitUntil = 0
	a.recheck(c, now)
	a.reviewQueue(now)
}

// refused takes note that the host let nobody into a slot that was grabbed.
func (a *app) noteRefusal(c *candidate, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.b.now()
	c.inFlight--
	if hangar.ReasonOf(err) == hangar.ReasonAtLimit {
		c.atLimitUntil = now + int64(limitCooldown)
		a.deadlines.add(c.atLimitUntil, c)
	} else {
		if c.up && c.group != nil {
			c.up = false
			c.byRow = c.availabilityByRow(&c.machine.row.Machine)
		}
		c.refusals++
		c.refusedUntil = now + int64(refusalCooldown)
		a.deadlines.add(c.refusedUntil, c)
	}
	a.recheck(c, now)
	a.reviewQueue(now)
	a.armTimer(now)
}

// Leave ends the stay. It may be repeated.
func (p *Permit) Release() {
	if !p.released.CompareAndSwap(false, true) {
		return
	}
	p.leave() // first, so that the host lets in whoever gets the seat
	a, c := p.app, p.candidate
	a.mu.Lock()
	defer a.mu.Unlock()
	if !p.failed && p.failureEpoch == c.failureEpoch && c.connFailures > 0 {
		c.connFailures, c.cooldownUntil = 0, 0
	}
	c.refusals = 0
	delete(c.machine.onExit, p)
	a.release(c, a.b.now())
}

// Failed says that a connection to the Machine failed: for a while, it is avoided if there is
// another one. That the caller gave up, says nothing of the Machine.
func (p *Permit) Failed(err error) {
	if err == nil || errors.Is(err, context.Canceled) {
		return
	}
	a, c := p.app, p.candidate
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.failed {
		return
	}
	p.failed = true
	if p.failureEpoch != c.failureEpoch {
		return // what failed together counts once
	}
	c.failureEpoch++
	c.connFailures++
	now := a.b.now()
	c.cooldownUntil = now + int64(min(MinCooldown<<min(c.connFailures-1, 10), MaxCooldown))
	a.deadlines.add(c.cooldownUntil, c)
	a.recheck(c, now)
	a.armTimer(now)
}

// Dial connects to the Machine. An error is a *hangar.EdgeError, and has been told to Failed.
func (p *Permit) Dial(ctx context.Context) (net.Conn, error) {
	conn, err := p.gate.DialService(ctx, p.Row.Machine.Ref(), p.Port)
	if err == nil {
		return conn, nil
	}
	id, port := p.Row.Machine.ID, p.Port
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
	p.Failed(err)
	return nil, e
}

// wokenSince reports whether the Machine was woken after a moment.
func (c *candidate) wokenSince(since int64, a *app) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return c.wokenAt >= since && c.wokenAt != 0
}

// wait puts a request in the queue, unless there is nothing to wait for. A waiter that was in
// it before keeps its place.
func (a *app) wait(wt *waiter, ep *Endpoint, e *entry, sel *Selector, now int64) (*waiter, *hangar.EdgeError) {
	if e == nil {
		return nil, ep.notServed()
	}
	n := a.countCandidates(e, sel)
	switch {
	case none(n):
		return nil, a.noCandidateError(ep, e, sel, now)
	case wt != nil && now >= wt.until:
		wt.entry = e
		return nil, a.waitTimeout(wt, now)
	case sel.NoWait:
		return nil, ep.noCandidate("no machine can take the request at once")
	case wt == nil && a.queue.length >= a.b.o.QueueLimit:
		return nil, &hangar.EdgeError{
			Code: hangar.EdgeQueueFull, Status: http.StatusServiceUnavailable,
			Message: fmt.Sprintf("all machines are busy, and %d requests wait already", a.queue.length),
		}
	}
	fresh := wt == nil
	if fresh {
		wt = &waiter{ep: ep, selector: *sel, ready: make(chan struct{}, 1), since: now}
	}
	wt.entry = e
	a.enqueue(wt)
	a.wakeForWaiters(e, sel, now)
	if fresh {
		bound := a.b.o.WakeWait
		if n = a.countCandidates(e, sel); n[atLimit] > 0 && n[waking]+n[starting]+n[pending] == 0 {
			bound = a.b.o.QueueWait
		}
		wt.timer, wt.until = time.NewTimer(bound), now+int64(bound)
	}
	a.armTimer(now)
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
		a.release(w.candidate, now)
		a.armTimer(now)
	}
	if err := ctx.Err(); err != nil {
		e := w.ep.noCandidate("the client gave up")
		e.Err = err
		return e
	}
	return a.waitTimeout(w, now)
}
