package machines

import (
	"slices"

	"github.com/hangar-platform/hangar"
)

// newest returns the events that come with a Machine, newest first, which are shared
// and must not be changed. Those of a Machine that was made before the daemon started
// are read from the journal once; from then on they are in memory.
func (m *machine) newest() ([]hangar.Event, error) {
	if recent := m.recent.Load(); recent != nil {
		return *recent, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.newestLocked()
}

// newestLocked is newest while m.mu is held, so that no event comes meanwhile.
func (m *machine) newestLocked() ([]hangar.Event, error) {
	if recent := m.recent.Load(); recent != nil {
		return *recent, nil
	}
	recent, err := m.store.o.Journal.Events(m.id, shownEvents)
	if err != nil {
		return nil, err
	}
	m.recent.Store(&recent)
	return recent, nil
}

// ended is how the main process of a Machine has ended last.
type ended struct {
	exit *hangar.ExitEvent // nil: it has not, or so long ago that its event does not come with the Machine
}

// lastExit returns how the main process has ended last; nil as in ended. Unlike the events it is
// kept for every Machine that it was requested for.
func (m *machine) lastExit() (*hangar.ExitEvent, error) {
	if last := m.ended.Load(); last != nil {
		return last.exit, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if last := m.ended.Load(); last != nil {
		return last.exit, nil
	}
	events, err := m.store.o.Journal.Events(m.id, shownEvents)
	if err != nil {
		return nil, err
	}
	var last ended
	for i := range slices.Backward(events) {
		last.note(&events[i])
	}
	m.ended.Store(&last)
	return last.exit, nil
}

// note takes over the exit of an event that is newer.
func (l *ended) note(e *hangar.Event) {
	if e.Request != nil && e.Request.ExitEvent != nil {
		l.exit = e.Request.ExitEvent
	}
}

// remember adds events that were committed, the oldest first. m.mu is held.
func (m *machine) remember(events []hangar.Event) {
	if last := m.ended.Load(); last != nil {
		now := *last
		for i := range events {
			now.note(&events[i])
		}
		if now != *last {
			m.ended.Store(&now)
		}
	}
	recent := m.recent.Load()
	if recent == nil || len(events) == 0 {
		return // they were not requested, or nothing happened
	}
	next := slices.Clone(events)
	slices.Reverse(next)
	next = append(next, *recent...)
	next = slices.Clip(next[:min(len(next), shownEvents)])
	m.recent.Store(&next)
}
