package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/pause"
)

// between is the pause between two visits of one edge to one Machine.
const between = 40 * time.Millisecond

// way is from the edge of one server to the Machines of another, or of its own.
type way struct{ edge, host int }

// health is which ways are whole. A way is broken from before a fault begins until all is back to normal.
type health struct {
	mu     sync.Mutex
	broken map[way]bool
	breaks map[way]int // how often each was broken
	stalls int         // how often the machine stood still
	still  time.Time   // until when that is taken for a reason
}

// whole returns how often a way was broken, if it is not now.
func (h *health) whole(w way) (breaks int, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.breaks[w], !h.broken[w] && time.Now().After(h.still)
}

// breakThose marks the ways that a fault touches.
func (h *health) breakThose(servers int, touches func(way) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for edge := range servers {
		for host := range servers {
			if w := (way{edge, host}); touches(w) {
				h.broken[w] = true
				h.breaks[w]++
			}
		}
	}
}

// heal marks all ways as whole.
func (h *health) heal() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.broken)
}

// takeStalls returns how often the machine stood still since the last call.
func (h *health) takeStalls() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n, h.stalls = h.stalls, 0
	return n
}

const (
	// stalled is how late a goroutine of the test may be before the machine is taken to have stood still:
	// then no daemon has had a processor either.
	stalled   = 300 * time.Millisecond
	stallLook = 50 * time.Millisecond
	// recovers is how long what happens after that says nothing.
	recovers = 3 * time.Second
)

// watch breaks all ways while the machine stands still, because it does too much else.
func (h *health) watch(ctx context.Context, servers int) {
	for {
		began := time.Now()
		if pause.For(ctx, stallLook) != nil {
			return
		}
		if late := time.Since(began) - stallLook; late > stalled {
			h.mu.Lock()
			h.stalls++
			h.still = time.Now().Add(recovers)
			for edge := range servers {
				for host := range servers {
					h.breaks[way{edge, host}]++
				}
			}
			h.mu.Unlock()
		}
	}
}

// load is visitors of one App by all edges, who never stop.
//
// What is counted is a GET whose way was whole from its beginning to its end: with the header that asks
// for a certain Machine, when the edge and the Machine's server run and reach each other; without it,
// when the edge runs, as one Machine is on its own server. Each of these must be answered with 200 and
// the id of a Machine. A failure on a way that is or was broken meanwhile says nothing, nor does one while
// the test itself gets no processor, or in the seconds after that.
type load struct {
	c        *cluster
	app      hangar.AppName
	machines []*hangar.Machine // one on each server, in their order
	visitor  *visitor
	health   health

	mu      sync.Mutex
	counted int      // those that are counted, and were answered
	broken  int      // those on ways that were not whole
	failed  []string // those that are counted, and failed
	slowest time.Duration
}

// startLoad begins visits, which end with the test or stop.
func startLoad(t *testing.T, c *cluster, app hangar.AppName, machines []*hangar.Machine) (l *load, stop func()) {
	t.Helper()
	l = &load{
		c: c, app: app, machines: machines, visitor: newVisitor(t),
		health: health{broken: map[way]bool{}, breaks: map[way]int{}},
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { l.health.watch(ctx, len(c.servers)) })
	for edge := range c.servers {
		for host := range c.servers {
			all.Go(func() { l.visits(ctx, way{edge, host}, machines[host].ID) })
		}
		all.Go(func() { l.visits(ctx, way{edge, edge}, "") })
	}
	stop = sync.OnceFunc(func() {
		cancel()
		all.Wait()
	})
	t.Cleanup(stop)
	return l, stop
}

func (l *load) visits(ctx context.Context, w way, id hangar.MachineID) {
	for ctx.Err() == nil {
		before, whole := l.health.whole(w)
		began := time.Now()
		answered, err := l.visitor.visit(ctx, l.c.servers[w.edge], l.app, id)
		if ctx.Err() != nil {
			return
		}
		if err == nil && !slices.ContainsFunc(l.machines, func(m *hangar.Machine) bool { return m.ID == answered }) {
			err = fmt.Errorf("%q has answered, which is no Machine of the App", answered)
		}
		after, still := l.health.whole(w)
		l.count(w, id, whole && still && before == after, began, err)
		_ = pause.For(ctx, between)
	}
}

func (l *load) count(w way, id hangar.MachineID, counts bool, began time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !counts:
		l.broken++
	case err != nil:
		what := "any Machine"
		if id != "" {
			what = fmt.Sprintf("the Machine %s of %s", id, l.c.servers[w.host])
		}
		l.failed = append(l.failed, fmt.Sprintf("%s: by %s, %s, after %s: %v", began.Format("15:04:05.000"), l.c.servers[w.edge], what, time.Since(began).Round(time.Millisecond), err))
	default:
		l.counted++
		l.slowest = max(l.slowest, time.Since(began))
	}
}

// report fails the test for what has failed since the last report, and returns the figures.
func (l *load) report() string {
	l.c.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	const most = 12
	for _, f := range l.failed[:min(most, len(l.failed))] {
		l.c.Errorf("a request on a whole way failed: %s", f)
	}
	text := fmt.Sprintf("%d requests on whole ways answered, the slowest in %s, %d failed; %d on broken ones, or while the machine stood still (%d times)",
		l.counted, l.slowest.Round(time.Millisecond), len(l.failed), l.broken, l.health.takeStalls())
	l.counted, l.broken, l.failed, l.slowest = 0, 0, nil, 0
	return text
}
