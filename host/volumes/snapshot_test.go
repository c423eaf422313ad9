package volumes_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/archive"
	"github.com/hangar-platform/hangar/host/volumes/volumestest"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
)

// raw makes a volume that can have something on it without a Machine.
func raw(s *hangar.VolumeSpec) { s.FSType = hangar.FSRaw }

// onDemand makes a volume that has no daily snapshots.
func onDemand(s *hangar.VolumeSpec) { s.AutoBackup = false }

// snapshot takes one and waits for it.
func (r *rig) snapshot(ref hangar.VolumeRef) hangar.Snapshot {
	r.Helper()
	s, err := r.CreateSnapshot(r.Context(), ref)
	r.must(err)
	if s.State != hangar.SnapshotWaiting || !s.ID.Valid() || s.Volume != ref.ID || s.RetentionDays == 0 {
		r.Errorf("a new snapshot is %+v", s)
	}
	return r.finished(ref, s.ID)
}

// finished waits until nothing happens to a snapshot any more.
func (r *rig) finished(ref hangar.VolumeRef, id hangar.SnapshotID) (s hangar.Snapshot) {
	r.Helper()
	r.until(func() bool {
		s = r.snap(ref, id)
		return s.State != hangar.SnapshotWaiting && s.State != hangar.SnapshotRunning
	})
	return s
}

// snap returns one snapshot as others see it; its State is empty if there is none.
func (r *rig) snap(ref hangar.VolumeRef, id hangar.SnapshotID) hangar.Snapshot {
	r.Helper()
	list, err := r.Snapshots(r.Context(), ref)
	r.must(err)
	for _, s := range list {
		if s.ID == id {
			return *s
		}
	}
	return hangar.Snapshot{}
}

func (r *rig) fork(of hangar.VolumeRef, edit ...func(*hangar.VolumeSpec)) hangar.VolumeRef {
	r.Helper()
	return r.volume(append([]func(*hangar.VolumeSpec){func(s *hangar.VolumeSpec) { s.Source, s.SizeGB = of.ID, 0 }}, edit...)...)
}

func (r *rig) restored(id hangar.SnapshotID, edit ...func(*hangar.VolumeSpec)) hangar.VolumeRef {
	r.Helper()
	return r.volume(append([]func(*hangar.VolumeSpec){func(s *hangar.VolumeSpec) { s.Snapshot, s.SizeGB = id, 0 }}, edit...)...)
}

// usable waits until a volume is filled.
func (r *rig) usable(ref hangar.VolumeRef) hangar.Volume {
	r.Helper()
	r.until(func() bool { return r.look(ref).State != hangar.VolumeRestoring })
	return r.look(ref)
}

// gate holds up an operation of the archive until it is opened.
type gate struct {
	op      string
	reached chan struct{}
	open    chan struct{}
	once    sync.Once
}

