package gate

import "github.com/hangar-platform/hangar/internal/pqueue"

// timer is the time at which a Gate or a group is checked. It runs while it is in Gates.timers.
type timer struct {
	at    int64 // as Gates.now
	began int64 // of a Gate: when it opened
	place pqueue.Place
	gate  *Gate
	group *group
}

// newTimers returns the queue of running timers, the earliest first.
func newTimers() *pqueue.Queue[*timer] {
	return pqueue.New(
		func(a, b *timer) bool { return a.at < b.at },
		func(t *timer) *pqueue.Place { return &t.place },
	)
}

// push sets a timer to a time, replacing an earlier one. gs.mu is held.
func (gs *Gates) push(t *timer, at int64) {
	t.at = at
	gs.timers.Put(t)
	if first, _ := gs.timers.First(); first == t {
		select {
		case gs.kick <- struct{}{}:
		default:
		}
	}
}
