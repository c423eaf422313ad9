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

// StartGrace is for how long after a start of a Machine load above the soft limits does not
// start another one.
const StartGrace = 20 * time.Second

// Bounds of the pause before a Machine that could not be woken is tried again. It doubles
// with each failure in a row.
const (
	MinWakeBackoff = time.Second
	MaxWakeBackoff = 10 * time.Second
)

// proveWait bounds how long a Machine that somebody else started gets no requests while its
// port takes no connections, and provePause the pauses between attempts.
const (
	probeTimeout    = 5 * time.Second
	minProbeBackoff = 5 * time.Millisecond
	maxProbeBackoff = 250 * time.Millisecond
	// proveDial bounds one attempt: a Machine that has just begun, or has just ended, answers
	// to nothing.
	probeDialTimeout = 100 * time.Millisecond
)

// wakeFor wakes as many Machines as those who wait for a segment need, beyond those that are
// on their way.
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
		if c == nil || coming*c.capacity() >= demand {
			return
		}
		a.wake(c, now)
	}
}

// capacity is for how many requests a Machine is woken.
func (c *candidate) capacity() int {
	if c.hardLimit > 0 {
		return c.hardLimit
	}
	return c.softLimit
}

// pickWake is the slot of the Machine that is to be woken next, or nil: of the nearest region,
// and rather a suspended than a stopped one.
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
	for rank := 0; rank <= len(sel.Regions); rank++ {
		for i := range e.regions {
			if sel.regionRank(e.regions[i].region) != rank {
				continue
			}
			if c := firstAtRest(e.regions[i].indexes, sel); c != nil {
				return c
			}
		}
	}
	return nil
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

// relieve wakes one more Machine of the region of a slot that is entered although it is at
// its soft limit, if all others there are, too.
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

// wake starts the Machine of a wakeable slot.
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
		gate, err := a.b.o.Gates.Gate(row.Machine.Host)
		if err == nil {
			err = gate.WakeMachine(ctx, ref, port)
		}
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

// wakeFailed notes why a Machine was not woken, and that it is not to be for a while.
func (a *app) noteWakeFailure(c *candidate, err error, now int64) {
	c.wakeFailures++
	c.wakeBackoffUntil = now + int64(min(MinWakeBackoff<<min(c.wakeFailures-1, 10), MaxWakeBackoff))
	c.wakeErr = wakeError(c.machine.row, err)
	a.deadlines.add(c.wakeBackoffUntil, c)
	c.group.wakeFailed = append(slices.DeleteFunc(c.group.wakeFailed, func(other *candidate) bool { return other == c || other.wakeBackoffUntil <= now }), c)
}

// woken takes note of how waking ended.
func (a *app) noteWake(c *candidate, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.b.now()
	c.waking = false
	if c.group == nil {
		return // its service is gone
	}
	if err == nil {
		c.noteWoken(now)
		a.deadlines.add(c.graceUntil, c)
	} else {
		a.noteWakeFailure(c, err, now)
		if c.machine.row.Machine.State == hangar.MachineStarted {
			c.refusedUntil = c.wakeBackoffUntil // its port takes no connections
		}
	}
	a.recheck(c, now)
	a.queue.needsReview = true
	a.reviewQueue(now)
	a.armTimer(now)
}

// rise notes that the Machine is up, and its port takes connections.
func (c *candidate) noteWoken(now int64) {
	c.wakeFailures, c.wakeErr, c.wakeBackoffUntil = 0, nil, 0
	c.atLimitUntil, c.refusedUntil, c.cooldownUntil, c.connFailures = 0, 0, 0, 0
	c.refusals = min(c.refusals, 1) // if it still lets nobody in, the start is not why
	c.wokenAt, c.group.lastStart, c.graceUntil = now, now, now+int64(StartGrace)
	switch c.machine.row.Machine.State {
	case hangar.MachineStopped, hangar.MachineSuspended, hangar.MachineStarting:
		c.up, c.upRow = true, c.machine.row
		c.byRow = c.availabilityByRow(&c.machine.row.Machine)
	default:
	}
}

// prove keeps requests from a slot whose Machine has just been started until its port takes
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

// accepts returns when a port of a Machine takes connections, or it is futile to wait for that,
// as when the Machine has ended.
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
	case reason == hangar.ReasonLeaseHeld:
		code, text = hangar.EdgeWake, "could not be started: it is leased"
	case hangar.NoRoom(err) || hangar.CodeOf(err) == hangar.CodeExhausted:
		code, text = hangar.EdgeWake, "could not be started: its host has no room for it"
	case reason == hangar.ReasonWrongState:
		code, text = hangar.EdgeNotStartable, "cannot be started out of its state"
	case reason == hangar.ReasonStartFailed:
		code, text = hangar.EdgeStateChange, "was started in vain"
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
