package proxy

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/proxy/http1"
	"github.com/hangar-platform/hangar/edge/traffic"
)

const (
	// idleUpstream is how long an idle connection to a Machine is kept: less than servers usually
	// allow, so that none is closed while it is reused (ADR 23).
	idleUpstream = 4 * time.Second
	// sweepEvery is the interval of the search for idle connections.
	sweepEvery = time.Second
	// maxIdle bounds the idle connections to one service of a Machine, maxIdleAll those to all.
	maxIdle    = 512
	maxIdleAll = 8192
)

// destination is where connections of a pool lead. Config versions of a Machine do not share
// connections.
type destination struct {
	machine  hangar.MachineID
	instance hangar.InstanceID
	port     int
}

// upstream is a connection to a Machine, in use or idle.
type upstream struct {
	*http1.Conn
	at    *idle // where it returns to; nil: nowhere
	used  bool  // it has served a request before
	since time.Time

	traffic *traffic.Machine // of the Machine
	closed  atomic.Bool
}

// Close closes the connection, and counts that once. The owner of a detached connection closes it.
func (u *upstream) Close() error {
	if !u.closed.Swap(true) {
		u.traffic.Disconnected()
	}
	return u.Conn.Close()
}

// end closes the connection during a request.
func (u *upstream) end() { _ = u.Close() }

// idle are the unused connections to a destination.
type idle struct {
	stale   bool        // the Machine has restarted: no connection returns
	conns   []*upstream // the most recently used one is last
	touched time.Time   // when one was last taken or returned
}

// pool keeps connections to Machines between requests.
type pool struct {
	mu    sync.Mutex
	all   map[destination]*idle
	count int // idle connections
}

func newPool() *pool { return &pool{all: make(map[destination]*idle)} }

// take returns an idle connection that the Machine has not closed, or nil, and the place to which a
// new one would return.
func (p *pool) take(d destination, now time.Time) (*upstream, *idle) {
	for {
		p.mu.Lock()
		at := p.all[d]
		if at == nil {
			at = &idle{}
			p.all[d] = at
		}
		at.touched = now
		n := len(at.conns)
		if n == 0 {
			p.mu.Unlock()
			return nil, at
		}
		u := at.conns[n-1]
		at.conns[n-1] = nil
		at.conns = at.conns[:n-1]
		p.count--
		p.mu.Unlock()
		if u.Alive() {
			return u, at
		}
		_ = u.Close()
	}
}

// put returns a connection to the pool, or closes it.
func (p *pool) put(u *upstream, now time.Time) {
	if u.at == nil || !u.Reusable() {
		_ = u.Close()
		return
	}
	p.mu.Lock()
	if u.at.stale || len(u.at.conns) >= maxIdle || p.count >= maxIdleAll {
		p.mu.Unlock()
		_ = u.Close()
		return
	}
	u.used, u.since, u.at.touched = true, now, now
	u.at.conns = append(u.at.conns, u)
	p.count++
	p.mu.Unlock()
}

// drop closes the idle connections to a Machine and keeps those in use from returning.
func (p *pool) drop(id hangar.MachineID) {
	var closing []*upstream
	p.mu.Lock()
	for d, at := range p.all {
		if d.machine == id {
			closing = append(closing, p.voidLocked(d, at)...)
		}
	}
	p.mu.Unlock()
	closeAll(closing)
}

// sweep closes connections that have been idle since a time.
func (p *pool) sweep(since time.Time) {
	var closing []*upstream
	p.mu.Lock()
	for d, at := range p.all {
		if at.touched.Before(since) {
			closing = append(closing, p.voidLocked(d, at)...)
			continue
		}
		n := 0
		for n < len(at.conns) && at.conns[n].since.Before(since) {
			n++
		}
		closing = append(closing, at.conns[:n]...)
		kept := copy(at.conns, at.conns[n:])
		clear(at.conns[kept:])
		at.conns = at.conns[:kept]
		p.count -= n
	}
	p.mu.Unlock()
	closeAll(closing)
}

// voidLocked removes a destination and returns its connections. p.mu is held.
func (p *pool) voidLocked(d destination, at *idle) []*upstream {
	at.stale = true
	delete(p.all, d)
	p.count -= len(at.conns)
	conns := at.conns
	at.conns = nil
	return conns
}

func closeAll(conns []*upstream) {
	for _, u := range conns {
		_ = u.Close()
	}
}
