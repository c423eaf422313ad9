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
	if err := mayAct(ctx, org); err != nil {
		return hangar.MachinePage{}, err
	}
	listing, err := q.Listing(s.now())
	if err != nil {
		return hangar.MachinePage{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.hasOrg(org) {
		return hangar.MachinePage{}, hangar.Errorf(hangar.CodeNotFound, "", "Could not find Organization %q", org)
	}
	var list []*hangar.Machine
	for _, m := range s.machines {
		if a, ok := s.apps[m.App]; ok && a.Org.Slug == org && m.ID > listing.After && q.Matches(&m.Machine) {
			list = append(list, new(m.Machine))
		}
	}
	slices.SortFunc(list, byID)
	return listing.Page(list, q.Limit), nil
}

// hasOrg reports whether an organization is there: the one of every server, or one
// that has an App. The caller holds mu.
func (s *Service) hasOrg(org hangar.OrgSlug) bool {
	if org == hangar.OrgPersonal {
		return true
	}
	for _, a := range s.apps {
		if a.Org.Slug == org {
			return true
		}
	}
	return false
}

// Regions implements hangar.PlatformService.
func (s *Service) Regions(ctx context.Context, guest hangar.Guest) ([]hangar.RegionRoom, error) {
	if _, err := hangar.PrincipalFrom(ctx); err != nil {
		return nil, err
	}
	if err := guest.Complete(""); err != nil {
		return nil, err
	}
	return hangar.RegionRooms(s.room(), guest), nil
}

// Placements implements hangar.PlatformService.
func (s *Service) Placements(ctx context.Context, q hangar.PlacementQuery) ([]hangar.Placement, error) {
	if _, err := hangar.PrincipalFrom(ctx); err != nil {
		return nil, err
	}
	if q.Org != "" {
		if err := mayAct(ctx, q.Org); err != nil {
			return nil, err
		}
	}
	return q.Place([]hangar.Region{s.region}, s.room())
}

// room is that of the one host.
func (s *Service) room() []hangar.HostRoom {
	s.mu.Lock()
	defer s.mu.Unlock()
	room := hangar.HostRoom{Region: s.region, Memory: hostMemory, Free: hostMemory}
	for _, m := range s.machines {
		if !m.State.AtRest() {
			room.Free -= int64(m.Config.Guest.MemoryMB) << 20
		}
	}
	return []hangar.HostRoom{room}
}
