package volumes_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/volumes/volumestest"
)

func TestDrillPasses(t *testing.T) {
	r := newRig(t)
	_, err := r.VolumeDrill(t.Context(), "web")
	r.Declined(err, hangar.CodeNotFound, "")
	ref := r.NewVolume(volumestest.Raw)
	_, err = r.DrillVolumes(t.Context(), "web")
	r.Declined(err, hangar.CodeFailedPrecondition, hangar.ReasonSnapshotNotFound)
	r.disk.Write(ref.ID, 1<<20, "data")
	s := r.TakeSnapshot(ref)
	g := r.store.Hold("read")
	begun, err := r.DrillVolumes(t.Context(), "web")
	r.must(err)
	<-g.Reached
	if drill, err := r.VolumeDrill(t.Context(), "web"); err != nil || drill.Progress.Total != 4096 {
		t.Errorf("the drill under way is %+v, %v", drill, err)
	}
	_, err = r.DrillVolumes(t.Context(), "web")
	r.Declined(err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
	if r.disk.Count() != 2 {
		t.Errorf("there are %d images", r.disk.Count())
	}
	close(g.Open)
	drill := r.DrillEnd()
	if !drill.Passed || drill.Fault != "" || drill.Snapshot != s.ID || drill.Volume != ref.ID || !drill.StartedAt.Equal(begun.StartedAt) {
		t.Errorf("drill %+v", drill)
	}
	if r.disk.Count() != 1 {
		t.Errorf("%d images are left", r.disk.Count())
	}
	r.until(func() bool { return r.Story(ref) == "create snapshot drill" })
	if r.Counted("hangar_volume_drills_total", "passed") != 1 || r.Counted("hangar_volume_snapshots_total", "created") != 1 ||
		r.Counted("hangar_volume_freeze_seconds") != 1 {
		t.Error("it was not counted")
	}
	last := r.Counted("hangar_volume_drill_oldest_success_timestamp_seconds")
	if last != float64(drill.FinishedAt.Unix()) {
		t.Errorf("the last success was at %f", last)
	}
	r.restart()
	if again := r.Counted("hangar_volume_drill_oldest_success_timestamp_seconds"); again != last {
		t.Errorf("after a restart the last success was at %f", again)
	}
}

// A disk without room postpones a drill, which is no failure, and it is tried again.
func TestDrillPostponed(t *testing.T) {
	r := newRig(t)
	ref := r.NewVolume(volumestest.Raw, volumestest.OnDemand, func(s *hangar.VolumeSpec) { s.SnapshotRetention = 60 })
	r.disk.Write(ref.ID, 0, "data")
	r.TakeSnapshot(ref)
	r.disk.SetFree(1 << 30)
	r.ahead.Add(int64(8 * 24 * time.Hour))
	r.Round(t.Context())
	drill := r.DrillEnd()
	if drill.Passed || !strings.Contains(drill.Fault, "postponed: cannot try a snapshot out: the disk has") {
		t.Errorf("drill %+v", drill)
	}
	r.until(func() bool { return r.Counted("hangar_volume_drills_total", "postponed") > 0 })
	r.disk.SetFree(100 << 30)
	r.Round(t.Context())
	if again := r.DrillEnd(); again.Passed {
		t.Errorf("it was tried again at once: %+v", again)
	}
	r.ahead.Add(int64(25 * time.Hour))
	r.Round(t.Context())
	if drill := r.DrillEnd(); !drill.Passed {
		t.Errorf("drill %+v", drill)
	}
}

// A drill that a kill interrupts leaves no scratch and begins again.
func TestDrillKilled(t *testing.T) {
	r := newRig(t)
	ref := r.NewVolume(volumestest.Raw)
	r.disk.Write(ref.ID, 0, "data")
	s := r.TakeSnapshot(ref)
	g := r.store.Hold("read")
	_, err := r.DrillVolumes(t.Context(), "web")
	r.must(err)
	<-g.Reached
	r.crash()
	if r.disk.Count() != 2 {
		t.Errorf("there are %d images", r.disk.Count())
	}
	r.store.Intercept(nil)
	r.open()
	if drill := r.DrillEnd(); !drill.Passed || drill.Snapshot != s.ID {
		t.Errorf("drill %+v", drill)
	}
	if r.disk.Count() != 1 {
		t.Errorf("%d images are left", r.disk.Count())
	}
}

// Every App with a snapshot has a drill a week, besides others; the record of an App is forgotten
// with its volumes.
func TestDrillsAreWeekly(t *testing.T) {
	r := newRig(t)
	ref := r.NewVolume(volumestest.Raw, volumestest.OnDemand, func(s *hangar.VolumeSpec) { s.SnapshotRetention = 60 })
	r.disk.Write(ref.ID, 0, "data")
	r.TakeSnapshot(ref)
	passed := func() float64 { return r.Counted("hangar_volume_drills_total", "passed") }
	for week := range 3 {
		r.ahead.Add(int64(7 * 24 * time.Hour))
		for range 3 {
			r.Round(t.Context())
			r.DrillEnd()
			if got := passed(); got != float64(week+1) {
				t.Fatalf("in week %d there were %v drills", week, got)
			}
		}
	}
	_, err := r.DestroyVolume(t.Context(), ref)
	r.must(err)
	r.ahead.Add(int64(61 * 24 * time.Hour))
	r.Purge(t.Context())
	r.Round(t.Context())
	r.Purge(t.Context())
	r.until(func() bool {
		r.Round(t.Context())
		_, err := r.VolumeDrill(context.WithoutCancel(t.Context()), "web")
		return hangar.CodeOf(err) == hangar.CodeNotFound
	})
	if at := r.Counted("hangar_volume_drill_oldest_success_timestamp_seconds"); at != 0 {
		t.Errorf("an App that has gone is the one whose drill passed the longest ago: %v", at)
	}
}

// Snapshots of an earlier App of the same name are neither tried nor listed.
func TestDrillsOfAnAppOfTheSameName(t *testing.T) {
	r := newRig(t)
	theirs := r.NewVolume(volumestest.Raw, func(s *hangar.VolumeSpec) { s.AppID = "another" })
	r.TakeSnapshot(theirs)
	_, err := r.DrillVolumes(t.Context(), "web")
	r.Declined(err, hangar.CodeFailedPrecondition, hangar.ReasonSnapshotNotFound)
	begun, err := r.DrillVolumes(t.Context(), "another")
	r.must(err)
	_, err = r.VolumeDrill(t.Context(), "web")
	r.Declined(err, hangar.CodeNotFound, "")
	ours := r.NewVolume(volumestest.Raw)
	r.TakeSnapshot(ours)
	for range 10 {
		if drill := r.Drilled(); drill.Volume != ours.ID || !drill.Passed {
			t.Fatalf("drill %+v, want one of %s", drill, ours.ID)
		}
	}
	if drill, err := r.VolumeDrill(t.Context(), "another"); err != nil || drill.Snapshot != begun.Snapshot {
		t.Errorf("drill %+v, %v", drill, err)
	}
}
