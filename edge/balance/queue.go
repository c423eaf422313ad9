package balance

import (
	"time"

	"github.com/hangar-platform/hangar"
)

// queue is who waits for a slot of an App, in the order in which they came.
type queue struct {
	first, last *waiter
	length      int
	seq         uint64
	// doubt: since the last review, a slot has become worth less, or worth waking.
	needsReview bool
}

// waiter is a request that waits. app.mu guards what is not said otherwise.
type waiter struct {
	ep         *Endpoint
	selector   Selector
	entry      *entry // of the topology of now; nil: there is none
	seq        uint64 // 0: it has not been in the queue
	queued     bool
	prev, next *waiter

	candidate *candidate        // what it was given; its load is counted
	err       *hangar.EdgeError // or why it waits in vain
	ready     chan struct{}     // receives a value with either

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
	q.length++
	w.countWaiter(1)
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
	q.length--
	w.countWaiter(-1)
}

// count tells the crowds that could serve a waiter.
func (w *waiter) countWaiter(n int) {
	if w.entry != nil {
		for i := range w.entry.ports {
			w.entry.ports[i].group.waiters += n
		}
	}
}

// takes reports whether a slot is one that the waiter waits for.
func (w *waiter) accepts(c *candidate) bool {
	return w.entry != nil && w.entry.portOf(c.group) != nil && w.selector.allows(c)
}

// hand gives a waiter a slot.
func (a *app) grant(w *waiter, c *candidate, now int64) {
	a.dequeue(w)
	a.reserve(c, now)
	w.candidate = c
	w.ready <- struct{}{}
}

// dismiss ends the waiting of one who waits in vain.
func (a *app) reject(w *waiter, err *hangar.EdgeError) {
	a.dequeue(w)
	w.err = err
	w.ready <- struct{}{}
}

// offer gives an open slot to those who have waited longest for such a one, as many as may
// have it.
func (a *app) offer(c *candidate, now int64) {
	for w := a.queue.first; w != nil && c.pos.availability == available; {
		next := w.next
		if w.accepts(c) {
			a.grant(w, c, now)
		}
		w = next
	}
}

// requeue finds out anew what everybody waits for, after the topology changed.
func (a *app) rematch(now int64) {
	top := a.ports.Load()
	for w := a.queue.first; w != nil; w = w.next {
		w.countWaiter(-1)
		w.entry = w.ep.entry(top)
		w.countWaiter(1)
	}
	for w := a.queue.first; w != nil; {
		next := w.next
		if w.entry != nil {
			if c := a.pick(w.entry, &w.selector); c != nil {
				a.grant(w, c, now)
			}
		}
		w = next
	}
	a.queue.needsReview = true
}

// review looks at everybody who waits: who waits in vain is told so, and Machines are woken
// as need be.
func (a *app) reviewQueue(now int64) {
	if !a.queue.needsReview {
		return
	}
	a.queue.needsReview = false
	// Those who wish nothing of their own have the same prospects if they wait for the same.
	verdicts := map[*entry]*hangar.EdgeError{}
	for w := a.queue.first; w != nil; {
		next := w.next
		verdict, known := verdicts[w.entry]
		if !known || !w.selector.unrestricted() {
			verdict = a.wakeOrFail(w.ep, w.entry, &w.selector, now)
		}
		if w.entry != nil && w.selector.unrestricted() {
			verdicts[w.entry] = verdict
		}
		if verdict != nil {
			a.reject(w, verdict)
		}
		w = next
	}
}

// prospects wakes what has to be woken for those who wait, of whom one has a wish, and says
// why there is nothing to wait for, if so.
func (a *app) wakeOrFail(ep *Endpoint, e *entry, sel *Selector, now int64) *hangar.EdgeError {
	if e == nil {
		return ep.notServed()
	}
	a.wakeForWaiters(e, sel, now)
	if none(a.countCandidates(e, sel)) {
		return a.noCandidateError(ep, e, sel, now)
	}
	return nil
}
