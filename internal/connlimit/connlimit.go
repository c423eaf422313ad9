// Package connlimit bounds how many connections a source may hold open, and how many all
// sources together.
//
// Promises. A connection counts from when it is accepted until it is closed, also by who
// has hijacked it. One that is too many is closed before anybody sees it, and takes the
// place of none. A connection that counts can do all that a TCP connection can, such as
// ending one direction and telling its descriptor; one that does not is handed on as it is.
//
// Concurrency. A Count, a Limit and its listeners are safe for concurrent use. They start nothing.
package connlimit

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

// sourceBits of an IPv6 address are the same in all addresses of a source. An IPv4 address
// is a source.
const sourceBits = 112

// Count is how many connections are open, by source and in total.
type Count struct {
	each, all int

	mu   sync.Mutex // guards what follows
	open int
	held map[netip.Addr]int // open connections by source; none is 0
}

// NewCount returns a Count that goes up to each for a source, and to all in total.
func NewCount(each, all int) *Count {
	return &Count{each: each, all: all, held: make(map[netip.Addr]int)}
}

// Limit bounds the TCP connections that come from some ranges of addresses to listeners
// that share it.
type Limit struct {
	from  []netip.Prefix
	count *Count
}

// New returns a Limit of each connections per source in from, and of all in total.
func New(from []netip.Prefix, each, all int) *Limit {
	return &Limit{from: from, count: NewCount(each, all)}
}

// Listener returns l, of whose connections those that are too many are closed.
func (l *Limit) Listener(inner net.Listener) net.Listener { return &listener{inner, l} }

// Take counts a connection of a source, unless it is one too many.
func (c *Count) Take(source netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open >= c.all || c.held[source] >= c.each {
		return false
	}
	c.open++
	c.held[source]++
	return true
}

// Leave takes back what Take has counted.
func (c *Count) Leave(source netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open--
	if c.held[source]--; c.held[source] == 0 {
		delete(c.held, source)
	}
}

// SourceOf is whom an address belongs to: all of a /112 to one, as a Machine has that many,
// and an IPv4 address to itself. Of the zero Addr it is the zero Addr.
func SourceOf(a netip.Addr) netip.Addr {
	if a.Is4() {
		return a
	}
	p, _ := a.Prefix(sourceBits) // fails for the zero Addr alone: an IPv6 address has more bits
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
		if !slices.ContainsFunc(l.limit.from, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			return accepted, nil
		}
		source := SourceOf(addr)
		if l.limit.count.Take(source) {
			return &conn{TCPConn: tcp, leave: sync.OnceFunc(func() { l.limit.count.Leave(source) })}, nil
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
