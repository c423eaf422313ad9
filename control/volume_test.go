package control_test

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

func (p *plane) volume(t *testing.T, app hangar.AppName, in hangar.VolumeCreate) *hangar.Volume {
	t.Helper()
	if in.Name == "" {
		in.Name = "data"
	}
	v, err := p.Volumes().CreateVolume(admin(t), app, in)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (p *plane) snapshot(t *testing.T, ref hangar.VolumeRef) *hangar.Snapshot {
	t.Helper()
	s, err := p.Volumes().CreateSnapshot(admin(t), ref)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (p *plane) getVolume(t *testing.T, ref hangar.VolumeRef) *hangar.Volume {
	t.Helper()
	v, err := p.Volumes().Volume(admin(t), ref)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestVolumesAreReadAsWritten: what was answered is what is read, although the host has
// not published anything yet.
func TestVolumesAreReadAsWritten(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		p.hosts[0].volumes.mute = true
		p.app(t, "web")
		v := p.volume(t, "web", hangar.VolumeCreate{Name: "data", SizeGB: 2})
		if got := p.getVolume(t, v.Ref()); got.SizeGB != 2 || got.HostStatus != "ok" || got.Host != "aaaaaaaa" {
			t.Errorf("read %+v", got)
		}
		if list, err := p.Volumes().Volumes(admin(t), "web"); err != nil || len(list) != 1 {
			t.Errorf("listed %v, %v", list, err)
		}
		if list, err := p.Volumes().OrgVolumes(admin(t), hangar.OrgPersonal, "", 10); err != nil || len(list) != 1 || list[0].SizeGB != 2 {
			t.Errorf("listed %v, %v", list, err)
		}
		if app, err := p.Apps().App(admin(t), "web"); err != nil || app.VolumeCount != 1 {
			t.Errorf("app %+v, %v", app, err)
		}
		extended, err := p.Volumes().ExtendVolume(admin(t), v.Ref(), 5)
		if err != nil || extended.Volume.SizeGB != 5 {
			t.Fatalf("extended %+v, %v", extended, err)
		}
		if list, err := p.Volumes().OrgVolumes(admin(t), hangar.OrgPersonal, "", 10); err != nil || list[0].SizeGB != 5 {
			t.Errorf("listed %v, %v", list, err)
		}
		s := p.snapshot(t, v.Ref())
		if made := p.volume(t, "web", hangar.VolumeCreate{Snapshot: s.ID}); made.State != hangar.VolumeRestoring {
			t.Errorf("restored %+v", made)
		}
		if _, err := p.Volumes().DestroyVolume(admin(t), v.Ref()); err != nil {
			t.Fatal(err)
		}
		if apps, err := p.Apps().Apps(admin(t), hangar.AppFilter{}); err != nil || apps[0].VolumeCount != 1 {
			t.Errorf("apps %+v, %v", apps[0], err)
		}
	})
}

func TestOlderVolumeRowsAreDropped(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	v := p.volume(t, "web", hangar.VolumeCreate{})
	row := hangar.VolumeRow{Volume: *v, Org: hangar.OrgPersonal, OrgID: p.orgID(t, hangar.OrgPersonal), Seq: 100}
	row.Volume.Name = "newer"
	if err := p.rows.PublishVolume(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	for _, seq := range []uint64{99, 100} {
		row.Seq, row.Volume.Name = seq, "older"
		if err := p.rows.PublishVolume(t.Context(), row); err != nil {
			t.Fatal(err)
		}
	}
	list, err := p.Volumes().OrgVolumes(admin(t), hangar.OrgPersonal, "", 10)
	if err != nil || list[0].Name != "newer" {
		t.Errorf("listed %+v, %v", list[0], err)
	}
	seqs, err := p.rows.PublishedVolumes(t.Context(), "aaaaaaaa")
	if err != nil || len(seqs) != 1 || seqs[v.Ref()] != 100 {
		t.Errorf("published %v, %v", seqs, err)
	}
	if err := p.rows.RetractVolume(t.Context(), "bbbbbbbb", v.Ref()); err != nil {
		t.Fatal(err)
	}
	if seqs, err = p.rows.PublishedVolumes(t.Context(), "aaaaaaaa"); err != nil || len(seqs) != 1 {
		t.Errorf("another host retracted %v, %v", seqs, err)
	}
	for range 2 {
		if err := p.rows.RetractVolume(t.Context(), "aaaaaaaa", v.Ref()); err != nil {
			t.Fatal(err)
		}
	}
	_, err = p.Volumes().Volume(admin(t), v.Ref())
	wantError(t, err, hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
}

func TestVolumeRowsThatMakeNoSense(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	v := p.volume(t, "web", hangar.VolumeCreate{})
	for what, spoil := range map[string]func(row *hangar.VolumeRow){
		"state":    func(row *hangar.VolumeRow) { row.Volume.State = "melting" },
		"app":      func(row *hangar.VolumeRow) { row.Volume.App = "a/b" },
		"id":       func(row *hangar.VolumeRow) { row.Volume.ID = "vol_1" },
		"host":     func(row *hangar.VolumeRow) { row.Volume.Host = "" },
		"org":      func(row *hangar.VolumeRow) { row.Org = "" },
		"org id":   func(row *hangar.VolumeRow) { row.OrgID = "" },
		"snapshot": func(row *hangar.VolumeRow) { row.Snapshots = []hangar.Snapshot{{ID: "vs_1"}} },
	} {
		row := hangar.VolumeRow{Volume: *v, Org: hangar.OrgPersonal, OrgID: p.orgID(t, hangar.OrgPersonal), Seq: 100}
		spoil(&row)
		if err := p.rows.PublishVolume(t.Context(), row); hangar.CodeOf(err) != hangar.CodeInvalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	// One that is there breaks nothing but itself.
	if _, err := p.store.Txn(t.Context(), state.Txn{Then: []state.Op{
		state.Put("/volumes/web/vol_aaaaaaaaaaaaaaaa", []byte("{")),
		state.Put("/volumes/web/vol_bbbbbbbbbbbbbbbb", []byte(`{"volume":{"id":"vol_bbbbbbbbbbbbbbbb","app_name":"web","state":"new"}}`)),
	}}); err != nil {
		t.Fatal(err)
	}
	if list, err := p.Volumes().Volumes(admin(t), "web"); err != nil || len(list) != 1 {
		t.Errorf("listed %v, %v", list, err)
	}
	if p.rows.Unreadable() != 0 {
		t.Errorf("counted by rows of another control plane")
	}
}

func TestVolumesOfAHostThatIsAway(t *testing.T) {
	p := newPlane(t, state.NewMemory(), newFakeHost("aaaaaaaa", "loc"), newFakeHost("bbbbbbbb", "eur"))
	p.app(t, "web")
	near, far := p.volume(t, "web", hangar.VolumeCreate{}), p.volume(t, "web", hangar.VolumeCreate{Region: "eur"})
	s := p.snapshot(t, far.Ref())
	p.hosts[1].setDown(true)
	if got := p.getVolume(t, far.Ref()); got.HostStatus != "unreachable" || got.Name != "data" {
		t.Errorf("got %+v", got)
	}
	for what, list := range map[string]func() ([]*hangar.Volume, error){
		"app": func() ([]*hangar.Volume, error) { return p.Volumes().Volumes(admin(t), "web") },
		"org": func() ([]*hangar.Volume, error) {
			return p.Volumes().OrgVolumes(admin(t), hangar.OrgPersonal, "", 10)
		},
	} {
		got, err := list()
		if err != nil || len(got) != 2 {
			t.Fatalf("%s: listed %v, %v", what, got, err)
		}
		for _, v := range got {
			if want := map[hangar.VolumeID]string{near.ID: "ok", far.ID: "unreachable"}[v.ID]; v.HostStatus != want {
				t.Errorf("%s: volume %s is of a host that is %s, want %s", what, v.ID, v.HostStatus, want)
			}
		}
	}
	if list, err := p.Volumes().Snapshots(admin(t), far.Ref()); err != nil || len(list) != 1 || list[0].ID != s.ID {
		t.Errorf("snapshots %v, %v", list, err)
	}
	_, err := p.Volumes().DestroyVolume(admin(t), far.Ref())
	wantError(t, err, hangar.CodeUnavailable, "")
	_, err = p.Volumes().CreateVolume(admin(t), "web", hangar.VolumeCreate{Name: "more", Region: "eur"})
	wantError(t, err, hangar.CodeUnavailable, "")
	err = p.Apps().DestroyApp(admin(t), "web", true)
	wantError(t, err, hangar.CodeUnavailable, "")
	p.hosts[1].setDown(false)
	if err := p.Apps().DestroyApp(admin(t), "web", true); err != nil {
		t.Error(err)
	}
}

func TestVolumePlacement(t *testing.T) {
	small, large, far := newFakeHost("aaaaaaaa", "loc"), newFakeHost("bbbbbbbb", "loc"), newFakeHost("cccccccc", "eur")
	small.volumes.room = 10
	p := newPlane(t, state.NewMemory(), small, large, far)
	p.app(t, "web")
	for range 5 {
		if v := p.volume(t, "web", hangar.VolumeCreate{SizeGB: 20}); v.Host != "bbbbbbbb" || v.Region != "loc" {
			t.Errorf("placed %+v", v)
		}
	}
	if v := p.volume(t, "web", hangar.VolumeCreate{Name: "data", SizeGB: 5}); v.Host != "aaaaaaaa" {
		t.Errorf("a volume is not where there is none of its name: %+v", v)
	}
	large.volumes.room = 10
	_, err := p.Volumes().CreateVolume(admin(t), "web", hangar.VolumeCreate{Name: "d", SizeGB: 20})
	wantError(t, err, hangar.CodeConflict, hangar.ReasonVolumeCapacity)
	_, err = p.Volumes().CreateVolume(admin(t), "web", hangar.VolumeCreate{Name: "d", Region: "mars"})
	wantError(t, err, hangar.CodeInvalid, "")

	// One that has died a moment ago is passed over.
	large.volumes.room = 0
	large.setDown(true)
	if v := p.volume(t, "web", hangar.VolumeCreate{Name: "logs", SizeGB: 5}); v.Host != "aaaaaaaa" {
		t.Errorf("placed %+v", v)
	}
	_, err = p.Volumes().CreateVolume(admin(t), "web", hangar.VolumeCreate{Name: "d", SizeGB: 20})
	wantError(t, err, hangar.CodeConflict, hangar.ReasonVolumeCapacity)
	large.setDown(false)

	there := p.volume(t, "web", hangar.VolumeCreate{Region: "eur", SizeGB: 2})
	s := p.snapshot(t, there.Ref())
	for what, in := range map[string]hangar.VolumeCreate{"restored": {Snapshot: s.ID}, "copied": {Source: there.ID}} {
		if v := p.volume(t, "web", in); v.Host != "cccccccc" || v.Region != "eur" {
			t.Errorf("%s on %+v", what, v)
		}
	}
	_, err = p.Volumes().CreateVolume(admin(t), "web", hangar.VolumeCreate{Name: "d", Source: there.ID, Region: "loc"})
	wantError(t, err, hangar.CodeInvalid, "")
	_, err = p.Volumes().CreateVolume(admin(t), "web", hangar.VolumeCreate{Name: "d", Snapshot: s.ID, Region: "loc"})
	wantError(t, err, hangar.CodeInvalid, "")
	if !strings.Contains(err.Error(), "region") {
		t.Errorf("says nothing of the region: %v", err)
	}
	small.volumes.elastic, large.volumes.elastic = true, true
	if v := p.volume(t, "web", hangar.VolumeCreate{Snapshot: s.ID, Region: "loc"}); v.Region != "loc" {
		t.Errorf("restored on %+v", v)
	}
	// No room where the snapshot was taken.
	far.volumes.room = 1
	_, err = p.Volumes().CreateVolume(admin(t), "web", hangar.VolumeCreate{Name: "d", SizeGB: 2, Snapshot: s.ID})
	wantError(t, err, hangar.CodeConflict, hangar.ReasonVolumeCapacity)
	_, err = p.Volumes().ExtendVolume(admin(t), there.Ref(), 3)
	wantError(t, err, hangar.CodeConflict, hangar.ReasonVolumeCapacity)
}

// TestVolumeOfUnknownOutcome: a host that has made a volume and whose answer is lost.
func TestVolumeOfUnknownOutcome(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	p.hosts[0].volumes.onCreate = func(hangar.VolumeSpec) (error, error) { return nil, errDown }
	v := p.volume(t, "web", hangar.VolumeCreate{})
	if list, err := p.Volumes().Volumes(admin(t), "web"); err != nil || len(list) != 1 || list[0].ID != v.ID {
		t.Errorf("listed %v, %v", list, err)
	}
	p.hosts[0].volumes.onCreate = func(hangar.VolumeSpec) (error, error) { return errDown, nil }
	_, err := p.Volumes().CreateVolume(admin(t), "web", hangar.VolumeCreate{Name: "d"})
	wantError(t, err, hangar.CodeUnavailable, "")
}

func mounting(volumes ...*hangar.Volume) hangar.MachineCreate {
	in := wish("")
	for i, v := range volumes {
		in.Config.Mounts = append(in.Config.Mounts, hangar.Mount{Volume: string(v.ID), Path: "/data" + string(rune('0'+i))})
	}
	return in
}

func TestMachinesGoToTheirVolumes(t *testing.T) {
	a, b, far := newFakeHost("aaaaaaaa", "loc"), newFakeHost("bbbbbbbb", "loc"), newFakeHost("cccccccc", "eur")
	p := newPlane(t, state.NewMemory(), a, b, far)
	p.app(t, "web")
	byHost := map[hangar.HostID]*hangar.Volume{}
	for len(byHost) < 2 {
		v := p.volume(t, "web", hangar.VolumeCreate{})
		byHost[v.Host] = v
	}
	byHost["cccccccc"] = p.volume(t, "web", hangar.VolumeCreate{Region: "eur"})
	for host, v := range byHost {
		for range 3 {
			m, err := p.Machines().CreateMachine(admin(t), "web", mounting(v))
			if err != nil || m.Host != host || m.Region != v.Region {
				t.Errorf("machine %+v, %v; want it on %s", m, err, host)
			}
		}
	}
	in := mounting(byHost["cccccccc"])
	in.Region = "loc"
	_, err := p.Machines().CreateMachine(admin(t), "web", in)
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonBadConfig)
	_, err = p.Machines().CreateMachine(admin(t), "web", mounting(byHost["aaaaaaaa"], byHost["bbbbbbbb"]))
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonBadConfig)
	_, err = p.Machines().CreateMachine(admin(t), "web", mounting(&hangar.Volume{ID: hangar.NewVolumeID()}))
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonVolumeNotFound)

	a.onCreate = func(hangar.MachineSpec) (error, error) { return errRoom, nil }
	_, err = p.Machines().CreateMachine(admin(t), "web", mounting(byHost["aaaaaaaa"]))
	wantError(t, err, hangar.CodeFailedPrecondition, hangar.ReasonInsufficientCapacity)
	if want := "insufficient resources to create new machine with existing volume '" + string(byHost["aaaaaaaa"].ID) + "'"; !strings.HasPrefix(err.Error(), want) {
		t.Errorf("the error is %v", err)
	}
	far.setDown(true)
	_, err = p.Machines().CreateMachine(admin(t), "web", mounting(byHost["cccccccc"]))
	wantError(t, err, hangar.CodeUnavailable, "")
}

func TestDestroyAppWithVolumes(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		p.app(t, "web")
		idle, attached, busy := p.volume(t, "web", hangar.VolumeCreate{}), p.volume(t, "web", hangar.VolumeCreate{}), p.volume(t, "web", hangar.VolumeCreate{})
		m := p.machine(t, "web", "")
		host := p.hosts[0]
		alter := func(v *hangar.Volume, change func(v *hangar.Volume)) {
			if err := host.alter(t.Context(), v.Ref(), change); err != nil {
				t.Error(err)
			}
		}
		alter(attached, func(v *hangar.Volume) { v.AttachedMachine = m.ID })
		alter(busy, func(v *hangar.Volume) { v.State = hangar.VolumeRestoring })
		host.onDestroy = func() {
			alter(attached, func(v *hangar.Volume) { v.AttachedMachine = "" })
			alter(busy, func(v *hangar.Volume) { v.State = hangar.VolumeCreated })
		}
		if err := p.Apps().DestroyApp(admin(t), "web", true); err != nil {
			t.Fatal(err)
		}
		p.app(t, "web")
		for _, v := range []*hangar.Volume{idle, attached, busy} {
			if got, err := host.VolumeRow(t.Context(), v.Ref()); err != nil || got.Volume.State != hangar.VolumePendingDestroy {
				t.Errorf("volume %+v, %v", got, err)
			}
			_, err := p.Volumes().Volume(admin(t), hangar.VolumeRef{App: "web", ID: v.ID})
			wantError(t, err, hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
		}
		if app, err := p.Apps().App(admin(t), "web"); err != nil || app.VolumeCount != 0 {
			t.Errorf("app %+v, %v", app, err)
		}
	})
}

