package control

import (
	"context"

	"github.com/hangar-platform/hangar"
)

// Platform implements hangar.PlatformService over all hosts that may take new
// Machines. One that cannot be reached has no room.
type Platform struct{ *Control }

var _ hangar.PlatformService = (*Platform)(nil)

// Regions implements hangar.PlatformService. This server's own region is listed
// even if it has no host.
func (p *Platform) Regions(ctx context.Context, guest hangar.Guest) ([]hangar.RegionRoom, error) {
	if _, err := principal(ctx); err != nil {
		return nil, err
	}
	if err := guest.Complete(""); err != nil {
		return nil, err
	}
	rooms, err := p.rooms(ctx)
	if err != nil {
		return nil, err
	}
	return hangar.RegionRooms(rooms, guest, p.regions()...), nil
}

// Placements implements hangar.PlatformService.
func (p *Platform) Placements(ctx context.Context, q hangar.PlacementQuery) ([]hangar.Placement, error) {
	if _, err := principal(ctx); err != nil {
		return nil, err
	}
	if q.Org != "" {
		if _, err := p.Orgs().Org(ctx, q.Org); err != nil {
			return nil, err
		}
	}
	rooms, err := p.rooms(ctx)
	if err != nil {
		return nil, err
	}
	return q.Place(p.regions(), rooms)
}

// regions are those where Machines can be.
func (c *Control) regions() []hangar.Region {
	regions := []hangar.Region{c.region}
	for _, h := range c.agents.Hosts() {
		regions = append(regions, h.Region)
	}
	return regions
}

func (c *Control) rooms(ctx context.Context) ([]hangar.HostRoom, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	var rooms []hangar.HostRoom
	err := c.eachHost(func(a hangar.Agent) error {
		room, err := a.Room(ctx)
		if err == nil {
			rooms = append(rooms, room)
		}
		return err
	})
	if unreachable(err) {
		err = nil
	}
	return rooms, err
}
