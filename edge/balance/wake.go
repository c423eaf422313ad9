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
	MinWakePause = time.Second
	MaxWakePause = 10 * time.Second
)

// proveWait bounds how long a Machine that somebody else started gets no requests while its
// port takes no connections, and provePause the pauses between attempts.
const (
	proveWait     = 5 * time.Second
	minProvePause = 5 * time.Millisecond
	maxProvePause = 250 * time.Millisecond
	// proveDial bounds one attempt: a Machine that has just begun, or has just ended, answers
	// to nothing.
	proveDial = 100 * time.Millisecond
)

// wakeFor wakes as many Machines as those who wait for a segment need, beyond those that are
// on their way.
func (a *app) wakeFor(g *segment, w *Wish, now int64) {
	n := a.hope(g, w)
	if n[open] > 0 || n[wakeable] == 0 {
		return
	}
	demand := 1
	if w.Instance == "" {
		for i := range g.sources {
			demand = max(demand, g.sources[i].crowd.waiting)
		}
	}
	for coming := n[waking] + n[starting]; ; coming++ {
		s := a.pickWake(g, w)
		if s == nil || coming*s.capacity() >= demand {
			return
		}
		a.wake(s, now)
	}
}

// capacity is for how many requests a Machine is woken.
func (s *slot) capacity() int {
	if s.hard > 0 {
		return s.hard
	}
	return s.soft
}

// pickWake is the slot of the Machine that is to be woken next, or nil: of the nearest region,
// and rather a suspended than a stopped one.
func (a *app) pickWake(g *segment, w *Wish) *slot {
	for _, id := range [...]hangar.MachineID{w.Instance, w.Prefer} {
		if id == "" {
			continue
		}
		if s := a.slotOf(id, g); s != nil && s.place.class == wakeable && w.allows(s) {
			return s
		}
		if id == w.Instance {
			return nil
		}
	}
	for rank := 0; rank <= len(w.Regions); rank++ {
		for i := range g.regions {
			if w.rank(g.regions[i].region) != rank {
				continue
			}
			if s := atRest(g.regions[i].zones, w); s != nil {
				return s
			}
		}
	}
	return nil
}

func atRest(zones []*zone, w *Wish) *slot {
	for i := range [2]int{} {
		for _, z := range zones {
			for _, s := range slices.Backward(z.rest[i]) {
				if !w.excepts(s) {
					return s
				}
			}
		}
	}
	return nil
}

// relieve wakes one more Machine of the region of a slot that is entered although it is at
// its soft limit, if all others there are, too.
func (a *app) relieve(g *segment, s *slot, now int64) {
	for i := range g.regions {
		if g.regions[i].region != s.zone.region {
			continue
		}
		zones := g.regions[i].zones
		some := 0
		for _, z := range zones {
			if z.count[waking]+z.count[starting] > 0 || z.open[below].some != 0 {
				return
			}
			some += z.count[wakeable]
		}
		if some == 0 {
			return
		}
		for n := range g.sources {
			if at := g.sources[n].crowd.lastStart; at != 0 && now-at < int64(StartGrace) {
				return
			}
		}
		a.wake(atRest(zones, &Wish{}), now)
		return
	}
}

// wake starts the Machine of a wakeable slot.
func (a *app) wake(s *slot, now int64) {
	row, port := s.m.row, s.crowd.port
	if s.crowd.udp {
		port = 0
	}
	s.waking = true
	a.move(s, now)
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
		a.woken(s, err)
	}) {
		s.waking = false
		a.wakeFailed(s, context.Canceled, now)
		a.move(s, now)
	}
}

// wakeFailed notes why a Machine was not woken, and that it is not to be for a while.
func (a *app) wakeFailed(s *slot, err error, now int64) {
	s.wakeFailures++
	s.wakeAfter = now + int64(min(MinWakePause<<min(s.wakeFailures-1, 10), MaxWakePause))
	s.wakeErr = wakeError(s.m.row, err)
	a.alarms.add(s.wakeAfter, s)
	s.crowd.failing = append(slices.DeleteFunc(s.crowd.failing, func(other *slot) bool { return other == s || other.wakeAfter <= now }), s)
}

// woken takes note of how waking ended.
func (a *app) woken(s *slot, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.b.now()
	s.waking = false
	if s.crowd == nil {
		return // its service is gone
	}
	if err == nil {
		s.rise(now)
		a.alarms.add(s.graceUntil, s)
	} else {
		a.wakeFailed(s, err, now)
		if s.m.row.Machine.State == hangar.MachineStarted {
			s.refusedUntil = s.wakeAfter // its port takes no connections
		}
	}
	a.settle(s, now)
	a.queue.doubt = true
	a.review(now)
	a.setTimer(now)
}

// rise notes that the Machine is up, and its port takes connections.
func (s *slot) rise(now int64) {
	s.wakeFailures, s.wakeErr, s.wakeAfter = 0, nil, 0
	s.limitUntil, s.refusedUntil, s.avoidUntil, s.failures = 0, 0, 0, 0
	s.refusals = min(s.refusals, 1) // if it still lets nobody in, the start is not why
	s.wokenAt, s.crowd.lastStart, s.graceUntil = now, now, now+int64(StartGrace)
	switch s.m.row.Machine.State {
	case hangar.MachineStopped, hangar.MachineSuspended, hangar.MachineStarting:
		s.up, s.upRow = true, s.m.row
		s.byRow = s.prospect(&s.m.row.Machine)
	default:
	}
}

// prove keeps requests from a slot whose Machine has just been started until its port takes
// connections.
func (a *app) prove(s *slot) {
	ref, host, port := s.m.row.Machine.Ref(), s.m.row.Machine.Host, s.crowd.port
	ended := make(chan struct{})
	s.proving = ended
	s.waking = a.b.submit(func(ctx context.Context) {
		a.b.accepts(ctx, ended, host, ref, port)
		a.mu.Lock()
		defer a.mu.Unlock()
		now := a.b.now()
		s.waking = false
		if s.crowd != nil {
			a.settle(s, now)
			a.review(now)
			a.setTimer(now)
		}
	})
}

// accepts returns when a port of a Machine takes connections, or it is futile to wait for that,
// as when the Machine has ended.
func (b *Balancer) accepts(ctx context.Context, ended <-chan struct{}, host hangar.HostID, ref hangar.MachineRef, port int) {
	ctx, cancel := context.WithTimeout(ctx, proveWait)
	defer cancel()
	gate, err := b.o.Gates.Gate(host)
	if err != nil {
		return
	}
	for pause := minProvePause; ; pause = min(2*pause, maxProvePause) {
		attempt, cancel := context.WithTimeout(ctx, proveDial)
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
