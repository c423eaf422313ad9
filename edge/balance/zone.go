package balance

import (
	"math/bits"
	"math/rand/v2"

	"github.com/hangar-platform/hangar"
)

// class says what a slot is good for.
type class uint8

const (
	dead     class = iota // for nothing, until its row changes
	open                  // may be entered
	full                  // at its hard limit, or the host said so
	settling              // neither running nor at rest, or the host said so
	unready               // started, and its checks keep requests away
	pending               // may be open without anybody's doing; nobody knows when
	starting              // likewise, and soon
	wakeable              // at rest, and a request may start it
	waking                // being started by this edge
	classes
)

// tier orders the open slots of a zone.
type tier uint8

const (
	below   tier = iota // below its soft limit
	above               // at its soft limit or above
	avoided             // connections to it failed
	tiers
)

// crowd is the slots of one service of all Machines whose services are the same: they serve
// the same public ports in the same way.
type crowd struct {
	shape   *shape
	udp     bool
	port    int // internal
	zones   []*zone
	waiting int // waiters that could enter one of its slots
	// lastStart is when a Machine was last started, in the time of Balancer.now; 0: never.
	lastStart int64
	failing   []*slot // those that could not be woken a short while ago
}

// zone is the slots of a crowd in one region, by what they are good for. Every step is of
// constant time, however many there are.
type zone struct {
	region hangar.Region
	open   [tiers]levels
	rest   [2][]*slot // wakeable: suspended ones, stopped ones
	count  [classes]int
}

// place is where a slot is in its zone.
type place struct {
	class class
	tier  tier // of open
	level uint8
	rest  uint8 // of wakeable: the index of zone.rest
	at    int   // in its level or rest
}

// put adds a slot, whose place says where to; at is filled in.
func (z *zone) put(s *slot, p place) {
	z.count[p.class]++
	switch p.class {
	case open:
		p.at = z.open[p.tier].add(s, p.level)
	case wakeable:
		p.at = len(z.rest[p.rest])
		z.rest[p.rest] = append(z.rest[p.rest], s)
	default:
	}
	s.place = p
}

// take removes a slot.
func (z *zone) take(s *slot) {
	p := s.place
	z.count[p.class]--
	switch p.class {
	case open:
		z.open[p.tier].remove(p.level, p.at)
	case wakeable:
		z.rest[p.rest] = without(z.rest[p.rest], p.at)
	default:
	}
}

// without removes one slot of a list, in whose place the last one comes.
func without(list []*slot, at int) []*slot {
	last := len(list) - 1
	list[at] = list[last]
	list[at].place.at = at
	list[last] = nil
	return list[:last]
}

// levels are slots by their load: one list for each load below exact, then for loads that
// differ by less than a quarter.
type levels struct {
	some  uint64 // bit i: lists[i] is not empty
	lists [][]*slot
}

const (
	exact     = 32
	maxLevels = 64
)

// levelOf is the list of a load.
func levelOf(load int) uint8 {
	if load < exact {
		return uint8(load)
	}
	n := bits.Len(uint(load)) // at least 6
	return uint8(min(exact+4*(n-6)+load>>(n-3)&3, maxLevels-1))
}

func (l *levels) add(s *slot, level uint8) int {
	for len(l.lists) <= int(level) {
		l.lists = append(l.lists, nil)
	}
	at := len(l.lists[level])
	l.lists[level] = append(l.lists[level], s)
	l.some |= 1 << level
	return at
}

func (l *levels) remove(level uint8, at int) {
	l.lists[level] = without(l.lists[level], at)
	if len(l.lists[level]) == 0 {
		l.some &^= 1 << level
	}
}

// least returns one of the slots with the least load that the wish does not except, any of
// them being as likely, or nil.
func (l *levels) least(w *Wish) *slot {
	for some := l.some; some != 0; some &= some - 1 {
		list := l.lists[bits.TrailingZeros64(some)]
		start := 0
		if len(list) > 1 {
			start = rand.IntN(len(list)) //nolint:gosec // a tie is broken, no secret made
		}
		if len(w.Except) > 0 {
			for i := range list {
				if s := list[(start+i)%len(list)]; !w.excepts(s) {
					return s
				}
			}
			continue
		}
		s := list[start]
		if s.load >= exact && len(list) > 1 {
			if other := list[rand.IntN(len(list))]; other.load < s.load { //nolint:gosec // likewise
				s = other
			}
		}
		return s
	}
	return nil
}
