package machines_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	devices "github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/host/volumes/volumestest"
)

// mounting has a Machine mount volumes at /data0 and so on.
func mounting(refs ...hangar.VolumeRef) func(*hangar.MachineSpec) {
	return func(s *hangar.MachineSpec) {
		for i, ref := range refs {
			s.Config.Mounts = append(s.Config.Mounts, hangar.Mount{Volume: string(ref.ID), Path: "/data" + string(rune('0'+i))})
		}
	}
}

func small() *hangar.Guest { return &hangar.Guest{CPUKind: "shared", CPUs: 1, MemoryMB: 256} }

func TestMachineClaimsItsVolume(t *testing.T) {
	r := newRig(t)
	ref := r.NewVolume(func(s *hangar.VolumeSpec) { s.SizeGB = 2 })
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
	r.Declined(claim(hangar.NewVolumeID(), "web"), hangar.CodeInvalid, hangar.ReasonVolumeNotFound, "volume not found", "config.mounts[0].volume")
	r.Declined(claim(ref.ID, "other"), hangar.CodeInvalid, hangar.ReasonVolumeNotFound)
	raw := r.NewVolume(func(s *hangar.VolumeSpec) { s.FSType = hangar.FSRaw })
	r.Declined(claim(raw.ID, "web"), hangar.CodeInvalid, hangar.ReasonBadConfig, "config.mounts[0].volume", "raw block device")
	r.Declined(claim(ref.ID, "web", mounting(ref)), hangar.CodeInvalid, hangar.ReasonBadConfig, "mounted twice")
	r.Declined(claim(ref.ID, "web", mounting(r.NewVolume(), r.NewVolume())), hangar.CodeInvalid, hangar.ReasonBadConfig, "config.mounts", "2 that")

	m := r.create(nil, mounting(ref))
	r.wait(m, hangar.MachineStarted)
	r.Declined(claim(ref.ID, "web"), hangar.CodeFailedPrecondition, hangar.ReasonVolumeAttached, "volume already claimed by machine "+string(m.ID))
	_, err := r.DestroyVolume(t.Context(), ref)
	r.Declined(err, hangar.CodeFailedPrecondition, hangar.ReasonVolumeAttached, "volume is currently bound to machine: "+string(m.ID))
	got, err := r.Machine(t.Context(), m)
	r.must(err)
	if want := (hangar.Mount{Volume: string(ref.ID), Path: "/data0", Name: "data", SizeGB: 2, Encrypted: true}); got.Config.Mounts[0] != want {
		t.Errorf("mount %+v, want %+v", got.Config.Mounts[0], want)
	}
	v := r.Look(ref)
	if v.AttachedMachine != m.ID || v.Usage.FSType != hangar.FSExt4 || v.Usage.Total() != 2<<30 {
		t.Errorf("volume %+v", v)
	}

	update := func(mounts ...hangar.Mount) error {
		_, err := r.UpdateMachine(t.Context(), m, hangar.MachineUpdate{Config: hangar.MachineConfig{Image: "web", Guest: small(), Mounts: mounts}})
		return err
	}
	r.Declined(update(), hangar.CodeInvalid, hangar.ReasonBadConfig, "config.mounts", string(ref.ID))
	r.Declined(update(hangar.Mount{Volume: string(r.NewVolume().ID), Path: "/data"}), hangar.CodeInvalid, hangar.ReasonBadConfig, "config.mounts")
	r.must(update(hangar.Mount{Volume: string(ref.ID), Path: "/elsewhere"}))
	r.wait(m, hangar.MachineStarted)
	got, err = r.Machine(t.Context(), m)
	r.must(err)
	if mount := got.Config.Mounts[0]; mount.Path != "/elsewhere" || mount.SizeGB != 2 {
		t.Errorf("after an update: %+v", mount)
	}

	r.must(r.StopMachine(t.Context(), m, hangar.MachineStop{}))
	r.wait(m, hangar.MachineStopped)
	if im, _ := r.disk.Get(ref.ID); im.Open {
		t.Error("the volume of a stopped machine is open")
	}
	if v := r.Look(ref); v.AttachedMachine != m.ID || v.Usage.Total() != 2<<30 {
		t.Errorf("volume of a stopped machine: %+v", v)
	}
	r.must(r.DestroyMachine(t.Context(), m, hangar.MachineDestroy{}))
	r.wait(m, hangar.MachineDestroyed)
	if v := r.Look(ref); v.AttachedMachine != "" {
		t.Errorf("volume of a destroyed machine: %+v", v)
	}
	if got := r.Story(ref); got != "create attach format detach" {
		t.Errorf("events: %s", got)
	}
	r.must(claim(ref.ID, "web"))
}

func TestDamagedVolumeIsNotMounted(t *testing.T) {
	for _, broken := range []error{devices.ErrForeign, devices.ErrUnrepairable} {
		r := newRig(t)
		ref := r.NewVolume()
		m := r.create(nil, mounting(ref), func(s *hangar.MachineSpec) { s.Config.Restart = &hangar.RestartConfig{Policy: hangar.RestartAlways} })
		r.wait(m, hangar.MachineStarted)
		r.must(r.StopMachine(t.Context(), m, hangar.MachineStop{}))
		r.wait(m, hangar.MachineStopped)
		r.disk.Set(ref.ID, func(im *volumestest.Image) { im.Broken = broken })
		for range 2 {
			_, err := r.StartMachine(t.Context(), m)
			r.must(err)
			r.wait(m, hangar.MachineFailed)
		}
		if e := r.newest(m); !strings.Contains(e.Request.Error, broken.Error()) {
			t.Errorf("newest event %+v", e.Request)
		}
		if got := r.Story(ref); got != "create attach format damaged!" {
			t.Errorf("events: %s", got)
		}
		r.until(func() bool { im, _ := r.disk.Get(ref.ID); return !im.Open })
		r.disk.Set(ref.ID, func(im *volumestest.Image) { im.Broken = nil })
		r.start(m)
	}
}

