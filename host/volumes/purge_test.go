package volumes_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/volumes/volumestest"
)

func of(org hangar.OrgID, sizeGB int) func(*hangar.VolumeSpec) {
	return func(s *hangar.VolumeSpec) {
		s.Org, s.OrgID, s.App, s.AppID, s.SizeGB = hangar.OrgSlug(org), org, hangar.AppName(org), hangar.AppID(org), sizeGB
	}
}

// destroyed makes a volume and destroys it, a second after the one before.
func (r *rig) destroyed(org hangar.OrgID, sizeGB int) hangar.VolumeRef {
	r.Helper()
	ref := r.NewVolume(of(org, sizeGB))
	r.ahead.Add(int64(time.Second))
	_, err := r.DestroyVolume(r.Context(), ref)
	r.must(err)
	return ref
}

// isGone reports whether a volume was removed. One without snapshots is forgotten soon after.
func (r *rig) isGone(ref hangar.VolumeRef) bool {
	r.Helper()
	row, err := r.VolumeRow(r.Context(), ref)
	if hangar.CodeOf(err) == hangar.CodeNotFound {
		return true
	}
	r.must(err)
	return row.Volume.State == hangar.VolumeDestroyed
}

// TestDestroyedVolumesGiveWay: a tenant that takes all room and destroys it blocks no other: its
// own destroyed volumes go first, then the oldest ones, and only as many as needed.
func TestDestroyedVolumesGiveWay(t *testing.T) {
	r := newRig(t)
	r.disk.SetFree(10 << 30)
	kept := r.NewVolume(of("calm", 1))
	oldest := r.destroyed("calm", 2)
	first := r.destroyed("greedy", 3)
	second := r.destroyed("greedy", 3)
	pending := func(refs ...hangar.VolumeRef) {
		t.Helper()
		for _, ref := range refs {
			if v := r.Look(ref); v.State != hangar.VolumePendingDestroy {
				t.Errorf("volume of %s with %d GB is %s", v.App, v.SizeGB, v.State)
			}
		}
	}
	_, err := r.CreateVolume(t.Context(), hangar.VolumeSpec{ID: hangar.NewVolumeID(), Org: "greedy", OrgID: "greedy", App: "greedy", AppID: "greedy", SizeGB: 10})
	r.Declined(err, hangar.CodeConflict, hangar.ReasonInsufficientCapacity)
	pending(oldest, first, second) // nothing is destroyed for what does not fit anyway
	r.NewVolume(of("greedy", 1))   // there is room
	pending(oldest, first, second)
	r.NewVolume(of("greedy", 2)) // its own goes before an older one of another organization
	if !r.isGone(first) {
		t.Error("the oldest destroyed volume of the organization is still there")
	}
	pending(oldest, second)
	_, err = r.ExtendVolume(t.Context(), kept, 4)
	r.must(err)
	if !r.isGone(oldest) {
		t.Error("the destroyed volume of the organization that extends one is still there")
	}
	pending(second)
	r.NewVolume(of("third", 2)) // 7 of 10 GB are promised, and 3 are of what is destroyed
	if !r.isGone(second) {
		t.Error("nothing of another organization has given way")
	}
	if im, ok := r.disk.Get(second.ID); ok {
		t.Errorf("its image is still there: %+v", im)
	}
	if v := r.Look(kept); v.State != hangar.VolumeCreated || v.SizeGB != 4 {
		t.Errorf("a volume in use: %+v", v)
	}
	_, err = r.UndeleteVolume(t.Context(), second)
	if err == nil {
		t.Error("a volume without a key was undeleted")
	}
}

