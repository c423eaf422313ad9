package balance

import (
	"time"

	"github.com/hangar-platform/hangar"
)

// queue is who waits for a slot of an App, in the order in which they came.
type queue struct {
	first, last *waiter
	n           int
	seq         uint64
	// doubt: since the last review, a slot has become worth less, or worth waking.
	doubt bool
}

// waiter is a request that waits. app.mu guards what is not said otherwise.
type waiter struct {
	ep         *Endpoint
	wish       Wish
	seg        *segment // of the topology of now; nil: there is none
	seq        uint64   // 0: it has not been in the queue
	queued     bool
	prev, next *waiter

	slot  *slot             // what it was given; its load is counted
	err   *hangar.EdgeError // or why it waits in vain
	ready chan struct{}     // receives a value with either

	since int64       // only its goroutine's: when the request came
	timer *time.Timer // likewise: ends the waiting
	until int64       // likewise: when timer fires
}

// enqueue puts a waiter in its place: one that was here before, before those that came after.
func (a *app) enqueue(w *waiter) {
	q := &a.queue
	if w.seq == 0 {
		q.seq++
		w.seq = q.seq
	}
	after := q.last
	for after != nil && after.seq > w.seq {
		after = after.prev
	}
	w.prev = after
	if after == nil {
		w.next, q.first = q.first, w
	} else {
		w.next, after.next = after.next, w
	}
	if w.next == nil {
		q.last = w
	} else {
		w.next.prev = w
	}
	w.queued = true
	q.n++
	w.count(1)
}

func (a *app) dequeue(w *waiter) {
	q := &a.queue
	if w.prev == nil {
		q.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		q.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.prev, w.next, w.queued = nil, nil, false
	q.n--
	w.count(-1)
}

// count tells the crowds that could serve a waiter.
func (w *waiter) count(n int) {
	if w.seg != nil {
		for i := range w.seg.sources {
			w.seg.sources[i].crowd.waiting += n
		}
	}
}

// takes reports whether a slot is one that the waiter waits for.
func (w *waiter) takes(s *slot) bool {
	return w.seg != nil && w.seg.source(s.crowd) != nil && w.wish.allows(s)
}

// hand gives a waiter a slot.
func (a *app) hand(w *waiter, s *slot, now int64) {
	a.dequeue(w)
	a.grab(s, now)
	w.slot = s
	w.ready <- struct{}{}
}

// dismiss ends the waiting of one who waits in vain.
func (a *app) dismiss(w *waiter, err *hangar.EdgeError) {
	a.dequeue(w)
	w.err = err
	w.ready <- struct{}{}
}

// offer gives an open slot to those who have waited longest for such a one, as many as may
// have it.
func (a *app) offer(s *slot, now int64) {
	for w := a.queue.first; w != nil && s.place.class == open; {
		next := w.next
		if w.takes(s) {
			a.hand(w, s, now)
		}
		w = next
	}
}

// requeue finds out anew what everybody waits for, after the topology changed.
func (a *app) requeue(now int64) {
	top := a.top.Load()
	for w := a.queue.first; w != nil; w = w.next {
		w.count(-1)
		w.seg = w.ep.segment(top)
		w.count(1)
	}
	for w := a.queue.first; w != nil; {
		next := w.next
		if w.seg != nil {
			if s := a.pick(w.seg, &w.wish); s != nil {
				a.hand(w, s, now)
			}
		}
		w = next
	}
	a.queue.doubt = true
}

// review looks at everybody who waits: who waits in vain is told so, and Machines are woken
// as need be.
func (a *app) review(now int64) {
	if !a.queue.doubt {
		return
	}
	a.queue.doubt = false
	// Those who wish nothing of their own have the same prospects if they wait for the same.
	verdicts := map[*segment]*hangar.EdgeError{}
	for w := a.queue.first; w != nil; {
		next := w.next
		verdict, known := verdicts[w.seg]
		if !known || !w.wish.plain() {
			verdict = a.prospects(w.ep, w.seg, &w.wish, now)
		}
		if w.seg != nil && w.wish.plain() {
			verdicts[w.seg] = verdict
		}
		if verdict != nil {
			a.dismiss(w, verdict)
		}
		w = next
	}
}

// prospects wakes what has to be woken for those who wait, of whom one has a wish, and says
// why there is nothing to wait for, if so.
func (a *app) prospects(ep *Endpoint, g *segment, w *Wish, now int64) *hangar.EdgeError {
	if g == nil {
		return ep.unserved()
	}
	a.wakeFor(g, w, now)
	if none(a.hope(g, w)) {
		return a.hopeless(ep, g, w, now)
	}
	return nil
}
