package contract

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/pause"
)

// VolumeService checks an implementation of hangar.VolumeService, and how Machines use volumes.
// The content of a volume is a matter of hosts.
func VolumeService(t *testing.T, h Harness) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, Harness){
		"create":         volumeCreate,
		"bad input":      volumeBadInput,
		"missing":        volumeMissing,
		"update":         volumeUpdate,
		"extend":         volumeExtend,
		"destroy":        volumeDestroy,
		"purge":          volumePurge,
		"mount":          volumeMount,
		"bad mounts":     volumeBadMounts,
		"at once":        volumeAtOnce,
		"of an org":      volumeOfOrg,
		"app destroyed":  volumeAppDestroyed,
		"other orgs":     volumeOtherOrgs,
		"org made again": volumeOrgMadeAgain,
		"tokens":         volumeTokens,
		"snapshots":      snapshots,
		"restore":        snapshotRestore,
		"restore wrong":  snapshotRestoreWrong,
		"fork":           volumeFork,
		"of a destroyed": snapshotOfDestroyed,
		"drill":          volumeDrill,
	} {
		t.Run(name, func(t *testing.T) { test(t, h) })
	}
}

// newVolume makes a volume and waits until it is usable.
func (h Harness) newVolume(t *testing.T, app hangar.AppName, in hangar.VolumeCreate) *hangar.Volume {
	t.Helper()
	if in.Name == "" {
		in.Name = "data"
	}
	if in.SizeGB == 0 && in.Snapshot == "" && in.Source == "" {
		in.SizeGB = 1
	}
	v, err := h.Volumes.CreateVolume(h.Context(t), app, in)
	must(t, "create volume", err)
	return h.usable(t, v.Ref())
}

// usable waits until a volume is made.
func (h Harness) usable(t *testing.T, ref hangar.VolumeRef) (v *hangar.Volume) {
	t.Helper()
	h.until(t, "volume "+string(ref.ID)+" is created", func() bool {
		v = h.volume(t, ref)
		if v.State == hangar.VolumeFailed || v.State.Gone() {
			events, err := h.Volumes.VolumeEvents(h.Context(t), ref)
			t.Fatalf("volume %s is %s; events %+v, %v", ref.ID, v.State, events, err)
		}
		return v.State == hangar.VolumeCreated
	})
	return v
}

// until polls until a condition holds: changes of volumes have no notification.
func (h Harness) until(t *testing.T, what string, so func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(h.Context(t), patience)
	defer cancel()
	for !so() {
		if pause.For(ctx, 10*time.Millisecond) != nil {
			t.Fatalf("it takes too long until %s", what)
		}
	}
}

func (h Harness) volume(t *testing.T, ref hangar.VolumeRef) *hangar.Volume {
	t.Helper()
	v, err := h.Volumes.Volume(h.Context(t), ref)
	must(t, "get volume", err)
	return v
}

func (h Harness) volumes(t *testing.T, app hangar.AppName) []*hangar.Volume {
	t.Helper()
	list, err := h.Volumes.Volumes(h.Context(t), app)
	must(t, "list volumes", err)
	return list
}

func (h Harness) appOf(t *testing.T, name hangar.AppName) *hangar.App {
	t.Helper()
	app, err := h.Apps.App(h.Context(t), name)
	must(t, "get app", err)
	return app
}

