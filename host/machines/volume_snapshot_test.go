package machines_test

import (
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// TestSnapshotBesideItsMachine: what is written while a snapshot is being read is not in it, and
// the volume's Machine may start and stop meanwhile.
func TestSnapshotBesideItsMachine(t *testing.T) {
	r := newRig(t)
	ref := r.NewVolume()
	m := r.create(nil, mounting(ref))
	r.wait(m, hangar.MachineStarted)
	r.must(r.StopMachine(t.Context(), m, hangar.MachineStop{}))
	r.wait(m, hangar.MachineStopped)
	r.disk.Write(ref.ID, 0, "before")
	g := r.store.Hold("write")
	s, err := r.CreateSnapshot(t.Context(), ref)
	r.must(err)
	<-g.Reached
	if s := r.Snapshot(ref, s.ID); s.State != hangar.SnapshotRunning || s.Progress.Total == 0 {
		t.Errorf("the snapshot under way is %+v", s)
	}
	_, err = r.CreateSnapshot(t.Context(), ref)
	r.Declined(err, hangar.CodeFailedPrecondition, hangar.ReasonSnapshotRunning, "failed_precondition: snapshot is already scheduled at "+s.CreatedAt.Format(time.RFC3339))
	r.start(m)
	r.disk.Write(ref.ID, 0, "during")
	r.must(r.StopMachine(t.Context(), m, hangar.MachineStop{}))
	r.wait(m, hangar.MachineStopped)
	r.start(m)
	close(g.Open)
	if s := r.Finished(ref, s.ID); s.State != hangar.SnapshotCreated {
		t.Fatalf("snapshot %+v", s)
	}
	if im, _ := r.disk.Get(ref.ID); !im.Open || !im.Mounted {
		t.Error("the volume was closed under its machine")
	}
	r.must(r.StopMachine(t.Context(), m, hangar.MachineStop{}))
	r.wait(m, hangar.MachineStopped)
	r.until(func() bool { im, _ := r.disk.Get(ref.ID); return !im.Open })
	copied := r.Restored(s.ID)
	if v := r.Usable(copied); v.State != hangar.VolumeCreated || r.disk.Read(copied.ID, 0, 6) != "before" {
		t.Errorf("restored volume %+v has %q", v, r.disk.Read(copied.ID, 0, 6))
	}
	again := r.create(nil, mounting(copied))
	r.wait(again, hangar.MachineStarted)
	if got := r.Story(copied); got != "create restore attach" {
		t.Errorf("events: %s: what was restored was formatted", got)
	}
}

func TestSnapshotOfUnusedVolume(t *testing.T) {
	r := newRig(t)
	ref := r.NewVolume()
	s := r.TakeSnapshot(ref)
	if s.State != hangar.SnapshotCreated || s.Size != 0 || s.VolumeSize != 1<<30 {
		t.Errorf("snapshot %+v", s)
	}
	copied := r.Restored(s.ID)
	if v := r.Usable(copied); v.State != hangar.VolumeCreated {
		t.Errorf("restored volume %+v", v)
	}
	m := r.create(nil, mounting(copied))
	r.wait(m, hangar.MachineStarted)
	if got := r.Story(copied); got != "create restore attach format" {
		t.Errorf("events: %s", got)
	}
}
