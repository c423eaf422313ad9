package gate

import (
	"context"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
)

// group is the Machines that serve the same ports of an App in a region.
type group struct {
	key     groupKey
	gates   map[*Gate]struct{} // that are open, or drain
	running int                // those of them that do not drain
	spare   map[*Gate]struct{} // idle, but needed for min_machines_running
	timer   timer
	window  time.Duration // the longest idle time of all members so far
	drains  bool          // a surplus member is being drained
}

// regroup moves a Gate to the group of its terms; opens says that its Machine has just begun to
// serve. gs.mu is held.
func (gs *Gates) regroup(g *Gate, opens bool) {
	var key groupKey
	if g.terms.Open {
		key = g.terms.groupKey(g.ref.AppID)
	}
	if old := g.group; old != nil && (!g.terms.Open || old.key != key || opens) {
		gs.leave(g, old)
	}
	if !g.terms.Open || g.group != nil {
		return
	}
	to := gs.groups[key]
	if to == nil {
		to = &group{key: key, gates: make(map[*Gate]struct{}), spare: make(map[*Gate]struct{})}
		to.timer.group = to
		gs.groups[key] = to
	}
	g.group = to
	to.window = max(to.window, g.terms.after(gs.o.After), hangar.MinAutostopAfter)
	to.gates[g] = struct{}{}
	if g.drain == nil || opens {
		gs.grow(to)
	}
}

// leave takes a Gate out of its group. gs.mu is held.
func (gs *Gates) leave(g *Gate, from *group) {
	g.group = nil
	delete(from.gates, g)
	delete(from.spare, g)
	if g.drain == nil {
		from.running--
	}
	if len(from.gates) == 0 {
		gs.timers.Remove(&from.timer)
		delete(gs.groups, from.key)
	}
}

// grow counts one more running Machine. Idle members that were kept running are checked again, and
// surplus ones are found after the window. gs.mu is held.
func (gs *Gates) grow(to *group) {
	to.running++
	for g := range to.spare {
		delete(to.spare, g)
		if !g.armed.Swap(true) {
			gs.push(&g.timer, g.due())
		}
	}
	if len(to.gates) > 1 {
		gs.push(&to.timer, gs.now()+int64(to.window))
	}
}

// lookAtGroup drains the Machine with the least load, if the others of the group could have done
// without it since the last check: more than one of them is below its soft limits, and their soft
// limits together exceed the highest load of all. gs.mu is held.
func (gs *Gates) lookAtGroup(ctx context.Context, work *sync.WaitGroup, x *group, now int64) {
	if len(x.gates) < 2 {
		return // grow sets the timer again
	}
	gs.push(&x.timer, now+int64(x.window))
	least, lowest, load, over := (*Gate)(nil), 0, 0, 0
	for g := range x.gates {
		peak, full := g.peak()
		load += peak
		if full {
			over++
		}
		if gs.sparable(g, now) && (least == nil || peak < lowest) {
			least, lowest = g, peak
		}
	}
	if lowest == 0 || x.drains || // an empty Machine has a timer of its own
		x.running-(over+1) < 1 || x.running-1 < least.terms.least() || load > x.room(least) {
		return
	}
	x.drains = true
	least.set(draining, true)
	d := gs.begin(least, false)
	work.Go(func() { gs.drainSpare(ctx, x, least, d) })
}

// sparable reports whether a Machine may be stopped although it has some load. gs.mu is held.
func (gs *Gates) sparable(g *Gate, now int64) bool {
	return g.drain == nil && g.terms.Mode() != hangar.AutostopOff &&
		now >= g.timer.began+int64(g.terms.after(gs.o.After)) &&
		(g.terms.Busy.IsZero() || now >= int64(g.terms.Busy.Sub(gs.began)))
}

// room is the sum of the soft limits of all Machines but one.
func (x *group) room(without *Gate) int {
	room := 0
	for g := range x.gates {
		if g == without || g.drain != nil {
			continue
		}
		if doors := g.doors.Load(); doors != nil && len(*doors) > 0 {
			least := (*doors)[0].soft.Load()
			for _, d := range *doors {
				least = min(least, d.soft.Load())
			}
			room += int(least)
		}
	}
	return room
}

// peak returns the most visits at once by any service since the last call, and whether a service
// was at its soft limit.
func (g *Gate) peak() (most int, full bool) {
	doors := g.doors.Load()
	if doors == nil {
		return 0, false
	}
	for _, d := range *doors {
		peak := max(d.peak.Load(), d.in.Load())
		d.peak.Store(d.in.Load())
		most += int(peak)
		full = full || peak >= d.soft.Load()
	}
	return most, full
}

// drainSpare waits until the Machine is empty and has it stopped, or gives up.
func (gs *Gates) drainSpare(ctx context.Context, x *group, g *Gate, d *drain) {
	patience := time.NewTimer(gs.o.Drain)
	defer patience.Stop()
	for waiting := true; waiting && g.word.Load()&inside > 0; {
		select {
		case <-d.empty:
		case <-d.over:
			waiting = false
		case <-patience.C:
			waiting = false
		case <-ctx.Done():
			waiting = false
		}
	}
	gs.mu.Lock()
	defer gs.mu.Unlock()
	x.drains = false
	switch {
	case g.drain != d: // it was needed, or was stopped otherwise
	case g.word.Load()&inside > 0 || ctx.Err() != nil || g.group.running < max(g.terms.least(), 1):
		gs.cancel(g)
	default: // no visit has entered since: the gate is closed
		d.stopping = true
		gs.stop(ctx, g, d)
	}
}