func (r *rig) gate(op string) *gate {
	g := &gate{op: op, reached: make(chan struct{}), open: make(chan struct{})}
	r.store.Intercept(func(ctx context.Context, op string, _ hangar.SnapshotID) error {
		if op != g.op {
			return nil
		}
		g.once.Do(func() { close(g.reached) })
		select {
		case <-g.open:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return g
}

func TestSnapshot(t *testing.T) {
	r := newRig(t)
	ref := r.volume(raw)
	r.disk.Write(ref.ID, 0, "first")
	first := r.snapshot(ref)
	if first.State != hangar.SnapshotCreated || first.Size != 4096 || first.VolumeSize != 1<<30 || first.Digest == "" ||
		first.Frozen == 0 || first.FinishedAt.IsZero() || first.Fault != "" || first.RetentionDays != 5 {
		t.Errorf("snapshot %+v", first)
	}
	r.disk.Write(ref.ID, 1<<20, "second")
	second := r.snapshot(ref)
	if base := r.store.Base(second.ID); base == nil || base.ID != first.ID || base.Changed.Length() != 4096 || second.Size != 4096 {
		t.Errorf("the second one builds on %+v and is %+v", base, second)
	}
	list, err := r.Snapshots(t.Context(), ref)
	r.must(err)
	if len(list) != 2 || list[0].ID != second.ID {
		t.Errorf("snapshots %+v are not newest first", list)
	}
	if got := r.story(ref); got != "create snapshot snapshot" {
		t.Errorf("events: %s", got)
	}
	r.until(func() bool {
		row, _ := r.vols.Row(ref)
		return len(row.Snapshots) == 2 && row.Snapshots[0].State == hangar.SnapshotCreated
	})
	if im, _ := r.disk.Get(ref.ID); im.Open || im.Content.Viewed {
		t.Error("a volume that no machine uses is open after its snapshots")
	}

	one, two := r.restored(first.ID), r.restored(second.ID, func(s *hangar.VolumeSpec) { s.SizeGB, s.FSType = 3, hangar.FSExt4 })
	if v := r.usable(one); v.State != hangar.VolumeCreated || v.SizeGB != 1 || v.Wanted != hangar.FSRaw || v.Filling != (hangar.Filling{}) {
		t.Errorf("restored volume %+v", v)
	}
	if v := r.usable(two); v.State != hangar.VolumeCreated || v.SizeGB != 3 || v.Wanted != hangar.FSRaw {
		t.Errorf("restored volume %+v", v)
	}
	if got := r.disk.Read(one.ID, 0, 5) + r.disk.Read(one.ID, 1<<20, 6); got != "first" {
		t.Errorf("the first snapshot has %q", got)
	}
	if got := r.disk.Read(two.ID, 0, 5) + r.disk.Read(two.ID, 1<<20, 6); got != "firstsecond" {
		t.Errorf("the second snapshot has %q", got)
	}
	if got := r.story(two); got != "create restore" {
		t.Errorf("events: %s", got)
	}
}

func TestSnapshotRefused(t *testing.T) {
	r := newRig(t)
	ref := r.volume(raw)
	_, err := r.CreateSnapshot(t.Context(), hangar.VolumeRef{App: "other", AppID: "other", ID: ref.ID})
	r.declined(err, hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
	_, err = r.DestroyVolume(t.Context(), ref)
	r.must(err)
	_, err = r.CreateSnapshot(t.Context(), ref)
	r.declined(err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
}

// At most two are read at once, and all are taken in the end.
func TestSnapshotsAtOnce(t *testing.T) {
	r := newRig(t)
	g := r.gate("write")
	taken := map[hangar.VolumeRef]hangar.SnapshotID{}
	for range 5 {
		ref := r.volume(raw)
		s, err := r.CreateSnapshot(t.Context(), ref)
		r.must(err)
		taken[ref] = s.ID
	}
	<-g.reached
	close(g.open)
	for ref, id := range taken {
		if s := r.finished(ref, id); s.State != hangar.SnapshotCreated {
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
	g := r.gate("write")
	writing := func(n int) {
		t.Helper()
		r.until(func() bool { return r.store.Writing() == n })
	}
	taken := map[hangar.VolumeRef]hangar.SnapshotID{}
	take := func(edit ...func(*hangar.VolumeSpec)) {
		t.Helper()
		ref := r.volume(append(edit, raw)...)
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
	close(g.open)
	for ref, id := range taken {
		if s := r.finished(ref, id); s.State != hangar.SnapshotCreated {
			t.Errorf("snapshot %+v", s)
		}
	}
}

// A store that fails leaves a snapshot that says so, and nothing half-made.
func TestSnapshotFails(t *testing.T) {
	r := newRig(t)
	ref := r.volume(raw)
	r.disk.Write(ref.ID, 0, "data")
	r.store.Intercept(func(_ context.Context, op string, _ hangar.SnapshotID) error {
		if op == "write" {
			return errors.New("the bucket is full")
		}
		return nil
	})
	s := r.snapshot(ref)
	if s.State != hangar.SnapshotFailed || s.Fault != "the archive of snapshots cannot be written" || s.FinishedAt.IsZero() || s.Digest != "" {
		t.Errorf("snapshot %+v", s)
	}
	if got := r.story(ref); got != "create snapshot!" {
		t.Errorf("events: %s", got)
	}
	_, err := r.CreateVolume(t.Context(), hangar.VolumeSpec{ID: hangar.NewVolumeID(), App: "web", AppID: "web", Org: hangar.OrgPersonal, OrgID: testOrg, SizeGB: 1, Snapshot: s.ID})
	r.declined(err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
	if im, _ := r.disk.Get(ref.ID); im.Open || im.Content.Viewed {
		t.Error("the volume is still open")
	}
	r.store.Intercept(nil)
	if s := r.snapshot(ref); s.State != hangar.SnapshotCreated {
		t.Errorf("the next snapshot is %+v", s)
	}
}

// The snapshot that the next one would build on can be gone from the archive.
func TestSnapshotWithoutItsBase(t *testing.T) {
	r := newRig(t)
	ref := r.volume(raw)
	r.disk.Write(ref.ID, 0, "data")
	first := r.snapshot(ref)
	r.must(r.store.Remove(finishtest.Context(t), first.ID))
	second := r.snapshot(ref)
	if second.State != hangar.SnapshotCreated || second.Digest != first.Digest || r.store.Base(second.ID) != nil {
		t.Errorf("snapshot %+v", second)
	}
}

// A daemon that is killed while it takes snapshots lists none that is not there, leaves
// no view and no orphan, and goes on with those that had not begun.
func TestSnapshotKilled(t *testing.T) {
	for _, op := range []string{"write", "open"} {
		t.Run(op, func(t *testing.T) {
			r := newRig(t)
			ref := r.volume(raw)
			r.disk.Write(ref.ID, 0, "data")
			g := r.gate(op)
			s, err := r.CreateSnapshot(t.Context(), ref)
			r.must(err)
			<-g.reached
			r.crash()
			r.store.Intercept(nil)
			r.open()
			got := r.finished(ref, s.ID)
			if got.State != hangar.SnapshotFailed || got.Fault == "" {
				t.Errorf("snapshot %+v", got)
			}
			if got := r.story(ref); got != "create snapshot!" {
				t.Errorf("events: %s", got)
			}
			next := r.snapshot(ref)
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
	ref := r.volume(raw)
	r.disk.Write(ref.ID, 0, "data")
	g := r.gate("write")
	s, err := r.CreateSnapshot(t.Context(), ref)
	r.must(err)
	<-g.reached
	r.crash()
	r.store.Intercept(nil)
	r.store.Put(archive.Entry{Meta: archive.Meta{ID: s.ID, Volume: ref.ID, App: "web", Org: hangar.OrgPersonal}, VolumeSize: 1 << 30})
	r.open()
	if s := r.finished(ref, s.ID); s.State != hangar.SnapshotFailed {
		t.Errorf("snapshot %+v", s)
	}
	r.until(func() bool { return len(r.store.IDs()) == 0 })
}

// Of several that wait when the daemon is killed, those that had not begun are taken by
// the next.
func TestWaitingSnapshotsGoOn(t *testing.T) {
	r := newRig(t)
	g := r.gate("write")
	var refs []hangar.VolumeRef
	var ids []hangar.SnapshotID
	for range 4 {
		ref := r.volume(raw)
		s, err := r.CreateSnapshot(t.Context(), ref)
		r.must(err)
		refs, ids = append(refs, ref), append(ids, s.ID)
	}
	<-g.reached
	r.until(func() bool { return r.store.Writing() == 2 })
	r.crash()
	r.store.Intercept(nil)
	r.open()
	states := map[hangar.SnapshotState]int{}
	for i, ref := range refs {
		states[r.finished(ref, ids[i]).State]++
	}
	if states[hangar.SnapshotCreated] != 2 || states[hangar.SnapshotFailed] != 2 {
		t.Errorf("of two that ran and two that waited there are %v", states)
	}
}

// An archive that is away does not keep the agent from serving; what is asked of it says
// so, and works once it is back.
func TestArchiveAway(t *testing.T) {
	r := newRig(t)
	r.store.SetAway(errors.New("no route to host"))
	r.archivePatience = 50 * time.Millisecond
	r.restart()
	ref := r.volume(raw)
	s := r.snapshot(ref)
	if s.State != hangar.SnapshotFailed || !strings.Contains(s.Fault, "archive") {
		t.Errorf("snapshot %+v", s)
	}
	_, err := r.CreateVolume(t.Context(), hangar.VolumeSpec{ID: hangar.NewVolumeID(), App: "web", AppID: "web", SizeGB: 1, Snapshot: hangar.NewSnapshotID()})
	r.declined(err, hangar.CodeUnavailable, "", "archive")
	r.store.SetAway(nil)
	r.until(func() bool { return r.snapshot(ref).State == hangar.SnapshotCreated })
}

func TestRestoreRefused(t *testing.T) {
	r := newRig(t)
	ref := r.volume(raw, func(s *hangar.VolumeSpec) { s.SizeGB = 2 })
	s := r.snapshot(ref)
	wish := func(edit func(*hangar.VolumeSpec)) error {
		spec := hangar.VolumeSpec{ID: hangar.NewVolumeID(), App: "web", AppID: "web", Org: hangar.OrgPersonal, OrgID: testOrg, SizeGB: 2, Snapshot: s.ID}
		edit(&spec)
		_, err := r.CreateVolume(t.Context(), spec)
		return err
	}
	r.declined(wish(func(s *hangar.VolumeSpec) { s.SizeGB = 1 }), hangar.CodeInvalid, hangar.ReasonBadConfig, "size_gb: 1 is less than the 2 GB")
	r.must(wish(func(s *hangar.VolumeSpec) { s.App = "other" }))
	r.declined(wish(func(s *hangar.VolumeSpec) { s.OrgID = "another" }), hangar.CodeNotFound, hangar.ReasonSnapshotNotFound)
	r.declined(wish(func(s *hangar.VolumeSpec) { s.Snapshot = hangar.NewSnapshotID() }), hangar.CodeNotFound, hangar.ReasonSnapshotNotFound)
	r.declined(wish(func(s *hangar.VolumeSpec) { s.Source = ref.ID }), hangar.CodeInvalid, hangar.ReasonBadConfig, "source_volume_id")
	r.declined(wish(func(s *hangar.VolumeSpec) { s.Snapshot, s.Source = "", hangar.NewVolumeID() }), hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
	r.declined(wish(func(s *hangar.VolumeSpec) { s.Snapshot, s.Source, s.SizeGB = "", ref.ID, 1 }), hangar.CodeInvalid, hangar.ReasonBadConfig, "size_gb")
	_, err := r.DestroyVolume(t.Context(), ref)
	r.must(err)
	r.declined(wish(func(s *hangar.VolumeSpec) { s.Snapshot, s.Source = "", ref.ID }), hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
	r.must(wish(func(*hangar.VolumeSpec) {})) // its snapshot outlives it
}

// A snapshot that another host has put into the same archive can be restored by its organization.
func TestRestoreFromAnotherHost(t *testing.T) {
	other := newRig(t)
	from := other.volume(raw)
	other.disk.Write(from.ID, 0, "data")
	s := other.snapshot(from)
	r := newRig(t)
	r.store.Share(other.store, s.ID)
	ref := r.restored(s.ID)
	if v := r.usable(ref); v.State != hangar.VolumeCreated || r.disk.Read(ref.ID, 0, 4) != "data" {
		t.Errorf("volume %+v", v)
	}
	_, err := r.CreateVolume(t.Context(), hangar.VolumeSpec{ID: hangar.NewVolumeID(), App: "web", AppID: "web", Org: hangar.OrgPersonal, OrgID: "another", Snapshot: s.ID})
	r.declined(err, hangar.CodeNotFound, hangar.ReasonSnapshotNotFound)
}

// A damaged snapshot makes a volume that says so and takes no room; a restore that a kill
// interrupts begins again.
func TestRestoreFails(t *testing.T) {
	r := newRig(t)
	from := r.volume(raw)
	r.disk.Write(from.ID, 0, "data")
	s := r.snapshot(from)
	r.store.Spoil(s.ID)
	ref := r.restored(s.ID)
	if v := r.usable(ref); v.State != hangar.VolumeFailed {
		t.Errorf("volume %+v", v)
	}
	if got := r.story(ref); got != "create restore!" {
		t.Errorf("events: %s", got)
	}
	r.until(func() bool { _, ok := r.disk.Get(ref.ID); return !ok })
	_, err := r.DestroyVolume(t.Context(), ref)
	r.must(err)
}

func TestRestoreKilled(t *testing.T) {
	r := newRig(t)
	from := r.volume(raw, onDemand)
	r.disk.Write(from.ID, 0, "data")
	s := r.snapshot(from)
	g := r.gate("read")
	ref := r.restored(s.ID, onDemand)
	<-g.reached
	if row, err := r.VolumeRow(t.Context(), ref); err != nil || row.Volume.State != hangar.VolumeRestoring || row.Volume.Filling.Progress.Total != 4096 {
		t.Errorf("while it is restored: %+v, %v", row, err)
	}
	// What is being restored stays in the archive although its time is over.
	r.ahead.Add(int64(6 * 24 * time.Hour))
	r.Round(t.Context())
	if r.snap(from, s.ID).State != "" {
		t.Error("a snapshot is listed although it has expired")
	}
	r.crash()
	r.disk.Set(ref.ID, func(im *volumestest.Image) { im.Content.Write([]byte("half of something"), 8192) })
	r.store.Intercept(nil)
	r.open()
	if v := r.usable(ref); v.State != hangar.VolumeCreated || r.disk.Read(ref.ID, 0, 4) != "data" || r.disk.Read(ref.ID, 8192, 4) != "" {
		t.Errorf("volume %+v", v)
	}
	r.Round(t.Context())
	r.until(func() bool { return len(r.store.IDs()) == 0 })
}

func TestRestoreWithoutRoom(t *testing.T) {
	r := newRig(t)
	from := r.volume(raw)
	r.disk.Write(from.ID, 0, strings.Repeat("x", 1<<20))
	s := r.snapshot(from)
	r.disk.Set(from.ID, func(im *volumestest.Image) { im.Used = 2 << 30 }) // no promise is broken by that
	r.disk.SetFree(2<<30 + 256<<20 + 1<<19)
	ref := r.restored(s.ID)
	r.until(func() bool { return r.story(ref) == "create restore!" })
	events, err := r.VolumeEvents(t.Context(), ref)
	r.must(err)
	if !strings.Contains(events[0].Fault, "cannot restore a snapshot: the disk has 524288 bytes") {
		t.Errorf("event %+v", events[0])
	}
	r.disk.SetFree(100 << 30)
	if v := r.usable(ref); v.State != hangar.VolumeCreated {
		t.Errorf("with room, volume %+v", v)
	}
}

// A fork is the other volume at one moment, open or not.
func TestFork(t *testing.T) {
	r := newRig(t)
	from := r.volume(raw)
	r.disk.Write(from.ID, 3<<20, "before")
	ref := r.fork(from, func(s *hangar.VolumeSpec) { s.Encrypted = false })
	if v := r.usable(ref); v.State != hangar.VolumeCreated || v.SizeGB != 1 || v.Encrypted || v.Wanted != hangar.FSRaw || v.Filling != (hangar.Filling{}) {
		t.Errorf("fork %+v", v)
	}
	r.disk.Write(from.ID, 3<<20, "after!")
	if got := r.disk.Read(ref.ID, 3<<20, 6); got != "before" {
		t.Errorf("the fork has %q", got)
	}
	if got := r.story(ref); got != "create restore" {
		t.Errorf("events: %s", got)
	}
	// A fork disturbs no snapshot: the next one still knows what has changed.
	first := r.snapshot(from)
	r.usable(r.fork(from))
	second := r.snapshot(from)
	if base := r.store.Base(second.ID); base == nil || base.ID != first.ID || base.Changed.Length() != 0 {
		t.Errorf("the snapshot after a fork builds on %+v", base)
	}
	// Nor does it wait for one in vain.
	g := r.gate("write")
	s, err := r.CreateSnapshot(t.Context(), from)
	r.must(err)
	<-g.reached
	late := r.fork(from)
	close(g.open)
	if v := r.usable(late); v.State != hangar.VolumeCreated || r.finished(from, s.ID).State != hangar.SnapshotCreated {
		t.Errorf("fork %+v", v)
	}
	if im, _ := r.disk.Get(from.ID); im.Open || im.Content.Viewed {
		t.Error("the volume is open")
	}
}

// Retention takes snapshots off the list and then out of the archive, whatever is away
// meanwhile, and a destroyed volume is forgotten with its last snapshot.
func TestRetention(t *testing.T) {
	r := newRig(t)
	ref := r.volume(raw, onDemand, func(s *hangar.VolumeSpec) { s.SnapshotRetention = 1 })
	short := r.snapshot(ref)
	_, err := r.UpdateVolume(t.Context(), ref, hangar.VolumeUpdate{SnapshotRetention: new(3)})
	r.must(err)
	long := r.snapshot(ref)
	if short.RetentionDays != 1 || long.RetentionDays != 3 {
		t.Fatalf("retentions %d and %d", short.RetentionDays, long.RetentionDays)
	}
	_, err = r.DestroyVolume(t.Context(), ref)
	r.must(err)
	r.ahead.Add(int64(25 * time.Hour))
	r.Purge(t.Context())
	r.store.SetAway(errors.New("no route to host"))
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
	if v := r.look(ref); v.State != hangar.VolumeDestroyed {
		t.Fatalf("volume %+v", v)
	}
	r.usable(r.restored(long.ID, onDemand))
	r.ahead.Add(int64(48 * time.Hour))
	r.Round(t.Context())
	r.Purge(t.Context())
	_, err = r.VolumeRow(t.Context(), ref)
	r.declined(err, hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
	if ids := r.store.IDs(); len(ids) != 0 {
		t.Errorf("the archive has %v", ids)
	}
	r.must(r.Collect(t.Context()))
}

// Daily snapshots are taken by the clock, one a day, and only of what wants them.
func TestDailySnapshots(t *testing.T) {
	r := newRig(t)
	wanted, unwanted, unused := r.volume(raw), r.volume(raw, onDemand), r.volume()
	daily := func(ref hangar.VolumeRef) (n int) {
		list, err := r.Snapshots(t.Context(), ref)
		r.must(err)
		for _, s := range list {
			if s.Daily && r.finished(ref, s.ID).State == hangar.SnapshotCreated {
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
		t.Error("there are daily snapshots that nobody wanted")
	}
	r.until(func() bool { r.Round(t.Context()); return len(r.store.IDs()) == 5 })
	r.ahead.Add(int64(30 * 24 * time.Hour)) // the daemon was down for long
	r.Round(t.Context())
	r.Round(t.Context())
	r.until(func() bool { return daily(wanted) == 1 })
	r.until(func() bool { r.Round(t.Context()); return len(r.store.IDs()) == 1 })
}
