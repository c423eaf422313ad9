package volumes_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/archive"
	"github.com/hangar-platform/hangar/host/volumes/volumestest"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
)

func (r *rig) fork(of hangar.VolumeRef, edit ...func(*hangar.VolumeSpec)) hangar.VolumeRef {
	r.Helper()
	return r.NewVolume(append([]func(*hangar.VolumeSpec){func(s *hangar.VolumeSpec) { s.Source, s.SizeGB = of.ID, 0 }}, edit...)...)
}

func TestSnapshot(t *testing.T) {
	r := newRig(t)
	ref := r.NewVolume(volumestest.Raw)
	r.disk.Write(ref.ID, 0, "first")
	first := r.TakeSnapshot(ref)
	if first.State != hangar.SnapshotCreated || first.Size != 4096 || first.VolumeSize != 1<<30 || first.Digest == "" ||
		first.Frozen == 0 || first.FinishedAt.IsZero() || first.Fault != "" || first.RetentionDays != 5 {
		t.Errorf("snapshot %+v", first)
	}
	r.disk.Write(ref.ID, 1<<20, "second")
	second := r.TakeSnapshot(ref)
	if base := r.store.Base(second.ID); base == nil || base.ID != first.ID || base.Changed.Length() != 4096 || second.Size != 4096 {
		t.Errorf("the second one builds on %+v and is %+v", base, second)
	}
	list, err := r.Snapshots(t.Context(), ref)
	r.must(err)
	if len(list) != 2 || list[0].ID != second.ID {
		t.Errorf("snapshots %+v are not newest first", list)
	}
	if got := r.Story(ref); got != "create snapshot snapshot" {
		t.Errorf("events: %s", got)
	}
	r.until(func() bool {
		row, _ := r.vols.Row(ref)
		return len(row.Snapshots) == 2 && row.Snapshots[0].State == hangar.SnapshotCreated
	})
	if im, _ := r.disk.Get(ref.ID); im.Open || im.Content.Viewed {
		t.Error("a volume that no machine uses is open after its snapshots")
	}

	one, two := r.Restored(first.ID), r.Restored(second.ID, func(s *hangar.VolumeSpec) { s.SizeGB, s.FSType = 3, hangar.FSExt4 })
	if v := r.Usable(one); v.State != hangar.VolumeCreated || v.SizeGB != 1 || v.Wanted != hangar.FSRaw || v.Filling != (hangar.Filling{}) {
		t.Errorf("restored volume %+v", v)
	}
	if v := r.Usable(two); v.State != hangar.VolumeCreated || v.SizeGB != 3 || v.Wanted != hangar.FSRaw {
		t.Errorf("restored volume %+v", v)
	}
	if got := r.disk.Read(one.ID, 0, 5) + r.disk.Read(one.ID, 1<<20, 6); got != "first" {
		t.Errorf("the first snapshot has %q", got)
	}
	if got := r.disk.Read(two.ID, 0, 5) + r.disk.Read(two.ID, 1<<20, 6); got != "firstsecond" {
		t.Errorf("the second snapshot has %q", got)
	}
	if got := r.Story(two); got != "create restore" {
		t.Errorf("events: %s", got)
	}
}

