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

// remember adds events that were committed, the oldest first. m.mu is held.
func (m *machine) remember(events []hangar.Event) {
	recent := m.recent.Load()
	if recent == nil || len(events) == 0 {
		return // nobody has asked for them, or nothing happened
	}
	next := slices.Clone(events)
	slices.Reverse(next)
	next = append(next, *recent...)
	next = slices.Clip(next[:min(len(next), shownEvents)])
	m.recent.Store(&next)
}
