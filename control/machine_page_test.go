package control_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// pages are the ids on each page of a listing, and the last page.
func (p *plane) pages(t *testing.T, q hangar.MachinePageQuery) (ids [][]hangar.MachineID, last hangar.MachinePage) {
	t.Helper()
	for {
		page, err := p.Machines().OrgMachines(admin(t), hangar.OrgPersonal, q)
		if err != nil {
			t.Fatal(err)
		}
		var on []hangar.MachineID
		for _, m := range page.Machines {
			on = append(on, m.ID)
		}
		ids = append(ids, on)
		if q.Cursor = page.Next; page.Next == "" {
			return ids, page
		}
	}
}

func TestPagesOverHosts(t *testing.T) {
	p := newPlane(t, state.NewMemory(), newFakeHost("aaaaaaaa", "loc"), newFakeHost("bbbbbbbb", "loc"), newFakeHost("cccccccc", "far"))
	p.app(t, "web")
	p.app(t, "db")
	var ids []hangar.MachineID
	for i := range 30 {
		app := []hangar.AppName{"web", "db"}[i%2]
		region := []hangar.Region{"loc", "loc", "far"}[i%3]
		m, err := p.Machines().CreateMachine(admin(t), app, hangar.MachineCreate{Region: region, Config: wish("").Config})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, m.ID)
	}
	slices.Sort(ids)
	p.hosts[0].publish, p.hosts[1].publish = nil, nil
	for n := range 250 { // without a reservation
		spec := hangar.MachineSpec{ID: hangar.NewMachineID(), Name: fmt.Sprint(n), App: "web", Region: "loc", Config: wish("").Config}
		if _, err := p.hosts[n%2].record(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	for _, away := range []bool{false, true} {
		p.hosts[2].setDown(away)
		for _, limit := range []int{0, 1, 7, 29, 30, 31} {
			pages, last := p.pages(t, hangar.MachinePageQuery{Limit: limit})
			if got := slices.Concat(pages...); !slices.Equal(got, ids) {
				t.Errorf("%d on a page: listed %d machines, want %d", limit, len(got), len(ids))
			}
			for _, page := range pages[:len(pages)-1] {
				if len(page) != limit {
					t.Errorf("%d on a page: a page of %d before the last", limit, len(page))
				}
			}
			if missed := slices.Equal(last.ErrorRegions, []hangar.Region{"far"}); limit == 0 && missed != away {
				t.Errorf("away %t: error regions are %v", away, last.ErrorRegions)
			}
			for _, m := range last.Machines {
				if unreachable := m.HostStatus == "unreachable"; unreachable != (away && m.Region == "far") {
					t.Errorf("away %t: machine in %s has host status %q", away, m.Region, m.HostStatus)
				}
			}
		}
	}
	_, last := p.pages(t, hangar.MachinePageQuery{MachineFilter: hangar.MachineFilter{Regions: []hangar.Region{"far"}}})
	if len(last.Machines) != 10 {
		t.Errorf("%d machines in a region whose host is away, want 10", len(last.Machines))
	}
	guest := as(t, hangar.Principal{Grants: []hangar.Grant{{Org: "guests", Actions: hangar.ActionAll}}})
	_, err := p.Machines().OrgMachines(guest, hangar.OrgPersonal, hangar.MachinePageQuery{})
	wantError(t, err, hangar.CodeNotFound, hangar.ReasonOrgNotFound)
	one := last.Machines[0]
	single := as(t, hangar.Principal{Grants: []hangar.Grant{{
		Org: hangar.OrgPersonal, Apps: []hangar.AppName{one.App}, Machines: []hangar.MachineID{one.ID}, Actions: hangar.ActionRead,
	}}})
	page, err := p.Machines().OrgMachines(single, hangar.OrgPersonal, hangar.MachinePageQuery{Limit: 10})
	if err != nil || len(page.Machines) != 1 || page.Machines[0].ID != one.ID {
		t.Errorf("a caller that may read one machine: %d of them, %v", len(page.Machines), err)
	}
}

func TestRoomOfHosts(t *testing.T) {
	p := newPlane(t, state.NewMemory(), newFakeHost("aaaaaaaa", "loc"), newFakeHost("bbbbbbbb", "loc"), newFakeHost("cccccccc", "far"))
	p.app(t, "web")
	ctx := admin(t)
	capacities := func() string {
		t.Helper()
		rooms, err := p.Platform().Regions(ctx, hangar.Guest{})
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(rooms)
	}
	placements := func(q hangar.PlacementQuery) string {
		t.Helper()
		list, err := p.Platform().Placements(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(list)
	}
	if got := capacities(); got != "[{far 4} {loc 8}]" {
		t.Errorf("capacities of empty hosts of 1 GiB: %s", got)
	}
	for range 3 {
		p.machine(t, "web", "")
	}
	if got := capacities(); got != "[{far 4} {loc 5}]" {
		t.Errorf("capacities beside three machines: %s", got)
	}
	for _, test := range []struct {
		query hangar.PlacementQuery
		want  string
	}{
		{hangar.PlacementQuery{}, "[{loc 1 2}]"},
		{hangar.PlacementQuery{Count: 7}, "[{loc 5 2} {far 2 1}]"},
		{hangar.PlacementQuery{Count: 20}, "[{loc 16 2} {far 4 1}]"},
		{hangar.PlacementQuery{Count: 2, Regions: []hangar.Region{"far", "zzz"}}, "[{far 2 1}]"},
		{hangar.PlacementQuery{Guest: hangar.Guest{MemoryMB: 1024}, Count: 3}, "[{far 3 1}]"},
	} {
		if got := placements(test.query); got != test.want {
			t.Errorf("placements of %+v: %s, want %s", test.query, got, test.want)
		}
	}
	p.hosts[0].setDown(true)
	p.hosts[1].setDown(true)
	if got := capacities(); got != "[{far 4} {loc 0}]" {
		t.Errorf("capacities when hosts are away: %s", got)
	}
	p.hosts[2].setDown(true)
	_, err := p.Platform().Placements(ctx, hangar.PlacementQuery{})
	wantError(t, err, hangar.CodeConflict, hangar.ReasonInsufficientCapacity)
}

// TestChangedSince: a listing of changes since another misses nothing, although times
// are in whole seconds, pages take time, and clocks of hosts differ.
func TestChangedSince(t *testing.T) {
	began := time.Date(2026, 8, 14, 9, 57, 35, 700e6, time.UTC)
	old, now := began.Add(-time.Hour).Truncate(time.Second), began.Truncate(time.Second)
	machines := []*hangar.Machine{{ID: "00000000000001", UpdatedAt: old}, {ID: "00000000000002", UpdatedAt: now.Add(3 * time.Second)}}

	q := hangar.MachinePageQuery{Limit: 1}
	listing, err := q.Listing(began)
	if err != nil {
		t.Fatal(err)
	}
	page := listing.Page(machines, q.Limit)
	if page.Next == "" || !page.LastUpdated.Equal(old) {
		t.Errorf("first page: %+v, want the time of the only machine", page)
	}
	q = hangar.MachinePageQuery{Cursor: page.Next, MachineFilter: hangar.MachineFilter{UpdatedAfter: began}}
	if listing, err = q.Listing(began.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if listing.After != machines[0].ID || !q.UpdatedAfter.IsZero() || q.Limit != hangar.MaxMachinePage {
		t.Errorf("second page continues with %+v of %+v", listing, q)
	}
	page = listing.Page(machines[1:], q.Limit)
	if page.Next != "" || !page.LastUpdated.Equal(now.Add(-hangar.ListingMargin)) {
		t.Errorf("last page: %+v, want a time before the listing began", page)
	}
	if page = listing.Page(nil, q.Limit); len(page.Machines) > 0 || !page.LastUpdated.Equal(old) {
		t.Errorf("an empty last page: %+v, want the time of the machine on the page before", page)
	}
}