// TestReadVolumesDoNotGiveWay: a volume that is being read stays, and the request for its room is
// refused.
func TestReadVolumesDoNotGiveWay(t *testing.T) {
	r := newRig(t)
	r.disk.SetFree(4 << 30)
	ref := r.NewVolume(of("greedy", 4), volumestest.Raw)
	r.disk.Write(ref.ID, 0, "content")
	reading, done := make(chan struct{}), make(chan struct{})
	r.disk.Inject(func(op string, _ hangar.VolumeID) error {
		if op == "freeze" {
			close(reading)
			<-done
		}
		return nil
	})
	s, err := r.CreateSnapshot(t.Context(), ref)
	r.must(err)
	<-reading
	_, err = r.DestroyVolume(t.Context(), ref)
	r.must(err)
	spec := hangar.VolumeSpec{ID: hangar.NewVolumeID(), Org: "calm", OrgID: "calm", App: "calm", AppID: "calm", SizeGB: 4, FSType: hangar.FSExt4}
	_, err = r.CreateVolume(t.Context(), spec)
	r.Declined(err, hangar.CodeConflict, hangar.ReasonInsufficientCapacity)
	_, err = r.PurgeVolume(t.Context(), ref)
	r.Declined(err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
	if v := r.Look(ref); v.State != hangar.VolumePendingDestroy {
		t.Errorf("while it is read: %s", v.State)
	}
	r.disk.Inject(nil)
	close(done)
	if s := r.Finished(ref, s.ID); s.State != hangar.SnapshotCreated {
		t.Errorf("the snapshot: %+v", s)
	}
	r.until(func() bool { _, err := r.CreateVolume(t.Context(), spec); return err == nil })
	if row, err := r.VolumeRow(t.Context(), ref); err != nil || len(row.Snapshots) != 1 {
		t.Errorf("the snapshot went with its volume: %+v, %v", row, err)
	}
}

// TestKillWhileVolumesGiveWay: a daemon that is killed after the key is gone removes the image
// when it starts again, and nothing else.
func TestKillWhileVolumesGiveWay(t *testing.T) {
	r := newRig(t)
	r.disk.SetFree(4 << 30)
	kept, pending := r.NewVolume(of("calm", 1)), r.destroyed("calm", 1)
	victim := r.destroyed("greedy", 2)
	reached, dead := make(chan struct{}), make(chan struct{})
	r.disk.Inject(func(op string, _ hangar.VolumeID) error {
		if op == "remove" {
			close(reached)
			<-dead
			return errors.New("killed")
		}
		return nil
	})
	var asking sync.WaitGroup
	asking.Go(func() {
		_, err := r.CreateVolume(t.Context(), hangar.VolumeSpec{
			ID: hangar.NewVolumeID(), Org: "greedy", OrgID: "greedy", App: "greedy", AppID: "greedy", SizeGB: 2, FSType: hangar.FSExt4,
		})
		if err == nil {
			t.Error("a volume was made in room that was not free yet")
		}
	})
	<-reached
	r.session.Kill()
	close(dead)
	asking.Wait()
	r.crash()
	r.disk.Inject(nil)
	r.open()
	r.until(func() bool {
		_, err := r.VolumeRow(t.Context(), victim)
		return hangar.CodeOf(err) == hangar.CodeNotFound
	})
	if _, ok := r.disk.Get(victim.ID); ok {
		t.Error("its image is still there")
	}
	if a, b := r.Look(kept), r.Look(pending); a.State != hangar.VolumeCreated || b.State != hangar.VolumePendingDestroy {
		t.Errorf("other volumes are %s and %s", a.State, b.State)
	}
	_, err := r.UndeleteVolume(t.Context(), pending)
	r.must(err)
	r.NewVolume(of("greedy", 2))
}

// TestVolumesGiveWayToManyAtOnce: of many that ask at once for the room of destroyed volumes,
// as many get it as fit.
func TestVolumesGiveWayToManyAtOnce(t *testing.T) {
	r := newRig(t)
	r.disk.SetFree(8 << 30)
	for range 4 {
		r.destroyed("greedy", 2)
	}
	var all sync.WaitGroup
	refused := make(chan error, 12)
	for range 12 {
		all.Go(func() {
			_, err := r.CreateVolume(t.Context(), hangar.VolumeSpec{
				ID: hangar.NewVolumeID(), Org: "calm", OrgID: "calm", App: "calm", AppID: "calm", SizeGB: 1, FSType: hangar.FSExt4,
			})
			if err != nil {
				refused <- err
			}
		})
	}
	all.Wait()
	close(refused)
	n := 0
	for err := range refused {
		n++
		r.Declined(err, hangar.CodeConflict, hangar.ReasonInsufficientCapacity)
	}
	if n != 4 {
		t.Errorf("%d of 12 were refused where 8 fit", n)
	}
}

// TestFailedExtensionIsNotCounted: the room that was claimed for a failed extension is freed.
func TestFailedExtensionIsNotCounted(t *testing.T) {
	r := newRig(t)
	r.disk.SetFree(2 << 30)
	ref := r.NewVolume()
	_, err := r.ExtendVolume(t.Context(), ref, 4)
	r.Declined(err, hangar.CodeConflict, hangar.ReasonInsufficientCapacity)
	if got := r.vols.Sizes(); len(got) != 2 || got[0] != 4 || got[1] != 1 {
		t.Errorf("claimed: %v", got)
	}
}

// TestDailySnapshotsStayWithinTheQuota: a daily snapshot beyond the quota is not taken, and the
// owner learns why; it is taken once there is room again.
func TestDailySnapshotsStayWithinTheQuota(t *testing.T) {
	r := newRig(t)
	ref := r.NewVolume(volumestest.Raw)
	r.vols.Answer(volumestest.OverQuota)
	_, err := r.CreateSnapshot(t.Context(), ref)
	r.Declined(err, hangar.CodeExhausted, hangar.ReasonQuota)
	r.ahead.Add(int64(24 * time.Hour))
	for range 3 {
		r.Round(t.Context())
	}
	list, err := r.Snapshots(t.Context(), ref)
	r.must(err)
	if len(list) != 1 || list[0].State != hangar.SnapshotFailed || list[0].Fault == "" {
		t.Errorf("beyond the quota: %+v", list)
	}
	if got := r.Story(ref); got != "create snapshot!" {
		t.Errorf("events: %s", got)
	}
	r.vols.Answer(nil)
	r.ahead.Add(int64(2 * time.Hour))
	r.Round(t.Context())
	list, err = r.Snapshots(t.Context(), ref)
	r.must(err)
	if len(list) != 2 || r.Finished(ref, list[0].ID).State != hangar.SnapshotCreated {
		t.Errorf("with a larger quota: %+v", list)
	}
}

// TestVolumeAfterItsTime: what is not recorded by the deadline of its caller never is.
func TestVolumeAfterItsTime(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	spec := hangar.VolumeSpec{ID: hangar.NewVolumeID(), Org: "acme", OrgID: "acme", App: "web", AppID: "web", SizeGB: 1}
	if _, err := r.CreateVolume(ctx, spec); !errors.Is(err, context.Canceled) {
		t.Errorf("a creation of a caller that is gone: %v", err)
	}
	if _, err := r.VolumeRow(t.Context(), hangar.VolumeRef{App: "web", AppID: "web", ID: spec.ID}); hangar.CodeOf(err) != hangar.CodeNotFound {
		t.Errorf("it is recorded: %v", err)
	}
}
