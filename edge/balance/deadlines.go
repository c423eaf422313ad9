package balance

import (
	"time"

	"github.com/hangar-platform/hangar/internal/pqueue"
)

// deadlines are the times at which cooldowns, backoffs and grace periods end, or (without a
// candidate) at which the port table may be compiled. One candidate may have several.
type deadlines struct {
	queue *pqueue.Queue[deadline] // the earliest first
	timer *time.Timer
	set   int64 // when timer fires
}

type deadline struct {
	at        int64 // in the time of Balancer.now
	candidate *candidate
}

func newDeadlines() deadlines {
	return deadlines{queue: pqueue.New(func(a, b deadline) bool { return a.at < b.at }, nil)}
}

func (d *deadlines) add(at int64, c *candidate) { d.queue.Put(deadline{at, c}) }

func (d *deadlines) next() (at int64, ok bool) {
	first, ok := d.queue.First()
	return first.at, ok
}

// due removes and returns a deadline that has passed.
func (d *deadlines) due(now int64) (*candidate, bool) {
	if at, ok := d.next(); !ok || at > now {
		return nil, false
	}
	return d.queue.Pop().candidate, true
}
