package balance

import (
	"maps"
	"slices"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/traffic"
)

// MachineTraffic is the traffic between this edge and a Machine.
type MachineTraffic struct {
	Machine  hangar.MachineRef
	Host     hangar.HostID
	Started  bool
	InFlight int              // requests, or connections
	Counts   *traffic.Machine // nil: there was nothing to count
}

// Traffic returns the Machines of the Apps that are followed, those of an App together. Counts
// of a Machine begin with its first request, and go when it is destroyed.
func (b *Balancer) Traffic() []MachineTraffic {
	b.mu.RLock()
	apps := slices.Collect(maps.Values(b.apps))
	b.mu.RUnlock()
	var list []MachineTraffic
	for _, a := range apps {
		list = a.appendTraffic(list)
	}
	return list
}

func (a *app) appendTraffic(list []MachineTraffic) []MachineTraffic {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range a.machines {
		if m.row != nil {
			list = append(list, MachineTraffic{
				Machine: m.row.Machine.Ref(), Host: m.row.Machine.Host, Started: m.row.Machine.State == hangar.MachineStarted,
				InFlight: m.inFlight(), Counts: m.traffic,
			})
		}
	}
	return list
}
