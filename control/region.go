package control

import (
	"context"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// regionFor is the first of some regions that matches the request, or the request itself if no
// server has its codes. A request is the code of a region, a word for several (see
// hangar.Region.Covers), or a list of these with commas, in the order of preference; empty: the
// first region.
func regionFor(request hangar.Region, regions []hangar.Region) hangar.Region {
	if request == "" {
		return regions[0]
	}
	for word := range strings.SplitSeq(string(request), ",") {
		for _, code := range regions {
			if hangar.Region(strings.TrimSpace(word)).Covers(code) {
				return code
			}
		}
	}
	return request
}

// load returns how many Machines of an App each host has. It is empty for a single host, where
// placement does not need it.
func (s *reservations) load(ctx context.Context, app hangar.AppID, hosts []hangar.Host) (map[hangar.HostID]int, error) {
	load := map[hangar.HostID]int{}
	if len(hosts) < 2 {
		return load, nil
	}
	items, _, err := state.All(ctx, s.store, state.ReservationKey(hangar.MachineRef{AppID: app}), false)
	if err != nil {
		return nil, state.HangarError(err)
	}
	for _, item := range items {
		if r, err := state.Decode[reservation](item); err == nil {
			load[r.Host]++
		}
	}
	return load, nil
}
