package balance

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/hangar-platform/hangar"
)

// queue is the waiters of an App, first come, first served.
type queue struct {
	first, last *waiter
	length      int
	seq         uint64
	// needsReview: since the last review, a candidate became less available, or wakeable.
	needsReview bool
}

// waiter is a request that waits for a candidate. app.mu guards the fields without a comment
// on their owner. It is in the queue until it has a candidate or an error.
type waiter struct {
	ep         *Endpoint
	selector   Selector
	entry      *entry // of the current port table; nil: the port is no longer served
	seq        uint64 // 0: it has not been in the queue
	prev, next *waiter

	candidate *candidate        // granted, and counted in flight
	err       *hangar.EdgeError // why there is nothing to wait for
	ready     chan struct{}     // receives a value with either

	since int64       // owned by the request's goroutine: when the request came
	timer *time.Timer // likewise: ends the wait
	until int64       // likewise: when timer fires
}

// wait puts a request in the queue, unless there is nothing to wait for. A waiter that was in
// the queue before, and was granted a candidate that the host refused, keeps its place.
func (a *app) wait(w *waiter, ep *Endpoint, e *entry, sel *Selector, now int64) (*waiter, *hangar.EdgeError) {
	if e == nil {
		return nil, ep.notServed()
	}
	n := a.countCandidates(e, sel)
	switch {
	case n.allUnavailable():
		return nil, a.noCandidateError(ep, e, sel, now)
	case w != nil && now >= w.until:
		w.entry = e
		return nil, a.waitTimeout(w, now)
	case sel.NoWait:
		return nil, ep.noCandidate("no machine can take the request at once")
	case w == nil && a.queue.length >= a.b.o.QueueLimit:
		return nil, &hangar.EdgeError{
			Code: hangar.EdgeQueueFull, Status: http.StatusServiceUnavailable,
			Message: fmt.Sprintf("all machines are busy, and %d requests wait already", a.queue.length),
		}
	}
	fresh := w == nil
	if fresh {
		w = &waiter{ep: ep, selector: *sel, ready: make(chan struct{}, 1), since: now}
	}
	w.entry = e
	a.enqueue(w)
	a.wakeForWaiters(e, sel, now)
	if fresh {
		bound := a.b.o.WakeWait
		if n = a.countCandidates(e, sel); n[atLimit] > 0 && n[waking]+n[starting]+n[pending] == 0 {
			bound = a.b.o.QueueWait
		}
		w.timer, w.until = time.NewTimer(bound), now+int64(bound)
	}
	a.armTimer(now)
	return w, nil
}

// await returns once the waiter has a candidate, or an error.
func (w *waiter) await(ctx context.Context, a *app) *hangar.EdgeError {
	began := time.Now()
	defer func() { a.b.measures.waited.Observe(time.Since(began).Seconds()) }()
	select {
	case <-w.ready:
		return w.err
	case <-w.timer.C:
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.b.now()
	switch {
	case w.err != nil:
		return w.err
	case w.candidate == nil:
		a.dequeue(w)
	case ctx.Err() == nil:
		<-w.ready // granted just before the timer fired
		return nil
	default:
		a.release(w.candidate, now)
		a.armTimer(now)
	}
	if err := ctx.Err(); err != nil {
		e := w.ep.noCandidate("the client gave up")
		e.Err = err
		return e
	}
	return a.waitTimeout(w, now)
}

// enqueue inserts a waiter: one that was in the queue before, at its old place.
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
	q.length++
	a.b.measures.waiting.Add(1)
	w.addToGroups(1)
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
	w.prev, w.next = nil, nil
	q.length--
	a.b.measures.waiting.Add(-1)
	w.addToGroups(-1)
}

// addToGroups changes the number of waiters of the groups that could serve this one.
func (w *waiter) addToGroups(n int) {
	if w.entry != nil {
		for i := range w.entry.ports {
			w.entry.ports[i].group.waiters += n
		}
	}
}

// accepts reports whether a candidate serves the waiter's port and its selector allows it.
func (w *waiter) accepts(c *candidate) bool {
	return w.entry != nil && w.entry.portOf(c.group) != nil && w.selector.allows(c)
}

// grant gives a waiter a candidate.
func (a *app) grant(w *waiter, c *candidate, now int64) {
	a.dequeue(w)
	a.reserve(c, now)
	w.candidate = c
	w.ready <- struct{}{}
}

// reject ends a wait with an error.
func (a *app) reject(w *waiter, err *hangar.EdgeError) {
	a.dequeue(w)
	w.err = err
	w.ready <- struct{}{}
}

// offer grants an available candidate to the oldest waiters that accept it, until it is at its
// limit.
func (a *app) offer(c *candidate, now int64) {
	for w := a.queue.first; w != nil && c.pos.availability == available; {
		next := w.next
		if w.accepts(c) {
			a.grant(w, c, now)
		}
		w = next
	}
}

// rematch finds the waiters' entries in a new port table, and grants what is available there.
func (a *app) rematch(now int64) {
	t := a.ports.Load()
	for w := a.queue.first; w != nil; w = w.next {
		w.addToGroups(-1)
		w.entry = w.ep.entry(t)
		w.addToGroups(1)
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

// reviewQueue wakes as many Machines as the waiters need, and rejects waiters for whom all
// candidates became unavailable.
func (a *app) reviewQueue(now int64) {
	if !a.queue.needsReview {
		return
	}
	a.queue.needsReview = false
	// Unrestricted waiters for the same entry get the same verdict.
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

// wakeOrFail wakes Machines for waiters with a selector, or says why there is nothing to wait for.
func (a *app) wakeOrFail(ep *Endpoint, e *entry, sel *Selector, now int64) *hangar.EdgeError {
	if e == nil {
		return ep.notServed()
	}
	a.wakeForWaiters(e, sel, now)
	if n := a.countCandidates(e, sel); n.allUnavailable() {
		return a.noCandidateError(ep, e, sel, now)
	}
	return nil
}
