package host_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// TestDestroyedStaysReadable: for a day, over restarts, and no longer.
func TestDestroyedStaysReadable(t *testing.T) {
	r := newRig(t)
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	r.must(r.DestroyMachine(t.Context(), ref, hangar.MachineDestroy{Force: true}))
	r.wait(ref, hangar.MachineDestroyed)
	before, err := r.Machine(t.Context(), ref)
	r.must(err)
	if newest := before.Events[0]; newest.Type != hangar.EventDestroy || newest.Status != string(hangar.MachineDestroyed) {
		t.Errorf("the newest event is %+v", newest)
	}

	r.ahead.Store(int64(24*time.Hour - time.Minute))
	r.restart()
	after, err := r.Machine(t.Context(), ref)
	r.must(err)
	if !reflect.DeepEqual(before.Events, after.Events) || after.State != hangar.MachineDestroyed {
		t.Errorf("almost a day later: %+v, was %+v", after, before)
	}
	all := hangar.MachineFilter{IncludeDestroyed: true}
	if list, err := r.OrgMachines(t.Context(), hangar.OrgPersonal, "", 10, all); err != nil || len(list) != 1 {
		t.Errorf("listed with those that were destroyed: %v, %v", list, err)
	}
	if list, err := r.OrgMachines(t.Context(), hangar.OrgPersonal, "", 10, hangar.MachineFilter{}); err != nil || len(list) != 0 {
		t.Errorf("listed: %v, %v", list, err)
	}

	r.ahead.Store(int64(24*time.Hour + time.Minute))
	r.restart()
	r.published(ref, "")
	if _, err := r.Machine(t.Context(), ref); hangar.ReasonOf(err) != hangar.ReasonMachineNotFound {
		t.Errorf("a day later: %v", err)
	}
}

// TestOrgMachines: only those of one organization, after an id, as many as asked.
func TestOrgMachines(t *testing.T) {
	r := newRig(t)
	var ids []hangar.MachineID
	for range 3 {
		ids = append(ids, r.create(nil, func(s *hangar.MachineSpec) { s.SkipLaunch = true }).ID)
	}
	r.create(nil, func(s *hangar.MachineSpec) { s.Org, s.SkipLaunch = "others", true })
	list, err := r.OrgMachines(t.Context(), hangar.OrgPersonal, "", 10, hangar.MachineFilter{})
	r.must(err)
	if len(list) != len(ids) {
		t.Fatalf("%d machines, want %d", len(list), len(ids))
	}
	for n := range list {
		rest, err := r.OrgMachines(t.Context(), hangar.OrgPersonal, list[n].ID, 1, hangar.MachineFilter{})
		r.must(err)
		if want := list[n+1 : min(n+2, len(list))]; len(rest) != len(want) || len(want) > 0 && rest[0].ID != want[0].ID {
			t.Errorf("one machine after %s: %v", list[n].ID, rest)
		}
	}
}

// TestRoom: memory is promised from the creation until the Machine is at rest.
func TestRoom(t *testing.T) {
	r := newRig(t)
	promised := func() int64 {
		t.Helper()
		room, err := r.Room(t.Context())
		r.must(err)
		return room.Memory - room.Free
	}
	if got := promised(); got != 0 {
		t.Errorf("an empty host has promised %d bytes", got)
	}
	ref := r.create(nil)
	r.wait(ref, hangar.MachineStarted)
	if got := promised(); got != 256<<20 {
		t.Errorf("beside a machine, %d bytes are promised", got)
	}
	r.must(r.StopMachine(t.Context(), ref, hangar.MachineStop{}))
	r.wait(ref, hangar.MachineStopped)
	if got := promised(); got != 0 {
		t.Errorf("beside a machine at rest, %d bytes are promised", got)
	}
}
