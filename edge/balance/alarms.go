package balance

import (
	"container/heap"
	"time"
)

// alarms are the moments at which a slot is to be looked at again, or, without a slot, the
// topology. The same slot may be in it more than once.
type alarms struct {
	heap  alarmHeap
	timer *time.Timer
	set   int64 // when timer fires
}

type alarmAt struct {
	at   int64 // in the time of Balancer.now
	slot *slot
}

func (l *alarms) add(at int64, s *slot) { heap.Push(&l.heap, alarmAt{at, s}) }

func (l *alarms) next() (at int64, ok bool) {
	if len(l.heap) == 0 {
		return 0, false
	}
	return l.heap[0].at, true
}

// due takes one out that is due.
func (l *alarms) due(now int64) (*slot, bool) {
	if len(l.heap) == 0 || l.heap[0].at > now {
		return nil, false
	}
	a, ok := heap.Pop(&l.heap).(alarmAt)
	return a.slot, ok
}

// alarmHeap is a heap.Interface, the earliest first.
type alarmHeap []alarmAt

func (h alarmHeap) Len() int           { return len(h) }
func (h alarmHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h alarmHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *alarmHeap) Push(x any)        { *h = append(*h, x.(alarmAt)) }
func (h *alarmHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = alarmAt{}
	*h = old[:len(old)-1]
	return last
}
