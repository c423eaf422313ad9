package gate

import "github.com/hangar-platform/hangar/internal/pqueue"

// timer is when a Gate or a group is to be checked. It runs while it is in timers.
type timer struct {
	at    int64 // as Gates.now
	began int64 // of a Gate: when it opened
	place pqueue.Place
	gate  *Gate
	group *group
}

// newTimers returns those that run, the earliest first.
func newTimers() *pqueue.Queue[*timer] {
	return pqueue.New(
		func(a, b *timer) bool { return a.at < b.at },
		func(t *timer) *pqueue.Place { return &t.place },
	)
}

// push lets a timer run until a time, and no other. gs.mu is held.
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
