package balance

import (
	"fmt"

	"github.com/hangar-platform/hangar"
)

// Verify checks what is known of an App against itself, and returns how many seats are taken
// in each Machine.
func (b *Balancer) Verify(name hangar.AppID) (map[hangar.MachineID]int, error) {
	loads := map[hangar.MachineID]int{}
	b.mu.RLock()
	a := b.apps[name]
	b.mu.RUnlock()
	if a == nil {
		return loads, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now := b.now()
	counts := map[*index]*[availabilities]int{}
	for id, m := range a.machines {
		if m.id != id || m.row == nil || a.serviceSets[m.shape.key] != m.shape {
			return nil, fmt.Errorf("machine %s is not itself", id)
		}
		for _, c := range m.candidates {
			loads[id] += c.inFlight
			p := c.pos
			if counts[c.index] == nil {
				counts[c.index] = new([availabilities]int)
			}
			counts[c.index][p.availability]++
			if is := c.availabilityAt(now); is != p.availability {
				return nil, fmt.Errorf("machine %s is of class %d and not %d", id, is, p.availability)
			}
			switch {
			case c.inFlight < 0:
				return nil, fmt.Errorf("machine %s has a load of %d", id, c.inFlight)
			case p.availability == available && (c.index.available[p.tier].lists[p.bucket][p.at] != c || p.bucket != bucketOf(c.inFlight)),
				p.availability == wakeable && c.index.atRest[p.atRest][p.at] != c:
				return nil, fmt.Errorf("machine %s is not in its place %+v", id, p)
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
					return nil, fmt.Errorf("zone %s has %v and not %v", ix.region, ix.counts, want)
				}
			}
		}
	}
	return loads, nil
}

// Ending says what has ended last in a Machine.
type Exit struct{ exit }

// Ends reports whether a seat that was given by a row of the Machine was of what has ended.
func (e Exit) Covers(row *hangar.MachineRow) bool { return e.covers(row) }

// LastEnding is that of a Machine which is there.
func (b *Balancer) LastExit(app hangar.AppID, id hangar.MachineID) Exit {
	b.mu.RLock()
	a := b.apps[app]
	b.mu.RUnlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	return Exit{a.machines[id].lastExit}
}
