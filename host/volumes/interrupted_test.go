package volumes_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/archive"
	devices "github.com/hangar-platform/hangar/host/volume"
	"github.com/hangar-platform/hangar/host/volumes"
	"github.com/hangar-platform/hangar/host/volumes/volumestest"
	"github.com/hangar-platform/hangar/internal/finish"
)

// A snapshot that is under way when the daemon is restarted is taken by the next one, even if the
// archive has parts of it, and the one after builds on it.
func TestSnapshotPutOff(t *testing.T) {
	for name, left := range map[string]bool{"nothing was stored": false, "all was stored": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			ref := r.NewVolume(volumestest.Raw)
			r.disk.Write(ref.ID, 0, "before")
			g := r.store.Hold("write")
			s, err := r.CreateSnapshot(t.Context(), ref)
			r.must(err)
			<-g.Reached
			r.close()
			if left {
				r.store.Put(archive.Entry{Meta: archive.Meta{ID: s.ID, Volume: ref.ID}, VolumeSize: 1 << 30})
			}
			r.disk.Write(ref.ID, 0, "after!")
			r.store.Intercept(nil)
			r.open()
			if got := r.Finished(ref, s.ID); got.State != hangar.SnapshotCreated || got.Fault != "" {
				t.Errorf("snapshot %+v", got)
			}
			if got := r.Story(ref); got != "create snapshot" {
				t.Errorf("events: %s", got)
			}
			copied := r.Restored(s.ID)
			r.Usable(copied)
			if got := r.disk.Read(copied.ID, 0, 6); got != "after!" {
				t.Errorf("the snapshot has %q", got)
			}
			next := r.TakeSnapshot(ref)
			if base := r.store.Base(next.ID); base == nil || base.ID != s.ID || base.Changed.Length() != 0 {
				t.Errorf("the next one builds on %+v", base)
			}
		})
	}
}

