// Package fairsem is a semaphore that tenants share fairly: a tenant that keeps asking for
// slots delays only itself.
//
// Every acquisition names a key, such as an organization. A key never holds all slots, unless there
// is only one. A free slot goes to the waiting key that holds the fewest slots and, among those, to
// the one that has waited longest for its turn. Calls with the same key are served in order.
//
// A Semaphore is safe for concurrent use. Finding the next key takes time in proportion to the number
// of waiting keys, so use it for work that takes longer than that.
package fairsem

import (
	"context"
	"slices"
	"sync"
)

// Semaphore has a number of slots.
type Semaphore[K comparable] struct {
	perKey int

	mu      sync.Mutex // guards what follows
	free    int
	held    map[K]int
	waiting map[K][]chan struct{} // each is closed when it gets its slot
	turns   map[K]uint64          // turn at which a waiting key last got a slot, or started to wait
	turn    uint64
}

// New returns a Semaphore with n slots, which must be positive.
func New[K comparable](n int) *Semaphore[K] {
	return &Semaphore[K]{
		perKey: max(1, n-1), free: n,
		held: make(map[K]int), waiting: make(map[K][]chan struct{}), turns: make(map[K]uint64),
	}
}

// Acquire waits for a slot and returns the function that releases it, which must be called once. If
// ctx ends first, it returns the error of ctx.
func (s *Semaphore[K]) Acquire(ctx context.Context, key K) (release func(), err error) {
	s.mu.Lock()
	release = func() { s.release(key) }
	if s.free > 0 && len(s.waiting) == 0 && s.held[key] < s.perKey {
		s.free--
		s.held[key]++
		s.mu.Unlock()
		return release, nil
	}
	given := make(chan struct{})
	if len(s.waiting[key]) == 0 {
		s.turn++
		s.turns[key] = s.turn
	}
	s.waiting[key] = append(s.waiting[key], given)
	s.give()
	s.mu.Unlock()
	select {
	case <-given:
		return release, nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.waiting[key], given); i >= 0 {
		s.leave(key, i)
		return nil, context.Cause(ctx)
	}
	return release, nil // it got the slot at the same moment
}

// Waiting is the number of waiting calls of Acquire.
func (s *Semaphore[K]) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, calls := range s.waiting {
		n += len(calls)
	}
	return n
}

// release returns a slot.
func (s *Semaphore[K]) release(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free++
	if s.held[key]--; s.held[key] == 0 {
		delete(s.held, key)
	}
	s.give()
}

// give gives free slots to waiters. The caller holds mu.
func (s *Semaphore[K]) give() {
	for s.free > 0 {
		var next K
		found := false
		for key := range s.waiting {
			if s.held[key] >= s.perKey {
				continue
			}
			if !found || s.held[key] < s.held[next] || s.held[key] == s.held[next] && s.turns[key] < s.turns[next] {
				next, found = key, true
			}
		}
		if !found {
			return
		}
		s.free--
		s.held[next]++
		s.turn++
		s.turns[next] = s.turn
		close(s.waiting[next][0])
		s.leave(next, 0)
	}
}

// leave removes the i-th waiter of a key. The caller holds mu.
func (s *Semaphore[K]) leave(key K, i int) {
	if s.waiting[key] = slices.Delete(s.waiting[key], i, i+1); len(s.waiting[key]) == 0 {
		delete(s.waiting, key)
		delete(s.turns, key)
	}
}
