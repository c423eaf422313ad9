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
	counts := map[*zone]*[classes]int{}
	for id, m := range a.machines {
		if m.id != id || m.row == nil || a.shapes[m.shape.key] != m.shape {
			return nil, fmt.Errorf("machine %s is not itself", id)
		}
		for _, s := range m.slots {
			loads[id] += s.load
			p := s.place
			if counts[s.zone] == nil {
				counts[s.zone] = new([classes]int)
			}
			counts[s.zone][p.class]++
			if is := s.classify(now); is != p.class {
				return nil, fmt.Errorf("machine %s is of class %d and not %d", id, is, p.class)
			}
			switch {
			case s.load < 0:
				return nil, fmt.Errorf("machine %s has a load of %d", id, s.load)
			case p.class == open && (s.zone.open[p.tier].lists[p.level][p.at] != s || p.level != levelOf(s.load)),
				p.class == wakeable && s.zone.rest[p.rest][p.at] != s:
				return nil, fmt.Errorf("machine %s is not in its place %+v", id, p)
			}
		}
	}
	for _, sh := range a.shapes {
		waiting := map[*crowd]int{}
		n := 0
		for w := a.queue.first; w != nil; w = w.next {
			n++
			if w.seg != nil {
				for i := range w.seg.sources {
					waiting[w.seg.sources[i].crowd]++
				}
			}
		}
		if n != a.queue.n {
			return nil, fmt.Errorf("%d wait and not %d", n, a.queue.n)
		}
		for _, c := range sh.crowds {
			if c.waiting != waiting[c] {
				return nil, fmt.Errorf("%d wait for port %d and not %d", waiting[c], c.port, c.waiting)
			}
			for _, z := range c.zones {
				if want := counts[z]; want == nil && z.count != [classes]int{} || want != nil && z.count != *want {
					return nil, fmt.Errorf("zone %s has %v and not %v", z.region, z.count, want)
				}
			}
		}
	}
	return loads, nil
}

// Ending says what has ended last in a Machine.
type Ending struct{ ending }

// Ends reports whether a seat that was given by a row of the Machine was of what has ended.
func (e Ending) Ends(row *hangar.MachineRow) bool { return e.ends(row) }

// LastEnding is that of a Machine which is there.
func (b *Balancer) LastEnding(app hangar.AppID, id hangar.MachineID) Ending {
	b.mu.RLock()
	a := b.apps[app]
	b.mu.RUnlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	return Ending{a.machines[id].latest}
}
