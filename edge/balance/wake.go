package balance

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
)

// StartGrace is how long after the start of a Machine load above the soft limits does not start
// another.
const StartGrace = 20 * time.Second

// Bounds of the backoff after a failed wake. It doubles with each failure in a row.
const (
	MinWakeBackoff = time.Second
	MaxWakeBackoff = 10 * time.Second
)

// A probe keeps requests from a Machine that another caller started until its port accepts
// connections.
const (
	probeTimeout    = 5 * time.Second
	minProbeBackoff = 5 * time.Millisecond
	maxProbeBackoff = 250 * time.Millisecond
	// probeDialTimeout bounds one attempt: a Machine that is just starting or ending may not
	// answer at all.
	probeDialTimeout = 100 * time.Millisecond
)

// wakeForWaiters wakes as many Machines as the waiters for an entry need, beyond those that are
// already starting.
func (a *app) wakeForWaiters(e *entry, sel *Selector, now int64) {
	n := a.countCandidates(e, sel)
	if n[available] > 0 || n[wakeable] == 0 {
		return
	}
	demand := 1
	if sel.Instance == "" {
		for i := range e.ports {
			demand = max(demand, e.ports[i].group.waiters)
		}
	}
	for coming := n[waking] + n[starting]; ; coming++ {
		c := a.pickWakeable(e, sel)
		if c == nil || coming*c.wakeCapacity() >= demand {
			return
		}
		a.wake(c, now)
	}
}

// pickWakeable chooses the candidate to wake next, or nil: in the nearest region, and a suspended
// one before a stopped one.
func (a *app) pickWakeable(e *entry, sel *Selector) *candidate {
	for _, id := range [...]hangar.MachineID{sel.Instance, sel.Prefer} {
		if id == "" {
			continue
		}
		if c := a.candidateOf(id, e); c != nil && c.pos.availability == wakeable && sel.allows(c) {
			return c
		}
		if id == sel.Instance {
			return nil
		}
	}
	return sel.inRegions(e, func(indexes []*index) *candidate { return firstAtRest(indexes, sel) })
}

func firstAtRest(indexes []*index, sel *Selector) *candidate {
	for i := range [2]int{} {
		for _, ix := range indexes {
			for _, c := range slices.Backward(ix.atRest[i]) {
				if !sel.excludes(c) {
					return c
				}
			}
		}
	}
	return nil
}

// wakeForLoad wakes one more Machine in the region of a candidate that gets a request at or above
// its soft limit, unless another candidate there is below its soft limit, is starting, or has
// started within StartGrace.
func (a *app) wakeForLoad(e *entry, c *candidate, now int64) {
	for i := range e.regions {
		if e.regions[i].region != c.index.region {
			continue
		}
		indexes := e.regions[i].indexes
		some := 0
		for _, ix := range indexes {
			if ix.counts[waking]+ix.counts[starting] > 0 || ix.available[belowSoft].nonEmpty != 0 {
				return
			}
			some += ix.counts[wakeable]
		}
		if some == 0 {
			return
		}
		for n := range e.ports {
			if at := e.ports[n].group.lastStart; at != 0 && now-at < int64(StartGrace) {
				return
			}
		}
		a.wake(firstAtRest(indexes, &Selector{}), now)
		return
	}
}

// wake starts the Machine of a wakeable candidate, in a goroutine of Run.
func (a *app) wake(c *candidate, now int64) {
	row, port := c.machine.row, c.group.port
	if c.group.udp {
		port = 0
	}
	c.waking = true
	a.reindex(c, now)
	ref := row.Machine.Ref()
	bound := 2 * a.b.o.WakeWait
	if !a.b.submit(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, bound)
		defer cancel()
		began := time.Now()
		gate, err := a.b.o.Gates.Gate(row.Machine.Host)
		if err == nil {
			err = gate.WakeMachine(ctx, ref, port)
		}
		a.b.measures.woke(began, err)
		if err != nil {
			a.b.log.Info("machine was not woken", "app", string(ref.App), "machine", string(ref.ID), "error", err)
		}
		a.noteWake(c, err)
	}) {
		c.waking = false
		a.noteWakeFailure(c, context.Canceled, now)
		a.reindex(c, now)
	}
}

// noteWakeFailure records why a wake failed, and starts the backoff.
func (a *app) noteWakeFailure(c *candidate, err error, now int64) {
	c.wakeFailures++
	c.wakeBackoffUntil = now + int64(min(MinWakeBackoff<<min(c.wakeFailures-1, 10), MaxWakeBackoff))
	c.wakeErr = wakeError(c.machine.row, err)
	a.deadlines.add(c.wakeBackoffUntil, c)
	c.group.wakeFailed = append(slices.DeleteFunc(c.group.wakeFailed, func(other *candidate) bool { return other == c || other.wakeBackoffUntil <= now }), c)
}

