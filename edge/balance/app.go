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
	top    atomic.Pointer[topology] // written with mu held
	loaded chan struct{}            // closed when there is a top
	// evicted: it has no Machines, and another one may have taken its place.
	evicted atomic.Bool

	mu       sync.Mutex // guards what follows, and what hangs on it
	machines map[hangar.MachineID]*machine
	shapes   map[string]*shape
	alarms   alarms
	queue    queue

	dirty     bool  // top is to be compiled anew
	compileAt int64 // not before
}

// machine is one Machine.
type machine struct {
	id    hangar.MachineID
	row   *hangar.MachineRow // nil: gone
	shape *shape
	slots []*slot // one for each crowd of shape, in that order
	rank  int     // see rankOf
	taken uint64  // seats, ever

	boot    uint64            // Seq of the first row that showed the program running; 0: none runs
	version hangar.InstanceID // of that program
	losses  uint64            // of the Machine, before that program was started
	latest  ending            // of the one before it
	tell    map[*Seat]func()  // for whose seats something is called when it ends, see Seat.OnEnd
}

// rankOf says how much the config of a Machine counts for what the App serves: 2 if it is
// started, 1 if it might be, 0 if not.
func rankOf(m *hangar.Machine) int {
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
func (a *app) apply(id hangar.MachineID, row *hangar.MachineRow) (void bool) {
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
	if e, ended := m.outlived(row); ended {
		m.end(e)
	}
	a.install(m, row)
	if row == nil {
		delete(a.machines, id)
		a.queue.doubt = true
	}
	now := a.b.now()
	if old == nil || row == nil {
		a.recount(m, now)
	}
	started := old != nil && old.Machine.State != hangar.MachineStarted && row != nil && row.Machine.State == hangar.MachineStarted
	for _, s := range m.slots {
		woken := s.up || s.waking
		s.adopt(row, len(a.machines) == 1)
		s.refusedUntil, s.refusals = 0, 0
		if s.proving != nil && (row == nil || row.Machine.State != hangar.MachineStarted) {
			close(s.proving)
			s.proving = nil
		}
		if started {
			a.begun(s, woken, now)
		}
	}
	for _, s := range m.slots {
		if was, is := a.move(s, now); was != is {
			a.queue.doubt = true
		}
	}
	a.compileSoon(now)
	for _, s := range m.slots {
		if s.place.class == open {
			a.offer(s, now)
		}
	}
	a.review(now)
	a.setTimer(now)
	return void
}

// recount tells the other Machine of an App that it has company, or that it is alone again.
func (a *app) recount(changed *machine, now int64) {
	if len(a.machines) > 2 {
		return
	}
	for _, m := range a.machines {
		if m == changed {
			continue
		}
		for _, s := range m.slots {
			s.adopt(m.row, len(a.machines) == 1)
			a.settle(s, now)
		}
	}
}

// load takes over the rows that there are at first.
func (a *app) load(rows []*hangar.MachineRow) {
	for _, row := range rows {
		if row.Machine.State != hangar.MachineDestroyed {
			m := &machine{id: row.Machine.ID}
			a.machines[m.id] = m
			m.outlived(row)
			a.install(m, row)
		}
	}
	now := a.b.now()
	for _, m := range a.machines {
		for _, s := range m.slots {
			s.adopt(m.row, len(a.machines) == 1)
			a.move(s, now)
		}
	}
	a.top.Store(compile(a.shapes, a.b.o.Region))
	a.dirty = false
}

// install gives a Machine its row.
func (a *app) install(m *machine, row *hangar.MachineRow) {
	a.reshape(m, row)
	m.row = row
	a.rerank(m, row)
}

// begun notes that the Machine of a slot has been started; woken: this edge asked for that.
func (a *app) begun(s *slot, woken bool, now int64) {
	s.graceUntil = now + int64(StartGrace)
	s.crowd.lastStart = now
	s.limitUntil, s.avoidUntil, s.failures, s.wakeAfter = 0, 0, 0, 0
	a.alarms.add(s.graceUntil, s)
	if !woken && !s.crowd.udp && s.byRow == open {
		a.prove(s)
	}
}

// reshape puts a Machine where its services belong.
func (a *app) reshape(m *machine, row *hangar.MachineRow) {
	var next *shape
	if row != nil {
		if m.row != nil && row.Machine.InstanceID != "" && row.Machine.InstanceID == m.row.Machine.InstanceID {
			return // the same version has the same services
		}
		services := row.Machine.Config.Services
		key := shapeKey(services)
		if next = a.shapes[key]; next == nil {
			next = newShape(key, services)
			a.shapes[key] = next
			a.dirty = true
		}
	}
	if was := m.shape; was != nil {
		was.drop(m)
		a.dirty = a.dirty || was.contested
		a.count(was, m.rank, -1)
		if len(was.members) == 0 && was != next {
			delete(a.shapes, was.key)
			a.dirty = true
		}
	}
	held := m.slots
	m.shape, m.slots, m.rank = next, nil, 0
	if next != nil {
		next.add(m, row.Machine.InstanceID)
		a.dirty = a.dirty || next.contested
		for _, c := range next.crowds {
			i := slices.IndexFunc(held, func(s *slot) bool { return s.crowd.udp == c.udp && s.crowd.port == c.port })
			s := &slot{m: m, byRow: dead}
			if i >= 0 {
				s = held[i]
				held = slices.Delete(held, i, i+1)
				s.zone.take(s)
				s.wakeAfter = 0 // another version may start
			}
			s.crowd, s.zone = c, a.zone(c, row.Machine.Region)
			s.zone.put(s, place{class: dead})
			m.slots = append(m.slots, s)
		}
	}
	for _, s := range held {
		s.zone.take(s)
		s.crowd, s.zone, s.byRow = nil, nil, dead
	}
}

func (a *app) zone(c *crowd, region hangar.Region) *zone {
	for _, z := range c.zones {
		if z.region == region {
			return z
		}
	}
	z := &zone{region: region}
	c.zones = append(c.zones, z)
	a.dirty = true
	return z
}

// rerank keeps account of how many members of a shape run.
func (a *app) rerank(m *machine, row *hangar.MachineRow) {
	if row == nil {
		return // reshape did
	}
	if rank := rankOf(&row.Machine); rank != m.rank {
		a.count(m.shape, m.rank, -1)
		m.rank = rank
		a.count(m.shape, m.rank, 1)
	}
}

func (a *app) count(sh *shape, rank, n int) {
	before := [2]bool{sh.started > 0, sh.usable > 0}
	if rank >= 2 {
		sh.started += n
	}
	if rank >= 1 {
		sh.usable += n
	}
	if sh.contested && before != [2]bool{sh.started > 0, sh.usable > 0} {
		a.dirty = true
	}
}

// move puts a slot where it belongs in its zone, and returns what it was and is.
func (a *app) move(s *slot, now int64) (was, is class) {
	if s.zone == nil {
		return dead, dead
	}
	was = s.place.class
	next := place{class: s.classify(now)}
	switch next.class {
	case open:
		switch {
		case now < s.avoidUntil:
			next.tier = avoided
		case s.load >= s.soft:
			next.tier = above
		}
		next.level = levelOf(s.load)
	case wakeable:
		if s.m.row.Machine.State != hangar.MachineSuspended {
			next.rest = 1
		}
	default:
	}
	if s.place.class == next.class && s.place.tier == next.tier && s.place.level == next.level && s.place.rest == next.rest {
		return was, next.class
	}
	s.zone.take(s)
	s.zone.put(s, next)
	return was, next.class
}

// settle is move, and lets in whoever waits for such a slot.
func (a *app) settle(s *slot, now int64) {
	was, is := a.move(s, now)
	if is == open {
		a.offer(s, now)
		is = s.place.class
	}
	if is != was && is != open {
		a.queue.doubt = true // who still waits cannot count on it any more
	}
}

// compileSoon compiles the topology if it is dirty: at once, unless that was done just now
// and takes long.
func (a *app) compileSoon(now int64) {
	if !a.dirty {
		return
	}
	if now < a.compileAt {
		a.alarms.add(a.compileAt, nil)
		return
	}
	top := compile(a.shapes, a.b.o.Region)
	old := a.top.Swap(top)
	a.dirty = false
	done := a.b.now()
	a.compileAt = done + min(compileShare*(done-now), int64(maxCompileDelay))
	if old == nil || !slices.Equal(old.ranges, top.ranges) {
		a.b.signal()
	}
	a.requeue(done)
}

// The table is compiled during at most one part in compileShare of the time, but never later
// than maxCompileDelay after a change.
const (
	compileShare    = 10
	maxCompileDelay = 100 * time.Millisecond
)

// alarm does what has become due.
func (a *app) alarm() {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.b.now()
	for {
		s, ok := a.alarms.due(now)
		if !ok {
			break
		}
		if s == nil {
			a.compileSoon(now)
		} else {
			a.settle(s, now)
		}
	}
	a.review(now)
	a.setTimer(now)
}

// setTimer sees to it that alarm is called in time.
func (a *app) setTimer(now int64) {
	at, ok := a.alarms.next()
	if !ok || a.alarms.timer != nil && a.alarms.set <= at && a.alarms.set > now {
		return
	}
	a.alarms.set = at
	after := time.Duration(max(at-now, 1))
	if a.alarms.timer == nil {
		a.alarms.timer = time.AfterFunc(after, a.alarm)
	} else {
		a.alarms.timer.Reset(after)
	}
}
