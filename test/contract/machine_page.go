package contract

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// listing reads all pages of a listing of the Apps' Machines. After every page but
// the last, between is called with what was on it, unless it is nil.
func (h Harness) listing(
	t *testing.T, q hangar.MachinePageQuery, apps []hangar.AppName, between func([]*hangar.Machine),
) (list []*hangar.Machine, updated time.Time) {
	t.Helper()
	var last hangar.MachineID
	for {
		page, err := h.Machines.OrgMachines(h.Context(t), hangar.OrgPersonal, q)
		must(t, "page", err)
		if q.Limit != 0 && len(page.Machines) > q.Limit {
			t.Errorf("a page of %d machines, want at most %d", len(page.Machines), q.Limit)
		}
		if len(page.ErrorRegions) > 0 {
			t.Errorf("regions %v cannot be reached", page.ErrorRegions)
		}
		for _, m := range page.Machines {
			if m.ID <= last {
				t.Errorf("machine %s comes after %s", m.ID, last)
			}
			last = m.ID
			if slices.Contains(apps, m.App) {
				list = append(list, m)
			}
		}
		if page.Next == "" {
			return list, page.LastUpdated
		}
		if q.Cursor = page.Next; between != nil {
			between(page.Machines)
		}
	}
}

func ids(machines []*hangar.Machine) []hangar.MachineID {
	list := []hangar.MachineID{}
	for _, m := range machines {
		list = append(list, m.ID)
	}
	return list
}

func sorted(ids ...hangar.MachineID) []hangar.MachineID {
	return slices.Sorted(slices.Values(ids))
}

func machinePages(t *testing.T, h Harness) {
	apps := []hangar.AppName{h.newApp(t), h.newApp(t)}
	web := h.config()
	web.Metadata = map[string]string{"role": "web"}
	a := h.create(t, apps[0], hangar.MachineCreate{Config: web, SkipLaunch: true})
	b := h.stopped(t, apps[1])
	c := h.started(t, apps[0])
	gone := h.stopped(t, apps[1])
	h.wait(t, a.Ref(), hangar.MachineStopped)
	must(t, "destroy", h.Machines.DestroyMachine(h.Context(t), gone.Ref(), hangar.MachineDestroy{}))
	h.wait(t, gone.Ref(), hangar.MachineDestroyed)

	for _, test := range []struct {
		name   string
		filter hangar.MachineFilter
		want   []hangar.MachineID
	}{
		{"all", hangar.MachineFilter{}, sorted(a.ID, b.ID, c.ID)},
		{"destroyed too", hangar.MachineFilter{IncludeDestroyed: true}, sorted(a.ID, b.ID, c.ID, gone.ID)},
		{"state", hangar.MachineFilter{States: []hangar.MachineState{hangar.MachineStopped}}, sorted(a.ID, b.ID)},
		{"region", hangar.MachineFilter{Regions: []hangar.Region{a.Region}}, sorted(a.ID, b.ID, c.ID)},
		{"another region", hangar.MachineFilter{Regions: []hangar.Region{"zzz"}}, sorted()},
		{"metadata", hangar.MachineFilter{Metadata: map[string]string{"role": "web"}}, sorted(a.ID)},
		{"changed since", hangar.MachineFilter{UpdatedAfter: time.Unix(1, 0)}, sorted(a.ID, b.ID, c.ID)},
		{"not changed since", hangar.MachineFilter{UpdatedAfter: time.Now().Add(time.Hour)}, sorted()},
	} {
		for _, limit := range []int{0, 1, 2} {
			list, _ := h.listing(t, hangar.MachinePageQuery{MachineFilter: test.filter, Limit: limit}, apps, nil)
			if got := ids(list); !slices.Equal(got, sorted(test.want...)) {
				t.Errorf("%s, %d on a page: got %v, want %v", test.name, limit, got, test.want)
			}
		}
	}

	list, updated := h.listing(t, hangar.MachinePageQuery{MachineFilter: hangar.MachineFilter{Metadata: web.Metadata}}, apps, nil)
	got := list[0]
	if got.ID != a.ID || got.Name != a.Name || got.State != hangar.MachineStopped || got.Region != a.Region ||
		got.InstanceID != a.InstanceID || got.PrivateIP != a.PrivateIP || !got.CreatedAt.Equal(a.CreatedAt) || got.HostStatus != "ok" {
		t.Errorf("listed as %+v, is %+v", got, a)
	}
	if got.Config.Image != h.Image || got.Config.Guest == nil || got.Config.Guest.MemoryMB != 256 || got.Config.Metadata["role"] != "web" {
		t.Errorf("listed config is %+v", got.Config)
	}
	if len(got.Events) > 0 {
		t.Errorf("listed with events %+v", got.Events)
	}

	must(t, "set", h.Machines.SetMachineMetadata(h.Context(t), b.Ref(), hangar.MetadataPair{Key: "k", Value: "v"}))
	changed, _ := h.listing(t, hangar.MachinePageQuery{MachineFilter: hangar.MachineFilter{UpdatedAfter: updated}, Limit: 1}, apps, nil)
	if !slices.Contains(ids(changed), b.ID) {
		t.Errorf("what changed since the listing of %s is %v, want %s with it", updated, ids(changed), b.ID)
	}
}

