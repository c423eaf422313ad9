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

// never is a time that does not come: jobs that wait for set or demand.
const never = 100 * 365 * 24 * time.Hour

// jobs calls fulfil for each name when the name is due: a few at once, and never twice at once for
// one name. Names that a handshake waits for go first.
type jobs struct {
	atOnce int
	fulfil func(ctx context.Context, name hangar.Hostname) (next time.Time, done bool)
	wake   chan struct{} // of capacity 1

	mu       sync.Mutex // guards what follows
	all      map[hangar.Hostname]*job
	due      *pqueue.Queue[*job] // all that are not in progress
	working  int
	demanded int // of those in due
	stopped  bool
}

// job is the work due for a name. jobs.mu guards it.
type job struct {
	name     hangar.Hostname
	at       time.Time
	demanded bool
	again    bool          // set was called while it was in progress
	dropped  bool          // drop was called while it was in progress
	working  bool          // in progress, and not in the queue
	place    pqueue.Place  // in the queue
	finished chan struct{} // closed when the next or current call of fulfil ends; nil: no waiters
}

func newJobs(atOnce int, fulfil func(context.Context, hangar.Hostname) (time.Time, bool)) *jobs {
	return &jobs{
		atOnce: atOnce, fulfil: fulfil, wake: make(chan struct{}, 1), all: map[hangar.Hostname]*job{},
		due: pqueue.New(before, func(j *job) *pqueue.Place { return &j.place }),
	}
}

func (js *jobs) poke() {
	select {
	case js.wake <- struct{}{}:
	default:
	}
}

// set schedules a name, earlier or later than before.
func (js *jobs) set(name hangar.Hostname, at time.Time) {
	js.mu.Lock()
	defer js.mu.Unlock()
	js.put(name, at)
}

// put is set for a caller that holds mu.
func (js *jobs) put(name hangar.Hostname, at time.Time) *job {
	j, ok := js.all[name]
	switch {
	case !ok:
		j = &job{name: name, at: at}
		js.all[name] = j
		js.due.Put(j)
	case j.working:
		j.again = j.again || j.dropped || !at.After(time.Now())
		j.dropped = false
	default:
		j.at = at
		if j.demanded && at.After(time.Now()) { // nothing to wait for, and no reason to go first
			js.settle(j)
		}
		js.due.Put(j)
	}
	js.poke()
	return j
}

// drop forgets a name. A job in progress continues to its end.
func (js *jobs) drop(name hangar.Hostname) {
	js.mu.Lock()
	defer js.mu.Unlock()
	j, ok := js.all[name]
	if !ok {
		return
	}
	if j.working {
		j.dropped, j.again = true, false
		return
	}
	delete(js.all, name)
	js.due.Remove(j)
	js.settle(j)
}

// hurry schedules a known name if that makes it due earlier.
func (js *jobs) hurry(name hangar.Hostname, at time.Time) {
	js.mu.Lock()
	defer js.mu.Unlock()
	if j, ok := js.all[name]; ok && !j.working && at.Before(j.at) {
		js.put(name, at)
	}
}

// demand puts a name first in the queue, and returns a channel that is closed when its job is done.
// It returns an error while the name is in backoff, or when too many names are demanded.
func (js *jobs) demand(name hangar.Hostname, most int) (<-chan struct{}, error) {
	js.mu.Lock()
	defer js.mu.Unlock()
	j, ok := js.all[name]
	switch {
	case js.stopped:
		return nil, errStopped
	case ok && !j.working && j.at.After(time.Now()):
		return nil, errNotYet
	case (!ok || !j.demanded) && js.demanded >= most:
		return nil, errTooMany
	case !ok:
		j = js.put(name, time.Now())
	}
	if !j.working && !j.demanded {
		j.demanded = true
		js.demanded++
		js.due.Put(j)
		js.poke()
	}
	if j.finished == nil {
		j.finished = make(chan struct{})
	}
	return j.finished, nil
}

// settle wakes the waiters of a job that was done, was put off or has left the queue.
func (js *jobs) settle(j *job) {
	if j.demanded && !j.working {
		j.demanded = false
		js.demanded--
	}
	if j.finished != nil {
		close(j.finished)
		j.finished = nil
	}
}

// run does jobs until ctx ends, and returns when none is in progress.
func (js *jobs) run(ctx context.Context) {
	var workers sync.WaitGroup
	defer workers.Wait()
	defer js.stop()
	for {
		wait := js.start(ctx, &workers)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-js.wake:
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// start starts due jobs, and returns the time until the next is due.
func (js *jobs) start(ctx context.Context, workers *sync.WaitGroup) time.Duration {
	js.mu.Lock()
	defer js.mu.Unlock()
	now := time.Now()
	for js.working < js.atOnce {
		j, ok := js.due.First()
		if !ok || j.at.After(now) {
			break
		}
		js.due.Pop()
		if j.demanded {
			j.demanded = false
			js.demanded--
		}
		j.working = true
		js.working++
		workers.Go(func() { js.work(ctx, j) })
	}
	if j, ok := js.due.First(); ok && js.working < js.atOnce {
		return time.Until(j.at)
	}
	return never
}

func (js *jobs) work(ctx context.Context, j *job) {
	next, keep := js.fulfil(ctx, j.name)
	js.mu.Lock()
	defer js.mu.Unlock()
	js.working--
	j.working = false
	js.settle(j)
	js.poke()
	if j.again {
		j.again = false
		next, keep = time.Now(), true
	}
	if !keep || j.dropped {
		delete(js.all, j.name)
		return
	}
	j.at = next
	js.due.Put(j)
}

// stop wakes all waiters, because no further job will be done.
func (js *jobs) stop() {
	js.mu.Lock()
	defer js.mu.Unlock()
	js.stopped = true
	for j := range js.due.All() {
		js.settle(j)
	}
}

// before reports whether a precedes b: demanded jobs first, then by due time.
func before(a, b *job) bool {
	if a.demanded != b.demanded {
		return a.demanded
	}
	return a.at.Before(b.at)
}
