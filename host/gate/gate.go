// Package gate counts the visits to the Machines of a host, and finds idle Machines.
//
// Every Machine has a Gate, through which requests and connections enter and leave. The counts are
// exact, and the hard limits of services are never exceeded, however many enter at once. One atomic
// step both finds a Machine empty and closes its gate: no Machine is stopped for being idle with a
// visit inside, and a later visit is refused at once and goes to another Machine.
//
// A Machine is idle while it has no visits and has not said that it is busy. Gates.Run stops
// Machines that have been idle for as long as their services say. Of several Machines that serve
// the same ports of an App in the same region, it also stops a surplus one: it closes the gate, and
// opens it again if the visits do not end within a while. A Machine that must run in the primary
// region is never stopped.
//
// Entering and leaving take no lock and do not wait. The goroutine of Gates.Run decides everything
// else, when a timer fires or a visit has ended, without polling. Nothing is durable: idle time
// restarts with the process.
//
// The package does not start or stop anything by itself, and does not pick Machines.
package gate

import (
	"sync/atomic"

	"github.com/hangar-platform/hangar"
)

// The word of a Gate counts the visits, with these bits.
const (
	shut     = 1 << 62 // the Machine does not serve
	draining = 1 << 61 // the Machine is about to be stopped for being idle
	inside   = draining - 1
)

// The errors of Enter. They are made once, because refusals have to be quick.
//
//nolint:gochecknoglobals // see above; they never change
var (
	ErrShut = &hangar.Error{Code: hangar.CodeUnavailable, Reason: hangar.ReasonWrongState, Message: "the machine takes no requests: it is not started, cordoned or about to stop"}
	ErrFull = &hangar.Error{Code: hangar.CodeExhausted, Reason: hangar.ReasonAtLimit, Message: "the machine has as many requests or connections as its hard limit allows"}
	ErrPort = &hangar.Error{Code: hangar.CodeUnavailable, Reason: hangar.ReasonWrongState, Message: "the machine has no service on this port"}
)

// Gate is the way into one Machine. It is shut when it is made.
type Gate struct {
	gates *Gates
	ref   hangar.MachineRef

	word  atomic.Int64
	since atomic.Int64           // when the last one left, if the Machine is empty
	armed atomic.Bool            // the timer is set
	doors atomic.Pointer[[]door] // replaced as a whole

	// The fields below are guarded by gates.mu.

	timer   timer
	terms   Terms
	group   *group
	drain   *drain        // under way
	changed chan struct{} // closed when the gate has opened, or no longer drains; nil: no waiters
}

// door is a service of a Machine.
type door struct {
	port int
	*count
}

// count is the number of visits by one door. It outlives the terms that it came with.
type count struct {
	hard atomic.Int64 // 0: any number
	soft atomic.Int64
	in   atomic.Int64
	peak atomic.Int64 // since it was last asked for
}

// Enter counts a visit until leave is called, which may be repeated. port is that of a service,
// or 0 for none. It answers ErrShut, ErrFull or ErrPort.
func (g *Gate) Enter(port int) (leave func(), err error) {
	var c *count
	if port != 0 {
		if c = g.at(port); c == nil {
			if g.word.Load() >= draining {
				return nil, ErrShut
			}
			return nil, ErrPort
		}
		if !c.enter() {
			if g.word.Load() >= draining {
				return nil, ErrShut
			}
			return nil, ErrFull
		}
	}
	for {
		now := g.word.Load()
		if now >= draining {
			if c != nil {
				c.in.Add(-1)
			}
			return nil, ErrShut
		}
		if g.word.CompareAndSwap(now, now+1) {
			v := &visit{gate: g, count: c}
			return v.leave, nil
		}
	}
}

// at returns the count of the service on a port, or nil.
func (g *Gate) at(port int) *count {
	doors := g.doors.Load()
	if doors == nil {
		return nil
	}
	for i := range *doors {
		if (*doors)[i].port == port {
			return (*doors)[i].count
		}
	}
	return nil
}

func (c *count) enter() bool {
	for {
		in := c.in.Load()
		if hard := c.hard.Load(); hard > 0 && in >= hard {
			return false
		}
		if c.in.CompareAndSwap(in, in+1) {
			if in >= c.peak.Load() {
				c.peak.Store(in + 1) // of two concurrent updates one may be lost, which the next one corrects
			}
			return true
		}
	}
}

// visit is a request or connection in a Machine.
type visit struct {
	gate  *Gate
	count *count // nil: for no service
	gone  atomic.Bool
}

func (v *visit) leave() {
	if v.gone.Swap(true) {
		return
	}
	if v.count != nil {
		v.count.in.Add(-1)
	}
	if now := v.gate.word.Add(-1); now&inside == 0 {
		v.gate.emptied(now)
	}
}

// emptied is called by the last visit that leaves.
func (g *Gate) emptied(now int64) {
	g.since.Store(g.gates.now())
	if now&shut != 0 {
		return
	}
	if now&draining != 0 {
		g.gates.drained(g)
		return
	}
	if !g.armed.Swap(true) {
		g.gates.arm(g)
	}
}

// Load returns the number of visits, and of those by the service on a port, which is 0 if there
// is none.
func (g *Gate) Load(port int) (all, service int) {
	if c := g.at(port); c != nil {
		service = int(c.in.Load())
	}
	return int(g.word.Load() & inside), service
}

// Open reports whether a visit would be let in, apart from the limits.
func (g *Gate) Open() bool { return g.word.Load() < draining }

// set sets or clears a bit of the word.
func (g *Gate) set(bit int64, on bool) {
	for {
		now := g.word.Load()
		next := now &^ bit
		if on {
			next = now | bit
		}
		if g.word.CompareAndSwap(now, next) {
			return
		}
	}
}