func TestSnapshotRefused(t *testing.T) {
	r := newRig(t)
	ref := r.NewVolume(volumestest.Raw)
	_, err := r.CreateSnapshot(t.Context(), hangar.VolumeRef{App: "other", AppID: "other", ID: ref.ID})
	r.Declined(err, hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
	_, err = r.DestroyVolume(t.Context(), ref)
	r.must(err)
	_, err = r.CreateSnapshot(t.Context(), ref)
	r.Declined(err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
}

// At most two are read at once, and all are taken in the end.
func TestSnapshotsAtOnce(t *testing.T) {
	r := newRig(t)
	g := r.store.Hold("write")
	taken := map[hangar.VolumeRef]hangar.SnapshotID{}
	for range 5 {
		ref := r.NewVolume(volumestest.Raw)
		s, err := r.CreateSnapshot(t.Context(), ref)
		r.must(err)
		taken[ref] = s.ID
	}
	<-g.Reached
	close(g.Open)
	for ref, id := range taken {
		if s := r.Finished(ref, id); s.State != hangar.SnapshotCreated {
			t.Errorf("snapshot %+v", s)
		}
	}
	if r.store.Most() > 2 {
		t.Errorf("%d were written at once", r.store.Most())
	}
}

// An organization that has many snapshots taken does not make another one wait.
func TestSnapshotsTakeTurns(t *testing.T) {
	r := newRig(t)
	g := r.store.Hold("write")
	writing := func(n int) {
		t.Helper()
		r.until(func() bool { return r.store.Writing() == n })
	}
	taken := map[hangar.VolumeRef]hangar.SnapshotID{}
	take := func(edit ...func(*hangar.VolumeSpec)) {
		t.Helper()
		ref := r.NewVolume(append(edit, volumestest.Raw)...)
		s, err := r.CreateSnapshot(t.Context(), ref)
		r.must(err)
		taken[ref] = s.ID
	}
	for range 5 {
		take()
	}
	writing(2)
	take(func(s *hangar.VolumeSpec) { s.OrgID = "another" })
	writing(3)
	close(g.Open)
	for ref, id := range taken {
		if s := r.Finished(ref, id); s.State != hangar.SnapshotCreated {
			t.Errorf("snapshot %+v", s)
		}
	}
}

// A store that fails leaves a snapshot that says so, and nothing half-made.
func TestSnapshotFails(t *testing.T) {
	r := newRig(t)
	ref := r.NewVolume(volumestest.Raw)
	r.disk.Write(ref.ID, 0, "data")
	r.store.Intercept(func(_ context.Context, op string, _ hangar.SnapshotID) error {
		if op == "write" {
			return errors.New("the bucket is full")
		}
		return nil
	})
	s := r.TakeSnapshot(ref)
	if s.State != hangar.SnapshotFailed || s.Fault != "the archive of snapshots cannot be written" || s.FinishedAt.IsZero() || s.Digest != "" {
		t.Errorf("snapshot %+v", s)
	}
	if got := r.Story(ref); got != "create snapshot!" {
		t.Errorf("events: %s", got)
	}
	_, err := r.CreateVolume(t.Context(), hangar.VolumeSpec{ID: hangar.NewVolumeID(), App: "web", AppID: "web", Org: hangar.OrgPersonal, OrgID: volumestest.Org, SizeGB: 1, Snapshot: s.ID})
	r.Declined(err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
	if im, _ := r.disk.Get(ref.ID); im.Open || im.Content.Viewed {
		t.Error("the volume is still open")
	}
	r.store.Intercept(nil)
	if s := r.TakeSnapshot(ref); s.State != hangar.SnapshotCreated {
		t.Errorf("the next snapshot is %+v", s)
	}
}

// The snapshot that the next one would build on can be gone from the archive.
func TestSnapshotWithoutItsBase(t *testing.T) {
	r := newRig(t)
	ref := r.NewVolume(volumestest.Raw)
	r.disk.Write(ref.ID, 0, "data")
	first := r.TakeSnapshot(ref)
	r.must(r.store.Remove(finishtest.Context(t), first.ID))
	second := r.TakeSnapshot(ref)
	if second.State != hangar.SnapshotCreated || second.Digest != first.Digest || r.store.Base(second.ID) != nil {
		t.Errorf("snapshot %+v", second)
	}
}

// A daemon that is killed while it takes snapshots lists none that is missing, leaves no view and
// no orphan, and continues with those that had not begun.
func TestSnapshotKilled(t *testing.T) {
	for _, op := range []string{"write", "open"} {
		t.Run(op, func(t *testing.T) {
			r := newRig(t)
			ref := r.NewVolume(volumestest.Raw)
			r.disk.Write(ref.ID, 0, "data")
			g := r.store.Hold(op)
			s, err := r.CreateSnapshot(t.Context(), ref)
			r.must(err)
			<-g.Reached
			r.crash()
			r.store.Intercept(nil)
			r.open()
			got := r.Finished(ref, s.ID)
			if got.State != hangar.SnapshotFailed || got.Fault == "" {
				t.Errorf("snapshot %+v", got)
			}
			if got := r.Story(ref); got != "create snapshot!" {
				t.Errorf("events: %s", got)
			}
			next := r.TakeSnapshot(ref)
			if next.State != hangar.SnapshotCreated {
				t.Errorf("the next snapshot is %+v", next)
			}
			r.until(func() bool { return slices.Equal(r.store.IDs(), []hangar.SnapshotID{next.ID}) })
			if im, _ := r.disk.Get(ref.ID); im.Open || im.Content.Viewed {
				t.Error("the volume is open")
			}
		})
	}
}

// A snapshot that is complete in the archive and was not recorded as such is removed.
func TestSnapshotKilledBeforeItIsRecorded(t *testing.T) {
	r := newRig(t)
	ref := r.NewVolume(volumestest.Raw)
	r.disk.Write(ref.ID, 0, "data")
	g := r.store.Hold("write")
	s, err := r.CreateSnapshot(t.Context(), ref)
	r.must(err)
	<-g.Reached
	r.crash()
	r.store.Intercept(nil)
	r.store.Put(archive.Entry{Meta: archive.Meta{ID: s.ID, Volume: ref.ID, App: "web", Org: hangar.OrgPersonal}, VolumeSize: 1 << 30})
	r.open()
	if s := r.Finished(ref, s.ID); s.State != hangar.SnapshotFailed {
		t.Errorf("snapshot %+v", s)
	}
	r.until(func() bool { return len(r.store.IDs()) == 0 })
}

// Of several that wait when the daemon is killed, those that had not begun are taken by
// the next.
func TestWaitingSnapshotsGoOn(t *testing.T) {
	r := newRig(t)
	g := r.store.Hold("write")
	var refs []hangar.VolumeRef
	var ids []hangar.SnapshotID
	for range 4 {
		ref := r.NewVolume(volumestest.Raw)
		s, err := r.CreateSnapshot(t.Context(), ref)
		r.must(err)
		refs, ids = append(refs, ref), append(ids, s.ID)
	}
	<-g.Reached
	r.until(func() bool { return r.store.Writing() == 2 })
	r.crash()
	r.store.Intercept(nil)
	r.open()
	states := map[hangar.SnapshotState]int{}
	for i, ref := range refs {
		states[r.Finished(ref, ids[i]).State]++
	}
	if states[hangar.SnapshotCreated] != 2 || states[hangar.SnapshotFailed] != 2 {
		t.Errorf("of two that ran and two that waited there are %v", states)
	}
}

// An archive that is down does not keep the agent from serving; requests that need it say so, and
// work once it is back.
func TestArchiveAway(t *testing.T) {
	r := newRig(t)
	r.store.SetAway(errors.New("no route to host"))
	r.archivePatience = 50 * time.Millisecond
	r.restart()
	ref := r.NewVolume(volumestest.Raw)
	s := r.TakeSnapshot(ref)
	if s.State != hangar.SnapshotFailed || !strings.Contains(s.Fault, "archive") {
		t.Errorf("snapshot %+v", s)
	}
	_, err := r.CreateVolume(t.Context(), hangar.VolumeSpec{ID: hangar.NewVolumeID(), App: "web", AppID: "web", SizeGB: 1, Snapshot: hangar.NewSnapshotID()})
	r.Declined(err, hangar.CodeUnavailable, "", "archive")
	r.store.SetAway(nil)
	r.until(func() bool { return r.TakeSnapshot(ref).State == hangar.SnapshotCreated })
}

func TestRestoreRefused(t *testing.T) {
	r := newRig(t)
	ref := r.NewVolume(volumestest.Raw, func(s *hangar.VolumeSpec) { s.SizeGB = 2 })
	s := r.TakeSnapshot(ref)
	wish := func(edit func(*hangar.VolumeSpec)) error {
		spec := hangar.VolumeSpec{ID: hangar.NewVolumeID(), App: "web", AppID: "web", Org: hangar.OrgPersonal, OrgID: volumestest.Org, SizeGB: 2, Snapshot: s.ID}
		edit(&spec)
		_, err := r.CreateVolume(t.Context(), spec)
		return err
	}
	r.Declined(wish(func(s *hangar.VolumeSpec) { s.SizeGB = 1 }), hangar.CodeInvalid, hangar.ReasonBadConfig, "size_gb: 1 is less than the 2 GB")
	r.must(wish(func(s *hangar.VolumeSpec) { s.App = "other" }))
	r.Declined(wish(func(s *hangar.VolumeSpec) { s.OrgID = "another" }), hangar.CodeNotFound, hangar.ReasonSnapshotNotFound)
	r.Declined(wish(func(s *hangar.VolumeSpec) { s.Snapshot = hangar.NewSnapshotID() }), hangar.CodeNotFound, hangar.ReasonSnapshotNotFound)
	r.Declined(wish(func(s *hangar.VolumeSpec) { s.Source = ref.ID }), hangar.CodeInvalid, hangar.ReasonBadConfig, "source_volume_id")
	r.Declined(wish(func(s *hangar.VolumeSpec) { s.Snapshot, s.Source = "", hangar.NewVolumeID() }), hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
	r.Declined(wish(func(s *hangar.VolumeSpec) { s.Snapshot, s.Source, s.SizeGB = "", ref.ID, 1 }), hangar.CodeInvalid, hangar.ReasonBadConfig, "size_gb")
	_, err := r.DestroyVolume(t.Context(), ref)
	r.must(err)
	r.Declined(wish(func(s *hangar.VolumeSpec) { s.Snapshot, s.Source = "", ref.ID }), hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
	r.must(wish(func(*hangar.VolumeSpec) {})) // its snapshot outlives it
}

// A snapshot that another host has put into the same archive can be restored by its organization.
func TestRestoreFromAnotherHost(t *testing.T) {
	other := newRig(t)
	from := other.NewVolume(volumestest.Raw)
	other.disk.Write(from.ID, 0, "data")
	s := other.TakeSnapshot(from)
	r := newRig(t)
	r.store.Share(other.store, s.ID)
	ref := r.Restored(s.ID)
	if v := r.Usable(ref); v.State != hangar.VolumeCreated || r.disk.Read(ref.ID, 0, 4) != "data" {
		t.Errorf("volume %+v", v)
	}
	_, err := r.CreateVolume(t.Context(), hangar.VolumeSpec{ID: hangar.NewVolumeID(), App: "web", AppID: "web", Org: hangar.OrgPersonal, OrgID: "another", Snapshot: s.ID})
	r.Declined(err, hangar.CodeNotFound, hangar.ReasonSnapshotNotFound)
}

// A damaged snapshot makes a volume that says so and takes no room; a restore that a kill
// interrupts begins again.
func TestRestoreFails(t *testing.T) {
	r := newRig(t)
	from := r.NewVolume(volumestest.Raw)
	r.disk.Write(from.ID, 0, "data")
	s := r.TakeSnapshot(from)
	r.store.Spoil(s.ID)
	ref := r.Restored(s.ID)
	if v := r.Usable(ref); v.State != hangar.VolumeFailed {
		t.Errorf("volume %+v", v)
	}
	if got := r.Story(ref); got != "create restore!" {
		t.Errorf("events: %s", got)
	}
	r.until(func() bool { _, ok := r.disk.Get(ref.ID); return !ok })
	_, err := r.DestroyVolume(t.Context(), ref)
	r.must(err)
}

func TestRestoreKilled(t *testing.T) {
	r := newRig(t)
	from := r.NewVolume(volumestest.Raw, volumestest.OnDemand)
	r.disk.Write(from.ID, 0, "data")
	s := r.TakeSnapshot(from)
	g := r.store.Hold("read")
	ref := r.Restored(s.ID, volumestest.OnDemand)
	<-g.Reached
	if row, err := r.VolumeRow(t.Context(), ref); err != nil || row.Volume.State != hangar.VolumeRestoring || row.Volume.Filling.Progress.Total != 4096 {
		t.Errorf("while it is restored: %+v, %v", row, err)
	}
	// What is being restored stays in the archive although its time is over.
	r.ahead.Add(int64(6 * 24 * time.Hour))
	r.Round(t.Context())
	if r.Snapshot(from, s.ID).State != "" {
		t.Error("a snapshot is listed although it has expired")
	}
	r.crash()
	r.disk.Set(ref.ID, func(im *volumestest.Image) { im.Content.Write([]byte("half of something"), 8192) })
	r.store.Intercept(nil)
	r.open()
	if v := r.Usable(ref); v.State != hangar.VolumeCreated || r.disk.Read(ref.ID, 0, 4) != "data" || r.disk.Read(ref.ID, 8192, 4) != "" {
		t.Errorf("volume %+v", v)
	}
	r.Round(t.Context())
	r.until(func() bool { return len(r.store.IDs()) == 0 })
}

func TestRestoreWithoutRoom(t *testing.T) {
	r := newRig(t)
	from := r.NewVolume(volumestest.Raw)
	r.disk.Write(from.ID, 0, strings.Repeat("x", 1<<20))
	s := r.TakeSnapshot(from)
	r.disk.Set(from.ID, func(im *volumestest.Image) { im.Used = 2 << 30 }) // no promise is broken by that
	r.disk.SetFree(2<<30 + 256<<20 + 1<<19)
	ref := r.Restored(s.ID)
	r.until(func() bool { return r.Story(ref) == "create restore!" })
	events, err := r.VolumeEvents(t.Context(), ref)
	r.must(err)
	if !strings.Contains(events[0].Fault, "cannot restore a snapshot: the disk has 524288 bytes") {
		t.Errorf("event %+v", events[0])
	}
	r.disk.SetFree(100 << 30)
	if v := r.Usable(ref); v.State != hangar.VolumeCreated {
		t.Errorf("with room, volume %+v", v)
	}
}

// A fork is the other volume at one moment, open or not.
func TestFork(t *testing.T) {
	r := newRig(t)
	from := r.NewVolume(volumestest.Raw)
	r.disk.Write(from.ID, 3<<20, "before")
	ref := r.fork(from, func(s *hangar.VolumeSpec) { s.Encrypted = false })
	if v := r.Usable(ref); v.State != hangar.VolumeCreated || v.SizeGB != 1 || v.Encrypted || v.Wanted != hangar.FSRaw || v.Filling != (hangar.Filling{}) {
		t.Errorf("fork %+v", v)
	}
	r.disk.Write(from.ID, 3<<20, "after!")
	if got := r.disk.Read(ref.ID, 3<<20, 6); got != "before" {
		t.Errorf("the fork has %q", got)
	}
	if got := r.Story(ref); got != "create restore" {
		t.Errorf("events: %s", got)
	}
	// A fork disturbs no snapshot: the next one still knows what has changed.
	first := r.TakeSnapshot(from)
	r.Usable(r.fork(from))
	second := r.TakeSnapshot(from)
	if base := r.store.Base(second.ID); base == nil || base.ID != first.ID || base.Changed.Length() != 0 {
		t.Errorf("the snapshot after a fork builds on %+v", base)
	}
	// Nor does it wait for a missing one.
	g := r.store.Hold("write")
	s, err := r.CreateSnapshot(t.Context(), from)
	r.must(err)
	<-g.Reached
	late := r.fork(from)
	close(g.Open)
	if v := r.Usable(late); v.State != hangar.VolumeCreated || r.Finished(from, s.ID).State != hangar.SnapshotCreated {
		t.Errorf("fork %+v", v)
	}
	if im, _ := r.disk.Get(from.ID); im.Open || im.Content.Viewed {
		t.Error("the volume is open")
	}
}

// Retention takes snapshots off the list and then out of the archive, even if the archive is down
// meanwhile, and a destroyed volume is forgotten with its last snapshot.
func TestRetention(t *testing.T) {
	r := newRig(t)
	ref := r.NewVolume(volumestest.Raw, volumestest.OnDemand, func(s *hangar.VolumeSpec) { s.SnapshotRetention = 1 })
	short := r.TakeSnapshot(ref)
	_, err := r.UpdateVolume(t.Context(), ref, hangar.VolumeUpdate{SnapshotRetention: new(3)})
	r.must(err)
	long := r.TakeSnapshot(ref)
	if short.RetentionDays != 1 || long.RetentionDays != 3 {
		t.Fatalf("retentions %d and %d", short.RetentionDays, long.RetentionDays)
	}
	_, err = r.DestroyVolume(t.Context(), ref)
	r.must(err)
	r.store.SetAway(errors.New("no route to host"))
	r.ahead.Add(int64(25 * time.Hour))
	r.Purge(t.Context())
	r.Round(t.Context())
	if list, err := r.Snapshots(t.Context(), ref); err != nil || len(list) != 1 || list[0].ID != long.ID {
		t.Fatalf("snapshots %+v, %v", list, err)
	}
	if ids := r.store.IDs(); len(ids) != 2 {
		t.Fatalf("the archive has %v", ids)
	}
	r.crash()
	r.store.SetAway(nil)
	r.open()
	r.until(func() bool { return slices.Equal(r.store.IDs(), []hangar.SnapshotID{long.ID}) })
	if v := r.Look(ref); v.State != hangar.VolumeDestroyed {
		t.Fatalf("volume %+v", v)
	}
	r.Usable(r.Restored(long.ID, volumestest.OnDemand))
	r.ahead.Add(int64(48 * time.Hour))
	r.Round(t.Context())
	r.Purge(t.Context())
	_, err = r.VolumeRow(t.Context(), ref)
	r.Declined(err, hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
	if ids := r.store.IDs(); len(ids) != 0 {
		t.Errorf("the archive has %v", ids)
	}
	r.must(r.Collect(t.Context()))
}

// Daily snapshots are taken by the clock, one a day, and only of what wants them.
func TestDailySnapshots(t *testing.T) {
	r := newRig(t)
	wanted, unwanted, unused := r.NewVolume(volumestest.Raw), r.NewVolume(volumestest.Raw, volumestest.OnDemand), r.NewVolume()
	daily := func(ref hangar.VolumeRef) (n int) {
		list, err := r.Snapshots(t.Context(), ref)
		r.must(err)
		for _, s := range list {
			if s.Daily && r.Finished(ref, s.ID).State == hangar.SnapshotCreated {
				n++
			}
		}
		return n
	}
	for day := range 9 {
		r.ahead.Add(int64(24 * time.Hour))
		for range 2 {
			r.Round(t.Context())
			if got, want := daily(wanted), min(day+1, 5); got != want {
				t.Fatalf("on day %d there are %d, want %d", day, got, want)
			}
		}
	}
	if daily(unwanted)+daily(unused) != 0 {
		t.Error("there are daily snapshots that were not wanted")
	}
	r.until(func() bool { r.Round(t.Context()); return len(r.store.IDs()) == 5 })
	r.ahead.Add(int64(30 * 24 * time.Hour)) // the daemon was down for long
	r.Round(t.Context())
	r.Round(t.Context())
	r.until(func() bool { return daily(wanted) == 1 })
	r.until(func() bool { r.Round(t.Context()); return len(r.store.IDs()) == 1 })
}
