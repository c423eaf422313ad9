package balance

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar"
)

// app is what is known of the Machines of one App.
type app struct {
	b      *Balancer
	id     hangar.AppID
	ports  atomic.Pointer[portTable] // written with mu held
	loaded chan struct{}             // closed when there is a top
	// evicted: it has no Machines, and another one may have taken its place.
	evicted atomic.Bool

	mu          sync.Mutex // guards what follows, and what hangs on it
	machines    map[hangar.MachineID]*machine
	serviceSets map[string]*serviceSet
	deadlines   deadlines
	queue       queue

	portsStale   bool  // top is to be compiled anew
	compileAfter int64 // not before
}

// machine is one Machine.
type machine struct {
	id         hangar.MachineID
	row        *hangar.MachineRow // nil: gone
	shape      *serviceSet
	candidates []*candidate // one for each crowd of shape, in that order
	weight     int          // see rankOf
	admitted   uint64       // seats, ever

	runningSince uint64             // Seq of the first row that showed the program running; 0: none runs
	version      hangar.InstanceID  // of that program
	losses       uint64             // of the Machine, before that program was started
	lastExit     exit               // of the one before it
	onExit       map[*Permit]func() // for whose seats something is called when it ends, see Seat.OnEnd
}

// rankOf says how much the config of a Machine counts for what the App serves: 2 if it is
// started, 1 if it might be, 0 if not.
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

// apply takes a row over, or (nil) that a Machine is gone, and reports whether connections to
// the Machine that were made before are void.
func (a *app) applyRow(id hangar.MachineID, row *hangar.MachineRow) (void bool) {
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
		void = row == nil || row.Machine.State != hangar.MachineStarted || row.Machine.InstanceID != old.Machine.InstanceID || row.Losses != old.Losses
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
		woken := c.up || c.waking
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
	return void
}

// recount tells the other Machine of an App that it has company, or that it is alone again.
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

// load takes over the rows that there are at first.
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

// install gives a Machine its row.
func (a *app) setRow(m *machine, row *hangar.MachineRow) {
	a.assignServices(m, row)
	m.row = row
	a.updateWeight(m, row)
}

// begun notes that the Machine of a slot has been started; woken: this edge asked for that.
func (a *app) noteStart(c *candidate, woken bool, now int64) {
	c.graceUntil = now + int64(StartGrace)
	c.group.lastStart = now
	c.atLimitUntil, c.cooldownUntil, c.connFailures, c.wakeBackoffUntil = 0, 0, 0, 0
	a.deadlines.add(c.graceUntil, c)
	if !woken && !c.group.udp && c.byRow == available {
		a.probe(c)
	}
}

// reshape puts a Machine where its services belong.
func (a *app) assignServices(m *machine, row *hangar.MachineRow) {
	var next *serviceSet
	if row != nil {
		if m.row != nil && row.Machine.InstanceID != "" && row.Machine.InstanceID == m.row.Machine.InstanceID {
			return // the same version has the same services
		}
		services := row.Machine.Config.Services
		key := serviceSetKey(services)
		if next = a.serviceSets[key]; next == nil {
			next = newServiceSet(key, services)
			a.serviceSets[key] = next
			a.portsStale = true
		}
	}
	if was := m.shape; was != nil {
		was.remove(m)
		a.portsStale = a.portsStale || was.contested
		a.addWeight(was, m.weight, -1)
		if len(was.members) == 0 && was != next {
			delete(a.serviceSets, was.key)
			a.portsStale = true
		}
	}
	held := m.candidates
	m.shape, m.candidates, m.weight = next, nil, 0
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

// rerank keeps account of how many members of a shape run.
func (a *app) updateWeight(m *machine, row *hangar.MachineRow) {
	if row == nil {
		return // reshape did
	}
	if rank := weightOf(&row.Machine); rank != m.weight {
		a.addWeight(m.shape, m.weight, -1)
		m.weight = rank
		a.addWeight(m.shape, m.weight, 1)
	}
}

func (a *app) addWeight(set *serviceSet, rank, n int) {
	before := [2]bool{set.started > 0, set.usable > 0}
	if rank >= 2 {
		set.started += n
	}
	if rank >= 1 {
		set.usable += n
	}
	if set.contested && before != [2]bool{set.started > 0, set.usable > 0} {
		a.portsStale = true
	}
}

// move puts a slot where it belongs in its zone, and returns what it was and is.
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

// settle is move, and lets in whoever waits for such a slot.
func (a *app) recheck(c *candidate, now int64) {
	was, is := a.reindex(c, now)
	if is == available {
		a.offer(c, now)
		is = c.pos.availability
	}
	if is != was && is != available {
		a.queue.needsReview = true // who still waits cannot count on it any more
	}
}

// compileSoon compiles the topology if it is dirty: at once, unless that was done just now
// and takes long.
func (a *app) compileSoon(now int64) {
	if !a.portsStale {
		return
	}
	if now < a.compileAfter {
		a.deadlines.add(a.compileAfter, nil)
		return
	}
	top := compilePorts(a.serviceSets, a.b.o.Region)
	old := a.ports.Swap(top)
	a.portsStale = false
	done := a.b.now()
	a.compileAfter = done + min(compileShare*(done-now), int64(maxCompileDelay))
	if old == nil || !slices.Equal(old.ranges, top.ranges) {
		a.b.signalPortsChanged()
	}
	a.rematch(done)
}

// The table is compiled during at most one part in compileShare of the time, but never later
// than maxCompileDelay after a change.
const (
	compileShare    = 10
	maxCompileDelay = 100 * time.Millisecond
)

// alarm does what has become due.
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

// setTimer sees to it that alarm is called in time.
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
