package machines_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/volumes/volumestest"
)

func TestExtendVolume(t *testing.T) {
	for _, online := range []bool{true, false} {
		r := newRig(t)
		r.disk.SetOnline(online)
		ref := r.NewVolume()
		_, err := r.ExtendVolume(t.Context(), ref, 1) // as it is
		r.must(err)
		_, err = r.ExtendVolume(t.Context(), ref, 0)
		r.Declined(err, hangar.CodeInvalid, "", "size_gb must be greater than current")
		_, err = r.ExtendVolume(t.Context(), ref, hangar.MaxVolumeGB+1)
		r.Declined(err, hangar.CodeInvalid, "", "size_gb")
		row, err := r.ExtendVolume(t.Context(), ref, 2)
		r.must(err)
		if v := row.Volume; v.SizeGB != 2 || v.NeedsRestart || v.State != hangar.VolumeCreated {
			t.Errorf("extended while it is not mounted: %+v", v)
		}
		if im, _ := r.disk.Get(ref.ID); im.Open {
			t.Error("it was left open")
		}
		m := r.create(nil, mounting(ref))
		r.wait(m, hangar.MachineStarted)
		row, err = r.ExtendVolume(t.Context(), ref, 4)
		r.must(err)
		if v := row.Volume; v.SizeGB != 4 || v.NeedsRestart == online || (v.Usage.Total() == 4<<30) != online {
			t.Errorf("extended while it is mounted, online %t: %+v", online, v)
		}
		got, err := r.Machine(t.Context(), m)
		r.must(err)
		if got.Config.Mounts[0].SizeGB != 4 {
			t.Errorf("the machine shows %+v", got.Config.Mounts)
		}
		r.must(r.RestartMachine(t.Context(), m, hangar.MachineRestart{}))
		r.until(func() bool { v := r.Look(ref); return !v.NeedsRestart && v.Usage.Total() == 4<<30 })
		r.disk.Inject(func(op string, _ hangar.VolumeID) error {
			if op == "extend" {
				return errors.New("no")
			}
			return nil
		})
		if _, err := r.ExtendVolume(t.Context(), ref, 5); err == nil {
			t.Error("a failure was not told")
		}
		if v := r.Look(ref); v.State != hangar.VolumeCreated || v.SizeGB != 4 {
			t.Errorf("after a failure: %+v", v)
		}
		if got := r.Story(ref); got != "create extend attach format extend extend!" {
			t.Errorf("events: %s", got)
		}
	}
}

func TestVolumesExtendThemselves(t *testing.T) {
	r := newRig(t)
	r.disk.SetOnline(true)
	ref := r.NewVolume()
	m := r.create(nil, mounting(ref), func(s *hangar.MachineSpec) {
		mount := &s.Config.Mounts[0]
		mount.ExtendThresholdPercent, mount.AddSizeGB, mount.SizeGBLimit = 80, 2, 4
	})
	r.wait(m, hangar.MachineStarted)
	told := make(map[hangar.VolumeID]string)
	fill := func(percent int64) {
		r.disk.Set(ref.ID, func(im *volumestest.Image) { im.Used = im.FSSize * percent / 100 })
		for range 3 {
			r.volumes().Tend(t.Context(), told)
		}
	}
	size := func(want int) {
		t.Helper()
		if v := r.Look(ref); v.SizeGB != want {
			t.Fatalf("it has %d GB, want %d: %s", v.SizeGB, want, r.Story(ref))
		}
	}
	fill(79)
	size(1)
	fill(81)
	size(3)
	r.disk.SetFree(3 << 30)
	fill(90)
	size(3)
	r.disk.SetFree(100 << 30)
	fill(90)
	size(4) // the limit
	fill(95)
	size(4)
	if got := r.Story(ref); got != "create attach format extend extend! extend extend!" {
		t.Errorf("events: %s", got)
	}
	events, err := r.VolumeEvents(t.Context(), ref)
	r.must(err)
	if e := events[0]; !strings.Contains(e.Fault, "4 GB") || e.Machine != m.ID || e.Source != hangar.SourceAgent {
		t.Errorf("event %+v", e)
	}
	r.disk.SetOnline(false)
	still := r.NewVolume()
	n := r.create(nil, mounting(still), func(s *hangar.MachineSpec) {
		mount := &s.Config.Mounts[0]
		mount.ExtendThresholdPercent, mount.AddSizeGB = 50, 1
	})
	r.wait(n, hangar.MachineStarted)
	r.disk.Set(still.ID, func(im *volumestest.Image) { im.Used = im.FSSize })
	for range 3 {
		r.volumes().Tend(t.Context(), told)
	}
	if v := r.Look(still); v.SizeGB != 2 || !v.NeedsRestart {
		t.Errorf("without online growth: %+v", v)
	}
}

