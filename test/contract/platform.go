package contract

import (
	"slices"
	"testing"
	"time"

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

// atRest waits until no Machine but those that stay as they are takes or gives room.
func (h Harness) atRest(t *testing.T) {
	t.Helper()
	q := hangar.MachinePageQuery{MachineFilter: hangar.MachineFilter{States: []hangar.MachineState{
		hangar.MachineCreated, hangar.MachineStarting, hangar.MachineStopping, hangar.MachineSuspending,
		hangar.MachineRestarting, hangar.MachineReplacing, hangar.MachineDestroying,
	}}}
	for {
		page, err := h.Machines.OrgMachines(h.Context(t), hangar.OrgPersonal, q)
		must(t, "list", err)
		if len(page.Machines) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// platformRegions: a Machine takes room while it is started.
func platformRegions(t *testing.T, h Harness) {
	app := h.newApp(t)
	m := h.stopped(t, app)
	h.atRest(t)
	before := h.capacity(t, m.Region, hangar.Guest{})
	if same := h.capacity(t, m.Region, hangar.Guest{CPUKind: hangar.CPUShared, CPUs: 1, MemoryMB: 256}); same != before {
		t.Errorf("room for %d machines of 256 MB, and for %d of the default size", same, before)
	}
	if larger := h.capacity(t, m.Region, hangar.Guest{MemoryMB: 512}); larger != before/2 {
		t.Errorf("room for %d machines of 256 MB, and for %d of 512 MB", before, larger)
	}
	_, err := h.Machines.StartMachine(h.Context(t), m.Ref())
	must(t, "start", err)
	h.wait(t, m.Ref(), hangar.MachineStarted)
	if after := h.capacity(t, m.Region, hangar.Guest{}); before > 0 && after != before-1 {
		t.Errorf("room for %d machines, and for %d beside one more", before, after)
	}
	must(t, "stop", h.Machines.StopMachine(h.Context(t), m.Ref(), hangar.MachineStop{}))
	h.wait(t, m.Ref(), hangar.MachineStopped)
	if again := h.capacity(t, m.Region, hangar.Guest{}); again != before {
		t.Errorf("room for %d machines after a stop, was %d", again, before)
	}
	_, err = h.Platform.Regions(h.Context(t), hangar.Guest{MemoryMB: 300})
	wantError(t, "memory of 300 MB", err, hangar.CodeInvalid, "")
}

func platformPlacements(t *testing.T, h Harness) {
	m := h.stopped(t, h.newApp(t))
	for name, q := range map[string]hangar.PlacementQuery{
		"nothing":         {},
		"any region":      {Regions: []hangar.Region{hangar.AnyRegion}, Count: 3},
		"its region":      {Regions: []hangar.Region{"zzz", m.Region}, Count: 1},
		"a group":         {Regions: []hangar.Region{"europe"}, Org: hangar.OrgPersonal},
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
		"unknown region": {Regions: []hangar.Region{"zzz"}},
		"negative count": {Count: -1},
		"too many":       {Count: hangar.MaxPlacements + 1},
		"no size":        {Guest: hangar.Guest{CPUs: 3, MemoryMB: 1}},
	} {
		_, err := h.Platform.Placements(h.Context(t), q)
		wantError(t, name, err, hangar.CodeInvalid, "")
	}
	_, err := h.Platform.Placements(h.Context(t), hangar.PlacementQuery{Guest: hangar.Guest{MemoryMB: hangar.MaxMemoryMB}})
	wantError(t, "a machine too large for every host", err, hangar.CodeConflict, hangar.ReasonInsufficientCapacity)
}