func volumeCreate(t *testing.T, h Harness) {
	app := h.newApp(t)
	if list := h.volumes(t, app); list == nil || len(list) != 0 {
		t.Errorf("an app without volumes has %v", list)
	}
	v := h.newVolume(t, app, hangar.VolumeCreate{Name: "data_1"})
	switch {
	case !v.ID.Valid(), v.Name != "data_1", v.App != app, v.SizeGB != 1, v.Region == "", len(v.Zone) != 4:
		t.Errorf("created %+v", v)
	case !v.Encrypted, !v.AutoBackup, v.SnapshotRetention != hangar.DefaultSnapshotRetain, v.Wanted != hangar.FSExt4:
		t.Errorf("other defaults: %+v", v)
	case v.Usage != hangar.VolumeUsage{}:
		t.Errorf("a volume that was never mounted has a file system: %+v", v.Usage)
	case v.AttachedMachine != "", v.HostStatus != "ok", v.CreatedAt.IsZero(), v.UpdatedAt.IsZero():
		t.Errorf("created %+v", v)
	case !v.CreatedAt.Equal(v.CreatedAt.Truncate(time.Millisecond)):
		t.Errorf("the time of its creation is not in milliseconds: %s", v.CreatedAt)
	}
	no := false
	plain := h.newVolume(t, app, hangar.VolumeCreate{
		Name: "data_1", Region: v.Region, SizeGB: 2, Encrypted: &no, FSType: hangar.FSRaw, SnapshotRetention: 60, AutoBackup: &no,
		Compute: &hangar.Guest{CPUKind: hangar.CPUShared, CPUs: 1, MemoryMB: 256},
	})
	if plain.Encrypted || plain.AutoBackup || plain.SizeGB != 2 || plain.Wanted != hangar.FSRaw || plain.SnapshotRetention != 60 {
		t.Errorf("not what was asked for: %+v", plain)
	}
	if plain.ID == v.ID || plain.Zone == v.Zone {
		t.Errorf("two volumes of one name share %s or %s", v.ID, v.Zone)
	}
	list := h.volumes(t, app)
	if len(list) != 2 || !slices.IsSortedFunc(list, func(a, b *hangar.Volume) int { return strings.Compare(string(a.ID), string(b.ID)) }) {
		t.Errorf("listed %v", list)
	}
	if n := h.appOf(t, app).VolumeCount; n != 2 {
		t.Errorf("the app has a count of %d volumes, want 2", n)
	}
	events, err := h.Volumes.VolumeEvents(h.Context(t), v.Ref())
	must(t, "events", err)
	if len(events) == 0 || events[len(events)-1].Type != hangar.VolumeEventCreate || !events[0].ID.Valid() || events[0].Timestamp == 0 {
		t.Errorf("events of a new volume: %+v", events)
	}
}

