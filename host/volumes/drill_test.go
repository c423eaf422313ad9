package volumes_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// drilled has a drill of the App "web" and waits for it.
func (r *rig) drilled() hangar.VolumeDrill {
	r.Helper()
	drill, err := r.DrillVolumes(r.Context(), "web")
	r.must(err)
	if drill.App != "web" || !drill.Snapshot.Valid() || drill.StartedAt.IsZero() || !drill.FinishedAt.IsZero() {
		r.Errorf("a new drill is %+v", drill)
	}
	return r.drillEnd()
}

// drillEnd waits until no drill is under way.
func (r *rig) drillEnd() (drill hangar.VolumeDrill) {
	r.Helper()
	r.until(func() bool {
		got, err := r.VolumeDrill(r.Context(), "web")
		r.must(err)
		drill = *got
		return !drill.FinishedAt.IsZero()
	})
	return drill
}

// counted reads a counter or gauge of the agent that runs; 0 if it is not there.
func (r *rig) counted(name string, labels ...string) float64 {
	r.Helper()
	families, err := r.counts.Gather()
	r.must(err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var values []string
			for _, l := range m.GetLabel() {
				values = append(values, l.GetValue())
			}
			if f.GetName() == name && strings.Join(values, " ") == strings.Join(labels, " ") {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return 0
}

func TestDrillPasses(t *testing.T) {
	r := newRig(t)
	_, err := r.VolumeDrill(t.Context(), "web")
	r.declined(err, hangar.CodeNotFound, "")
	ref := r.volume(raw)
	_, err = r.DrillVolumes(t.Context(), "web")
	r.declined(err, hangar.CodeFailedPrecondition, hangar.ReasonSnapshotNotFound)
	r.disk.Write(ref.ID, 1<<20, "data")
	s := r.snapshot(ref)
	g := r.gate("read")
	begun, err := r.DrillVolumes(t.Context(), "web")
	r.must(err)
	<-g.reached
	if drill, err := r.VolumeDrill(t.Context(), "web"); err != nil || drill.Progress.Total != 4096 {
		t.Errorf("the drill under way is %+v, %v", drill, err)
	}
	_, err = r.DrillVolumes(t.Context(), "web")
	r.declined(err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
	if r.disk.Count() != 2 {
		t.Errorf("there are %d images", r.disk.Count())
	}
	close(g.open)
	drill := r.drillEnd()
	if !drill.Passed || drill.Fault != "" || drill.Snapshot != s.ID || drill.Volume != ref.ID || !drill.StartedAt.Equal(begun.StartedAt) {
		t.Errorf("drill %+v", drill)
	}
	if r.disk.Count() != 1 {
		t.Errorf("%d images are left", r.disk.Count())
	}
	r.until(func() bool { return r.story(ref) == "create snapshot drill" })
	if r.counted("hangar_volume_drills_total", "web", "passed") != 1 || r.counted("hangar_volume_snapshots_total", "created") != 1 ||
		r.counted("hangar_volume_freeze_seconds") != 1 {
		t.Error("it was not counted")
	}
	last := r.counted("hangar_volume_drill_last_success_timestamp_seconds", "web")
	if last != float64(drill.FinishedAt.Unix()) {
		t.Errorf("the last success was at %f", last)
	}
	r.restart()
	if again := r.counted("hangar_volume_drill_last_success_timestamp_seconds", "web"); again != last {
		t.Errorf("after a restart the last success was at %f", again)
	}
}

// A disk without room postpones a drill, which is no failure, and it is tried again.
func TestDrillPostponed(t *testing.T) {
	r := newRig(t)
	ref := r.volume(raw, onDemand, func(s *hangar.VolumeSpec) { s.SnapshotRetention = 60 })
	r.disk.Write(ref.ID, 0, "data")
	r.snapshot(ref)
	r.disk.SetFree(1 << 30)
	r.ahead.Add(int64(8 * 24 * time.Hour))
	r.Round(t.Context())
	drill := r.drillEnd()
	if drill.Passed || !strings.Contains(drill.Fault, "postponed: cannot try a snapshot out: the disk has") {
		t.Errorf("drill %+v", drill)
	}
	r.until(func() bool { return r.counted("hangar_volume_drills_total", "web", "postponed") > 0 })
	r.disk.SetFree(100 << 30)
	r.Round(t.Context())
	if again := r.drillEnd(); again.Passed {
		t.Errorf("it was tried again at once: %+v", again)
	}
	r.ahead.Add(int64(25 * time.Hour))
	r.Round(t.Context())
	if drill := r.drillEnd(); !drill.Passed {
		t.Errorf("drill %+v", drill)
	}
}

// A drill that a kill interrupts leaves no scratch and begins again.
func TestDrillKilled(t *testing.T) {
	r := newRig(t)
	ref := r.volume(raw)
	r.disk.Write(ref.ID, 0, "data")
	s := r.snapshot(ref)
	g := r.gate("read")
	_, err := r.DrillVolumes(t.Context(), "web")
	r.must(err)
	<-g.reached
	r.crash()
	if r.disk.Count() != 2 {
		t.Errorf("there are %d images", r.disk.Count())
	}
	r.store.Intercept(nil)
	r.open()
	if drill := r.drillEnd(); !drill.Passed || drill.Snapshot != s.ID {
		t.Errorf("drill %+v", drill)
	}
	if r.disk.Count() != 1 {
		t.Errorf("%d images are left", r.disk.Count())
	}
}

// Every App with a snapshot has a drill a week, whatever else it had; what is known of
// an App is forgotten with its volumes.
func TestDrillsAreWeekly(t *testing.T) {
	r := newRig(t)
	ref := r.volume(raw, onDemand, func(s *hangar.VolumeSpec) { s.SnapshotRetention = 60 })
	r.disk.Write(ref.ID, 0, "data")
	r.snapshot(ref)
	passed := func() float64 { return r.counted("hangar_volume_drills_total", "web", "passed") }
	for week := range 3 {
		r.ahead.Add(int64(7 * 24 * time.Hour))
		for range 3 {
			r.Round(t.Context())
			r.drillEnd()
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
	if passed() != 0 {
		t.Error("what was counted of an App is there without it")
	}
}

// What another App of the same name had is neither tried nor told of.
func TestDrillsOfAnAppOfTheSameName(t *testing.T) {
	r := newRig(t)
	theirs := r.volume(raw, func(s *hangar.VolumeSpec) { s.AppID = "another" })
	r.snapshot(theirs)
	_, err := r.DrillVolumes(t.Context(), "web")
	r.declined(err, hangar.CodeFailedPrecondition, hangar.ReasonSnapshotNotFound)
	begun, err := r.DrillVolumes(t.Context(), "another")
	r.must(err)
	_, err = r.VolumeDrill(t.Context(), "web")
	r.declined(err, hangar.CodeNotFound, "")
	ours := r.volume(raw)
	r.snapshot(ours)
	for range 10 {
		if drill := r.drilled(); drill.Volume != ours.ID || !drill.Passed {
			t.Fatalf("drill %+v, want one of %s", drill, ours.ID)
		}
	}
	if drill, err := r.VolumeDrill(t.Context(), "another"); err != nil || drill.Snapshot != begun.Snapshot {
		t.Errorf("drill %+v, %v", drill, err)
	}
}