// A volume that is being filled can be destroyed. Then nothing of it takes room, and who
// has it back has one that failed.
func TestDestroyWhileRestoring(t *testing.T) {
	r := newRig(t)
	from := r.NewVolume(volumestest.Raw, volumestest.OnDemand)
	r.disk.Write(from.ID, 0, "data")
	s := r.TakeSnapshot(from)
	g := r.store.Hold("read")
	ref := r.Restored(s.ID, func(s *hangar.VolumeSpec) { s.SizeGB = 90 })
	<-g.Reached
	if v := r.Look(ref); v.State != hangar.VolumeRestoring {
		t.Fatalf("volume %+v", v)
	}
	_, err := r.DestroyVolume(t.Context(), ref)
	r.must(err)
	r.until(func() bool { _, ok := r.disk.Get(ref.ID); return !ok })
	if v := r.Look(ref); v.State != hangar.VolumePendingDestroy {
		t.Errorf("volume %+v", v)
	}
	r.NewVolume(func(s *hangar.VolumeSpec) { s.SizeGB = 90 }) // of the 100 that there are
	_, err = r.UndeleteVolume(t.Context(), ref)
	r.must(err)
	if v := r.Look(ref); v.State != hangar.VolumeFailed {
		t.Errorf("undeleted it is %+v", v)
	}
	events, err := r.VolumeEvents(t.Context(), ref)
	r.must(err)
	if !slices.ContainsFunc(events, func(e hangar.VolumeEvent) bool { return e.Type == hangar.VolumeEventUndelete && e.Fault != "" }) {
		t.Errorf("no event says why it failed: %+v", events)
	}
	_, err = r.DestroyVolume(t.Context(), ref)
	r.must(err)
	r.restart()
	r.ahead.Add(int64(25 * time.Hour))
	r.Purge(t.Context())
	_, err = r.VolumeRow(t.Context(), ref)
	r.Declined(err, hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
}

// A user who waits for a volume to be filled can see what it waits for, once.
func TestRestoreTellsWhyItWaits(t *testing.T) {
	r := newRig(t)
	from := r.NewVolume(volumestest.Raw)
	r.disk.Write(from.ID, 0, "data")
	s := r.TakeSnapshot(from)
	var failed atomic.Int32
	r.store.Intercept(func(_ context.Context, op string, _ hangar.SnapshotID) error {
		if op == "read" && failed.Add(1) <= 2 {
			return errors.New("the bucket does not answer")
		}
		return nil
	})
	ref := r.Restored(s.ID)
	r.until(func() bool { return r.Story(ref) == "create restore!" })
	events, err := r.VolumeEvents(t.Context(), ref)
	r.must(err)
	if e := events[0]; e.Fault != "the archive of snapshots cannot be read" || e.Snapshot != s.ID {
		t.Errorf("event %+v", e)
	}
	if v := r.Usable(ref); v.State != hangar.VolumeCreated || r.Story(ref) != "create restore! restore" {
		t.Errorf("volume %+v: %s", v, r.Story(ref))
	}
}

// However often snapshots fail, few of those are kept in mind.
func TestFailedSnapshotsAreFew(t *testing.T) {
	r := newRig(t)
	ref := r.NewVolume(volumestest.Raw, volumestest.OnDemand)
	r.store.Intercept(func(_ context.Context, op string, _ hangar.SnapshotID) error {
		if op == "write" {
			return errors.New("10.0.0.1:9000/bucket: connection refused")
		}
		return nil
	})
	for range 40 {
		if s := r.TakeSnapshot(ref); s.State != hangar.SnapshotFailed || s.Fault != "the archive of snapshots cannot be written" {
			t.Fatalf("snapshot %+v", s)
		}
	}
	list, err := r.Snapshots(t.Context(), ref)
	r.must(err)
	if len(list) > 20 {
		t.Errorf("%d snapshots are listed", len(list))
	}
}

// An unusable archive is reported before it is needed, and breaks nothing else.
func TestTryArchive(t *testing.T) {
	r := newRig(t)
	r.archivePatience = 600 * time.Millisecond
	r.restart()
	r.store.SetAway(errors.New("access denied"))
	r.TryArchive(t.Context())
	r.store.SetAway(nil)
	ref := r.NewVolume(volumestest.Raw)
	s, err := r.CreateSnapshot(t.Context(), ref)
	r.must(err)
	if got := r.Finished(ref, s.ID); got.State != hangar.SnapshotCreated {
		t.Errorf("snapshot %+v", got)
	}
}

// none is a server that cannot have volumes, and says that it was asked to change one.
type none struct {
	volumes.None
	created, removed func()
}

func (n none) Create(ctx context.Context, spec devices.Spec) error {
	n.created()
	return n.None.Create(ctx, spec)
}

func (n none) Remove(ctx finish.Context, id hangar.VolumeID) error {
	n.removed()
	return n.None.Remove(ctx, id)
}

// TestNoDevicesMeanwhile: volumes that are being made or filled wait for a daemon that can have
// volumes; one that cannot does not give them up.
func TestNoDevicesMeanwhile(t *testing.T) {
	r := newRig(t)
	from := r.NewVolume(volumestest.Raw, volumestest.OnDemand)
	r.disk.Write(from.ID, 0, "data")
	s := r.TakeSnapshot(from)
	g := r.store.Hold("read")
	restoring := r.Restored(s.ID)
	<-g.Reached
	spec := volumestest.Spec()
	creating := hangar.VolumeRef{App: spec.App, AppID: spec.AppID, ID: spec.ID}
	r.disk.Inject(func(op string, id hangar.VolumeID) error {
		if op == "create" && id == creating.ID { // and nothing is recorded from now on
			r.session.Kill()
			r.must(r.journal.Close())
		}
		return nil
	})
	if _, err := r.CreateVolume(t.Context(), spec); err == nil {
		t.Fatal("it was made")
	}
	r.disk.Inject(nil)
	r.store.Intercept(nil)
	r.crash()
	created, removed := make(chan struct{}), make(chan struct{})
	r.none = none{volumes.None{Why: "no module"}, sync.OnceFunc(func() { close(created) }), sync.OnceFunc(func() { close(removed) })}
	r.open()
	<-created
	<-removed
	r.close()
	r.none = nil
	r.open()
	for _, ref := range []hangar.VolumeRef{restoring, creating} {
		var state hangar.VolumeState
		for state = hangar.VolumeCreating; state == hangar.VolumeCreating || state == hangar.VolumeRestoring; {
			state = r.Look(ref).State
		}
		if state != hangar.VolumeCreated {
			t.Errorf("volume %s is %s: %s", ref.ID, state, r.Story(ref))
		}
	}
}

// TestNoDevicesForAnOpenVolume: a volume that an earlier daemon has left open does not count as closed on a server that
// cannot have volumes any more.
func TestNoDevicesForAnOpenVolume(t *testing.T) {
	r := newRig(t)
	r.machines.records = true
	ref := r.NewVolume()
	spec := hangar.MachineSpec{ID: hangar.NewMachineID(), App: "web", AppID: "web"}
	spec.Config.Mounts = []hangar.Mount{{Volume: string(ref.ID), Path: "/data"}}
	claims, err := r.Claim(&spec)
	r.must(err)
	r.must(r.journal.Commit(claims.Put))
	claims.Settle()
	claims.Done()
	_, _, err = r.Mount(t.Context(), spec.ID, &spec.Config, 0, false)
	r.must(err)
	r.close()
	run := t.TempDir()
	r.must(os.Mkdir(filepath.Join(run, string(ref.ID)), 0o700))
	r.none = volumes.None{Why: "no module", Run: run}
	r.open()
	r.Declined(r.Unmount(t.Context(), spec.ID, &spec.Config), hangar.CodeUnimplemented, hangar.ReasonUnsupported)
	r.close()
	r.none = nil
	r.open()
	r.must(r.Unmount(t.Context(), spec.ID, &spec.Config))
	if im, _ := r.disk.Get(ref.ID); im.Open {
		t.Error("the volume is still open")
	}
}
