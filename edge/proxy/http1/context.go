package http1

import (
	"context"
	"errors"
	"net/http"
	"os"
	"sync"
	"time"
)

// requestContext is the context of a request. It starts to watch the client at the first call of
// Done (ADR 21).
type requestContext struct {
	x      *exchange
	parent context.Context

	mu     sync.Mutex
	inner  context.Context // made by the first Done
	cancel context.CancelFunc
	over   bool // the request has ended or its client is gone
	read   bool // its body was read to the end
}

// lazyKey finds a requestContext behind contexts that add values.
type lazyKey struct{}

// unwatched reports whether ctx does not watch its client yet, so that calling Done would cost a
// goroutine.
func unwatched(ctx context.Context) bool {
	rc, ok := ctx.Value(lazyKey{}).(*requestContext)
	if !ok {
		return false
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	return rc.inner == nil && !rc.over
}

func (r *requestContext) Deadline() (time.Time, bool) { return r.parent.Deadline() }

func (r *requestContext) Done() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inner == nil {
		r.inner, r.cancel = context.WithCancel(r.parent)
		if r.over {
			r.cancel()
		} else if r.read || r.x.noBody {
			r.x.c.startWatch(r)
		}
	}
	return r.inner.Done()
}

func (r *requestContext) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.inner != nil:
		return r.inner.Err()
	case r.over:
		return context.Canceled
	default:
		return r.parent.Err()
	}
}

// Value knows what net/http's contexts know of the connection.
func (r *requestContext) Value(key any) any {
	switch key {
	case lazyKey{}:
		return r
	case http.LocalAddrContextKey:
		return r.x.c.conn.LocalAddr()
	}
	r.mu.Lock()
	inner := r.inner
	r.mu.Unlock()
	if inner != nil { // derived contexts join it without a goroutine
		return inner.Value(key)
	}
	return r.parent.Value(key)
}

// bodyRead reports that the connection can be watched.
func (r *requestContext) bodyRead() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.read = true
	if r.inner != nil && !r.over {
		r.x.c.startWatch(r)
	}
}

// cancelled reports that the client is gone.
func (r *requestContext) cancelled() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	if r.cancel != nil {
		r.cancel()
	}
}

// end reports that the request has ended.
func (r *requestContext) end() { r.cancelled() }

// startWatch reads from the client, which has nothing to send, to detect its end. The caller holds
// the lock of the context, which is not over.
func (c *serverConn) startWatch(r *requestContext) {
	if c.watched != nil || c.hijacked || c.in.size() > 0 {
		return
	}
	c.watched = make(chan struct{})
	c.readBy = time.Time{}
	c.setReadDeadline(time.Time{}) // including the handler's, which was for the body, as in net/http
	go func(watched chan struct{}) {
		defer close(watched)
		n, err := c.conn.Read(c.stash[:])
		switch {
		case n > 0:
			c.stashed = true
		case err != nil && !c.ending.Load() && !errors.Is(err, os.ErrDeadlineExceeded):
			c.gone = true
			r.cancelled()
		}
	}(c.watched)
}

// stopWatch ends the watch and waits for it.
func (c *serverConn) stopWatch() {
	if c.watched == nil {
		return
	}
	c.ending.Store(true)
	c.setReadDeadline(longAgo)
	<-c.watched
	c.watched = nil
	c.ending.Store(false)
	c.readBy = time.Time{}
	c.setReadDeadline(time.Time{})
	if c.stashed {
		c.stashed = false
		c.in.push(c.stash[0])
	}
}