func (p *plane) orgID(t *testing.T, slug hangar.OrgSlug) hangar.OrgID {
	t.Helper()
	org, err := p.Orgs().Org(admin(t), slug)
	if err != nil {
		t.Fatal(err)
	}
	return org.ID
}

// TestVolumesOfAnAppOfAnotherOrg: an App has nothing of what one of its name had in another
// organization, even if that is called the same.
func TestVolumesOfAnAppOfAnotherOrg(t *testing.T) {
	for what, slug := range map[string]hangar.OrgSlug{"another": "other", "one made again": "team"} {
		t.Run(what, func(t *testing.T) { testVolumesOfAnotherOrg(t, slug) })
	}
}

func testVolumesOfAnotherOrg(t *testing.T, later hangar.OrgSlug) {
	p := newPlane(t, state.NewMemory())
	app := func(org hangar.OrgSlug, name hangar.AppName) {
		t.Helper()
		if _, err := p.Apps().CreateApp(admin(t), hangar.AppCreate{Name: name, Org: org}); err != nil {
			t.Fatal(err)
		}
	}
	org := func(slug hangar.OrgSlug) {
		t.Helper()
		if _, err := p.Orgs().CreateOrg(admin(t), hangar.OrgCreate{Slug: slug}); err != nil {
			t.Fatal(err)
		}
	}
	org("team")
	app("team", "web")
	v := p.volume(t, "web", hangar.VolumeCreate{})
	s := p.snapshot(t, v.Ref())
	if _, err := p.Volumes().DrillVolumes(admin(t), "web"); err != nil {
		t.Fatal(err)
	}
	if err := p.Apps().DestroyApp(admin(t), "web", true); err != nil {
		t.Fatal(err)
	}
	if err := p.Orgs().DeleteOrg(admin(t), "team"); err != nil {
		t.Fatal(err)
	}
	org(later)
	app(later, "web")
	app(later, "api")
	if list, err := p.Volumes().Volumes(admin(t), "web"); err != nil || len(list) != 0 {
		t.Errorf("listed %v, %v", list, err)
	}
	if list, err := p.Volumes().OrgVolumes(admin(t), later, "", 10); err != nil || len(list) != 0 {
		t.Errorf("listed %v, %v", list, err)
	}
	_, err := p.Volumes().UndeleteVolume(admin(t), v.Ref())
	wantError(t, err, hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
	_, err = p.Volumes().Snapshots(admin(t), v.Ref())
	wantError(t, err, hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
	_, err = p.Volumes().VolumeDrill(admin(t), "web")
	wantError(t, err, hangar.CodeNotFound, "")
	_, err = p.Volumes().DrillVolumes(admin(t), "web")
	wantError(t, err, hangar.CodeFailedPrecondition, hangar.ReasonSnapshotNotFound)
	for _, name := range []hangar.AppName{"web", "api"} {
		_, err = p.Volumes().CreateVolume(admin(t), name, hangar.VolumeCreate{Name: "d", Snapshot: s.ID})
		wantError(t, err, hangar.CodeNotFound, hangar.ReasonSnapshotNotFound)
		_, err = p.Volumes().CreateVolume(admin(t), name, hangar.VolumeCreate{Name: "d", Source: v.ID})
		wantError(t, err, hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
	}
	_, err = p.Machines().CreateMachine(admin(t), "web", mounting(v))
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonVolumeNotFound)
	header := p.header(t, later)
	_, err = p.Tokens().Authorize(admin(t), header, hangar.Access{Actions: hangar.ActionRead, App: "web", Volume: v.ID})
	wantError(t, err, hangar.CodeForbidden, "")
	// One of its own, beside that, is all that it has.
	own := p.volume(t, "web", hangar.VolumeCreate{})
	p.snapshot(t, own.Ref())
	if drill, err := p.Volumes().DrillVolumes(admin(t), "web"); err != nil || drill.Volume != own.ID {
		t.Errorf("drill %+v, %v", drill, err)
	}
	if list, err := p.Volumes().Volumes(admin(t), "web"); err != nil || len(list) != 1 || list[0].ID != own.ID {
		t.Errorf("listed %v, %v", list, err)
	}
}

// TestVolumeWhileItsAppIsDestroyed creates volumes while their App is destroyed: none stays.
func TestVolumeWhileItsAppIsDestroyed(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		for range 10 {
			p.app(t, "web")
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					_, err := p.Volumes().CreateVolume(admin(t), "web", hangar.VolumeCreate{Name: "data"})
					if err != nil && hangar.CodeOf(err) != hangar.CodeNotFound && hangar.ReasonOf(err) != hangar.ReasonWrongState {
						t.Errorf("create: %v", err)
					}
				})
			}
			wg.Go(func() {
				if err := p.Apps().DestroyApp(admin(t), "web", true); err != nil {
					t.Errorf("destroy: %v", err)
				}
			})
			wg.Wait()
			rows, err := p.hosts[0].VolumeRows(t.Context(), "web")
			if err != nil || slices.ContainsFunc(rows, func(row *hangar.VolumeRow) bool { return !row.Volume.State.Gone() }) {
				t.Fatalf("left %+v, %v", rows, err)
			}
		}
	})
}

