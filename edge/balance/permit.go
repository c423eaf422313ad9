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
	"github.com/hangar-platform/hangar/edge/traffic"
)

// Cooldowns of a candidate that the host refused. A change of its row ends them.
const (
	refusalCooldown = 250 * time.Millisecond // the Machine is not started, or about to stop
	limitCooldown   = 50 * time.Millisecond  // the Machine is at its hard limit
)

// Bounds of the cooldown after a failed connection. It doubles with each failure in a row.
const (
	MinCooldown = time.Second
	MaxCooldown = 10 * time.Second
)

// maxRefusals is how many refusals by hosts one request survives.
const maxRefusals = 40

// Permit is the right to send one request, or open one connection, to a Machine. It counts as
// in flight here, and once it has entered at the host, until Release or Refused. Its exported
// fields never change.
type Permit struct {
	Row     *hangar.MachineRow
	Service *hangar.Service
	Options *hangar.ServicePort // the Machine's own
	Port    int                 // internal
	// Woken is how long the request waited for the Machine to start; 0: it was running.
	Woken           time.Duration
	PreferredMissed bool // Selector.Prefer was not available
	// Traffic has the counts of the traffic to the Machine.
	Traffic *traffic.Machine

	app          *app
	candidate    *candidate
	gate         hangar.MachineGate
	leave        func()   // the host's gate; nil: not entered
	over         net.Conn // it was entered over this connection; nil: through the gate
	failureEpoch int      // candidate.failureEpoch at the time of admission
	shared       bool     // other requests were in flight in the Machine at that time
	admitted     uint64   // machine.admitted at that time
	released     atomic.Bool
	failed       bool // guarded by app.mu
}

// Acquire picks a Machine for a request and, unless that is deferred, enters it through the host's
// gate. If no candidate is available, it wakes one or waits in the queue. Every error is a
// *hangar.EdgeError; if ctx ended, that is its cause.
func (b *Balancer) Acquire(ctx context.Context, ep *Endpoint, sel Selector) (*Permit, error) {
	var w *waiter
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
			if w, err = a.wait(w, ep, e, &sel, now); err != nil {
				a.mu.Unlock()
				return nil, err
			}
			a.mu.Unlock()
			if err = w.await(ctx, a); err != nil {
				return nil, err
			}
			c = w.candidate
			w.candidate = nil
			a.mu.Lock()
		}
		permit := a.permit(ep, c)
		woken := w != nil && c.wokenSince(w.since)
		a.mu.Unlock()
		if permit == nil {
			continue // the candidate changed since it was granted
		}
		err := permit.open(sel.Deferred)
		if err == nil {
			if woken {
				permit.Woken = time.Duration(b.now() - w.since)
			}
			permit.PreferredMissed = sel.Prefer != "" && sel.Prefer != permit.Row.Machine.ID
			return permit, nil
		}
		a.noteRefusal(c, err)
	}
	return nil, ep.noCandidate(fmt.Sprintf("could not find a good candidate within %d attempts", maxRefusals))
}

// permit returns the permit for a reserved candidate, or nil, and releases the candidate, if
// that no longer serves the endpoint.
func (a *app) permit(ep *Endpoint, c *candidate) *Permit {
	var port *setPort
	if e := ep.entry(a.ports.Load()); e != nil && c.group != nil {
		port = e.portOf(c.group)
	}
	if port == nil {
		a.release(c, a.b.now())
		return nil
	}
	service := &c.machine.row.Machine.Config.Services[port.service]
	if c.machine.traffic == nil {
		c.machine.traffic = new(traffic.Machine)
	}
	return &Permit{
		Row: c.machine.row, Service: service, Options: &service.Ports[port.port], Port: c.group.port,
		Traffic: c.machine.traffic,
		app:     a, candidate: c, failureEpoch: c.failureEpoch, shared: c.machine.inFlight() > 1, admitted: c.machine.admitted,
	}
}

// open finds the host's gate and, unless that is deferred, enters the Machine.
func (p *Permit) open(deferred bool) (err error) {
	if p.gate, err = p.app.b.o.Gates.Gate(p.Row.Machine.Host); err != nil || deferred {
		return err
	}
	return p.Enter(nil)
}

// Enter enters the Machine, if Acquire has not: the host has the last word. If requests can enter
// over the connection that the request will use, its answer comes later, as an error of that
// connection. conn may be nil. After an error and after such an answer the caller calls Refused.
func (p *Permit) Enter(conn net.Conn) (err error) {
	entering, ok := conn.(hangar.EnteringConn)
	switch {
	case p.leave != nil && (p.over == nil || p.over == conn):
		return nil
	case p.leave != nil:
		p.leave() // the connection was lost
		p.leave = nil
	}
	if ok {
		p.over = conn
		p.leave, err = entering.EnterMachine()
	} else {
		p.over = nil
		p.leave, err = p.gate.EnterMachine(p.Row.Machine.Ref(), p.Port)
	}
	return err
}

// Refused ends a permit whose request the host did not let in. The Machine is passed over for a
// while, as when Acquire is refused.
func (p *Permit) Refused(err error) {
	if !p.end() {
		return
	}
	a := p.app
	a.mu.Lock()
	delete(p.candidate.machine.onExit, p)
	a.mu.Unlock()
	a.noteRefusal(p.candidate, err)
}

// reserve counts a request as in flight at an available candidate.
func (a *app) reserve(c *candidate, now int64) {
	c.inFlight++
	c.machine.admitted++
	a.reindex(c, now)
}

// release ends what reserve began, and offers the candidate to waiters.
func (a *app) release(c *candidate, now int64) {
	c.inFlight--
	c.atLimitUntil = 0
	a.recheck(c, now)
	a.reviewQueue(now)
}

// noteRefusal releases a candidate that the host refused, and starts its cooldown.
func (a *app) noteRefusal(c *candidate, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.b.now()
	c.inFlight--
	if hangar.ReasonOf(err) == hangar.ReasonAtLimit {
		c.atLimitUntil = now + int64(limitCooldown)
		a.deadlines.add(c.atLimitUntil, c)
	} else {
		if c.wokenRow != nil && c.group != nil {
			c.wokenRow = nil
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

// end leaves the Machine at its host; false: the permit has ended before. Callers release the
// candidate afterwards, so that the host has room for the waiter that gets it.
func (p *Permit) end() bool {
	if !p.released.CompareAndSwap(false, true) {
		return false
	}
	if p.leave != nil {
		p.leave()
	}
	return true
}

// Release ends the request. It may be repeated.
func (p *Permit) Release() {
	if !p.end() {
		return
	}
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

// Failed reports that a connection to the Machine failed. During a cooldown, other candidates go
// before it. A canceled context does not count: the client gave up.
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
		return // connections that fail together count once
	}
	c.failureEpoch++
	c.connFailures++
	now := a.b.now()
	c.cooldownUntil = now + int64(min(MinCooldown<<min(c.connFailures-1, 10), MaxCooldown))
	a.deadlines.add(c.cooldownUntil, c)
	a.recheck(c, now)
	a.armTimer(now)
}

// Dial connects to the Machine. An error is a *hangar.EdgeError, already reported to Failed.
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
