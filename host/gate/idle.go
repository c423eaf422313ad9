package gate

import (
	"context"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
)

// maxNap bounds the sleep of Run.
const maxNap = time.Hour

// Run stops idle Machines until ctx ends, and returns when all stops have ended.
func (gs *Gates) Run(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-gs.kick:
		case <-ctx.Done():
			return
		}
		timer.Reset(gs.look(ctx, &work))
	}
}

// look handles all timers that are due, and returns the time until the next.
func (gs *Gates) look(ctx context.Context, work *sync.WaitGroup) time.Duration {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	now := gs.now()
	for {
		next, ok := gs.timers.First()
		if !ok {
			return maxNap
		}
		if next.at > now {
			return min(time.Duration(next.at-now), maxNap)
		}
		gs.timers.Pop()
		if next.group != nil {
			gs.lookAtGroup(ctx, work, next.group, now)
			continue
		}
		if gs.lookAt(next.gate, now) {
			gs.enqueue(ctx, work, next.gate)
		}
	}
}

// lookAt reports whether a Machine is to be stopped for being idle. If not, the timer is set
// again, here or by the last visit that leaves. gs.mu is held.
func (gs *Gates) lookAt(g *Gate, now int64) bool {
	if g.terms.Mode() == hangar.AutostopOff {
		return false // until Set
	}
	g.armed.Store(false)
	if !g.terms.Open || g.drain != nil || g.word.Load()&inside != 0 {
		return false
	}
	at := g.due()
	if settled := g.timer.began + int64(gs.o.Settling); at <= now && now < settled && !gs.o.Ready(g.ref) {
		at = settled
	}
	if at > now {
		g.armed.Store(true)
		gs.push(&g.timer, at)
		return false
	}
	return true
}

// arm sets the timer of an empty Gate.
func (gs *Gates) arm(g *Gate) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if g.terms.Open {
		gs.push(&g.timer, g.due())
	}
}

// queue holds Machines to be stopped, with a bound on the workers that stop them.
type queue struct {
	most    int
	workers int
	gates   []*Gate
}

// enqueue queues a Machine to be stopped. gs.mu is held.
func (gs *Gates) enqueue(ctx context.Context, work *sync.WaitGroup, g *Gate) {
	q := &gs.queues[0]
	if g.terms.Mode() == hangar.AutostopSuspend {
		q = &gs.queues[1]
	}
	q.gates = append(q.gates, g)
	if q.workers == q.most {
		return
	}
	q.workers++
	work.Go(func() { gs.empty(ctx, q) })
}

// empty stops Machines until none is left in the queue.
func (gs *Gates) empty(ctx context.Context, q *queue) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	for len(q.gates) > 0 && ctx.Err() == nil {
		g := q.gates[0]
		q.gates[0] = nil
		q.gates = q.gates[1:]
		if d := gs.closeIdle(g); d != nil {
			gs.stop(ctx, g, d)
		}
	}
	if q.workers--; len(q.gates) == 0 {
		q.gates = nil
	}
}

// drain is the state of a gate that was closed to stop its Machine.
type drain struct {
	empty    chan struct{} // buffered 1: the last visit has left
	over     chan struct{} // closed when the gate has been opened, or the Machine no longer serves
	stopping bool          // Options.Stop decides; Reopen cannot cancel it
	running  int           // members of its group before
}

// closeIdle closes the gate of a Machine that is still idle and may be stopped, or returns
// nil. gs.mu is held.
func (gs *Gates) closeIdle(g *Gate) *drain {
	if g.timer.place.Queued() || !gs.lookAt(g, gs.now()) {
		return nil
	}
	if g.group.running-1 < g.terms.least() {
		g.group.spare[g] = struct{}{}
		return nil
	}
	if !g.word.CompareAndSwap(0, draining) {
		return nil // the visits that are in will leave
	}
	return gs.begin(g, true)
}

// begin records that a gate was closed. gs.mu is held.
func (gs *Gates) begin(g *Gate, stopping bool) *drain {
	g.drain = &drain{empty: make(chan struct{}, 1), over: make(chan struct{}), stopping: stopping, running: g.group.running}
	g.group.running--
	return g.drain
}

// stop stops a Machine whose gate is closed and empty. gs.mu is held, and released meanwhile.
func (gs *Gates) stop(ctx context.Context, g *Gate, d *drain) {
	s := Stopping{
		Ref: g.ref, Suspend: g.terms.Mode() == hangar.AutostopSuspend, Left: d.running - 1, Running: d.running,
		Still: func() bool {
			gs.mu.Lock()
			defer gs.mu.Unlock()
			return g.drain == d
		},
	}
	gs.mu.Unlock()
	gs.o.Stop(ctx, s)
	gs.mu.Lock()
	if g.drain == d && g.terms.Open { // it was refused
		g.since.Store(gs.now())
		gs.cancel(g)
	}
}

// endDrain drops the record of a closed gate. Gates.mu is held.
func (g *Gate) endDrain() {
	if g.drain != nil {
		close(g.drain.over)
		g.drain = nil
	}
}

// cancel opens a gate again. gs.mu is held.
func (gs *Gates) cancel(g *Gate) {
	g.endDrain()
	g.set(draining, false)
	g.wakeWaiters()
	gs.grow(g.group)
	if !g.armed.Swap(true) {
		gs.push(&g.timer, g.due())
	}
}

// drained is called by the last visit that leaves a draining gate.
func (gs *Gates) drained(g *Gate) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if g.drain == nil {
		if g.terms.Open && !g.armed.Swap(true) {
			gs.push(&g.timer, g.due())
		}
		return
	}
	select {
	case g.drain.empty <- struct{}{}:
	default:
	}
}
