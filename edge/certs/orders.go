package certs

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/pqueue"
)

var (
	errNotYet  = errors.New("the ACME server has refused before, and is asked again later")
	errTooMany = errors.New("too many names wait for the ACME server")
	errStopped = errors.New("the daemon ends")
)

// never is when an order is due that waits for a request.
const never = 100 * 365 * 24 * time.Hour

// orders has things done for names, each at its time, some of them at once and never two for one
// name. Names that a handshake waits for go first.
type orders struct {
	atOnce int
	fulfil func(ctx context.Context, name hangar.Hostname) (next time.Time, done bool)
	wake   chan struct{} // of capacity 1

	mu       sync.Mutex // guards what follows
	all      map[hangar.Hostname]*order
	due      *pqueue.Queue[*order] // those that are not worked on
	working  int
	demanded int // of those in due
	stopped  bool
}

// order is the work due for a name. It is guarded by the mu of orders.
type order struct {
	name     hangar.Hostname
	at       time.Time
	demanded bool
	again    bool          // it was requested again while in progress
	dropped  bool          // likewise, or it was forgotten
	working  bool          // and not in the queue
	place    pqueue.Place  // in the queue
	finished chan struct{} // closed when the next or current work ends; nil: no waiters
}

func newOrders(atOnce int, fulfil func(context.Context, hangar.Hostname) (time.Time, bool)) *orders {
	return &orders{
		atOnce: atOnce, fulfil: fulfil, wake: make(chan struct{}, 1), all: map[hangar.Hostname]*order{},
		due: pqueue.New(before, func(w *order) *pqueue.Place { return &w.place }),
	}
}

func (o *orders) poke() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// set schedules a name, earlier or later than before.
func (o *orders) set(name hangar.Hostname, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.put(name, at)
}

// put is set for a caller that holds mu.
func (o *orders) put(name hangar.Hostname, at time.Time) *order {
	w, ok := o.all[name]
	switch {
	case !ok:
		w = &order{name: name, at: at}
		o.all[name] = w
		o.due.Put(w)
	case w.working:
		w.again = w.again || w.dropped || !at.After(time.Now())
		w.dropped = false
	default:
		w.at = at
		o.due.Put(w)
	}
	o.poke()
	return w
}

// drop forgets a name. Work that is under way ends by itself.
func (o *orders) drop(name hangar.Hostname) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w, ok := o.all[name]
	if !ok {
		return
	}
	if w.working {
		w.dropped, w.again = true, false
		return
	}
	delete(o.all, name)
	o.due.Remove(w)
	o.settle(w)
}

// hurry schedules a name, if that is earlier than before.
func (o *orders) hurry(name hangar.Hostname, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if w, ok := o.all[name]; ok && !w.working && at.Before(w.at) {
		o.put(name, at)
	}
}

// demand puts a name first in the queue and returns a channel that is closed when it is done. It
// refuses while the name is in backoff, and when there are too many waiters.
func (o *orders) demand(name hangar.Hostname, most int) (<-chan struct{}, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w, ok := o.all[name]
	switch {
	case o.stopped:
		return nil, errStopped
	case ok && !w.working && w.at.After(time.Now()):
		return nil, errNotYet
	case (!ok || !w.demanded) && o.demanded >= most:
		return nil, errTooMany
	case !ok:
		w = o.put(name, time.Now())
	}
	if !w.working && !w.demanded {
		w.demanded = true
		o.demanded++
		o.due.Put(w)
		o.poke()
	}
	if w.finished == nil {
		w.finished = make(chan struct{})
	}
	return w.finished, nil
}

// settle wakes the waiters of an order that left the queue or was worked on.
func (o *orders) settle(w *order) {
	if w.demanded && !w.working {
		w.demanded = false
		o.demanded--
	}
	if w.finished != nil {
		close(w.finished)
		w.finished = nil
	}
}

// run works until ctx ends, and until all work has.
func (o *orders) run(ctx context.Context) {
	var workers sync.WaitGroup
	defer workers.Wait()
	defer o.stop()
	for {
		wait := o.start(ctx, &workers)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-o.wake:
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// start begins the due work, and returns when the next is due.
func (o *orders) start(ctx context.Context, workers *sync.WaitGroup) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	for o.working < o.atOnce {
		w, ok := o.due.First()
		if !ok || w.at.After(now) {
			break
		}
		o.due.Pop()
		if w.demanded {
			w.demanded = false
			o.demanded--
		}
		w.working = true
		o.working++
		workers.Go(func() { o.work(ctx, w) })
	}
	if w, ok := o.due.First(); ok && o.working < o.atOnce {
		return time.Until(w.at)
	}
	return never
}

func (o *orders) work(ctx context.Context, w *order) {
	next, keep := o.fulfil(ctx, w.name)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.working--
	w.working = false
	o.settle(w)
	o.poke()
	if w.again {
		w.again = false
		next, keep = time.Now(), true
	}
	if !keep || w.dropped {
		delete(o.all, w.name)
		return
	}
	w.at = next
	o.due.Put(w)
}

// stop wakes all waiters, because no order will be worked on any more.
func (o *orders) stop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stopped = true
	for w := range o.due.All() {
		o.settle(w)
	}
}

// before reports whether a goes first: what is waited for, then what is due first.
func before(a, b *order) bool {
	if a.demanded != b.demanded {
		return a.demanded
	}
	return a.at.Before(b.at)
}
