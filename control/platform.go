package control

import (
	"context"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/tenants"
)

// Platform implements hangar.PlatformService over all hosts that may take new
// Machines. One that cannot be reached has no room.
type Platform struct {
	hosts *hosts
	orgs  *Orgs
}

var _ hangar.PlatformService = (*Platform)(nil)

// Regions implements hangar.PlatformService. This server's own region is listed
// even if it has no host.
func (p *Platform) Regions(ctx context.Context, guest hangar.Guest) ([]hangar.RegionRoom, error) {
	if _, err := tenants.Caller(ctx); err != nil {
		return nil, err
	}
	if err := guest.Complete(""); err != nil {
		return nil, err
	}
	rooms, err := p.rooms(ctx)
	if err != nil {
		return nil, err
	}
	return hangar.RegionRooms(rooms, guest, p.hosts.regions()...), nil
}

// Placements implements hangar.PlatformService.
func (p *Platform) Placements(ctx context.Context, q hangar.PlacementQuery) ([]hangar.Placement, error) {
	if _, err := tenants.Caller(ctx); err != nil {
		return nil, err
	}
	if q.Org != "" {
		if _, err := p.orgs.Org(ctx, q.Org); err != nil {
			return nil, err
		}
	}
	rooms, err := p.rooms(ctx)
	if err != nil {
		return nil, err
	}
	return q.Place(p.hosts.regions(), rooms)
}

func (p *Platform) rooms(ctx context.Context) ([]hangar.HostRoom, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	rooms, err := reached(p.hosts, askAll(p.hosts, p.hosts.agents.Hosts(), func(a hangar.Agent) (hangar.HostRoom, error) { return a.Room(ctx) }))
	if unreachable(err) {
		err = nil
	}
	return rooms, err
}
