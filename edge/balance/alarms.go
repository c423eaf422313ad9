package balance

import (
	"time"

	"github.com/hangar-platform/hangar/internal/pqueue"
)

// alarms are the moments at which a slot is to be looked at again, or, without a slot, the
// topology. The same slot may be in it more than once.
type alarms struct {
	queue *pqueue.Queue[alarmAt] // the earliest first
	timer *time.Timer
	set   int64 // when timer fires
}

type alarmAt struct {
	at   int64 // in the time of Balancer.now
	slot *slot
}

func newAlarms() alarms {
	return alarms{queue: pqueue.New(func(a, b alarmAt) bool { return a.at < b.at }, nil)}
}

func (l *alarms) add(at int64, s *slot) { l.queue.Put(alarmAt{at, s}) }

func (l *alarms) next() (at int64, ok bool) {
	first, ok := l.queue.First()
	return first.at, ok
}

// due takes one out that is due.
func (l *alarms) due(now int64) (*slot, bool) {
	if at, ok := l.next(); !ok || at > now {
		return nil, false
	}
	return l.queue.Pop().slot, true
}