func TestLostVolumeEndsTheMachine(t *testing.T) {
	r := newRig(t)
	ref := r.NewVolume()
	m := r.create(nil, mounting(ref))
	r.wait(m, hangar.MachineStarted)
	boot := r.world.Boot(m.ID)
	r.disk.Lose(ref.ID)
	r.until(func() bool { return r.state(m) == hangar.MachineStarted && r.world.Boot(m.ID) != boot })
	if got := r.Story(ref); got != "create attach format lost! repair" {
		t.Errorf("events: %s", got)
	}
	events, err := r.MachineEvents(t.Context(), m, 10)
	r.must(err)
	told := slices.ContainsFunc(events, func(e hangar.Event) bool {
		return e.Type == hangar.EventExit && strings.Contains(e.Request.ExitEvent.Error, string(ref.ID)) && e.Request.ExitEvent.ExitCode != 0
	})
	if !told {
		t.Errorf("no exit mentions the volume: %s", r.history(m))
	}
}

// TestVolumeLostAfterTheProgramEnded: a writing program exits because of the loss, often before the
// storage daemon is known to have ended.
func TestVolumeLostAfterTheProgramEnded(t *testing.T) {
	for name, onClose := range map[string]error{"seen when it is closed": nil, "closing fails": errors.New("input/output error")} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			ref := r.NewVolume()
			m := r.create(nil, mounting(ref))
			r.wait(m, hangar.MachineStarted)
			boot := r.world.Boot(m.ID)
			var lost atomic.Bool
			r.disk.Inject(func(op string, _ hangar.VolumeID) error {
				if op != "close" || lost.Swap(true) {
					return nil
				}
				r.disk.Lose(ref.ID)
				return onClose
			})
			r.must(r.world.Crash(m.ID, driver.Exit{Code: 1}))
			r.until(func() bool { return r.state(m) == hangar.MachineStarted && r.world.Boot(m.ID) != boot })
			if got := r.Story(ref); got != "create attach format lost! repair" {
				t.Errorf("events: %s", got)
			}
		})
	}
}

func TestRestartOfTheDaemonKeepsWhatIsUsed(t *testing.T) {
	for name, end := range map[string]func(r *rig){"close": func(r *rig) { r.close() }, "kill": func(r *rig) { r.crash() }} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			used, resting, lost := r.NewVolume(), r.NewVolume(), r.NewVolume()
			m := r.create(nil, mounting(used))
			idle := r.create(nil, mounting(resting))
			doomed := r.create(nil, mounting(lost))
			for _, ref := range []hangar.MachineRef{m, idle, doomed} {
				r.wait(ref, hangar.MachineStarted)
			}
			r.must(r.StopMachine(t.Context(), idle, hangar.MachineStop{}))
			r.wait(idle, hangar.MachineStopped)
			end(r)
			r.disk.Set(resting.ID, func(im *volumestest.Image) { im.Open, im.Loss = true, make(chan struct{}) }) // left by a crash
			r.disk.Lose(lost.ID)
			boot := r.world.Boot(doomed.ID)
			r.open()
			if im, _ := r.disk.Get(used.ID); !im.Mounted {
				t.Error("the volume of a running machine was released")
			}
			if im, _ := r.disk.Get(resting.ID); im.Open {
				t.Error("the volume of a machine at rest is open")
			}
			r.until(func() bool { return r.state(doomed) == hangar.MachineStarted && r.world.Boot(doomed.ID) != boot })
			if got := r.Story(lost); !strings.Contains(got, "lost!") {
				t.Errorf("events: %s", got)
			}
			r.disk.Lose(used.ID)
			r.until(func() bool { return strings.Contains(r.Story(used), "lost! repair") })
		})
	}
}

// TestEndWithoutVolumes: the end of a Machine is recorded although its volume cannot be taken back,
// and the volume is watched once it can.
func TestEndWithoutVolumes(t *testing.T) {
	for _, end := range []string{"exit", "lost"} {
		t.Run(end, func(t *testing.T) {
			r := newRig(t)
			ref := r.NewVolume()
			m := r.create(nil, mounting(ref), func(s *hangar.MachineSpec) { s.Config.Restart = &hangar.RestartConfig{Policy: hangar.RestartNo} })
			r.wait(m, hangar.MachineStarted)
			r.crash()
			tried := make(chan struct{})
			hit := sync.OnceFunc(func() { close(tried) })
			r.disk.Inject(func(op string, _ hangar.VolumeID) error {
				if op == "attach" {
					hit()
					return errFault
				}
				return nil
			})
			r.open()
			<-tried
			if end == "exit" {
				r.must(r.world.Crash(m.ID, driver.Exit{Code: 3}))
				r.until(func() bool { return strings.Contains(r.history(m), "exit/") })
				r.disk.Inject(nil)
			} else {
				r.disk.Inject(nil)
				r.until(func() bool { _, ok := r.volumes().MountedAt(ref.ID); return ok })
				r.disk.Lose(ref.ID)
			}
			r.wait(m, hangar.MachineStopped)
			if got := strings.Contains(r.Story(ref), "lost!"); got != (end == "lost") {
				t.Errorf("events: %s", r.Story(ref))
			}
		})
	}
}
