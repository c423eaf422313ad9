package balance

import (
	"math/bits"
	"math/rand/v2"

	"github.com/hangar-platform/hangar"
)

// class says what a slot is good for.
type availability uint8

const (
	unavailable   availability = iota // for nothing, until its row changes
	available                         // may be entered
	atLimit                           // at its hard limit, or the host said so
	transitioning                     // neither running nor at rest, or the host said so
	unhealthy                         // started, and its checks keep requests away
	pending                           // may be open without anybody's doing; nobody knows when
	starting                          // likewise, and soon
	wakeable                          // at rest, and a request may start it
	waking                            // being started by this edge
	availabilities
)

// tier orders the open slots of a zone.
type tier uint8

const (
	belowSoft   tier = iota // below its soft limit
	aboveSoft               // at its soft limit or above
	coolingDown             // connections to it failed
	tiers
)

// crowd is the slots of one service of all Machines whose services are the same: they serve
// the same public ports in the same way.
type group struct {
	set     *serviceSet
	udp     bool
	port    int // internal
	indexes []*index
	waiters int // waiters that could enter one of its slots
	// lastStart is when a Machine was last started, in the time of Balancer.now; 0: never.
	lastStart  int64
	wakeFailed []*candidate // those that could not be woken a short while ago
}

// zone is the slots of a crowd in one region, by what they are good for. Every step is of
// constant time, however many there are.
type index struct {
	region    hangar.Region
	available [tiers]buckets
	atRest    [2][]*candidate // wakeable: suspended ones, stopped ones
	counts    [availabilities]int
}

// place is where a slot is in its zone.
type position struct {
	availability availability
	tier         tier // of open
	bucket       uint8
	atRest       uint8 // of wakeable: the index of zone.rest
	at           int   // in its level or rest
}

// put adds a slot, whose place says where to; at is filled in.
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

// take removes a slot.
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

// without removes one slot of a list, in whose place the last one comes.
func swapRemove(list []*candidate, at int) []*candidate {
	last := len(list) - 1
	list[at] = list[last]
	list[at].pos.at = at
	list[last] = nil
	return list[:last]
}

// levels are slots by their load: one list for each load below exact, then for loads that
// differ by less than a quarter.
type buckets struct {
	nonEmpty uint64 // bit i: lists[i] is not empty
	lists    [][]*candidate
}

const (
	exactBuckets = 32
	maxBuckets   = 64
)

// levelOf is the list of a load.
func bucketOf(load int) uint8 {
	if load < exactBuckets {
		return uint8(load)
	}
	n := bits.Len(uint(load)) // at least 6
	return uint8(min(exactBuckets+4*(n-6)+load>>(n-3)&3, maxBuckets-1))
}

func (b *buckets) add(c *candidate, level uint8) int {
	for len(b.lists) <= int(level) {
		b.lists = append(b.lists, nil)
	}
	at := len(b.lists[level])
	b.lists[level] = append(b.lists[level], c)
	b.nonEmpty |= 1 << level
	return at
}

func (b *buckets) remove(level uint8, at int) {
	b.lists[level] = swapRemove(b.lists[level], at)
	if len(b.lists[level]) == 0 {
		b.nonEmpty &^= 1 << level
	}
}

// least returns one of the slots with the least load that the wish does not except, any of
// them being as likely, or nil.
func (b *buckets) leastLoaded(sel *Selector) *candidate {
	for some := b.nonEmpty; some != 0; some &= some - 1 {
		list := b.lists[bits.TrailingZeros64(some)]
		start := 0
		if len(list) > 1 {
			start = rand.IntN(len(list)) //nolint:gosec // a tie is broken, no secret made
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
