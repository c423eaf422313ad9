package dns

import (
	"net/netip"
	"sync"
	"time"

	"github.com/hangar-platform/hangar/internal/connlimit"
)

// The rate of one client. While the server keeps up, only MaxRate limits a client. When questions
// queue up, each client above FairRate is limited to FairRate until it has asked less for a while.
// All others are then answered as if that client did not exist: dropping a question costs little more
// than reading it.
const (
	MaxRate  = 50_000 // a second
	FairRate = 2_000  // a second
	// restraint is how long a client must stay below FairRate to be free again.
	restraint = time.Second
	// MaxMisses is how many questions of one client are passed on to resolvers each second, and
	// MaxAsking how many of them may be open.
	MaxMisses = 500
	MaxAsking = 64
)

// maxClients bounds the memory for known clients.
const maxClients = 1 << 16

// clients tracks the rate of each client.
type clients struct {
	mu  sync.Mutex // guards what follows
	all map[netip.Addr]*client
}

// client is one Machine or peer.
type client struct {
	fair, most, misses bucket
	restrained         time.Time // limited to FairRate until then
	asking             int       // open questions to resolvers
	seen               time.Time
}

// bucket is a token bucket.
type bucket struct {
	level float64
	at    time.Time
}

// take takes a token, if there is one. A new bucket is full; a full one has the tokens of one second.
func (b *bucket) take(now time.Time, rate float64) bool {
	if b.at.IsZero() {
		b.level = rate
	} else if passed := now.Sub(b.at); passed > 0 {
		b.level = min(rate, b.level+passed.Seconds()*rate)
	}
	b.at = now
	if b.level < 1 {
		return false
	}
	b.level--
	return true
}

func (c *clients) of(a netip.Addr, now time.Time) *client {
	key := connlimit.ClientOf(a)
	known := c.all[key]
	if known == nil {
		if c.all == nil {
			c.all = make(map[netip.Addr]*client)
		}
		if len(c.all) >= maxClients {
			c.forget(now, time.Second)
		}
		known = &client{}
		c.all[key] = known
	}
	known.seen = now
	return known
}

// allow reports whether to answer a client's question. queued means that questions arrive faster than
// they are answered.
func (c *clients) allow(a netip.Addr, now time.Time, queued bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.of(a, now)
	fair := known.fair.take(now, FairRate)
	if !fair && (queued || now.Before(known.restrained)) {
		known.restrained = now.Add(restraint)
	}
	return known.most.take(now, MaxRate) && (fair || now.After(known.restrained))
}

// ask reports whether a client's question may be passed on to a resolver. If so, the caller must call
// asked when it is answered.
func (c *clients) ask(a netip.Addr, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.of(a, now)
	if known.asking >= MaxAsking || !known.misses.take(now, MaxMisses) {
		return false
	}
	known.asking++
	return true
}

func (c *clients) asked(a netip.Addr, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of(a, now).asking--
}

// sweep forgets idle clients.
func (c *clients) sweep(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(now, sweepInterval)
}

func (c *clients) forget(now time.Time, idle time.Duration) {
	for key, known := range c.all {
		if known.asking == 0 && now.Sub(known.seen) >= idle {
			delete(c.all, key)
		}
	}
}

// sweepInterval is the interval of sweeps, and how long a client must be idle to be forgotten.
const sweepInterval = 30 * time.Second