func TestVolumesWithoutAnAppAreDestroyed(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	v := p.volume(t, "web", hangar.VolumeCreate{})
	orphan, err := p.hosts[0].CreateVolume(t.Context(), hangar.VolumeSpec{ID: hangar.NewVolumeID(), App: "gone", AppID: "gone", Org: hangar.OrgPersonal, OrgID: p.orgID(t, hangar.OrgPersonal)})
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := p.hosts[0].CreateVolume(t.Context(), hangar.VolumeSpec{ID: hangar.NewVolumeID(), App: "web", AppID: "another", Org: hangar.OrgPersonal, OrgID: p.orgID(t, hangar.OrgPersonal)})
	if err != nil {
		t.Fatal(err)
	}
	p.clock.advance(60e9)
	p.restart(t)
	for _, row := range []*hangar.VolumeRow{orphan, foreign} {
		if got, err := p.hosts[0].VolumeRow(t.Context(), row.Volume.Ref()); err != nil || got.Volume.State != hangar.VolumePendingDestroy {
			t.Errorf("a volume without an app is %+v, %v", got, err)
		}
	}
	if got := p.getVolume(t, v.Ref()); got.State != hangar.VolumeCreated {
		t.Errorf("volume %+v", got)
	}
}

// A volume without an App that cannot be destroyed now is not in the way of anything.
func TestVolumesWithoutAnAppThatAreBusy(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	orphan, err := p.hosts[0].CreateVolume(t.Context(), hangar.VolumeSpec{ID: hangar.NewVolumeID(), App: "gone", AppID: "gone", Org: hangar.OrgPersonal, OrgID: "another"})
	if err != nil {
		t.Fatal(err)
	}
	ref := orphan.Volume.Ref()
	if err := p.hosts[0].alter(t.Context(), ref, func(v *hangar.Volume) { v.State = hangar.VolumeExtending }); err != nil {
		t.Fatal(err)
	}
	p.clock.advance(60e9)
	p.restart(t)
	if got, err := p.hosts[0].VolumeRow(t.Context(), ref); err != nil || got.Volume.State != hangar.VolumeExtending {
		t.Errorf("volume %+v, %v", got, err)
	}
}
