package image

import (
	"context"
	"errors"
	"sync"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/finish"
)

// flights share work between concurrent callers with the same key. P is the type of the progress
// reports. The zero value is ready to use.
type flights[V, P any] struct {
	mu     sync.Mutex
	byKey  map[string]*flight[V, P]
	closed bool
	wg     sync.WaitGroup
}

// flight is one piece of work. The mu of flights guards waiters.
type flight[V, P any] struct {
	done    chan struct{} // closed when value and err are set
	value   V
	err     error
	cancel  context.CancelFunc
	waiters int

	mu        sync.Mutex
	listeners map[*func(P)]struct{}
	last      *P
}

// do returns what run returns, running it once for all concurrent callers with key. A caller whose
// ctx ends stops waiting; run's context ends when no caller waits any more. listen may be nil. It
// is called by one goroutine at a time, must not block, and is not called after do has returned.
func (f *flights[V, P]) do(ctx context.Context, key string, listen func(P), run func(context.Context, func(P)) (V, error)) (V, error) {
	var none V
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return none, errClosed()
	}
	c, ok := f.byKey[key]
	if !ok {
		c = f.start(ctx, key, run)
	}
	c.waiters++
	f.mu.Unlock()
	if listen != nil {
		defer c.attach(listen)()
	}
	select {
	case <-c.done:
		return c.value, c.err
	case <-ctx.Done():
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.waiters--; c.waiters == 0 {
		c.cancel()
		f.forget(key, c)
	}
	return none, ctx.Err()
}

// start begins a flight; the caller holds mu.
func (f *flights[V, P]) start(ctx context.Context, key string, run func(context.Context, func(P)) (V, error)) *flight[V, P] {
	detached, cancel := finish.Lifetime(ctx)
	c := &flight[V, P]{done: make(chan struct{}), cancel: cancel, listeners: map[*func(P)]struct{}{}}
	if f.byKey == nil {
		f.byKey = map[string]*flight[V, P]{}
	}
	f.byKey[key] = c
	f.wg.Go(func() {
		defer cancel()
		c.value, c.err = run(detached, c.report)
		f.mu.Lock()
		f.forget(key, c)
		if f.closed && errors.Is(c.err, context.Canceled) {
			c.err = errClosed()
		}
		f.mu.Unlock()
		close(c.done)
	})
	return c
}

// forget makes the next caller start a new flight; the caller holds mu.
func (f *flights[V, P]) forget(key string, c *flight[V, P]) {
	if f.byKey[key] == c {
		delete(f.byKey, key)
	}
}

// close cancels all flights and waits until they have ended.
func (f *flights[V, P]) close() {
	f.mu.Lock()
	f.closed = true
	for _, c := range f.byKey {
		c.cancel()
	}
	f.mu.Unlock()
	f.wg.Wait()
}

// attach passes reports to listen, starting with the latest one.
func (c *flight[V, P]) attach(listen func(P)) (detach func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last != nil {
		listen(*c.last)
	}
	key := &listen
	c.listeners[key] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.listeners, key)
	}
}

func (c *flight[V, P]) report(p P) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = &p
	for listen := range c.listeners {
		(*listen)(p)
	}
}

func errClosed() error {
	return hangar.Errorf(hangar.CodeUnavailable, "shutting_down", "the image store is closed")
}
