package balance

import (
	"fmt"

	"github.com/hangar-platform/hangar"
)

// Verify checks the invariants of an App, and returns how many requests are in flight
// in each Machine.
func (b *Balancer) Verify(name hangar.AppID) (map[hangar.MachineID]int, error) {
	inFlight := map[hangar.MachineID]int{}
	b.mu.RLock()
	a := b.apps[name]
	b.mu.RUnlock()
	if a == nil {
		return inFlight, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := b.now()
	counts := map[*index]*[availabilities]int{}
	for id, m := range a.machines {
		if m.id != id || m.row == nil || a.serviceSets[m.set.key] != m.set {
			return nil, fmt.Errorf("machine %s is not itself", id)
		}
		for _, c := range m.candidates {
			inFlight[id] += c.inFlight
			p := c.pos
			if counts[c.index] == nil {
				counts[c.index] = new([availabilities]int)
			}
			counts[c.index][p.availability]++
			if is := c.availabilityAt(now); is != p.availability {
				return nil, fmt.Errorf("machine %s has availability %d and not %d", id, is, p.availability)
			}
			switch {
			case c.inFlight < 0:
				return nil, fmt.Errorf("machine %s has %d in flight", id, c.inFlight)
			case p.availability == available && (c.index.available[p.tier].lists[p.bucket][p.at] != c || p.bucket != bucketOf(c.inFlight)),
				p.availability == wakeable && c.index.atRest[p.atRest][p.at] != c:
				return nil, fmt.Errorf("machine %s is not at its position %+v", id, p)
			}
		}
	}
	for _, set := range a.serviceSets {
		waiting := map[*group]int{}
		n := 0
		for w := a.queue.first; w != nil; w = w.next {
			n++
			if w.entry != nil {
				for i := range w.entry.ports {
					waiting[w.entry.ports[i].group]++
				}
			}
		}
		if n != a.queue.length {
			return nil, fmt.Errorf("%d wait and not %d", n, a.queue.length)
		}
		for _, g := range set.groups {
			if g.waiters != waiting[g] {
				return nil, fmt.Errorf("%d wait for port %d and not %d", waiting[g], g.port, g.waiters)
			}
			for _, ix := range g.indexes {
				if want := counts[ix]; want == nil && ix.counts != [availabilities]int{} || want != nil && ix.counts != *want {
					return nil, fmt.Errorf("index of %s has %v and not %v", ix.region, ix.counts, want)
				}
			}
		}
	}
	return inFlight, nil
}

// Exit is the last exit in a Machine.
type Exit struct{ exit }

// Covers reports whether a permit that was given by a row belonged to the program that ended.
func (e Exit) Covers(row *hangar.MachineRow) bool { return e.covers(row) }

// LastExit is that of a Machine that exists.
func (b *Balancer) LastExit(app hangar.AppID, id hangar.MachineID) Exit {
	b.mu.RLock()
	a := b.apps[app]
	b.mu.RUnlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	return Exit{a.machines[id].lastExit}
}
