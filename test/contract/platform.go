package contract

import (
	"slices"
	"testing"

	"github.com/hangar-platform/hangar"
)

// PlatformService checks an implementation of hangar.PlatformService.
func PlatformService(t *testing.T, h Harness) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, Harness){
		"regions":            platformRegions,
		"placements":         platformPlacements,
		"placements refused": platformRefused,
	} {
		t.Run(name, func(t *testing.T) { test(t, h) })
	}
}

func (h Harness) capacity(t *testing.T, region hangar.Region, guest hangar.Guest) int {
	t.Helper()
	rooms, err := h.Platform.Regions(h.Context(t), guest)
	must(t, "regions", err)
	i := slices.IndexFunc(rooms, func(r hangar.RegionRoom) bool { return r.Region == region })
	if i < 0 {
		t.Fatalf("region %q of a machine is not in %+v", region, rooms)
	}
	return rooms[i].Capacity
}

// platformRegions: a Machine takes room while it is started. Machines of earlier tests
// may give back theirs meanwhile, so the counts are taken until two agree.
func platformRegions(t *testing.T, h Harness) {
	m := h.stopped(t, h.newApp(t))
	const tries = 20
	for try := 1; ; try++ {
		before := h.capacity(t, m.Region, hangar.Guest{})
		same := h.capacity(t, m.Region, hangar.Guest{CPUKind: hangar.CPUShared, CPUs: 1, MemoryMB: 256})
		larger := h.capacity(t, m.Region, hangar.Guest{MemoryMB: 512})
		_, err := h.Machines.StartMachine(h.Context(t), m.Ref())
		must(t, "start", err)
		h.wait(t, m.Ref(), hangar.MachineStarted)
		during := h.capacity(t, m.Region, hangar.Guest{})
		must(t, "stop", h.Machines.StopMachine(h.Context(t), m.Ref(), hangar.MachineStop{}))
		h.wait(t, m.Ref(), hangar.MachineStopped)
		after := h.capacity(t, m.Region, hangar.Guest{})
		if before != after && try < tries {
			continue
		}
		if before != after || same != before || larger != before/2 || during != max(before-1, 0) {
			t.Errorf("room for %d machines, for %d of the default size and %d of twice that; for %d beside one more, for %d after it",
				before, same, larger, during, after)
		}
		break
	}
	_, err := h.Platform.Regions(h.Context(t), hangar.Guest{MemoryMB: 300})
	wantError(t, "memory of 300 MB", err, hangar.CodeInvalid, "")
}

func platformPlacements(t *testing.T, h Harness) {
	m := h.stopped(t, h.newApp(t))
	for name, q := range map[string]hangar.PlacementQuery{
		"nothing":         {},
		"any region":      {Regions: []hangar.Region{hangar.AnyRegion}, Count: 3},
		"its region":      {Regions: []hangar.Region{"zzz", m.Region}, Count: 1},
		"no region of it": {Regions: []hangar.Region{"zzz"}},
		"a group":         {Regions: []hangar.Region{"europe"}, Org: hangar.OrgPersonal},
		"with a volume":   {Count: 2, VolumeBytes: 1<<30 - 1},
		"more than holds": {Count: hangar.MaxPlacements, Guest: hangar.Guest{MemoryMB: 1024}},
	} {
		placements, err := h.Platform.Placements(h.Context(t), q)
		must(t, name, err)
		count := 0
		for _, p := range placements {
			if count += p.Count; p.Region == "" || p.Count < 1 || p.Concurrency < 1 {
				t.Errorf("%s: placement %+v", name, p)
			}
		}
		if count != max(q.Count, 1) {
			t.Errorf("%s: %d machines go to %+v, want %d", name, count, placements, max(q.Count, 1))
		}
	}
}

func platformRefused(t *testing.T, h Harness) {
	for name, q := range map[string]hangar.PlacementQuery{
		"negative count":  {Count: -1},
		"too many":        {Count: hangar.MaxPlacements + 1},
		"negative volume": {VolumeBytes: -1},
		"large volume":    {VolumeBytes: hangar.MaxVolumeGB<<30 + 1},
		"no size":         {Guest: hangar.Guest{CPUs: 3, MemoryMB: 1}},
	} {
		_, err := h.Platform.Placements(h.Context(t), q)
		wantError(t, name, err, hangar.CodeInvalid, "")
	}
	_, err := h.Platform.Placements(h.Context(t), hangar.PlacementQuery{Guest: hangar.Guest{MemoryMB: hangar.MaxMemoryMB}})
	wantError(t, "a machine too large for every host", err, hangar.CodeConflict, hangar.ReasonInsufficientCapacity)
	_, err = h.Platform.Placements(h.Context(t), hangar.PlacementQuery{Count: hangar.MaxPlacements, VolumeBytes: hangar.MaxVolumeGB << 30})
	wantError(t, "volumes too large for every disk", err, hangar.CodeConflict, hangar.ReasonInsufficientCapacity)
}