func volumeBadInput(t *testing.T, h Harness) {
	app := h.newApp(t)
	for field, in := range map[string]hangar.VolumeCreate{
		"name":                      {Name: ""},
		"name: has 31":              {Name: strings.Repeat("a", 31)},
		`name: "Data"`:              {Name: "Data"},
		`name: "my-data"`:           {Name: "my-data"},
		`name: "dätä"`:              {Name: "dätä"},
		"size_gb: -1":               {Name: "d", SizeGB: -1},
		"size_gb: 501":              {Name: "d", SizeGB: 501},
		"region":                    {Name: "d", Region: "nowhere"},
		"snapshot_retention: 61":    {Name: "d", SnapshotRetention: 61},
		"snapshot_retention: -1":    {Name: "d", SnapshotRetention: -1},
		"fstype":                    {Name: "d", FSType: "xfs"},
		"snapshot_id: stands":       {Name: "d", Snapshot: hangar.NewSnapshotID(), Source: hangar.NewVolumeID()},
		`snapshot_id: "vs_1"`:       {Name: "d", Snapshot: "vs_1"},
		`source_volume_id: "vol_1"`: {Name: "d", Source: "vol_1"},
		"compute.memory_mb":         {Name: "d", Compute: &hangar.Guest{CPUKind: hangar.CPUShared, CPUs: 1, MemoryMB: 100}},
		"compute.cpu_kind":          {Name: "d", Compute: &hangar.Guest{CPUKind: "quantum", CPUs: 1, MemoryMB: 256}},
	} {
		_, err := h.Volumes.CreateVolume(h.Context(t), app, in)
		wantError(t, field, err, hangar.CodeInvalid, "")
		if err != nil && !strings.Contains(err.Error(), field) {
			t.Errorf("%s: the error is %v", field, err)
		}
	}
	_, err := h.Volumes.CreateVolume(h.Context(t), app, hangar.VolumeCreate{Name: "d", Snapshot: hangar.NewSnapshotID()})
	wantError(t, "restore nothing", err, hangar.CodeNotFound, hangar.ReasonSnapshotNotFound)
	_, err = h.Volumes.CreateVolume(h.Context(t), app, hangar.VolumeCreate{Name: "d", Source: hangar.NewVolumeID()})
	wantError(t, "fork nothing", err, hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
	if list := h.volumes(t, app); len(list) != 0 {
		t.Errorf("refused wishes left %v", list)
	}
}

// verbs are all that can be done with a volume, and its snapshots.
func (h Harness) volumeVerbs(t *testing.T) map[string]func(ref hangar.VolumeRef) error {
	t.Helper()
	ctx, s := h.Context(t), h.Volumes
	days := 7
	return map[string]func(ref hangar.VolumeRef) error{
		"get": func(ref hangar.VolumeRef) error { _, err := s.Volume(ctx, ref); return err },
		"update": func(ref hangar.VolumeRef) error {
			_, err := s.UpdateVolume(ctx, ref, hangar.VolumeUpdate{SnapshotRetention: &days})
			return err
		},
		"extend":   func(ref hangar.VolumeRef) error { _, err := s.ExtendVolume(ctx, ref, 2); return err },
		"destroy":  func(ref hangar.VolumeRef) error { _, err := s.DestroyVolume(ctx, ref); return err },
		"undelete": func(ref hangar.VolumeRef) error { _, err := s.UndeleteVolume(ctx, ref); return err },
		"events":   func(ref hangar.VolumeRef) error { _, err := s.VolumeEvents(ctx, ref); return err },
		"list":     func(ref hangar.VolumeRef) error { _, err := s.Snapshots(ctx, ref); return err },
		"snapshot": func(ref hangar.VolumeRef) error { _, err := s.CreateSnapshot(ctx, ref); return err },
	}
}

func volumeMissing(t *testing.T, h Harness) {
	app, other := h.newApp(t), h.newApp(t)
	v := h.newVolume(t, app, hangar.VolumeCreate{})
	for name, do := range h.volumeVerbs(t) {
		wantError(t, name+" of no volume", do(hangar.VolumeRef{App: app, ID: hangar.NewVolumeID()}), hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
		wantError(t, name+" of no id", do(hangar.VolumeRef{App: app, ID: "vol_1"}), hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
		wantError(t, name+" in another app", do(hangar.VolumeRef{App: other, ID: v.ID}), hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
		wantError(t, name+" in no app", do(hangar.VolumeRef{App: uniqueName(), ID: v.ID}), hangar.CodeNotFound, hangar.ReasonAppNotFound)
	}
	_, err := h.Volumes.Volumes(h.Context(t), uniqueName())
	wantError(t, "list of no app", err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
	_, err = h.Volumes.CreateVolume(h.Context(t), uniqueName(), hangar.VolumeCreate{Name: "data"})
	wantError(t, "create in no app", err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
	if got := h.volume(t, v.Ref()); got.State != hangar.VolumeCreated || got.SizeGB != 1 {
		t.Errorf("a volume changed in the name of another app: %+v", got)
	}
}

func volumeUpdate(t *testing.T, h Harness) {
	v := h.newVolume(t, h.newApp(t), hangar.VolumeCreate{})
	days, no := 9, false
	got, err := h.Volumes.UpdateVolume(h.Context(t), v.Ref(), hangar.VolumeUpdate{SnapshotRetention: &days})
	must(t, "update", err)
	if got.SnapshotRetention != 9 || !got.AutoBackup {
		t.Errorf("updated to %+v", got)
	}
	_, err = h.Volumes.UpdateVolume(h.Context(t), v.Ref(), hangar.VolumeUpdate{AutoBackup: &no})
	must(t, "update", err)
	if got := h.volume(t, v.Ref()); got.SnapshotRetention != 9 || got.AutoBackup {
		t.Errorf("updated to %+v", got)
	}
	for _, days := range []int{0, -1, 61} {
		_, err = h.Volumes.UpdateVolume(h.Context(t), v.Ref(), hangar.VolumeUpdate{SnapshotRetention: &days})
		wantError(t, fmt.Sprintf("retention %d", days), err, hangar.CodeInvalid, "")
	}
}

func volumeExtend(t *testing.T, h Harness) {
	app := h.newApp(t)
	v := h.newVolume(t, app, hangar.VolumeCreate{SizeGB: 2})
	for _, size := range []int{0, -1, 1, 501} {
		_, err := h.Volumes.ExtendVolume(h.Context(t), v.Ref(), size)
		wantError(t, fmt.Sprintf("extend to %d", size), err, hangar.CodeInvalid, "")
		if err != nil && !strings.Contains(err.Error(), "size_gb") {
			t.Errorf("extend to %d: the error is %v", size, err)
		}
	}
	for _, size := range []int{2, 3, 3} {
		got, err := h.Volumes.ExtendVolume(h.Context(t), v.Ref(), size)
		must(t, "extend", err)
		if got.Volume.SizeGB != size || got.NeedsRestart {
			t.Errorf("extended to %+v", got)
		}
	}
	if got := h.usable(t, v.Ref()); got.SizeGB != 3 {
		t.Errorf("after an extension: %+v", got)
	}
}

func volumeDestroy(t *testing.T, h Harness) {
	app := h.newApp(t)
	v := h.newVolume(t, app, hangar.VolumeCreate{})
	_, err := h.Volumes.UndeleteVolume(h.Context(t), v.Ref())
	wantError(t, "undelete what is there", err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
	for range 2 {
		gone, err := h.Volumes.DestroyVolume(h.Context(t), v.Ref())
		must(t, "destroy", err)
		if !gone.State.Gone() || gone.DestroyedAt.IsZero() {
			t.Errorf("destroyed: %+v", gone)
		}
	}
	if got := h.volume(t, v.Ref()); got.State != hangar.VolumePendingDestroy {
		t.Errorf("a destroyed volume is %s", got.State)
	}
	if list := h.volumes(t, app); len(list) != 1 || list[0].State != hangar.VolumePendingDestroy || list[0].SnapshotRetention == 0 {
		t.Errorf("a destroyed volume is listed as %v", list)
	}
	if n := h.appOf(t, app).VolumeCount; n != 0 {
		t.Errorf("the app has a count of %d volumes, want 0", n)
	}
	days := 7
	_, err = h.Volumes.UpdateVolume(h.Context(t), v.Ref(), hangar.VolumeUpdate{SnapshotRetention: &days})
	wantError(t, "update a destroyed one", err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
	_, err = h.Volumes.ExtendVolume(h.Context(t), v.Ref(), 2)
	wantError(t, "extend a destroyed one", err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
	_, err = h.Volumes.CreateSnapshot(h.Context(t), v.Ref())
	wantError(t, "snapshot of a destroyed one", err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
	_, err = h.Machines.CreateMachine(h.Context(t), app, h.mounting(v))
	wantError(t, "mount a destroyed one", err, hangar.CodeInvalid, hangar.ReasonVolumeNotFound)
	back, err := h.Volumes.UndeleteVolume(h.Context(t), v.Ref())
	must(t, "undelete", err)
	if back.State != hangar.VolumeCreated || !back.DestroyedAt.IsZero() || back.SnapshotRetention != v.SnapshotRetention {
		t.Errorf("undeleted: %+v", back)
	}
	if list := h.volumes(t, app); len(list) != 1 || list[0].State != hangar.VolumeCreated {
		t.Errorf("an undeleted volume is listed as %v", list)
	}
}

func volumeOfOrg(t *testing.T, h Harness) {
	app, other := h.newApp(t), h.newApp(t)
	var want []hangar.VolumeID
	for _, a := range []hangar.AppName{app, other, app} {
		want = append(want, h.newVolume(t, a, hangar.VolumeCreate{}).ID)
	}
	_, err := h.Volumes.DestroyVolume(h.Context(t), hangar.VolumeRef{App: other, ID: want[1]})
	must(t, "destroy", err)
	slices.Sort(want)
	for _, limit := range []int{1, 2, 1000, 1500} {
		var got []hangar.VolumeID
		for after := hangar.VolumeID(""); ; {
			list, err := h.Volumes.OrgVolumes(h.Context(t), hangar.OrgPersonal, after, limit)
			must(t, "list", err)
			for _, v := range list {
				if after >= v.ID {
					t.Fatalf("%s comes after %s", v.ID, after)
				}
				after = v.ID
				if v.App == app || v.App == other {
					got = append(got, v.ID)
				}
			}
			if len(list) < limit {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("by %d: %v, want %v", limit, got, want)
		}
	}
	_, err = h.Volumes.OrgVolumes(h.Context(t), "nothing-of-the-kind", "", 10)
	wantError(t, "of no organization", err, hangar.CodeNotFound, hangar.ReasonOrgNotFound)
}

func volumeAppDestroyed(t *testing.T, h Harness) {
	app := h.newApp(t)
	v := h.newVolume(t, app, hangar.VolumeCreate{})
	m := h.create(t, app, h.mounting(v))
	h.wait(t, m.Ref(), hangar.MachineStarted)
	must(t, "destroy app", h.Apps.DestroyApp(h.Context(t), app, true))
	_, err := h.Volumes.Volume(h.Context(t), v.Ref())
	wantError(t, "get volume of no app", err, hangar.CodeNotFound, hangar.ReasonAppNotFound)
	_, err = h.Apps.CreateApp(h.Context(t), hangar.AppCreate{Name: app, Org: hangar.OrgPersonal})
	must(t, "create app again", err)
	ref := hangar.VolumeRef{App: app, ID: v.ID}
	_, err = h.Volumes.Volume(h.Context(t), ref)
	wantError(t, "get it in another app of the same name", err, hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
	_, err = h.Volumes.UndeleteVolume(h.Context(t), ref)
	wantError(t, "undelete it there", err, hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
	list, err := h.Volumes.Volumes(h.Context(t), app)
	if err != nil || len(list) != 0 {
		t.Errorf("an app of the same name lists %v, %v", list, err)
	}
}
