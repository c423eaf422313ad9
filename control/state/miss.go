package state

import (
	"context"
	"sync"
	"time"

	"github.com/hangar-platform/hangar/internal/background"
)

const (
	missPatience = time.Second // for the Store to return its revision and the watch to reach it
	missPause    = time.Second // how long misses are answered from memory after a timeout
)

// current is a Store that can return its newest revision.
type current interface {
	// current returns 0 if no other process writes to the Store.
	current(ctx context.Context) (Revision, error)
}

// misses bring a Mirror up to date for readers of missing keys. All readers that arrive during a
// request to the Store share the next one, so any number of them cause one request at a time.
type misses struct {
	work   *background.Group
	store  current // nil: it cannot be asked
	mirror *Mirror

	asking chan struct{} // holds a token while a request is in flight

	mu    sync.Mutex // guards the fields below
	next  *question  // not sent yet; nil: none
	until time.Time  // no requests before this time, because the last one failed
}

// question is a request that readers share.
type question struct {
	answered chan struct{} // closed when reads see everything from before the request
	ok       bool          // whether they do; valid once answered is closed
}

// open is called before the Mirror is used.
func (q *misses) open(ctx context.Context, m *Mirror) {
	q.mirror, q.work, q.asking = m, background.New(ctx), make(chan struct{}, 1)
	q.store, _ = m.store.(current)
}

func (q *misses) close() {
	q.work.Stop()
	q.work.Wait()
}

// catchUp returns true when the Mirror has everything that the Store had at the time of the call.
// It returns false if that cannot be determined in time, or if the Mirror has no need to ask.
func (q *misses) catchUp(ctx context.Context) bool {
	if q.store == nil {
		return false
	}
	shared := q.share()
	if shared == nil {
		return false
	}
	select {
	case <-shared.answered:
		return shared.ok
	case <-ctx.Done():
		return false
	}
}

// share returns the next question to be asked; nil: none.
func (q *misses) share() *question {
	q.mu.Lock()
	defer q.mu.Unlock()
	if time.Now().Before(q.until) {
		return nil
	}
	if q.next == nil {
		asked := &question{answered: make(chan struct{})}
		if !q.work.Go(func() { q.ask(asked) }) {
			return nil
		}
		q.next = asked
	}
	return q.next
}

func (q *misses) ask(asked *question) {
	q.asking <- struct{}{}
	defer func() { <-q.asking }()
	q.mu.Lock()
	q.next = nil // later callers may need later writes
	q.mu.Unlock()
	ctx, cancel := context.WithTimeout(q.work.Context, missPatience)
	defer cancel()
	revision, err := q.store.current(ctx)
	if err == nil {
		err = q.mirror.reach(ctx, revision)
	}
	if err != nil {
		q.mu.Lock()
		q.until = time.Now().Add(missPause)
		q.mu.Unlock()
	}
	asked.ok = err == nil
	close(asked.answered)
}
