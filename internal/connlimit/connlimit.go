// Package connlimit bounds how many connections a client may hold open, and how many all clients
// together; its Count does so for other shared resources.
//
// Promises. A client may take one more connection only if at least as many are free as it would then
// hold. So a single client gets half of the total, n greedy clients get an (n+1)th each and as much
// stays free: no client can take the last connection.
//
// A connection counts from when it is accepted until it is closed, even by a handler that hijacked
// it. One beyond the limit is closed before the server sees it. A counted connection keeps the
// abilities of a TCP connection, such as closing one direction and exposing its descriptor; one
// that is not TCP or does not count is passed on unchanged.
//
// Concurrency. A Count, a Limit and its listeners are safe for concurrent use. They start nothing.
package connlimit

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

// Number of leading bits that all IPv6 addresses of one client share: a Machine has a /112 of a
// private network, and an internet provider gives a /64 to each customer.
const (
	privateBits = 112
	publicBits  = 64
)

// ClientOf returns the client of an address: an IPv4 address itself, the /64 of an IPv6 address, and
// the /112 of an address in a private network, where a /64 contains many Machines. It returns the
// zero Addr for the zero Addr.
func ClientOf(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if a.Is4() {
		return a
	}
	bits := publicBits
	if a.IsPrivate() {
		bits = privateBits
	}
	p, _ := a.Prefix(bits) // only fails for the zero Addr, because an IPv6 address has more bits
	return p.Addr()
}

// Count counts the holders of a shared resource, by key and in total.
type Count[K comparable] struct {
	each, all int

	mu   sync.Mutex // guards what follows
	open int
	held map[K]int // by key; none is 0
}

// NewCount returns a Count with a limit for each key, and one in total.
func NewCount[K comparable](each, all int) *Count[K] {
	return &Count[K]{each: each, all: all, held: make(map[K]int)}
}

// Take counts one more for a key; false: that would exceed a limit.
func (c *Count[K]) Take(key K) bool { return c.TakeN(key, 1) }

// TakeN counts n more for a key, as n calls of Take would; false: one of these would exceed a limit.
func (c *Count[K]) TakeN(key K, n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	held := c.held[key] + n
	if held > c.each || held > c.all-c.open-(n-1) {
		return false
	}
	c.open += n
	c.held[key] = held
	return true
}

// Leave undoes Take.
func (c *Count[K]) Leave(key K) { c.LeaveN(key, 1) }

// LeaveN undoes TakeN.
func (c *Count[K]) LeaveN(key K, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open -= n
	if c.held[key] -= n; c.held[key] == 0 {
		delete(c.held, key)
	}
}

// Open returns the total.
func (c *Count[K]) Open() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open
}

// Limit bounds the TCP connections of clients to listeners that share it.
type Limit struct {
	counts func(net.Conn) bool
	count  *Count[netip.Addr]
}

// New returns a Limit of each connections per client, and of all in total. It only counts connections
// for which counts returns true.
func New(counts func(net.Conn) bool, each, all int) *Limit {
	return &Limit{counts: counts, count: NewCount[netip.Addr](each, all)}
}

// From returns a filter for New that counts connections from some ranges of addresses.
func From(ranges ...netip.Prefix) func(net.Conn) bool {
	return func(c net.Conn) bool {
		addr := remote(c)
		return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(addr) })
	}
}

// remote is the address of the other end; the zero Addr if it has none.
func remote(c net.Conn) netip.Addr {
	tcp, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap().WithZone("")
}

// Listener returns inner with the limit: it closes connections above it.
func (l *Limit) Listener(inner net.Listener) net.Listener { return &listener{inner, l} }

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
		if !ok || !l.limit.counts(tcp) {
			return accepted, nil
		}
		client := ClientOf(remote(tcp))
		if l.limit.count.Take(client) {
			return &conn{TCPConn: tcp, leave: sync.OnceFunc(func() { l.limit.count.Leave(client) })}, nil
		}
		_ = tcp.Close()
	}
}

// conn is a counted connection.
type conn struct {
	*net.TCPConn
	leave func()
}

// Close implements net.Conn.
func (c *conn) Close() error {
	defer c.leave()
	return c.TCPConn.Close()
}
