package volumestest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hangar-platform/hangar"
)

// Org is the id of the organization of a Rig's volumes.
const Org = "0b1c5f7e"

// Rig asks an agent for volumes of the App "web", and fails the test where that is refused.
type Rig struct {
	testing.TB

	Volumes hangar.VolumeAgent
	Counts  *prometheus.Registry // of the agent
}

// OnDemand makes a volume that has no daily snapshots.
func OnDemand(s *hangar.VolumeSpec) { s.AutoBackup = false }

// Raw makes a volume that can have something on it without a Machine.
func Raw(s *hangar.VolumeSpec) { s.FSType = hangar.FSRaw }

// Spec describes a new volume.
func Spec() hangar.VolumeSpec {
	return hangar.VolumeSpec{
		ID: hangar.NewVolumeID(), Name: "data", App: "web", AppID: "web", Org: hangar.OrgPersonal, OrgID: Org, Region: "loc", SizeGB: 1, Encrypted: true,
		FSType: hangar.FSExt4, SnapshotRetention: 5, AutoBackup: true,
	}
}

// NewVolume makes a volume.
func (r *Rig) NewVolume(edit ...func(*hangar.VolumeSpec)) hangar.VolumeRef {
	r.Helper()
	spec := Spec()
	for _, e := range edit {
		e(&spec)
	}
	row, err := r.Volumes.CreateVolume(r.Context(), spec)
	r.must(err)
	return row.Volume.Ref()
}

// Restored makes a volume from a snapshot.
func (r *Rig) Restored(id hangar.SnapshotID, edit ...func(*hangar.VolumeSpec)) hangar.VolumeRef {
	r.Helper()
	return r.NewVolume(append([]func(*hangar.VolumeSpec){func(s *hangar.VolumeSpec) { s.Snapshot, s.SizeGB = id, 0 }}, edit...)...)
}

// Look returns a volume as others see it.
func (r *Rig) Look(ref hangar.VolumeRef) hangar.Volume {
	r.Helper()
	row, err := r.Volumes.VolumeRow(r.Context(), ref)
	r.must(err)
	return row.Volume
}

// Usable waits until a volume is filled.
func (r *Rig) Usable(ref hangar.VolumeRef) (v hangar.Volume) {
	r.Helper()
	r.until(func() bool { v = r.Look(ref); return v.State != hangar.VolumeRestoring })
	return v
}

// Story is the volume's events, oldest first.
func (r *Rig) Story(ref hangar.VolumeRef) string {
	r.Helper()
	events, err := r.Volumes.VolumeEvents(r.Context(), ref)
	r.must(err)
	var words []string
	for _, e := range slices.Backward(events) {
		word := string(e.Type)
		if e.Fault != "" {
			word += "!"
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

// TakeSnapshot takes one and waits for it.
func (r *Rig) TakeSnapshot(ref hangar.VolumeRef) hangar.Snapshot {
	r.Helper()
	s, err := r.Volumes.CreateSnapshot(r.Context(), ref)
	r.must(err)
	if s.State != hangar.SnapshotWaiting || !s.ID.Valid() || s.Volume != ref.ID || s.RetentionDays == 0 {
		r.Errorf("a new snapshot is %+v", s)
	}
	return r.Finished(ref, s.ID)
}

// Finished waits until nothing happens to a snapshot any more.
func (r *Rig) Finished(ref hangar.VolumeRef, id hangar.SnapshotID) (s hangar.Snapshot) {
	r.Helper()
	r.until(func() bool {
		s = r.Snapshot(ref, id)
		return s.State != hangar.SnapshotWaiting && s.State != hangar.SnapshotRunning
	})
	return s
}

// Snapshot returns one snapshot as others see it; its State is empty if there is none.
func (r *Rig) Snapshot(ref hangar.VolumeRef, id hangar.SnapshotID) hangar.Snapshot {
	r.Helper()
	list, err := r.Volumes.Snapshots(r.Context(), ref)
	r.must(err)
	for _, s := range list {
		if s.ID == id {
			return *s
		}
	}
	return hangar.Snapshot{}
}

// Drilled has a drill of the App and waits for it.
func (r *Rig) Drilled() hangar.VolumeDrill {
	r.Helper()
	drill, err := r.Volumes.DrillVolumes(r.Context(), "web")
	r.must(err)
	if drill.App != "web" || !drill.Snapshot.Valid() || drill.StartedAt.IsZero() || !drill.FinishedAt.IsZero() {
		r.Errorf("a new drill is %+v", drill)
	}
	return r.DrillEnd()
}

// DrillEnd waits until no drill is under way.
func (r *Rig) DrillEnd() (drill hangar.VolumeDrill) {
	r.Helper()
	r.until(func() bool {
		got, err := r.Volumes.VolumeDrill(r.Context(), "web")
		r.must(err)
		drill = *got
		return !drill.FinishedAt.IsZero()
	})
	return drill
}

// Counted reads a counter or gauge; 0 if it is not there.
func (r *Rig) Counted(name string, labels ...string) float64 {
	r.Helper()
	families, err := r.Counts.Gather()
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

// Declined checks an error.
func (r *Rig) Declined(err error, code hangar.Code, reason string, words ...string) {
	r.Helper()
	if hangar.CodeOf(err) != code || hangar.ReasonOf(err) != reason {
		r.Fatalf("error %v: %s %s, want %s %s", err, hangar.CodeOf(err), hangar.ReasonOf(err), code, reason)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			r.Errorf("error %q does not say %q", err, w)
		}
	}
}

func (r *Rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// until waits for a condition without an event.
func (r *Rig) until(true func() bool) {
	r.Helper()
	for deadline := time.Now().Add(time.Minute); !true(); <-time.After(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.Fatal("it did not happen")
		}
	}
}