func TestDestroyedVolumeCanBeHadBackForADay(t *testing.T) {
	r := newRig(t)
	ref := r.NewVolume()
	_, err := r.UndeleteVolume(t.Context(), ref)
	r.Declined(err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "'created'")
	for range 2 {
		row, err := r.DestroyVolume(t.Context(), ref)
		r.must(err)
		if v := row.Volume; v.State != hangar.VolumePendingDestroy || v.DestroyedAt.IsZero() {
			t.Errorf("destroyed: %+v", v)
		}
	}
	r.ahead.Add(int64(hangar.VolumeGrace - time.Minute))
	r.volumes().Purge(t.Context())
	row, err := r.UndeleteVolume(t.Context(), ref)
	r.must(err)
	if v := row.Volume; v.State != hangar.VolumeCreated || !v.DestroyedAt.IsZero() {
		t.Errorf("undeleted: %+v", v)
	}
	m := r.create(nil, mounting(ref))
	r.wait(m, hangar.MachineStarted)
	r.must(r.DestroyMachine(t.Context(), m, hangar.MachineDestroy{Force: true}))
	r.wait(m, hangar.MachineDestroyed)
	_, err = r.DestroyVolume(t.Context(), ref)
	r.must(err)
	r.disk.Inject(func(op string, _ hangar.VolumeID) error {
		if op == "remove" {
			return errors.New("busy")
		}
		return nil
	})
	r.ahead.Add(int64(hangar.VolumeGrace + time.Second))
	r.volumes().Purge(t.Context())
	if v := r.Look(ref); v.State != hangar.VolumeDestroying {
		t.Errorf("while its image cannot be removed: %+v", v)
	}
	r.disk.Inject(nil)
	r.crash()
	r.open() // continues by itself
	r.until(func() bool { _, err := r.VolumeRow(t.Context(), ref); return hangar.CodeOf(err) == hangar.CodeNotFound })
	if _, ok := r.disk.Get(ref.ID); ok {
		t.Error("the image is still there")
	}
	r.until(func() bool { _, ok := r.vols.Row(ref); return !ok })
}

func TestKeysOfVolumesAreResealed(t *testing.T) {
	r := newRig(t)
	ref := r.NewVolume()
	before, _ := r.disk.Get(ref.ID)
	rotation, err := r.keys.Rotate(t.Context(), r.Reseal)
	r.must(err)
	if rotation.Resealed != 1 || rotation.Dropped != 1 {
		t.Errorf("rotation %+v", rotation)
	}
	r.restart()
	m := r.create(nil, mounting(ref)) // with another key it could not be opened
	r.wait(m, hangar.MachineStarted)
	if after, _ := r.disk.Get(ref.ID); string(after.Spec.Key) != string(before.Spec.Key) {
		t.Error("the key of the image has changed")
	}
}

func TestSuspendClosesVolumes(t *testing.T) {
	r := newRig(t)
	ref := r.NewVolume()
	m := r.create(nil, mounting(ref))
	r.wait(m, hangar.MachineStarted)
	r.exec(m, "incr")
	r.suspend(m)
	if im, _ := r.disk.Get(ref.ID); im.Open {
		t.Error("the volume of a suspended machine is open")
	}
	r.start(m)
	if got := r.exec(m, "memory"); got != "1" {
		t.Errorf("the machine counted to %s", got)
	}
	r.suspend(m)
	r.disk.Set(ref.ID, func(im *volumestest.Image) { im.Dirty = true }) // the suspended memory does not match the volume any more
	r.start(m)
	if e := r.newest(m); e.Request == nil || e.Request.ColdBoot == "" {
		t.Errorf("newest event %+v", e)
	}
	if got := r.exec(m, "memory"); got != "0" {
		t.Errorf("the machine resumed with a memory of %s", got)
	}
}

// TestKilledAfterARepair: memory does not match a volume that was repaired for a resume, also when the
// daemon is killed before anything says so.
func TestKilledAfterARepair(t *testing.T) {
	r := newRig(t)
	ref := r.NewVolume()
	m := r.create(nil, mounting(ref))
	r.wait(m, hangar.MachineStarted)
	r.exec(m, "incr")
	r.suspend(m)
	r.disk.Set(ref.ID, func(im *volumestest.Image) { im.Dirty = true })
	session, mounted := r.session, make(chan struct{})
	hit := sync.OnceFunc(func() { close(mounted) })
	r.disk.Inject(func(op string, _ hangar.VolumeID) error {
		if op == "usage" { // the first after the mount
			hit()
			for !session.Dead() {
				time.Sleep(time.Millisecond)
			}
		}
		return nil
	})
	_, err := r.StartMachine(t.Context(), m)
	r.must(err)
	<-mounted
	r.crash()
	r.disk.Inject(nil)
	r.open()
	r.wait(m, hangar.MachineStarted)
	if got := r.exec(m, "memory"); got != "0" {
		t.Errorf("the machine resumed with a memory of %s: %s", got, r.history(m))
	}
}

// TestKillWhileKeysOfVolumesAreResealed ends the agent when only some keys are encrypted again.
func TestKillWhileKeysOfVolumesAreResealed(t *testing.T) {
	r := newRig(t)
	first := r.NewVolume()
	_, err := r.keys.Rotate(t.Context(), func(ctx context.Context) (int, error) {
		n, err := r.Reseal(ctx)
		r.NewVolume() // with the new key already
		r.crash()
		return n, errors.Join(err, volumestest.ErrDead)
	})
	if err == nil {
		t.Fatal("the rotation is over")
	}
	r.open()
	if !r.keys.Interrupted() {
		t.Error("the interrupted rotation is forgotten")
	}
	second := r.NewVolume()
	_, err = r.keys.Rotate(t.Context(), r.Reseal)
	r.must(err)
	for _, ref := range []hangar.VolumeRef{first, second} {
		r.wait(r.create(nil, mounting(ref)), hangar.MachineStarted)
	}
}
