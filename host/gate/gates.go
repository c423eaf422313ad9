package gate

import (
	"cmp"
	"context"
	"hash/maphash"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/pqueue"
)

// The defaults of Options.
const (
	DefaultDrain    = 30 * time.Second
	DefaultSettling = time.Minute
	DefaultStops    = 256
	DefaultSuspends = 8
)

// Options are the dependencies of Gates.
type Options struct {
	// After is how long Machines have to be idle whose services do not say; 0:
	// hangar.DefaultAutostopAfter.
	After time.Duration
	// Drain bounds the wait for the visits of a surplus Machine to end; 0: DefaultDrain.
	Drain time.Duration
	// Ready reports whether the checks of a Machine let requests in. A Machine whose checks do not
	// is not stopped before Settling has passed since its start; 0: DefaultSettling.
	Ready    func(ref hangar.MachineRef) bool
	Settling time.Duration
	// Stop stops or suspends a Machine whose gate has closed, unless Stopping.Still reports false,
	// and returns when that is done or was refused. Stops and Suspends bound the concurrent calls;
	// 0: DefaultStops and DefaultSuspends.
	Stop     func(ctx context.Context, s Stopping)
	Stops    int
	Suspends int
	Now      func() time.Time
}

// Stopping is a Machine that is to be stopped for being idle.
type Stopping struct {
	Ref     hangar.MachineRef
	Suspend bool
	Still   func() bool // the gate has not been opened again
	Left    int         // how many of its group keep running
	Running int         // how many did
}

// Gates has the Gate of each Machine of a host.
type Gates struct {
	o      Options
	began  time.Time
	seed   maphash.Seed
	shards [64]shard

	kick chan struct{} // buffered 1: a timer is due earlier than before

	mu     sync.Mutex // guards what follows
	timers *pqueue.Queue[*timer]
	groups map[groupKey]*group
	queues [2]queue // of Machines to be stopped, and to be suspended
}

type shard struct {
	mu    sync.RWMutex
	gates map[hangar.MachineID]*Gate // guarded by mu
}

// New returns Gates without Machines. They stop nothing before Run.
func New(o Options) *Gates {
	o.After = cmp.Or(o.After, hangar.DefaultAutostopAfter)
	o.Drain = cmp.Or(o.Drain, DefaultDrain)
	o.Settling = cmp.Or(o.Settling, DefaultSettling)
	o.Stops = cmp.Or(o.Stops, DefaultStops)
	o.Suspends = cmp.Or(o.Suspends, DefaultSuspends)
	gs := &Gates{
		o: o, began: o.Now(), seed: maphash.MakeSeed(), kick: make(chan struct{}, 1),
		timers: newTimers(), groups: make(map[groupKey]*group),
	}
	for i := range gs.shards {
		gs.shards[i].gates = make(map[hangar.MachineID]*Gate)
	}
	gs.queues[0].most, gs.queues[1].most = o.Stops, o.Suspends
	return gs
}

// now is in nanoseconds since the Gates were made.
func (gs *Gates) now() int64 { return int64(gs.o.Now().Sub(gs.began)) }

func (gs *Gates) shard(id hangar.MachineID) *shard {
	return &gs.shards[maphash.String(gs.seed, string(id))%uint64(len(gs.shards))]
}

// Find returns the Gate of a Machine, or nil.
func (gs *Gates) Find(ref hangar.MachineRef) *Gate {
	s := gs.shard(ref.ID)
	s.mu.RLock()
	g := s.gates[ref.ID]
	s.mu.RUnlock()
	if g == nil || g.ref.AppID != ref.AppID {
		return nil
	}
	return g
}

// Add makes a Gate for a Machine.
func (gs *Gates) Add(ref hangar.MachineRef) *Gate {
	g := &Gate{gates: gs, ref: ref}
	g.timer.gate = g
	g.word.Store(shut)
	s := gs.shard(ref.ID)
	s.mu.Lock()
	s.gates[ref.ID] = g
	s.mu.Unlock()
	return g
}

// Remove removes a Gate.
func (gs *Gates) Remove(g *Gate) {
	g.Set(Terms{})
	s := gs.shard(g.ref.ID)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gates[g.ref.ID] == g {
		delete(s.gates, g.ref.ID)
	}
}

// Shut closes a Gate until the next Set, for a Machine that is about to be stopped.
func (g *Gate) Shut() { g.set(shut, true) }

// Set gives a Gate the terms of its Machine. A Gate that opens is idle until its first visit. A
// draining Gate is opened again if its Machine has become busy or must not be stopped. Calls for
// one Gate must not overlap, and not happen while Options.Stop commits a stop.
func (g *Gate) Set(t Terms) {
	gs := g.gates
	gs.mu.Lock()
	defer gs.mu.Unlock()
	opens := t.Open && !g.terms.Open
	idles := opens || !g.terms.Busy.IsZero() && t.Busy.IsZero()
	g.terms = t
	gs.regroup(g, opens)
	if !t.Open {
		g.set(shut, true)
		g.endDrain()
		g.wakeWaiters()
		gs.timers.Remove(&g.timer)
		g.armed.Store(false)
		return
	}
	g.doors.Store(g.newDoors(t.Services))
	if idles {
		g.since.Store(gs.now())
	}
	if opens {
		g.timer.began = gs.now()
	}
	g.set(shut, false)
	switch {
	case g.drain == nil:
		g.set(draining, false)
		g.wakeWaiters()
	case t.Mode() == hangar.AutostopOff || t.Busy.After(gs.o.Now()):
		gs.cancel(g)
	}
	g.armed.Store(true)
	gs.push(&g.timer, g.due())
}

// wakeWaiters wakes the waiters for the gate. gs.mu is held.
func (g *Gate) wakeWaiters() {
	if g.changed != nil {
		close(g.changed)
		g.changed = nil
	}
}

// Reopen opens a draining gate, because the Machine is needed after all, and reports whether the
// gate is open. If not, the channel closes when that may have changed; it is nil if Terms say that
// the Machine does not serve.
func (g *Gate) Reopen() (bool, <-chan struct{}) {
	gs := g.gates
	gs.mu.Lock()
	defer gs.mu.Unlock()
	switch {
	case !g.terms.Open:
		return false, nil
	case g.drain != nil && !g.drain.stopping:
		gs.cancel(g)
	}
	if g.Open() {
		return true, nil
	}
	if g.changed == nil {
		g.changed = make(chan struct{})
	}
	return false, g.changed
}

// Hold keeps a Machine from being stopped for being idle, for a caller that is about to enter,
// until release is called.
func (g *Gate) Hold() (release func(), err error) { return g.Enter(0) }

// Look makes Run check a Machine again, because its health checks have changed.
func (gs *Gates) Look(ref hangar.MachineRef) {
	g := gs.Find(ref)
	if g == nil {
		return
	}
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if g.timer.place.Queued() {
		gs.push(&g.timer, g.due())
	}
}

// due returns when the Machine will have been idle for long enough, if there is no visit. gs.mu is
// held.
func (g *Gate) due() int64 {
	since := g.since.Load()
	if !g.terms.Busy.IsZero() {
		since = max(since, int64(g.terms.Busy.Sub(g.gates.began)))
	}
	return since + int64(g.terms.after(g.gates.o.After))
}
