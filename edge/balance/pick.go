package balance

import (
	"math/rand/v2"
	"slices"

	"github.com/hangar-platform/hangar"
)

// Wish narrows down which Machine a request gets.
type Wish struct {
	Instance hangar.MachineID // that Machine or none; it is woken if it may be
	Prefer   hangar.MachineID // that one, if it may be entered at once
	// Regions are preferred in this order over what is near. Words for several regions are
	// known, see hangar.Region.Covers.
	Regions     []hangar.Region
	OnlyRegions bool               // no others than Regions
	Except      []hangar.MachineID // those never, even if there is no other
	NoWait      bool               // neither wait nor wake
}

// plain reports whether all who have such a wish get the same.
func (w *Wish) plain() bool {
	return w.Instance == "" && len(w.Regions) == 0 && len(w.Except) == 0
}

// rank is how far down a region is in the wish; -1: it is not to be.
func (w *Wish) rank(region hangar.Region) int {
	for i, r := range w.Regions {
		if r.Covers(region) {
			return i
		}
	}
	if w.OnlyRegions && len(w.Regions) > 0 {
		return -1
	}
	return len(w.Regions)
}

func (w *Wish) excepts(s *slot) bool { return slices.Contains(w.Except, s.m.id) }

// allows reports whether a slot may be what is wished for.
func (w *Wish) allows(s *slot) bool {
	return (w.Instance == "" || w.Instance == s.m.id) && w.rank(s.zone.region) >= 0 && !w.excepts(s)
}

// slotOf is where a Machine serves a segment, or nil.
func (a *app) slotOf(id hangar.MachineID, g *segment) *slot {
	if m := a.machines[id]; m != nil {
		for _, s := range m.slots {
			if g.source(s.crowd) != nil {
				return s
			}
		}
	}
	return nil
}

// pick is the open slot that a request is to have, or nil. A region is left for the next
// only if none of its slots is open, and slots whose connections failed come last of all.
func (a *app) pick(g *segment, w *Wish) *slot {
	if w.Instance != "" {
		if s := a.slotOf(w.Instance, g); s != nil && s.place.class == open && w.allows(s) {
			return s
		}
		return nil
	}
	if w.Prefer != "" {
		if s := a.slotOf(w.Prefer, g); s != nil && s.place.class == open && s.place.tier != avoided && w.allows(s) {
			return s
		}
	}
	for rank := 0; rank <= len(w.Regions); rank++ {
		for i := range g.regions {
			r := &g.regions[i]
			if w.rank(r.region) != rank {
				continue
			}
			for _, t := range [...]tier{below, above} {
				if s := least(r.zones, t, w); s != nil {
					return s
				}
			}
		}
	}
	for rank := 0; rank <= len(w.Regions); rank++ {
		for i := range g.regions {
			if w.rank(g.regions[i].region) != rank {
				continue
			}
			if s := least(g.regions[i].zones, avoided, w); s != nil {
				return s
			}
		}
	}
	return nil
}

// least is one of the least loaded slots of a tier, in any of the zones.
func least(zones []*zone, t tier, w *Wish) *slot {
	var best *slot
	total := 0
	for _, z := range zones {
		s := z.open[t].least(w)
		if s == nil {
			continue
		}
		size := len(z.open[t].lists[s.place.level])
		switch {
		case best == nil || s.place.level < best.place.level:
			best, total = s, size
		case s.place.level == best.place.level:
			if total += size; rand.IntN(total) < size { //nolint:gosec // a tie is broken, no secret made
				best = s
			}
		}
	}
	return best
}

// hope counts the slots that a request may get now or later, by class.
func (a *app) hope(g *segment, w *Wish) (n [classes]int) {
	if w.Instance != "" {
		if s := a.slotOf(w.Instance, g); s != nil && w.allows(s) {
			n[s.place.class]++
		}
		return n
	}
	for i := range g.regions {
		if w.rank(g.regions[i].region) < 0 {
			continue
		}
		for _, z := range g.regions[i].zones {
			for c, count := range z.count {
				n[c] += count
			}
		}
	}
	for i, id := range w.Except {
		if s := a.slotOf(id, g); s != nil && w.rank(s.zone.region) >= 0 && !slices.Contains(w.Except[:i], id) {
			n[s.place.class]--
		}
	}
	return n
}

// none reports whether waiting is in vain.
func none(n [classes]int) bool {
	for c, count := range n {
		if class(c) != dead && count > 0 {
			return false
		}
	}
	return true
}
