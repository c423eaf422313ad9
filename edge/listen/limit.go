package listen

import (
	"math"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/connlimit"
)

// Limits bound what clients can have at once. A client is an IPv4 address, a Machine, or a
// /64 of IPv6. Zero is the default, and less is no limit.
type Limits struct {
	Conns            int // connections, of all clients
	ClientConns      int // of one
	Handshakes       int // TLS handshakes under way, of all clients
	ClientHandshakes int // of one
	ClientRate       int // TLS handshakes a second, of one client; for a moment five times as many
	NameRate         int // likewise, for one server name, which its clients share
	Ports            int // sockets of one App, beside those of HTTP and HTTPS
	Sessions         int // clients with whom a UDP port of an App exchanges datagrams
	ClientSessions   int // of one address

	FirstByte time.Duration // how long a client may say nothing of whose it is
	Handshake time.Duration // how long a TLS handshake may take
	LastWords time.Duration // how long the last accepted connections may stay unidentified after Run was stopped
}

// DefaultLimits are the values of zero fields of Limits.
func DefaultLimits() Limits {
	return Limits{
		Conns: 100_000, ClientConns: 4096, Handshakes: 4096, ClientHandshakes: 256, ClientRate: 200, NameRate: 2000,
		Ports: 1000, Sessions: 10_000, ClientSessions: 256, FirstByte: 10 * time.Second, Handshake: 10 * time.Second, LastWords: time.Second,
	}
}

// complete returns the limits with defaults filled in.
func (l Limits) complete() Limits {
	d := DefaultLimits()
	for _, n := range []struct{ value, usual *int }{
		{&l.Conns, &d.Conns},
		{&l.ClientConns, &d.ClientConns},
		{&l.Handshakes, &d.Handshakes},
		{&l.ClientHandshakes, &d.ClientHandshakes},
		{&l.ClientRate, &d.ClientRate},
		{&l.NameRate, &d.NameRate},
		{&l.Ports, &d.Ports},
		{&l.Sessions, &d.Sessions},
		{&l.ClientSessions, &d.ClientSessions},
	} {
		switch {
		case *n.value == 0:
			*n.value = *n.usual
		case *n.value < 0:
			*n.value = math.MaxInt
		}
	}
	for _, n := range []struct{ value, usual *time.Duration }{
		{&l.FirstByte, &d.FirstByte},
		{&l.Handshake, &d.Handshake},
		{&l.LastWords, &d.LastWords},
	} {
		switch {
		case *n.value == 0:
			*n.value = *n.usual
		case *n.value < 0:
			*n.value = 365 * 24 * time.Hour
		}
	}
	return l
}

// filesPerConn is how many descriptors a connection takes while bytes are passed on: two
// connections, and sometimes a pipe.
const filesPerConn = 4

// affordable returns the limits with no more connections than the process may have
// descriptors for.
func (l Limits) affordable() Limits {
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) == nil {
		l.Conns = int(min(uint64(l.Conns), files.Cur/filesPerConn))
	}
	return l
}

// burst is for how many seconds' worth of events a rate may be exceeded.
const burst = 5

// rates bounds how often something happens, by key.
type rates[K comparable] struct {
	interval time.Duration // between events in the long run; 0: no bound

	mu    sync.Mutex
	due   map[K]time.Time // when the latest event would have been, if all had kept the interval
	sweep int             // how many keys there may be until useless ones are dropped
}

// minSweep is how many keys are kept without a sweep.
const minSweep = 1024

// newRates allows a number of events a second.
func newRates[K comparable](perSecond int) *rates[K] {
	return &rates[K]{interval: time.Second / time.Duration(perSecond), due: make(map[K]time.Time), sweep: minSweep}
}

// allow counts an event, unless it is one too many.
func (r *rates[K]) allow(key K, now time.Time) bool {
	if r.interval == 0 {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	due := r.due[key]
	if due.Before(now) {
		due = now
	}
	if due.Sub(now) >= burst*time.Second {
		return false
	}
	r.due[key] = due.Add(r.interval)
	if len(r.due) > r.sweep {
		for k, due := range r.due {
			if due.Before(now) {
				delete(r.due, k)
			}
		}
		r.sweep = max(minSweep, 2*len(r.due))
	}
	return true
}

// shares bounds how often something happens, by key, in a way that no client can use up a key for
// others: in each period of burst seconds, a client that has had some may have one more only as
// long as that leaves as much as it would have had then.
type shares[K, C comparable] struct {
	most int // events of a key in a period

	mu      sync.Mutex
	periods map[K]period[C]
	sweep   int // how many there may be until those are forgotten that have ended
}

type period[C comparable] struct {
	ends  time.Time
	count *connlimit.Count[C]
}

// newShares allows a number of events a second.
func newShares[K, C comparable](perSecond int) *shares[K, C] {
	return &shares[K, C]{most: min(perSecond, math.MaxInt/burst) * burst, periods: make(map[K]period[C]), sweep: minSweep}
}

// allow counts an event, unless it is one too many.
func (s *shares[K, C]) allow(key K, client C, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.periods[key]
	if !ok || !now.Before(p.ends) {
		p = period[C]{now.Add(burst * time.Second), connlimit.NewCount[C](s.most, s.most)}
		s.periods[key] = p
	}
	if len(s.periods) > s.sweep {
		for k, p := range s.periods {
			if !now.Before(p.ends) {
				delete(s.periods, k)
			}
		}
		s.sweep = max(minSweep, 2*len(s.periods))
	}
	return p.count.Take(client)
}
