package machines

import (
	"context"
	"iter"
	"sync"

	"github.com/hangar-platform/hangar"
)

// watchers notifies the waiters and watchers of a Machine. Without any it costs nothing.
type watchers struct {
	mu       sync.Mutex
	waiters  map[*waiter]struct{} // nil while there are no waiters
	next     chan struct{}        // closed at the next event or progress; nil while there are no watchers
	progress *hangar.PullProgress
}

// wait returns a channel that closes at the next event or progress, and the progress of a pull in
// flight.
func (w *watchers) wait() (<-chan struct{}, *hangar.PullProgress) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next == nil {
		w.next = make(chan struct{})
	}
	return w.next, w.progress
}

// register adds a waiter, which receives its verdict once.
func (w *watchers) register(x *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiters == nil {
		w.waiters = make(map[*waiter]struct{})
	}
	w.waiters[x] = struct{}{}
}

// unregister undoes register. It may be repeated.
func (w *watchers) unregister(x *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiters, x)
	if len(w.waiters) == 0 {
		w.waiters = nil
	}
}

// happened reports committed events; now is the Machine after them. The Machine's lock is held, so
// events are in order.
func (w *watchers) happened(now *hangar.Machine, events []hangar.Event) {
	if len(events) == 0 {
		return
	}
	for _, x := range w.judge(now, events) {
		x.waiter.deliver(x.verdict) // without w.mu, which woken waiters take
	}
}

// judged is a waiter with its verdict.
type judged struct {
	waiter  *waiter
	verdict *verdict
}

// judge wakes the watchers, and removes and returns the waiters with a verdict.
func (w *watchers) judge(now *hangar.Machine, events []hangar.Event) []judged {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wake()
	list := make([]judged, 0, len(w.waiters))
	for x := range w.waiters {
		if v := x.judge(now, events); v != nil {
			list = append(list, judged{x, v})
			delete(w.waiters, x)
		}
	}
	if len(w.waiters) == 0 {
		w.waiters = nil
	}
	return list
}

// wake wakes the watchers. w.mu is held.
func (w *watchers) wake() {
	if w.next != nil {
		close(w.next)
		w.next = nil
	}
}

// report publishes the progress of a pull; nil when it has ended.
func (w *watchers) report(p *hangar.PullProgress) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.progress = p
	w.wake()
}

// since returns the Machine and the events after last; with first only the newest event, from which
// to continue.
func (m *machine) since(first bool, last hangar.EventID) (*hangar.Machine, []hangar.Event, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.shown(m.rec.Load())
	var events []hangar.Event
	var err error
	if first {
		events, err = m.store.o.Journal.Events(m.id, 1)
	} else {
		events, err = m.store.o.Journal.EventsAfter(m.id, last)
	}
	return &now, events, err
}

// WatchMachine implements hangar.MachineReader.
func (s *Store) WatchMachine(ctx context.Context, ref hangar.MachineRef) iter.Seq2[hangar.MachineChange, error] {
	return func(yield func(hangar.MachineChange, error) bool) {
		m, err := s.machine(ref)
		if err != nil {
			yield(hangar.MachineChange{}, err)
			return
		}
		var last hangar.EventID
		var reported hangar.PullProgress
		for first := true; ; first = false {
			changed, progress := m.watchers.wait()
			now, events, err := m.since(first, last)
			if err != nil {
				yield(hangar.MachineChange{}, err)
				return
			}
			if first && !yield(hangar.MachineChange{Machine: now}, nil) {
				return
			}
			for _, e := range events {
				last = e.ID
				then := *now // after the event
				then.State = hangar.MachineState(e.Status)
				if !first && !yield(hangar.MachineChange{Machine: &then, Event: &e}, nil) {
					return
				}
			}
			if progress != nil && *progress != reported {
				reported = *progress
				if !yield(hangar.MachineChange{Machine: now, Progress: progress}, nil) {
					return
				}
			}
			if now.State == hangar.MachineDestroyed {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			case <-s.work.Context.Done():
				return
			}
		}
	}
}
