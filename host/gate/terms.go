package gate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
)

// Terms are the facts about a Machine that decide when it is stopped.
type Terms struct {
	Open     bool             // it is started and not cordoned
	Services []hangar.Service // not changed afterwards
	Region   hangar.Region
	Primary  hangar.Region // of the App; empty: Region
	// Kept: it is not stopped for being idle, whatever its services say.
	Kept bool
	Busy time.Time // until when it has said that it is busy; zero: it has not
}

// Mode is what happens to the Machine when it is idle: the mildest mode of its services, and
// AutostopOff if one of them says so.
func (t *Terms) Mode() hangar.AutostopMode {
	mode := hangar.AutostopOff
	if t.Kept {
		return mode
	}
	for i := range t.Services {
		switch t.Services[i].AutostopMode() {
		case hangar.AutostopSuspend:
			mode = hangar.AutostopSuspend
		case hangar.AutostopStop:
			if mode == hangar.AutostopOff {
				mode = hangar.AutostopStop
			}
		default:
			return hangar.AutostopOff
		}
	}
	return mode
}

// after is how long the Machine has to be idle: the longest time of its services.
func (t *Terms) after(usual time.Duration) time.Duration {
	var longest time.Duration
	for i := range t.Services {
		after := usual
		if own := t.Services[i].AutostopAfter; own != nil && *own > 0 {
			after = time.Duration(*own)
		}
		longest = max(longest, after)
	}
	return longest
}

// least is how many Machines of its group have to run.
func (t *Terms) least() int {
	if t.Primary != "" && t.Primary != t.Region {
		return 0
	}
	least := 0
	for i := range t.Services {
		if n := t.Services[i].MinMachinesRunning; n != nil {
			least = max(least, *n)
		}
	}
	return least
}

// groupKey identifies the Machines that can replace one another: of an App, in a region, with the
// same public ports.
type groupKey struct {
	app    hangar.AppID
	region hangar.Region
	ports  string
}

func (t *Terms) groupKey(app hangar.AppID) groupKey {
	ports := make([]string, 0, len(t.Services))
	for i := range t.Services {
		s := &t.Services[i]
		for j := range s.Ports {
			first, last := s.Ports[j].Range()
			ports = append(ports, fmt.Sprint(s.Protocol, first, "-", last))
		}
	}
	slices.Sort(ports)
	return groupKey{app, t.Region, strings.Join(ports, " ")}
}

// newDoors returns the doors of the services, with the earlier counts of ports that stay.
func (g *Gate) newDoors(services []hangar.Service) *[]door {
	doors := make([]door, 0, len(services))
	for i := range services {
		s := &services[i]
		if slices.ContainsFunc(doors, func(d door) bool { return d.port == s.InternalPort }) {
			continue // the same port over UDP and TCP
		}
		c := g.at(s.InternalPort)
		if c == nil {
			c = &count{}
		}
		c.hard.Store(int64(s.HardLimit()))
		c.soft.Store(int64(s.SoftLimit()))
		doors = append(doors, door{s.InternalPort, c})
	}
	return &doors
}
