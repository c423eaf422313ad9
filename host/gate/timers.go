package gate

import "container/heap"

// timer is when something is to be looked at: a Gate, or a group.
type timer struct {
	at    int64 // as Keeper.now
	began int64 // of a Gate: when it opened
	index int   // in timers; -1: it does not run
	gate  *Gate
	group *group
}

// timers are those that run, the earliest first.
type timers []*timer

// Len implements heap.Interface.
func (t timers) Len() int { return len(t) }

// Less implements heap.Interface.
func (t timers) Less(i, j int) bool { return t[i].at < t[j].at }

// Swap implements heap.Interface.
func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].index, t[j].index = i, j
}

// Push implements heap.Interface.
func (t *timers) Push(x any) {
	x.(*timer).index = len(*t)
	*t = append(*t, x.(*timer))
}

// Pop implements heap.Interface.
func (t *timers) Pop() any {
	old := *t
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*t = old[:len(old)-1]
	last.index = -1
	return last
}

func (t *timers) remove(x *timer) {
	if x.index >= 0 {
		heap.Remove(t, x.index)
	}
}

// push lets a timer run until a time, and no other. k.mu is held.
func (k *Keeper) push(t *timer, at int64) {
	t.at = at
	if t.index >= 0 {
		heap.Fix(&k.timers, t.index)
	} else {
		heap.Push(&k.timers, t)
	}
	if t.index == 0 {
		select {
		case k.kick <- struct{}{}:
		default:
		}
	}
}
