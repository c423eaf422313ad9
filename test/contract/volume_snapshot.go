package contract

import (
	"regexp"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

var wholeDigest = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// snapshot takes one and waits until it is complete.
func (h Harness) snapshot(t *testing.T, ref hangar.VolumeRef) *hangar.Snapshot {
	t.Helper()
	begun, err := h.Volumes.CreateSnapshot(h.Context(t), ref)
	must(t, "create snapshot", err)
	if !begun.ID.Valid() || begun.Volume != ref.ID || begun.State != hangar.SnapshotWaiting || begun.CreatedAt.IsZero() {
		t.Errorf("begun %+v", begun)
	}
	var made *hangar.Snapshot
	h.until(t, "the snapshot is complete", func() bool {
		for _, s := range h.snapshots(t, ref) {
			if s.ID == begun.ID && s.State == hangar.SnapshotFailed {
				t.Fatalf("the snapshot failed: %+v", s)
			}
			if s.ID == begun.ID && s.State == hangar.SnapshotCreated {
				made = s
			}
		}
		return made != nil
	})
	return made
}

func (h Harness) snapshots(t *testing.T, ref hangar.VolumeRef) []*hangar.Snapshot {
	t.Helper()
	list, err := h.Volumes.Snapshots(h.Context(t), ref)
	must(t, "list snapshots", err)
	return list
}

func snapshots(t *testing.T, h Harness) {
	app := h.newApp(t)
	v := h.newVolume(t, app, hangar.VolumeCreate{SnapshotRetention: 3})
	if list := h.snapshots(t, v.Ref()); list == nil || len(list) != 0 {
		t.Errorf("a new volume has the snapshots %v", list)
	}
	first := h.snapshot(t, v.Ref())
	switch {
	case !wholeDigest.MatchString(first.Digest), first.Size < 0, first.VolumeSize != 1<<30, first.RetentionDays != 3, first.Daily, first.Fault != "":
		t.Errorf("created %+v", first)
	case first.FinishedAt.IsZero(), !first.CreatedAt.Equal(first.CreatedAt.Truncate(time.Second)):
		t.Errorf("times %s, %s", first.CreatedAt, first.FinishedAt)
	}
	days := 4
	_, err := h.Volumes.UpdateVolume(h.Context(t), v.Ref(), hangar.VolumeUpdate{SnapshotRetention: &days})
	must(t, "update", err)
	second := h.snapshot(t, v.Ref())
	if second.RetentionDays != 4 || second.Digest != first.Digest {
		t.Errorf("of an unchanged volume: %+v, before it %+v", second, first)
	}
	list := h.snapshots(t, v.Ref())
	if len(list) != 2 || list[0].ID != second.ID || list[1].ID != first.ID || list[1].RetentionDays != 3 {
		t.Errorf("listed %+v", list)
	}
}

// isFilled reports whether a volume is being filled from a source, or is complete already.
func isFilled(v *hangar.Volume, from hangar.Filling) bool {
	if v.State == hangar.VolumeCreated {
		return v.Filling == hangar.Filling{}
	}
	from.Progress = v.Filling.Progress
	return v.State == hangar.VolumeRestoring && v.Filling == from
}

func snapshotRestore(t *testing.T, h Harness) {
	app, other := h.newApp(t), h.newApp(t)
	v := h.newVolume(t, app, hangar.VolumeCreate{})
	m := h.create(t, app, h.mounting(v))
	h.wait(t, m.Ref(), hangar.MachineStarted)
	s := h.snapshot(t, v.Ref())
	made, err := h.Volumes.CreateVolume(h.Context(t), app, hangar.VolumeCreate{Name: "again", Snapshot: s.ID})
	must(t, "restore", err)
	if !isFilled(made, hangar.Filling{Snapshot: s.ID}) || made.SizeGB != 1 || made.ID == v.ID {
		t.Errorf("restoring %+v", made)
	}
	back := h.usable(t, made.Ref())
	if back.Filling != (hangar.Filling{}) || back.AttachedMachine != "" || back.Region != v.Region {
		t.Errorf("restored %+v", back)
	}
	// It holds what the snapshot holds.
	if again := h.snapshot(t, back.Ref()); again.Digest != s.Digest {
		t.Errorf("the snapshot of what was restored is %s, that of the source %s", again.Digest, s.Digest)
	}
	next := h.create(t, app, h.mounting(back))
	h.wait(t, next.Ref(), hangar.MachineStarted)

	larger := h.newVolume(t, other, hangar.VolumeCreate{Name: "larger", SizeGB: 2, Snapshot: s.ID})
	if larger.SizeGB != 2 || larger.App != other {
		t.Errorf("restored %+v", larger)
	}
}

func snapshotRestoreWrong(t *testing.T, h Harness) {
	app := h.newApp(t)
	v := h.newVolume(t, app, hangar.VolumeCreate{SizeGB: 2})
	s := h.snapshot(t, v.Ref())
	for what, in := range map[string]hangar.VolumeCreate{
		"a snapshot smaller":           {Name: "d", SizeGB: 1, Snapshot: s.ID},
		"a volume smaller":             {Name: "d", SizeGB: 1, Source: v.ID},
		"a snapshot as something else": {Name: "d", FSType: hangar.FSRaw, Snapshot: s.ID},
		"a volume elsewhere":           {Name: "d", Region: "nowhere", Source: v.ID},
	} {
		_, err := h.Volumes.CreateVolume(h.Context(t), app, in)
		wantError(t, "restore "+what, err, hangar.CodeInvalid, "")
	}
	_, err := h.Volumes.DestroyVolume(h.Context(t), v.Ref())
	must(t, "destroy", err)
	_, err = h.Volumes.CreateVolume(h.Context(t), app, hangar.VolumeCreate{Name: "d", Source: v.ID})
	wantError(t, "fork a destroyed volume", err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
}

func volumeFork(t *testing.T, h Harness) {
	app := h.newApp(t)
	v := h.newVolume(t, app, hangar.VolumeCreate{})
	made, err := h.Volumes.CreateVolume(h.Context(t), app, hangar.VolumeCreate{Name: "copy", Source: v.ID})
	must(t, "fork", err)
	if !isFilled(made, hangar.Filling{Source: v.ID}) || made.SizeGB != 1 || made.Zone == v.Zone {
		t.Errorf("forking %+v", made)
	}
	back := h.usable(t, made.Ref())
	if a, b := h.snapshot(t, v.Ref()), h.snapshot(t, back.Ref()); a.Digest != b.Digest {
		t.Errorf("the fork is %s, its source %s", b.Digest, a.Digest)
	}
}

func snapshotOfDestroyed(t *testing.T, h Harness) {
	app := h.newApp(t)
	v := h.newVolume(t, app, hangar.VolumeCreate{})
	s := h.snapshot(t, v.Ref())
	_, err := h.Volumes.DestroyVolume(h.Context(t), v.Ref())
	must(t, "destroy", err)
	if list := h.snapshots(t, v.Ref()); len(list) != 1 || list[0].ID != s.ID {
		t.Errorf("snapshots of a destroyed volume: %v", list)
	}
	h.newVolume(t, app, hangar.VolumeCreate{Name: "again", Snapshot: s.ID})
}

func volumeDrill(t *testing.T, h Harness) {
	app := h.newApp(t)
	_, err := h.Volumes.VolumeDrill(h.Context(t), app)
	wantError(t, "see no drill", err, hangar.CodeNotFound, "")
	_, err = h.Volumes.DrillVolumes(h.Context(t), app)
	wantError(t, "drill nothing", err, hangar.CodeFailedPrecondition, hangar.ReasonSnapshotNotFound)
	v := h.newVolume(t, app, hangar.VolumeCreate{})
	m := h.create(t, app, h.mounting(v))
	h.wait(t, m.Ref(), hangar.MachineStarted)
	s := h.snapshot(t, v.Ref())
	begun, err := h.Volumes.DrillVolumes(h.Context(t), app)
	must(t, "drill", err)
	if begun.App != app || begun.Volume != v.ID || begun.Snapshot != s.ID || begun.StartedAt.IsZero() {
		t.Errorf("begun %+v", begun)
	}
	var drill *hangar.VolumeDrill
	h.until(t, "the drill is over", func() bool {
		drill, err = h.Volumes.VolumeDrill(h.Context(t), app)
		must(t, "see the drill", err)
		return !drill.FinishedAt.IsZero()
	})
	if !drill.Passed || drill.Fault != "" || drill.Snapshot != s.ID {
		t.Errorf("the drill is %+v", drill)
	}
}
