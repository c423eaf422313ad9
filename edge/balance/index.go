package balance

import (
	"math/bits"
	"math/rand/v2"

	"github.com/hangar-platform/hangar"
)

// availability is whether a candidate can take a request, or when it may.
type availability uint8

const (
	unavailable   availability = iota // until its row changes or its wake backoff ends
	available                         // can take a request
	atLimit                           // at its hard limit, by our count or by the host's
	transitioning                     // stopping or suspending, or the host refused a request
	unhealthy                         // started, and its health checks fail
	pending                           // may become available without a request; unknown when
	starting                          // likewise, and soon
	wakeable                          // at rest, and a request may start it
	waking                            // this edge is starting or probing it
	availabilities
)

// counts is how many candidates have each availability.
type counts [availabilities]int

// allUnavailable reports whether no candidate is available now or may become so.
func (n *counts) allUnavailable() bool {
	for av, count := range n {
		if availability(av) != unavailable && count > 0 {
			return false
		}
	}
	return true
}

// tier orders the available candidates of an index.
type tier uint8

const (
	belowSoft   tier = iota // below the soft limit
	aboveSoft               // at the soft limit or above
	coolingDown             // connections failed
	tiers
)

// group is the candidates for one service of all Machines in a serviceSet: they serve the same
// public ports in the same way.
type group struct {
	set     *serviceSet
	udp     bool
	port    int // internal
	indexes []*index
	waiters int // in the queue, for a candidate of this group
	// lastStart is when a Machine last started, in the time of Balancer.now; 0: never.
	lastStart  int64
	wakeFailed []*candidate // in wake backoff, or were recently
}

// index holds the candidates of a group in one region, by availability, tier and requests in
// flight. Every operation takes constant time, however many candidates there are.
type index struct {
	region    hangar.Region
	available [tiers]buckets
	atRest    [2][]*candidate // wakeable: suspended ones, stopped ones
	counts    counts
}

// position is where a candidate is in its index.
type position struct {
	availability availability
	tier         tier // of available
	bucket       uint8
	atRest       uint8 // of wakeable: which list of index.atRest
	at           int   // in its bucket or list
}

// add inserts a candidate at a position, and completes that.
func (ix *index) add(c *candidate, p position) {
	ix.counts[p.availability]++
	switch p.availability {
	case available:
		p.at = ix.available[p.tier].add(c, p.bucket)
	case wakeable:
		p.at = len(ix.atRest[p.atRest])
		ix.atRest[p.atRest] = append(ix.atRest[p.atRest], c)
	default:
	}
	c.pos = p
}

// remove takes a candidate out.
func (ix *index) remove(c *candidate) {
	p := c.pos
	ix.counts[p.availability]--
	switch p.availability {
	case available:
		ix.available[p.tier].remove(p.bucket, p.at)
	case wakeable:
		ix.atRest[p.atRest] = swapRemove(ix.atRest[p.atRest], p.at)
	default:
	}
}

// swapRemove removes one candidate and moves the last one to its position.
func swapRemove(list []*candidate, at int) []*candidate {
	last := len(list) - 1
	list[at] = list[last]
	list[at].pos.at = at
	list[last] = nil
	return list[:last]
}

// buckets sorts candidates by requests in flight: one bucket for each number below
// exactBuckets, then for numbers that differ by less than a quarter.
type buckets struct {
	nonEmpty uint64 // bit i: lists[i] is not empty
	lists    [][]*candidate
}

const (
	exactBuckets = 32
	maxBuckets   = 64
)

// bucketOf is the bucket for a number of requests in flight.
func bucketOf(inFlight int) uint8 {
	if inFlight < exactBuckets {
		return uint8(inFlight)
	}
	n := bits.Len(uint(inFlight)) // at least 6
	return uint8(min(exactBuckets+4*(n-6)+inFlight>>(n-3)&3, maxBuckets-1))
}

func (b *buckets) add(c *candidate, bucket uint8) int {
	for len(b.lists) <= int(bucket) {
		b.lists = append(b.lists, nil)
	}
	at := len(b.lists[bucket])
	b.lists[bucket] = append(b.lists[bucket], c)
	b.nonEmpty |= 1 << bucket
	return at
}

func (b *buckets) remove(bucket uint8, at int) {
	b.lists[bucket] = swapRemove(b.lists[bucket], at)
	if len(b.lists[bucket]) == 0 {
		b.nonEmpty &^= 1 << bucket
	}
}

// leastLoaded returns a random one of the candidates with the fewest requests in flight that
// the selector does not exclude, or nil.
func (b *buckets) leastLoaded(sel *Selector) *candidate {
	for nonEmpty := b.nonEmpty; nonEmpty != 0; nonEmpty &= nonEmpty - 1 {
		list := b.lists[bits.TrailingZeros64(nonEmpty)]
		start := 0
		if len(list) > 1 {
			start = rand.IntN(len(list)) //nolint:gosec // breaks a tie, makes no secret
		}
		if len(sel.Exclude) > 0 {
			for i := range list {
				if c := list[(start+i)%len(list)]; !sel.excludes(c) {
					return c
				}
			}
			continue
		}
		c := list[start]
		if c.inFlight >= exactBuckets && len(list) > 1 {
			if other := list[rand.IntN(len(list))]; other.inFlight < c.inFlight { //nolint:gosec // likewise
				c = other
			}
		}
		return c
	}
	return nil
}
