package balance

import (
	"math/rand/v2"
	"slices"

	"github.com/hangar-platform/hangar"
)

// Selector restricts and orders the Machines that may get a request.
type Selector struct {
	Instance hangar.MachineID // this Machine or none; it is woken if autostart allows
	Prefer   hangar.MachineID // this Machine, if it is available at once
	// Regions go before nearer ones, in this order. Names of several regions are known, see
	// hangar.Region.Covers.
	Regions     []hangar.Region
	OnlyRegions bool               // no others than Regions
	Exclude     []hangar.MachineID // never these, even if there is no other
	NoWait      bool               // neither wait nor wake
	Deferred    bool               // the caller enters the Machine: see Permit.Enter
}

// unrestricted reports whether the selector allows every candidate.
func (sel *Selector) unrestricted() bool {
	return sel.Instance == "" && len(sel.Regions) == 0 && len(sel.Exclude) == 0
}

// regionRank is the position of a region in the order of preference; -1: not allowed.
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

// allows reports whether the request may go to a candidate.
func (sel *Selector) allows(c *candidate) bool {
	return (sel.Instance == "" || sel.Instance == c.machine.id) && sel.regionRank(c.index.region) >= 0 && !sel.excludes(c)
}

// inRegions returns the first candidate that find returns for the regions of an entry, which it
// tries in the order of preference.
func (sel *Selector) inRegions(e *entry, find func([]*index) *candidate) *candidate {
	for rank := 0; rank <= len(sel.Regions); rank++ {
		for i := range e.regions {
			if sel.regionRank(e.regions[i].region) == rank {
				if c := find(e.regions[i].indexes); c != nil {
					return c
				}
			}
		}
	}
	return nil
}

// candidateOf is the candidate by which a Machine serves an entry, or nil.
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

// pick chooses an available candidate for a request, or nil. It leaves a region for the next
// only if no candidate there is available; candidates that are cooling down come last of all.
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
	c := sel.inRegions(e, func(indexes []*index) *candidate {
		if c := leastLoaded(indexes, belowSoft, sel); c != nil {
			return c
		}
		return leastLoaded(indexes, aboveSoft, sel)
	})
	if c != nil {
		return c
	}
	return sel.inRegions(e, func(indexes []*index) *candidate { return leastLoaded(indexes, coolingDown, sel) })
}

// leastLoaded is a random one of the candidates of a tier with the fewest requests in flight.
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
			if total += size; rand.IntN(total) < size { //nolint:gosec // breaks a tie, makes no secret
				best = c
			}
		}
	}
	return best
}

// countCandidates counts the candidates that a selector allows, by availability.
func (a *app) countCandidates(e *entry, sel *Selector) (n counts) {
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
			for av, count := range ix.counts {
				n[av] += count
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
