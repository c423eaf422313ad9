package machines

import (
	"slices"

	"github.com/hangar-platform/hangar"
)

// newest returns the events that are shown with a Machine, newest first. They are shared and must
// not be changed. For a Machine from before the daemon's start, they are read from the journal
// once, and kept in memory from then on.
func (m *machine) newest() ([]hangar.Event, error) {
	if recent := m.recent.Load(); recent != nil {
		return *recent, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.newestLocked()
}

// newestLocked is newest with m.mu held, so that no event is added meanwhile.
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

// ended is the last exit of the main process.
type ended struct {
	exit *hangar.ExitEvent // nil: none, or too long ago to be among the shown events
}

// lastExit returns the last exit of the main process, or nil as in ended. Once requested, it is
// kept in memory, unlike the events.
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

// note records the exit of a newer event.
func (l *ended) note(e *hangar.Event) {
	if e.Request != nil && e.Request.ExitEvent != nil {
		l.exit = e.Request.ExitEvent
	}
}

// remember adds committed events, oldest first. m.mu is held.
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
		return // the events were never requested, or there are none
	}
	next := slices.Clone(events)
	slices.Reverse(next)
	next = append(next, *recent...)
	next = slices.Clip(next[:min(len(next), shownEvents)])
	m.recent.Store(&next)
}
