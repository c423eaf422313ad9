// Package connlimit bounds how many connections a source may hold open, and how many all
// sources together.
//
// Promises. A connection counts from when it is accepted until it is closed, also by who
// has hijacked it. One that is too many is closed before anybody sees it, and takes the
// place of none. A connection that counts can do all that a TCP connection can, such as
// ending one direction and telling its descriptor; one that does not is handed on as it is.
//
// Concurrency. A Limit and its listeners are safe for concurrent use. They start nothing.
package connlimit

import (
	"net"
	"net/netip"
	"sync"
)

// sourceBits of an IPv6 address are the same in all addresses of a source. An IPv4 address
// is a source.
const sourceBits = 112

// Limit bounds the TCP connections that come from an address range to listeners that
// share it.
type Limit struct {
	from      netip.Prefix
	each, all int

	mu   sync.Mutex // guards what follows
	open int
	held map[netip.Addr]int // open connections by source; none is 0
}

// New returns a Limit of each connections per source in from, and of all in total.
func New(from netip.Prefix, each, all int) *Limit {
	return &Limit{from: from, each: each, all: all, held: make(map[netip.Addr]int)}
}

// Listener returns l, of whose connections those that are too many are closed.
func (l *Limit) Listener(inner net.Listener) net.Listener { return &listener{inner, l} }

// take counts a connection of a source, unless it is one too many.
func (l *Limit) take(source netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= l.all || l.held[source] >= l.each {
		return false
	}
	l.open++
	l.held[source]++
	return true
}

// leave takes back what take has counted.
func (l *Limit) leave(source netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.held[source]--; l.held[source] == 0 {
		delete(l.held, source)
	}
}

// sourceOf is whom an address belongs to.
func sourceOf(a netip.Addr) netip.Addr {
	if a.Is4() {
		return a
	}
	p, _ := a.Prefix(sourceBits) // never fails: an IPv6 address has more bits
	return p.Addr()
}

type listener struct {
	net.Listener
	limit *Limit
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		tcp, ok := accepted.(*net.TCPConn)
		if !ok {
			return accepted, nil
		}
		remote, ok := tcp.RemoteAddr().(*net.TCPAddr)
		if !ok {
			return accepted, nil
		}
		addr := remote.AddrPort().Addr().Unmap().WithZone("")
		if !l.limit.from.Contains(addr) {
			return accepted, nil
		}
		source := sourceOf(addr)
		if l.limit.take(source) {
			return &conn{TCPConn: tcp, leave: sync.OnceFunc(func() { l.limit.leave(source) })}, nil
		}
		_ = tcp.Close()
	}
}

// conn is a connection that counts.
type conn struct {
	*net.TCPConn
	leave func()
}

// Close implements net.Conn.
func (c *conn) Close() error {
	defer c.leave()
	return c.TCPConn.Close()
}
