package control

import (
	"cmp"
	"context"
	"hash/fnv"
	"math"
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// regionFor is the first of some regions that is wished for, or else of codes that no server
// has, the wish itself. A wish is the code of a region, a word for several, see
// hangar.Region.Covers, or a list of such with commas, the dearest first; empty: the first of all.
func regionFor(wish hangar.Region, regions []hangar.Region) hangar.Region {
	if wish == "" {
		return regions[0]
	}
	for word := range strings.SplitSeq(string(wish), ",") {
		for _, code := range regions {
			if hangar.Region(strings.TrimSpace(word)).Covers(code) {
				return code
			}
		}
	}
	return wish
}

// place puts hosts in the order in which they shall be asked: first those with
// the fewest Machines of the App, so that it survives the loss of one; among equals
// a large host comes first more often than a small one. Whether there is room, the
// host knows best and says itself.
func (s *reservations) place(ctx context.Context, app hangar.AppID, id hangar.MachineID, hosts []hangar.Host) ([]hangar.Host, error) {
	if len(hosts) < 2 {
		return hosts, nil
	}
	items, _, err := state.All(ctx, s.store, state.ReservationKey(hangar.MachineRef{AppID: app}), false)
	if err != nil {
		return nil, state.HangarError(err)
	}
	load := map[hangar.HostID]int{}
	for _, item := range items {
		if r, err := state.Decode[reservation](item); err == nil {
			load[r.Host]++
		}
	}
	return orderHosts(hosts, load, id), nil
}

// orderHosts is weighted rendezvous hashing within each number of Machines.
func orderHosts(hosts []hangar.Host, load map[hangar.HostID]int, id hangar.MachineID) []hangar.Host {
	rank := make(map[hangar.HostID]float64, len(hosts))
	for _, h := range hosts {
		f := fnv.New64a()
		_, _ = f.Write([]byte(string(h.ID) + "/" + string(id)))
		// FNV alone changes the high bits too little between similar inputs.
		x := f.Sum64()
		x ^= x >> 33
		x *= 0xff51afd7ed558ccd
		x ^= x >> 33
		uniform := (float64(x>>11) + 0.5) / (1 << 53)
		rank[h.ID] = float64(max(h.Memory, 1)) / -math.Log(uniform)
	}
	return slices.SortedFunc(slices.Values(hosts), func(a, b hangar.Host) int {
		return cmp.Or(cmp.Compare(load[a.ID], load[b.ID]), cmp.Compare(rank[b.ID], rank[a.ID]), cmp.Compare(a.ID, b.ID))
	})
}
