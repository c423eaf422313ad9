package balance

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/traffic"
)

// app holds the candidates, the port table and the queue of one App.
type app struct {
	b      *Balancer
	id     hangar.AppID
	ports  atomic.Pointer[portTable] // written with mu held
	loaded chan struct{}             // closed when there are ports
	// evicted: it had no Machines left; Balancer.apps may have a new one.
	evicted atomic.Bool

	mu          sync.Mutex // guards the fields below, and what they refer to
	machines    map[hangar.MachineID]*machine
	serviceSets map[string]*serviceSet
	deadlines   deadlines
	queue       queue

	portsStale   bool  // ports is to be compiled again
	compileAfter int64 // not before
}

// machine is one Machine of an App.
type machine struct {
	id         hangar.MachineID
	row        *hangar.MachineRow // nil: gone
	set        *serviceSet
	candidates []*candidate     // one for each group of set, in that order
	weight     int              // see weightOf
	admitted   uint64           // permits, ever
	traffic    *traffic.Machine // nil: there was no permit

	runningSince uint64             // Seq of the first row that showed the program running; 0: none runs
	version      hangar.InstanceID  // of that program
	losses       uint64             // of the Machine, before that program was started
	lastExit     exit               // of an earlier one
	onExit       map[*Permit]func() // see Permit.OnExit
}

// weightOf is how much a Machine's services count when serviceSets conflict: 2 if it is started,
// 1 if it may be, 0 if not.
func weightOf(m *hangar.Machine) int {
	switch {
	case m.Cordoned:
		return 0
	case m.State == hangar.MachineStarted:
		return 2
	}
	switch m.State {
	case hangar.MachineCreated, hangar.MachineFailed, hangar.MachineDestroying, hangar.MachineDestroyed:
		return 0
	default:
		return 1
	}
}

// applyRow takes a new row of a Machine, nil if the Machine is gone, and reports whether
// connections that were made to the Machine before are stale.
func (a *app) applyRow(id hangar.MachineID, row *hangar.MachineRow) (stale bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.machines[id]
	if row != nil && row.Machine.State == hangar.MachineDestroyed {
		row = nil
	}
	switch {
	case m == nil && row == nil, m != nil && m.row == row:
		return false
	case m == nil:
		m = &machine{id: id}
		a.machines[id] = m
	}
	old := m.row
	if old != nil && old.Machine.State == hangar.MachineStarted {
		stale = row == nil || row.Machine.State != hangar.MachineStarted || row.Machine.InstanceID != old.Machine.InstanceID || row.Losses != old.Losses
	}
	if e, ended := m.observeProgram(row); ended {
		m.noteExit(e)
	}
	a.setRow(m, row)
	if row == nil {
		delete(a.machines, id)
		a.queue.needsReview = true
	}
	now := a.b.now()
	if old == nil || row == nil {
		a.updateOther(m, now)
	}
	started := old != nil && old.Machine.State != hangar.MachineStarted && row != nil && row.Machine.State == hangar.MachineStarted
	for _, c := range m.candidates {
		woken := c.wokenRow != nil || c.waking
		c.applyRow(row, len(a.machines) == 1)
		c.refusedUntil, c.refusals = 0, 0
		if c.probing != nil && (row == nil || row.Machine.State != hangar.MachineStarted) {
			close(c.probing)
			c.probing = nil
		}
		if started {
			a.noteStart(c, woken, now)
		}
	}
	for _, c := range m.candidates {
		if was, is := a.reindex(c, now); was != is {
			a.queue.needsReview = true
		}
	}
	a.compileSoon(now)
	for _, c := range m.candidates {
		if c.pos.availability == available {
			a.offer(c, now)
		}
	}
	a.reviewQueue(now)
	a.armTimer(now)
	return stale
}

// updateOther updates the only other Machine of an App after one came or went: whether requests
// start a Machine may depend on whether the App has another.
func (a *app) updateOther(changed *machine, now int64) {
	if len(a.machines) > 2 {
		return
	}
	for _, m := range a.machines {
		if m == changed {
			continue
		}
		for _, c := range m.candidates {
			c.applyRow(m.row, len(a.machines) == 1)
			a.recheck(c, now)
		}
	}
}

// loadRows takes the rows at the time when the App is first asked for.
func (a *app) loadRows(rows []*hangar.MachineRow) {
	for _, row := range rows {
		if row.Machine.State != hangar.MachineDestroyed {
			m := &machine{id: row.Machine.ID}
			a.machines[m.id] = m
			m.observeProgram(row)
			a.setRow(m, row)
		}
	}
	now := a.b.now()
	for _, m := range a.machines {
		for _, c := range m.candidates {
			c.applyRow(m.row, len(a.machines) == 1)
			a.reindex(c, now)
		}
	}
	a.ports.Store(compilePorts(a.serviceSets, a.b.o.Region))
	a.portsStale = false
}

// setRow gives a Machine its row; the caller updates its candidates.
func (a *app) setRow(m *machine, row *hangar.MachineRow) {
	a.assignServices(m, row)
	m.row = row
	if row == nil {
		return
	}
	if weight := weightOf(&row.Machine); weight != m.weight {
		a.addWeight(m.set, m.weight, -1)
		m.weight = weight
		a.addWeight(m.set, m.weight, 1)
	}
}

// noteStart records that the Machine of a candidate has started; woken: at this edge's request.
func (a *app) noteStart(c *candidate, woken bool, now int64) {
	c.graceUntil = now + int64(StartGrace)
	c.group.lastStart = now
	c.atLimitUntil, c.cooldownUntil, c.connFailures, c.wakeBackoffUntil = 0, 0, 0, 0
	a.deadlines.add(c.graceUntil, c)
	if !woken && !c.group.udp && c.byRow == available {
		a.probe(c)
	}
}

