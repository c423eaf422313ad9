package extensions

import (
	"slices"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/internal/pqueue"
	"github.com/hangar-platform/hangar/provider"
)

// The bounds of what is under way at once. There are at most hangar.MaxProviders providers.
const (
	stepsPerProvider = 4
	// stepsPerOrg leaves some of a provider's to its other customers.
	stepsPerOrg = stepsPerProvider - 1
)

// schedule says which extensions have their next step when. Each provider has a line of its own, in
// which organizations take turns.
type schedule struct {
	mu      sync.Mutex // guards what follows
	entries map[ref]*entry
	due     *pqueue.Queue[*entry] // waiting for their time
	lines   map[hangar.ProviderName]*line
}

// entry is an extension that has a next step.
type entry struct {
	ref
	provider hangar.ProviderName
	mark     mark
	seen     state.Item // the record as the watch has told it, which may be ahead of what is read
	at       time.Time  // of the next step
	place    pqueue.Place
	failures int  // since the last step that succeeded
	running  bool // a step is under way
	waiting  bool // in the line of its provider
	again    bool // the record has changed during the step
	gone     bool // likewise, it is gone
}

// mark is what tells a change of a record that wants another step from the notes of one.
type mark struct {
	phase phase
	since int64
	event provider.Timestamp
}

func markOf(r *record) mark { return mark{r.Phase, r.Since.UnixNano(), r.EventAt} }

// line is what is to be done with extensions of a provider now.
type line struct {
	running int
	orgs    []hangar.OrgID // with entries that wait, the next one first
	waiting map[hangar.OrgID][]*entry
	busy    map[hangar.OrgID]int // steps under way
}

func newSchedule() *schedule {
	return &schedule{
		entries: map[ref]*entry{}, lines: map[hangar.ProviderName]*line{},
		due: pqueue.New(func(a, b *entry) bool { return a.at.Before(b.at) }, func(e *entry) *pqueue.Place { return &e.place }),
	}
}

// set takes note of a record as it is now.
func (s *schedule) set(r *record, item state.Item, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[r.ref()]
	known := e != nil
	if !known {
		e = &entry{ref: r.ref(), provider: r.Provider}
		s.entries[e.ref] = e
	}
	e.seen = item
	if known && e.mark == markOf(r) {
		return
	}
	e.mark, e.failures, e.gone = markOf(r), 0, false
	switch {
	case e.running:
		e.again = true
	case !e.waiting:
		e.at = now
		s.due.Put(e)
	}
}

// remove takes note that a record is gone.
func (s *schedule) remove(at ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[at]
	switch {
	case e == nil:
	case e.running, e.waiting:
		e.gone = true // its step finds nothing
	default:
		s.due.Remove(e)
		delete(s.entries, at)
	}
}

// newest is the record of an extension as the watch has told it.
func (s *schedule) newest(e *entry) state.Item {
	s.mu.Lock()
	defer s.mu.Unlock()
	return e.seen
}

// keep removes what is not among refs.
func (s *schedule) keep(refs map[ref]bool) {
	s.mu.Lock()
	var gone []ref
	for at := range s.entries {
		if !refs[at] {
			gone = append(gone, at)
		}
	}
	s.mu.Unlock()
	for _, at := range gone {
		s.remove(at)
	}
}

// start returns the extensions whose step is to begin, and when to ask again at the latest; zero: after
// the next change.
func (s *schedule) start(now time.Time) (begin []*entry, next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		e, ok := s.due.First()
		if !ok {
			break
		}
		if e.at.After(now) {
			next = e.at
			break
		}
		s.due.Pop()
		s.lineOf(e.provider).add(e)
	}
	for name, l := range s.lines {
		for e := l.take(); e != nil; e = l.take() {
			begin = append(begin, e)
		}
		if l.running == 0 && len(l.orgs) == 0 {
			delete(s.lines, name)
		}
	}
	return begin, next
}

func (s *schedule) lineOf(name hangar.ProviderName) *line {
	l := s.lines[name]
	if l == nil {
		l = &line{waiting: map[hangar.OrgID][]*entry{}, busy: map[hangar.OrgID]int{}}
		s.lines[name] = l
	}
	return l
}

// add appends an extension to the queue of its organization.
func (l *line) add(e *entry) {
	e.waiting = true
	if len(l.waiting[e.Org]) == 0 {
		l.orgs = append(l.orgs, e.Org)
	}
	l.waiting[e.Org] = append(l.waiting[e.Org], e)
}

// take returns the next extension in turn, or nil.
func (l *line) take() *entry {
	if l.running >= stepsPerProvider {
		return nil
	}
	at := slices.IndexFunc(l.orgs, func(org hangar.OrgID) bool { return l.busy[org] < stepsPerOrg })
	if at < 0 {
		return nil
	}
	org := l.orgs[at]
	l.orgs = slices.Delete(l.orgs, at, at+1)
	e := l.waiting[org][0]
	if l.waiting[org] = l.waiting[org][1:]; len(l.waiting[org]) == 0 {
		delete(l.waiting, org)
	} else {
		l.orgs = append(l.orgs, org)
	}
	l.running++
	l.busy[org]++
	e.waiting, e.running, e.again = false, true, false
	return e
}

// done takes note of how a step ended. delay is how long the next one waits after so many failures.
func (s *schedule) done(e *entry, a nextStep, now time.Time, delay func(failures int) time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lineOf(e.provider)
	l.running--
	if l.busy[e.Org]--; l.busy[e.Org] == 0 {
		delete(l.busy, e.Org)
	}
	e.running = false
	if e.gone && !e.again {
		delete(s.entries, e.ref)
		return
	}
	after := a.after
	switch {
	case a.failed:
		e.failures++
		after = max(after, delay(e.failures))
	case !e.again:
		e.failures = 0
	}
	switch {
	case e.again:
		e.at = now
	case a.never:
		return // until set
	default:
		e.at = now.Add(after)
	}
	s.due.Put(e)
}
