package machines_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/volumes/volumestest"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
)

// TestDrillFails: a drill of a bad snapshot reports that in the event, the metric and the log of
// the App, and leaves nothing behind.
func TestDrillFails(t *testing.T) {
	for name, spoil := range map[string]func(r *rig, id hangar.SnapshotID){
		"a damaged archive": func(r *rig, id hangar.SnapshotID) { r.store.Spoil(id) },
		"a lost snapshot":   func(r *rig, id hangar.SnapshotID) { r.must(r.store.Remove(finishtest.Context(r), id)) },
		"another digest": func(r *rig, id hangar.SnapshotID) {
			r.store.Lie()
		},
		"a full disk": func(r *rig, _ hangar.SnapshotID) {
			r.disk.Inject(func(op string, id hangar.VolumeID) error {
				if op == "fill write" {
					return errors.New("no space left on device")
				}
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			ref := r.NewVolume(volumestest.Raw)
			m := r.create(nil)
			r.wait(m, hangar.MachineStarted)
			r.disk.Write(ref.ID, 0, "data")
			spoil(r, r.TakeSnapshot(ref).ID)
			drill := r.Drilled()
			if drill.Passed || drill.Fault == "" {
				t.Errorf("drill %+v", drill)
			}
			if r.disk.Count() != 1 {
				t.Errorf("%d images are left", r.disk.Count())
			}
			r.until(func() bool { return r.Story(ref) == "create snapshot drill!" })
			if r.Counted("hangar_volume_drills_total", "failed") != 1 || r.Counted("hangar_volume_drills_total", "passed") != 0 {
				t.Error("it was not counted")
			}
			if !r.logged(m, "DRILL FAILED: snapshot "+string(drill.Snapshot)) {
				t.Error("the log of the App does not say it")
			}
		})
	}
}

// TestDrillChecksTheFileSystem: a damaged file system in an intact snapshot is a failure, too.
func TestDrillChecksTheFileSystem(t *testing.T) {
	r := newRig(t)
	ref := r.NewVolume()
	m := r.create(nil, mounting(ref))
	r.wait(m, hangar.MachineStarted)
	r.disk.Write(ref.ID, 0, "data")
	r.TakeSnapshot(ref)
	r.disk.Inject(func(op string, id hangar.VolumeID) error {
		if op == "check" {
			return errors.New("inode 12 has a bad mode")
		}
		return nil
	})
	if drill := r.Drilled(); drill.Passed || !strings.Contains(drill.Fault, "file system of the snapshot is damaged: inode 12") {
		t.Errorf("drill %+v", drill)
	}
	r.disk.Inject(nil)
	if drill := r.Drilled(); !drill.Passed {
		t.Errorf("drill %+v", drill)
	}
}

// TestFailedDrillOfLeftovers: a drill of a destroyed App's volume is not reported in the log of
// another App with its name.
func TestFailedDrillOfLeftovers(t *testing.T) {
	r := newRig(t)
	theirs := r.NewVolume(volumestest.Raw, func(s *hangar.VolumeSpec) { s.AppID = "another" })
	r.disk.Write(theirs.ID, 0, "data")
	s := r.TakeSnapshot(theirs)
	_, err := r.DestroyVolume(t.Context(), theirs)
	r.must(err)
	m := r.create(nil)
	r.wait(m, hangar.MachineStarted)
	r.store.Spoil(s.ID)
	_, err = r.DrillVolumes(t.Context(), "another")
	r.must(err)
	r.until(func() bool {
		drill, err := r.VolumeDrill(t.Context(), "another")
		r.must(err)
		return drill.Fault != ""
	})
	if r.logged(m, "DRILL FAILED") {
		t.Error("the log of a machine of another organization mentions the drill")
	}
}