// assignServices moves a Machine to the serviceSet of its row, and its candidates to their groups.
func (a *app) assignServices(m *machine, row *hangar.MachineRow) {
	var next *serviceSet
	if row != nil {
		if m.row != nil && row.Machine.InstanceID != "" && row.Machine.InstanceID == m.row.Machine.InstanceID {
			return // one version always has the same services
		}
		services := row.Machine.Config.Services
		key := serviceSetKey(services)
		if next = a.serviceSets[key]; next == nil {
			next = newServiceSet(key, services)
			a.serviceSets[key] = next
			a.portsStale = true
		}
	}
	if was := m.set; was != nil {
		was.remove(m)
		a.portsStale = a.portsStale || was.contested
		a.addWeight(was, m.weight, -1)
		if len(was.members) == 0 && was != next {
			delete(a.serviceSets, was.key)
			a.portsStale = true
		}
	}
	held := m.candidates
	m.set, m.candidates, m.weight = next, nil, 0
	if next != nil {
		next.add(m, row.Machine.InstanceID)
		a.portsStale = a.portsStale || next.contested
		for _, g := range next.groups {
			i := slices.IndexFunc(held, func(c *candidate) bool { return c.group.udp == g.udp && c.group.port == g.port })
			c := &candidate{machine: m, byRow: unavailable}
			if i >= 0 {
				c = held[i]
				held = slices.Delete(held, i, i+1)
				c.index.remove(c)
				c.wakeBackoffUntil = 0 // another version may start
			}
			c.group, c.index = g, a.index(g, row.Machine.Region)
			c.index.add(c, position{availability: unavailable})
			m.candidates = append(m.candidates, c)
		}
	}
	for _, c := range held {
		c.index.remove(c)
		c.group, c.index, c.byRow = nil, nil, unavailable
	}
}

func (a *app) index(g *group, region hangar.Region) *index {
	for _, ix := range g.indexes {
		if ix.region == region {
			return ix
		}
	}
	ix := &index{region: region}
	g.indexes = append(g.indexes, ix)
	a.portsStale = true
	return ix
}

// addWeight counts n members of a serviceSet with a weight.
func (a *app) addWeight(set *serviceSet, weight, n int) {
	before := [2]bool{set.started > 0, set.usable > 0}
	if weight >= 2 {
		set.started += n
	}
	if weight >= 1 {
		set.usable += n
	}
	if set.contested && before != [2]bool{set.started > 0, set.usable > 0} {
		a.portsStale = true
	}
}

// reindex moves a candidate to its position in its index, and returns its availability before and now.
func (a *app) reindex(c *candidate, now int64) (was, is availability) {
	if c.index == nil {
		return unavailable, unavailable
	}
	was = c.pos.availability
	next := position{availability: c.availabilityAt(now)}
	switch next.availability {
	case available:
		switch {
		case now < c.cooldownUntil:
			next.tier = coolingDown
		case c.inFlight >= c.softLimit:
			next.tier = aboveSoft
		}
		next.bucket = bucketOf(c.inFlight)
	case wakeable:
		if c.machine.row.Machine.State != hangar.MachineSuspended {
			next.atRest = 1
		}
	default:
	}
	if c.pos.availability == next.availability && c.pos.tier == next.tier && c.pos.bucket == next.bucket && c.pos.atRest == next.atRest {
		return was, next.availability
	}
	c.index.remove(c)
	c.index.add(c, next)
	return was, next.availability
}

// recheck is reindex, and offers the candidate to waiters.
func (a *app) recheck(c *candidate, now int64) {
	was, is := a.reindex(c, now)
	if is == available {
		a.offer(c, now)
		is = c.pos.availability
	}
	if is != was && is != available {
		a.queue.needsReview = true // waiters can no longer count on this candidate
	}
}

// compileSoon compiles the port table if it is stale: at once, unless that was done just now
// and takes long.
func (a *app) compileSoon(now int64) {
	if !a.portsStale {
		return
	}
	if now < a.compileAfter {
		a.deadlines.add(a.compileAfter, nil)
		return
	}
	ports := compilePorts(a.serviceSets, a.b.o.Region)
	old := a.ports.Swap(ports)
	a.portsStale = false
	done := a.b.now()
	a.compileAfter = done + min(compileShare*(done-now), int64(maxCompileDelay))
	if old == nil || !slices.Equal(old.ranges, ports.ranges) {
		a.b.signalPortsChanged()
	}
	a.rematch(done)
}

// Compiling takes at most one part in compileShare of the time, but never delays a change by more
// than maxCompileDelay.
const (
	compileShare    = 10
	maxCompileDelay = 100 * time.Millisecond
)

// onDeadline rechecks the candidates whose deadlines have passed.
func (a *app) onDeadline() {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.b.now()
	for {
		c, ok := a.deadlines.due(now)
		if !ok {
			break
		}
		if c == nil {
			a.compileSoon(now)
		} else {
			a.recheck(c, now)
		}
	}
	a.reviewQueue(now)
	a.armTimer(now)
}

// armTimer has onDeadline called at the next deadline.
func (a *app) armTimer(now int64) {
	at, ok := a.deadlines.next()
	if !ok || a.deadlines.timer != nil && a.deadlines.set <= at && a.deadlines.set > now {
		return
	}
	a.deadlines.set = at
	after := time.Duration(max(at-now, 1))
	if a.deadlines.timer == nil {
		a.deadlines.timer = time.AfterFunc(after, a.onDeadline)
	} else {
		a.deadlines.timer.Reset(after)
	}
}