// noteWake records the result of a wake.
func (a *app) noteWake(c *candidate, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.b.now()
	c.waking = false
	if c.group == nil {
		return // the Machine no longer has the service
	}
	if err == nil {
		c.noteWoken(now)
		a.deadlines.add(c.graceUntil, c)
	} else {
		a.noteWakeFailure(c, err, now)
		if c.machine.row.Machine.State == hangar.MachineStarted {
			c.refusedUntil = c.wakeBackoffUntil // its port accepts no connections
		}
	}
	a.recheck(c, now)
	a.queue.needsReview = true
	a.reviewQueue(now)
	a.armTimer(now)
}

// noteWoken records that the Machine runs and its port accepts connections.
func (c *candidate) noteWoken(now int64) {
	c.wakeFailures, c.wakeErr, c.wakeBackoffUntil = 0, nil, 0
	c.atLimitUntil, c.refusedUntil, c.cooldownUntil, c.connFailures = 0, 0, 0, 0
	c.refusals = min(c.refusals, 1) // another refusal then has another reason than the start
	c.wokenAt, c.group.lastStart, c.graceUntil = now, now, now+int64(StartGrace)
	switch c.machine.row.Machine.State {
	case hangar.MachineStopped, hangar.MachineSuspended, hangar.MachineStarting:
		c.wokenRow = c.machine.row
		c.byRow = c.availabilityByRow(&c.machine.row.Machine)
	default:
	}
}

// probe keeps requests from a candidate whose Machine has just started until its port accepts
// connections.
func (a *app) probe(c *candidate) {
	ref, host, port := c.machine.row.Machine.Ref(), c.machine.row.Machine.Host, c.group.port
	ended := make(chan struct{})
	c.probing = ended
	c.waking = a.b.submit(func(ctx context.Context) {
		a.b.awaitPort(ctx, ended, host, ref, port)
		a.mu.Lock()
		defer a.mu.Unlock()
		now := a.b.now()
		c.waking = false
		if c.group != nil {
			a.recheck(c, now)
			a.reviewQueue(now)
			a.armTimer(now)
		}
	})
}

// awaitPort returns when a port of a Machine accepts connections, when ended is closed, or when
// an attempt fails in a way that waiting cannot cure.
func (b *Balancer) awaitPort(ctx context.Context, ended <-chan struct{}, host hangar.HostID, ref hangar.MachineRef, port int) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	gate, err := b.o.Gates.Gate(host)
	if err != nil {
		return
	}
	for pause := minProbeBackoff; ; pause = min(2*pause, maxProbeBackoff) {
		attempt, cancel := context.WithTimeout(ctx, probeDialTimeout)
		conn, err := gate.DialService(attempt, ref, port)
		cancel()
		if err == nil {
			_ = conn.Close()
			return
		}
		if hangar.ReasonOf(err) != hangar.ReasonConnectionRefused && hangar.CodeOf(err) != hangar.CodeTimeout {
			return
		}
		select {
		case <-time.After(pause):
		case <-ended:
			return
		case <-ctx.Done():
			return
		}
	}
}

// wakeError says why a Machine could not be woken.
func wakeError(row *hangar.MachineRow, err error) *hangar.EdgeError {
	id := row.Machine.ID
	code, status, text := hangar.EdgeWakeInternal, http.StatusServiceUnavailable, "could not be started"
	switch reason := hangar.ReasonOf(err); {
	case errors.Is(err, context.Canceled):
		code, text = hangar.EdgeStartCancelled, "was not started: the edge is shutting down"
	case hangar.NoRoom(err) || hangar.CodeOf(err) == hangar.CodeExhausted:
		code, text = hangar.EdgeWake, "could not be started: its host has no room for it"
	case reason == hangar.ReasonWrongState:
		code, text = hangar.EdgeNotStartable, "cannot be started out of its state"
	case reason == hangar.ReasonStartFailed:
		code, text = hangar.EdgeStateChange, "failed to start"
	case hangar.CodeOf(err) == hangar.CodeNotFound:
		code, text = hangar.EdgeNoMachine, "is gone"
	case hangar.CodeOf(err) == hangar.CodeUnavailable:
		code, text = hangar.EdgeHostUnreachable, "could not be started: its host cannot be reached"
	case hangar.CodeOf(err) == hangar.CodeTimeout && row.Machine.State == hangar.MachineStarted:
		code, status, text = hangar.EdgeUnreachable, http.StatusBadGateway, "was started, and its port takes no connections"
	case hangar.CodeOf(err) == hangar.CodeTimeout:
		code, text = hangar.EdgeWakeTimeout, "could not be started in time"
	}
	return &hangar.EdgeError{Code: code, Status: status, Message: fmt.Sprintf("machine %s %s", id, text), Err: err}
}
