package volumes_test

import (
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

func TestExtensionGoesOnAfterACrash(t *testing.T) {
	r := newRig(t)
	ref := r.NewVolume()
	reached := make(chan struct{})
	dead := make(chan struct{})
	r.disk.Inject(func(op string, _ hangar.VolumeID) error {
		if op == "extend" {
			close(reached)
			<-dead
		}
		return nil
	})
	done := make(chan error)
	go func() {
		_, err := r.ExtendVolume(t.Context(), ref, 3)
		done <- err
	}()
	<-reached
	if v := r.Look(ref); v.State != hangar.VolumeExtending || v.SizeGB != 1 {
		t.Errorf("while it is extended: %+v", v)
	}
	_, err := r.ExtendVolume(t.Context(), ref, 5)
	r.Declined(err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
	crashed := make(chan struct{})
	go func() { r.crash(); close(crashed) }()
	<-time.After(50 * time.Millisecond)
	close(dead)
	<-crashed
	<-done
	r.disk.Inject(nil)
	r.open()
	r.until(func() bool { v := r.Look(ref); return v.State == hangar.VolumeCreated && v.SizeGB == 3 })
	if im, _ := r.disk.Get(ref.ID); im.Spec.Size != 3<<30 || im.Open {
		t.Errorf("image %+v", im)
	}
}

func TestUpdateVolume(t *testing.T) {
	r := newRig(t)
	ref := r.NewVolume()
	days, off := 9, false
	row, err := r.UpdateVolume(t.Context(), ref, hangar.VolumeUpdate{SnapshotRetention: &days, AutoBackup: &off})
	r.must(err)
	if v := row.Volume; v.SnapshotRetention != 9 || v.AutoBackup {
		t.Errorf("updated: %+v", v)
	}
	_, err = r.UpdateVolume(t.Context(), ref, hangar.VolumeUpdate{SnapshotRetention: &days})
	r.must(err)
	if got := r.Story(ref); got != "create update" {
		t.Errorf("events: %s", got)
	}
}
