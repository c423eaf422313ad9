package host_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	devices "github.com/hangar-platform/hangar/host/volume"
)

// testOrg is the id of the organization of the tests' volumes.
const testOrg = "0b1c5f7e"

// volume makes a volume.
func (r *rig) volume(edit ...func(*hangar.VolumeSpec)) hangar.VolumeRef {
	r.Helper()
	spec := hangar.VolumeSpec{
		ID: hangar.NewVolumeID(), Name: "data", App: "web", AppID: "web", Org: hangar.OrgPersonal, OrgID: testOrg, Region: "loc", SizeGB: 1, Encrypted: true,
		FSType: hangar.FSExt4, SnapshotRetention: 5, AutoBackup: true,
	}
	for _, e := range edit {
		e(&spec)
	}
	row, err := r.CreateVolume(r.Context(), spec)
	r.must(err)
	return row.Volume.Ref()
}

// look returns a volume as others see it.
func (r *rig) look(ref hangar.VolumeRef) hangar.Volume {
	r.Helper()
	row, err := r.VolumeRow(r.Context(), ref)
	r.must(err)
	return row.Volume
}

// story is the volume's events, oldest first.
func (r *rig) story(ref hangar.VolumeRef) string {
	r.Helper()
	events, err := r.VolumeEvents(r.Context(), ref)
	r.must(err)
	var words []string
	for _, e := range slices.Backward(events) {
		word := string(e.Type)
		if e.Fault != "" {
			word += "!"
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

// mounting has a Machine mount volumes at /data0 and so on.
func mounting(refs ...hangar.VolumeRef) func(*hangar.MachineSpec) {
	return func(s *hangar.MachineSpec) {
		for i, ref := range refs {
			s.Config.Mounts = append(s.Config.Mounts, hangar.Mount{Volume: string(ref.ID), Path: "/data" + string(rune('0'+i))})
		}
	}
}

func (r *rig) declined(err error, code hangar.Code, reason string, words ...string) {
	r.Helper()
	if hangar.CodeOf(err) != code || hangar.ReasonOf(err) != reason {
		r.Fatalf("error %v: %s %s, want %s %s", err, hangar.CodeOf(err), hangar.ReasonOf(err), code, reason)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			r.Errorf("error %q does not say %q", err, w)
		}
	}
}

func TestVolumeIsMadeOnce(t *testing.T) {
	r := newRig(t)
	spec := hangar.VolumeSpec{ID: hangar.NewVolumeID(), Name: "data", App: "web", AppID: "web", Org: "personal", OrgID: testOrg, Region: "loc", SizeGB: 3, Encrypted: true, FSType: hangar.FSExt4}
	first, err := r.CreateVolume(t.Context(), spec)
	r.must(err)
	again, err := r.CreateVolume(t.Context(), spec)
	r.must(err)
	if first.Seq != again.Seq || first.Volume != again.Volume {
		t.Errorf("made again: %+v, then %+v", first, again)
	}
	v := first.Volume
	if v.State != hangar.VolumeCreated || len(v.Zone) != 4 || v.Usage.Blocks != 0 || v.HostStatus != "ok" || first.Org != "personal" {
		t.Errorf("volume %+v", first)
	}
	if im, ok := r.disk.get(v.ID); !ok || im.spec.Size != 3<<30 || len(im.spec.Key) != 32 {
		t.Errorf("image %+v", im)
	}
	r.until(func() bool { row, ok := r.vols.row(v.Ref()); return ok && row.Seq == first.Seq })
	spec.App, spec.AppID = "other", "other"
	_, err = r.CreateVolume(t.Context(), spec)
	r.declined(err, hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
	_, err = r.VolumeRow(t.Context(), hangar.VolumeRef{App: "other", AppID: "other", ID: v.ID})
	r.declined(err, hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
}

func TestVolumeThatCannotBeMadeLeavesNothing(t *testing.T) {
	r := newRig(t)
	r.disk.inject(func(op string, _ hangar.VolumeID) error {
		if op == "create" {
			return errors.New("disk full")
		}
		return nil
	})
	ref := hangar.VolumeRef{App: "web", AppID: "web", ID: hangar.NewVolumeID()}
	if _, err := r.CreateVolume(t.Context(), hangar.VolumeSpec{ID: ref.ID, App: "web", AppID: "web", SizeGB: 1}); err == nil {
		t.Fatal("it was made")
	}
	_, err := r.VolumeRow(t.Context(), ref)
	r.declined(err, hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
	r.until(func() bool { _, ok := r.vols.row(ref); return !ok })
}

func TestDiskIsNotPromisedTwice(t *testing.T) {
	r := newRig(t)
	r.disk.free = 10 << 30
	ref := r.volume(func(s *hangar.VolumeSpec) { s.SizeGB = 6 })
	_, err := r.CreateVolume(t.Context(), hangar.VolumeSpec{ID: hangar.NewVolumeID(), App: "web", AppID: "web", SizeGB: 5})
	r.declined(err, hangar.CodeConflict, hangar.ReasonInsufficientCapacity, "5 GB asked", "6 GB promised", "10.0 GB")
	_, err = r.ExtendVolume(t.Context(), ref, 11)
	r.declined(err, hangar.CodeConflict, hangar.ReasonInsufficientCapacity)
	if v := r.look(ref); v.State != hangar.VolumeCreated || v.SizeGB != 6 {
		t.Errorf("after a refused extension: %+v", v)
	}
	_, err = r.CreateVolume(t.Context(), hangar.VolumeSpec{
		ID: hangar.NewVolumeID(), App: "web", AppID: "web", SizeGB: 1, Compute: &hangar.Guest{CPUKind: "shared", CPUs: 1, MemoryMB: 64 << 10},
	})
	r.declined(err, hangar.CodeConflict, hangar.ReasonInsufficientCapacity, "compute")
	r.volume(func(s *hangar.VolumeSpec) { s.SizeGB = 4 })
}

func small() *hangar.Guest { return &hangar.Guest{CPUKind: "shared", CPUs: 1, MemoryMB: 256} }

func TestMachineClaimsItsVolume(t *testing.T) {
	r := newRig(t)
	ref := r.volume(func(s *hangar.VolumeSpec) { s.SizeGB = 2 })
	claim := func(id hangar.VolumeID, app hangar.AppName, edit ...func(*hangar.MachineSpec)) error {
		spec := hangar.MachineSpec{
			ID: hangar.NewMachineID(), Name: "other", App: app, AppID: hangar.AppID(app), Org: hangar.OrgPersonal, Network: 1, Region: "loc",
			Config: hangar.MachineConfig{Image: "web", Guest: small(), Mounts: []hangar.Mount{{Volume: string(id), Path: "/data"}}},
		}
		for _, e := range edit {
			e(&spec)
		}
		_, err := r.CreateMachine(t.Context(), spec)
		return err
	}
	r.declined(claim(hangar.NewVolumeID(), "web"), hangar.CodeInvalid, hangar.ReasonVolumeNotFound, "volume not found", "config.mounts[0].volume")
	r.declined(claim(ref.ID, "other"), hangar.CodeInvalid, hangar.ReasonVolumeNotFound)
	raw := r.volume(func(s *hangar.VolumeSpec) { s.FSType = hangar.FSRaw })
	r.declined(claim(raw.ID, "web"), hangar.CodeInvalid, hangar.ReasonBadConfig, "config.mounts[0].volume", "raw block device")
	r.declined(claim(ref.ID, "web", mounting(ref)), hangar.CodeInvalid, hangar.ReasonBadConfig, "mounted twice")
	r.declined(claim(ref.ID, "web", mounting(r.volume(), r.volume())), hangar.CodeInvalid, hangar.ReasonBadConfig, "config.mounts", "2 that")

	m := r.create(nil, mounting(ref))
	r.wait(m, hangar.MachineStarted)
	r.declined(claim(ref.ID, "web"), hangar.CodeFailedPrecondition, hangar.ReasonVolumeAttached, "volume already claimed by machine "+string(m.ID))
	_, err := r.DestroyVolume(t.Context(), ref)
	r.declined(err, hangar.CodeFailedPrecondition, hangar.ReasonVolumeAttached, "volume is currently bound to machine: "+string(m.ID))
	got, err := r.Machine(t.Context(), m)
	r.must(err)
	if want := (hangar.Mount{Volume: string(ref.ID), Path: "/data0", Name: "data", SizeGB: 2, Encrypted: true}); got.Config.Mounts[0] != want {
		t.Errorf("mount %+v, want %+v", got.Config.Mounts[0], want)
	}
	v := r.look(ref)
	if v.AttachedMachine != m.ID || v.Usage.FSType != hangar.FSExt4 || v.Usage.Total() != 2<<30 {
		t.Errorf("volume %+v", v)
	}

	update := func(mounts ...hangar.Mount) error {
		_, err := r.UpdateMachine(t.Context(), m, hangar.MachineUpdate{Config: hangar.MachineConfig{Image: "web", Guest: small(), Mounts: mounts}})
		return err
	}
	r.declined(update(), hangar.CodeInvalid, hangar.ReasonBadConfig, "config.mounts", string(ref.ID))
	r.declined(update(hangar.Mount{Volume: string(r.volume().ID), Path: "/data"}), hangar.CodeInvalid, hangar.ReasonBadConfig, "config.mounts")
	r.must(update(hangar.Mount{Volume: string(ref.ID), Path: "/elsewhere"}))
	r.wait(m, hangar.MachineStarted)
	got, err = r.Machine(t.Context(), m)
	r.must(err)
	if mount := got.Config.Mounts[0]; mount.Path != "/elsewhere" || mount.SizeGB != 2 {
		t.Errorf("after an update: %+v", mount)
	}

	r.must(r.StopMachine(t.Context(), m, hangar.MachineStop{}))
	r.wait(m, hangar.MachineStopped)
	if im, _ := r.disk.get(ref.ID); im.open {
		t.Error("the volume of a stopped machine is open")
	}
	if v := r.look(ref); v.AttachedMachine != m.ID || v.Usage.Total() != 2<<30 {
		t.Errorf("volume of a stopped machine: %+v", v)
	}
	r.must(r.DestroyMachine(t.Context(), m, hangar.MachineDestroy{}))
	r.wait(m, hangar.MachineDestroyed)
	if v := r.look(ref); v.AttachedMachine != "" {
		t.Errorf("volume of a destroyed machine: %+v", v)
	}
	if got := r.story(ref); got != "create attach format detach" {
		t.Errorf("events: %s", got)
	}
	r.must(claim(ref.ID, "web"))
}

func TestDamagedVolumeIsNotMounted(t *testing.T) {
	for _, broken := range []error{devices.ErrForeign, devices.ErrUnrepairable} {
		r := newRig(t)
		ref := r.volume()
		m := r.create(nil, mounting(ref), func(s *hangar.MachineSpec) { s.Config.Restart = &hangar.RestartConfig{Policy: hangar.RestartAlways} })
		r.wait(m, hangar.MachineStarted)
		r.must(r.StopMachine(t.Context(), m, hangar.MachineStop{}))
		r.wait(m, hangar.MachineStopped)
		r.disk.set(ref.ID, func(im *pretendImage) { im.broken = broken })
		for range 2 {
			_, err := r.StartMachine(t.Context(), m)
			r.must(err)
			r.wait(m, hangar.MachineFailed)
		}
		if e := r.newest(m); !strings.Contains(e.Request.Error, broken.Error()) {
			t.Errorf("newest event %+v", e.Request)
		}
		if got := r.story(ref); got != "create attach format damaged!" {
			t.Errorf("events: %s", got)
		}
		r.until(func() bool { im, _ := r.disk.get(ref.ID); return !im.open })
		r.disk.set(ref.ID, func(im *pretendImage) { im.broken = nil })
		r.start(m)
	}
}

func TestLostVolumeEndsTheMachine(t *testing.T) {
	r := newRig(t)
	ref := r.volume()
	m := r.create(nil, mounting(ref))
	r.wait(m, hangar.MachineStarted)
	boot := r.world.Boot(m.ID)
	r.disk.lose(ref.ID)
	r.until(func() bool { return r.state(m) == hangar.MachineStarted && r.world.Boot(m.ID) != boot })
	if got := r.story(ref); got != "create attach format lost! repair" {
		t.Errorf("events: %s", got)
	}
	events, err := r.MachineEvents(t.Context(), m, 10)
	r.must(err)
	told := slices.ContainsFunc(events, func(e hangar.Event) bool {
		return e.Type == hangar.EventExit && strings.Contains(e.Request.ExitEvent.Error, string(ref.ID)) && e.Request.ExitEvent.ExitCode != 0
	})
	if !told {
		t.Errorf("no exit tells of the volume: %s", r.history(m))
	}
}

func TestRestartOfTheDaemonKeepsWhatIsUsed(t *testing.T) {
	for name, end := range map[string]func(r *rig){"close": func(r *rig) { r.close() }, "kill": func(r *rig) { r.crash() }} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			used, resting, lost := r.volume(), r.volume(), r.volume()
			m := r.create(nil, mounting(used))
			idle := r.create(nil, mounting(resting))
			doomed := r.create(nil, mounting(lost))
			for _, ref := range []hangar.MachineRef{m, idle, doomed} {
				r.wait(ref, hangar.MachineStarted)
			}
			r.must(r.StopMachine(t.Context(), idle, hangar.MachineStop{}))
			r.wait(idle, hangar.MachineStopped)
			end(r)
			r.disk.set(resting.ID, func(im *pretendImage) { im.open, im.loss = true, make(chan struct{}) }) // left by a crash
			r.disk.lose(lost.ID)
			boot := r.world.Boot(doomed.ID)
			r.open()
			if im, _ := r.disk.get(used.ID); !im.mounted {
				t.Error("the volume of a running machine was released")
			}
			if im, _ := r.disk.get(resting.ID); im.open {
				t.Error("the volume of a machine at rest is open")
			}
			r.until(func() bool { return r.state(doomed) == hangar.MachineStarted && r.world.Boot(doomed.ID) != boot })
			if got := r.story(lost); !strings.Contains(got, "lost!") {
				t.Errorf("events: %s", got)
			}
			r.disk.lose(used.ID)
			r.until(func() bool { return strings.Contains(r.story(used), "lost! repair") })
		})
	}
}
