package machines_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// onDemand makes a volume that has no daily snapshots.
func onDemand(s *hangar.VolumeSpec) { s.AutoBackup = false }

// raw makes a volume that can have something on it without a Machine.
func raw(s *hangar.VolumeSpec) { s.FSType = hangar.FSRaw }

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

// What is written while a snapshot is being read is not in it, and the Machine of the
// volume may start and stop meanwhile.
func TestSnapshotBesideItsMachine(t *testing.T) {
	r := newRig(t)
	ref := r.volume()
	m := r.create(nil, mounting(ref))
	r.wait(m, hangar.MachineStarted)
	r.must(r.StopMachine(t.Context(), m, hangar.MachineStop{}))
	r.wait(m, hangar.MachineStopped)
	r.disk.Write(ref.ID, 0, "before")
	g := r.gate("write")
	s, err := r.CreateSnapshot(t.Context(), ref)
	r.must(err)
	<-g.reached
	if s := r.snap(ref, s.ID); s.State != hangar.SnapshotRunning || s.Progress.Total == 0 {
		t.Errorf("the snapshot under way is %+v", s)
	}
	_, err = r.CreateSnapshot(t.Context(), ref)
	r.declined(err, hangar.CodeFailedPrecondition, hangar.ReasonSnapshotRunning, "failed_precondition: snapshot is already scheduled at "+s.CreatedAt.Format(time.RFC3339))
	r.start(m)
	r.disk.Write(ref.ID, 0, "during")
	r.must(r.StopMachine(t.Context(), m, hangar.MachineStop{}))
	r.wait(m, hangar.MachineStopped)
	r.start(m)
	close(g.open)
	if s := r.finished(ref, s.ID); s.State != hangar.SnapshotCreated {
		t.Fatalf("snapshot %+v", s)
	}
	if im, _ := r.disk.Get(ref.ID); !im.Open || !im.Mounted {
		t.Error("the volume was closed under its machine")
	}
	r.must(r.StopMachine(t.Context(), m, hangar.MachineStop{}))
	r.wait(m, hangar.MachineStopped)
	r.until(func() bool { im, _ := r.disk.Get(ref.ID); return !im.Open })
	copied := r.restored(s.ID)
	if v := r.usable(copied); v.State != hangar.VolumeCreated || r.disk.Read(copied.ID, 0, 6) != "before" {
		t.Errorf("restored volume %+v has %q", v, r.disk.Read(copied.ID, 0, 6))
	}
	again := r.create(nil, mounting(copied))
	r.wait(again, hangar.MachineStarted)
	if got := r.story(copied); got != "create restore attach" {
		t.Errorf("events: %s: what was restored was formatted", got)
	}
}

func TestSnapshotOfUnusedVolume(t *testing.T) {
	r := newRig(t)
	ref := r.volume()
	s := r.snapshot(ref)
	if s.State != hangar.SnapshotCreated || s.Size != 0 || s.VolumeSize != 1<<30 {
		t.Errorf("snapshot %+v", s)
	}
	copied := r.restored(s.ID)
	if v := r.usable(copied); v.State != hangar.VolumeCreated {
		t.Errorf("restored volume %+v", v)
	}
	m := r.create(nil, mounting(copied))
	r.wait(m, hangar.MachineStarted)
	if got := r.story(copied); got != "create restore attach format" {
		t.Errorf("events: %s", got)
	}
}