// machinePagesConcurrent: a Machine that exists all the time is listed exactly once, while others
// come, go and change between the pages.
func machinePagesConcurrent(t *testing.T, h Harness) {
	app := h.newApp(t)
	var stay []hangar.MachineID
	for range 4 {
		stay = append(stay, h.stopped(t, app).ID)
	}
	passing, made := h.stopped(t, app), 0
	list, _ := h.listing(t, hangar.MachinePageQuery{Limit: 1}, []hangar.AppName{app}, func(page []*hangar.Machine) {
		var group sync.WaitGroup
		group.Go(func() {
			ref := hangar.MachineRef{App: app, ID: stay[0]}
			if err := h.Machines.SetMachineMetadata(h.Context(t), ref, hangar.MetadataPair{Key: "page", Value: string(page[0].ID)}); err != nil {
				t.Errorf("change a machine: %v", err)
			}
		})
		group.Go(func() {
			if err := h.Machines.DestroyMachine(h.Context(t), passing.Ref(), hangar.MachineDestroy{Force: true}); err != nil {
				t.Errorf("destroy a machine: %v", err)
			}
		})
		group.Wait()
		if made++; made <= 4 { // few, so that the listing ends
			passing = h.stopped(t, app)
		}
	})
	var seen []hangar.MachineID
	for _, id := range ids(list) {
		if slices.Contains(stay, id) {
			seen = append(seen, id)
		}
	}
	if !slices.Equal(seen, sorted(stay...)) {
		t.Errorf("of what was there all the time, %v was listed, want %v", seen, sorted(stay...))
	}
}

func machinePagesRefused(t *testing.T, h Harness) {
	for name, q := range map[string]hangar.MachinePageQuery{
		"negative limit":     {Limit: -1},
		"too large a limit":  {Limit: hangar.MaxMachinePage + 1},
		"no cursor":          {Cursor: "later"},
		"cursor of no id":    {Cursor: "e30"},
		"cursor, then bytes": {Cursor: "e30%"},
	} {
		_, err := h.Machines.OrgMachines(h.Context(t), hangar.OrgPersonal, q)
		wantError(t, name, err, hangar.CodeInvalid, "")
	}
	_, err := h.Machines.OrgMachines(h.Context(t), "nobody", hangar.MachinePageQuery{})
	wantError(t, "unknown organization", err, hangar.CodeNotFound, "")
}

// machineDestroyed: a Machine that is gone can still be read, and nothing else.
func machineDestroyed(t *testing.T, h Harness) {
	app := h.newApp(t)
	m := h.started(t, app)
	must(t, "destroy", h.Machines.DestroyMachine(h.Context(t), m.Ref(), hangar.MachineDestroy{Force: true}))
	h.wait(t, m.Ref(), hangar.MachineDestroyed)
	got := h.get(t, m.Ref())
	if got.State != hangar.MachineDestroyed || got.Name != m.Name || got.InstanceID != m.InstanceID || got.Config.Image != h.Image {
		t.Errorf("destroyed machine is %+v", got)
	}
	if len(got.Events) < 4 || got.Events[0].Type != hangar.EventDestroy || got.Events[len(got.Events)-1].Type != hangar.EventLaunch {
		t.Errorf("events of a destroyed machine are %+v", got.Events)
	}
	events, err := h.Machines.MachineEvents(h.Context(t), m.Ref(), 1)
	must(t, "events", err)
	if len(events) != 1 || events[0].ID != got.Events[0].ID {
		t.Errorf("the newest event is %+v, want %+v", events, got.Events[0])
	}
	versions, err := h.Machines.MachineVersions(h.Context(t), m.Ref())
	must(t, "versions", err)
	if len(versions) != 1 {
		t.Errorf("versions are %+v", versions)
	}
	list, err := h.Machines.Machines(h.Context(t), app, hangar.MachineFilter{
		IncludeDestroyed: true, States: []hangar.MachineState{hangar.MachineDestroyed}, Events: true,
	})
	must(t, "list", err)
	if len(list) != 1 || list[0].ID != m.ID || len(list[0].Events) != len(got.Events) {
		t.Errorf("listed as %+v", list)
	}
	for name, call := range map[string]func() error{
		"start":  func() error { _, err := h.Machines.StartMachine(h.Context(t), m.Ref()); return err },
		"cordon": func() error { return h.Machines.CordonMachine(h.Context(t), m.Ref()) },
		"set": func() error {
			return h.Machines.SetMachineMetadata(h.Context(t), m.Ref(), hangar.MetadataPair{Key: "k"})
		},
	} {
		wantError(t, name, call(), hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
	}
}
