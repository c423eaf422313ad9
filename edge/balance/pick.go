package balance

import (
	"math/rand/v2"
	"slices"

	"github.com/hangar-platform/hangar"
)

// Wish narrows down which Machine a request gets.
type Selector struct {
	Instance hangar.MachineID // that Machine or none; it is woken if it may be
	Prefer   hangar.MachineID // that one, if it may be entered at once
	// Regions are preferred in this order over what is near. Words for several regions are
	// known, see hangar.Region.Covers.
	Regions     []hangar.Region
	OnlyRegions bool               // no others than Regions
	Exclude     []hangar.MachineID // those never, even if there is no other
	NoWait      bool               // neither wait nor wake
}

// plain reports whether all who have such a wish get the same.
func (sel *Selector) unrestricted() bool {
	return sel.Instance == "" && len(sel.Regions) == 0 && len(sel.Exclude) == 0
}

// rank is how far down a region is in the wish; -1: it is not to be.
func (sel *Selector) regionRank(region hangar.Region) int {
	for i, r := range sel.Regions {
		if r.Covers(region) {
			return i
		}
	}
	if sel.OnlyRegions && len(sel.Regions) > 0 {
		return -1
	}
	return len(sel.Regions)
}

func (sel *Selector) excludes(c *candidate) bool { return slices.Contains(sel.Exclude, c.machine.id) }

// allows reports whether a slot may be what is wished for.
func (sel *Selector) allows(c *candidate) bool {
	return (sel.Instance == "" || sel.Instance == c.machine.id) && sel.regionRank(c.index.region) >= 0 && !sel.excludes(c)
}

// slotOf is where a Machine serves a segment, or nil.
func (a *app) candidateOf(id hangar.MachineID, e *entry) *candidate {
	if m := a.machines[id]; m != nil {
		for _, c := range m.candidates {
			if e.portOf(c.group) != nil {
				return c
			}
		}
	}
	return nil
}

// pick is the open slot that a request is to have, or nil. A region is left for the next
// only if none of its slots is open, and slots whose connections failed come last of all.
func (a *app) pick(e *entry, sel *Selector) *candidate {
	if sel.Instance != "" {
		if c := a.candidateOf(sel.Instance, e); c != nil && c.pos.availability == available && sel.allows(c) {
			return c
		}
		return nil
	}
	if sel.Prefer != "" {
		if c := a.candidateOf(sel.Prefer, e); c != nil && c.pos.availability == available && c.pos.tier != coolingDown && sel.allows(c) {
			return c
		}
	}
	for rank := 0; rank <= len(sel.Regions); rank++ {
		for i := range e.regions {
			r := &e.regions[i]
			if sel.regionRank(r.region) != rank {
				continue
			}
			for _, t := range [...]tier{belowSoft, aboveSoft} {
				if c := leastLoaded(r.indexes, t, sel); c != nil {
					return c
				}
			}
		}
	}
	for rank := 0; rank <= len(sel.Regions); rank++ {
		for i := range e.regions {
			if sel.regionRank(e.regions[i].region) != rank {
				continue
			}
			if c := leastLoaded(e.regions[i].indexes, coolingDown, sel); c != nil {
				return c
			}
		}
	}
	return nil
}

// least is one of the least loaded slots of a tier, in any of the zones.
func leastLoaded(indexes []*index, t tier, sel *Selector) *candidate {
	var best *candidate
	total := 0
	for _, ix := range indexes {
		c := ix.available[t].leastLoaded(sel)
		if c == nil {
			continue
		}
		size := len(ix.available[t].lists[c.pos.bucket])
		switch {
		case best == nil || c.pos.bucket < best.pos.bucket:
			best, total = c, size
		case c.pos.bucket == best.pos.bucket:
			if total += size; rand.IntN(total) < size { //nolint:gosec // a tie is broken, no secret made
				best = c
			}
		}
	}
	return best
}

// hope counts the slots that a request may get now or later, by class.
func (a *app) countCandidates(e *entry, sel *Selector) (n [availabilities]int) {
	if sel.Instance != "" {
		if c := a.candidateOf(sel.Instance, e); c != nil && sel.allows(c) {
			n[c.pos.availability]++
		}
		return n
	}
	for i := range e.regions {
		if sel.regionRank(e.regions[i].region) < 0 {
			continue
		}
		for _, ix := range e.regions[i].indexes {
			for c, count := range ix.counts {
				n[c] += count
			}
		}
	}
	for i, id := range sel.Exclude {
		if c := a.candidateOf(id, e); c != nil && sel.regionRank(c.index.region) >= 0 && !slices.Contains(sel.Exclude[:i], id) {
			n[c.pos.availability]--
		}
	}
	return n
}

// none reports whether waiting is in vain.
func none(n [availabilities]int) bool {
	for c, count := range n {
		if availability(c) != unavailable && count > 0 {
			return false
		}
	}
	return true
}
