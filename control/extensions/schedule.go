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

// Bounds of the steps in progress. There are at most hangar.MaxProviders providers.
const (
	stepsPerProvider = 4
	// stepsPerOrg leaves one of a provider's steps to other organizations.
	stepsPerOrg = stepsPerProvider - 1
)

// schedule has the time of each extension's next step. Each provider has a queue of due steps, in
// which organizations take turns.
type schedule struct {
	mu      sync.Mutex // guards what follows
	entries map[ref]*entry
	due     *pqueue.Queue[*entry] // entries whose step is not due yet
	queues  map[hangar.ProviderName]*providerQueue
}

// entry is an extension with its next step.
type entry struct {
	ref
	provider hangar.ProviderName
	mark     mark
	seen     state.Item // the record from the watch, which may be newer than what a read returns
	at       time.Time  // of the next step
	place    pqueue.Place
	failures int  // since the last successful step
	running  bool // its step is in progress
	waiting  bool // in the queue of its provider
	again    bool // the record has changed during the step
	gone     bool // the record was removed during the step
}

// mark has the fields of a record whose change requires another step; steps change the other fields
// themselves.
type mark struct {
	phase phase
	since int64
	event provider.Timestamp
}

func markOf(r *record) mark { return mark{r.Phase, r.Since.UnixNano(), r.EventAt} }

// providerQueue has the due steps of a provider's extensions.
type providerQueue struct {
	running int
	orgs    []hangar.OrgID // organizations with waiting entries, the next one first
	waiting map[hangar.OrgID][]*entry
	busy    map[hangar.OrgID]int // steps in progress
}

func newSchedule() *schedule {
	return &schedule{
		entries: map[ref]*entry{}, queues: map[hangar.ProviderName]*providerQueue{},
		due: pqueue.New(func(a, b *entry) bool { return a.at.Before(b.at) }, func(e *entry) *pqueue.Place { return &e.place }),
	}
}

// set records a new or changed record.
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

// remove records that a record was removed.
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

// newest returns the record of an extension from the watch.
func (s *schedule) newest(e *entry) state.Item {
	s.mu.Lock()
	defer s.mu.Unlock()
	return e.seen
}

// keep removes all entries that are not in refs.
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

// start returns the extensions whose step is to begin, and when to call it again; zero: after the
// next change.
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
		s.queueOf(e.provider).add(e)
	}
	for name, q := range s.queues {
		for e := q.take(); e != nil; e = q.take() {
			begin = append(begin, e)
		}
		if q.running == 0 && len(q.orgs) == 0 {
			delete(s.queues, name)
		}
	}
	return begin, next
}

func (s *schedule) queueOf(name hangar.ProviderName) *providerQueue {
	q := s.queues[name]
	if q == nil {
		q = &providerQueue{waiting: map[hangar.OrgID][]*entry{}, busy: map[hangar.OrgID]int{}}
		s.queues[name] = q
	}
	return q
}

// add appends an extension to the queue of its organization.
func (q *providerQueue) add(e *entry) {
	e.waiting = true
	if len(q.waiting[e.Org]) == 0 {
		q.orgs = append(q.orgs, e.Org)
	}
	q.waiting[e.Org] = append(q.waiting[e.Org], e)
}

// take returns the next extension in turn, or nil.
func (q *providerQueue) take() *entry {
	if q.running >= stepsPerProvider {
		return nil
	}
	at := slices.IndexFunc(q.orgs, func(org hangar.OrgID) bool { return q.busy[org] < stepsPerOrg })
	if at < 0 {
		return nil
	}
	org := q.orgs[at]
	q.orgs = slices.Delete(q.orgs, at, at+1)
	e := q.waiting[org][0]
	if q.waiting[org] = q.waiting[org][1:]; len(q.waiting[org]) == 0 {
		delete(q.waiting, org)
	} else {
		q.orgs = append(q.orgs, org)
	}
	q.running++
	q.busy[org]++
	e.waiting, e.running, e.again = false, true, false
	return e
}

// done records the result of a step. delay returns the pause after a number of failures.
func (s *schedule) done(e *entry, a nextStep, now time.Time, delay func(failures int) time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queueOf(e.provider)
	q.running--
	if q.busy[e.Org]--; q.busy[e.Org] == 0 {
		delete(q.busy, e.Org)
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
