package fake

import (
	"context"
	"slices"

	"github.com/hangar-platform/hangar"
)

// hostMemory is what the one host has, in bytes.
const hostMemory = 16 << 30

// OrgMachines implements hangar.MachineService.
func (s *Service) OrgMachines(ctx context.Context, org hangar.OrgSlug, q hangar.MachinePageQuery) (hangar.MachinePage, error) {
	p, err := principal(ctx)
	if err != nil {
		return hangar.MachinePage{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.orgTarget(org); s.orgs[org] == nil {
		return hangar.MachinePage{}, orgNotFound(org)
	} else if !p.Reaches(hangar.ActionRead, t) {
		return hangar.MachinePage{}, denied(p, t)
	}
	listing, err := q.Listing(s.now())
	if err != nil {
		return hangar.MachinePage{}, err
	}
	var list []*hangar.Machine
	for _, m := range s.machines {
		if a, ok := s.apps[m.App]; ok && a.Org.Slug == org && p.May(hangar.ActionRead, targetOf(a, m.ID)) && m.ID > listing.After && q.Matches(&m.Machine) {
			list = append(list, new(m.Machine))
		}
	}
	slices.SortFunc(list, byID)
	return listing.Page(list, q.Limit), nil
}

// Regions implements hangar.PlatformService.
func (s *Service) Regions(ctx context.Context, guest hangar.Guest) ([]hangar.RegionRoom, error) {
	if _, err := principal(ctx); err != nil {
		return nil, err
	}
	if err := guest.Complete(""); err != nil {
		return nil, err
	}
	return hangar.RegionRooms(s.room(), guest), nil
}

// Placements implements hangar.PlatformService.
func (s *Service) Placements(ctx context.Context, q hangar.PlacementQuery) ([]hangar.Placement, error) {
	if _, err := principal(ctx); err != nil {
		return nil, err
	}
	if q.Org != "" {
		if _, err := s.Org(ctx, q.Org); err != nil {
			return nil, err
		}
	}
	return q.Place([]hangar.Region{s.region}, s.room())
}

// room is that of the one host.
func (s *Service) room() []hangar.HostRoom {
	s.mu.Lock()
	defer s.mu.Unlock()
	room := hangar.HostRoom{Region: s.region, Memory: hostMemory, Free: hostMemory, Volumes: int64(s.diskLeft()) << 30}
	for _, m := range s.machines {
		if !m.State.AtRest() {
			room.Free -= int64(m.Config.Guest.MemoryMB) << 20
		}
	}
	return []hangar.HostRoom{room}
}
