package machines_test

import (
	"context"
	"testing"

	"github.com/hangar-platform/hangar"
)

// TestLookAtStuckVolumes: no request that lists volumes, or changes a setting, waits for a hanging
// device: it gets the last measured values.
func TestLookAtStuckVolumes(t *testing.T) {
	r := newRig(t)
	ref, other := r.NewVolume(), r.NewVolume()
	r.wait(r.create(nil, mounting(ref, other)), hangar.MachineStarted)
	r.disk.SetStuck(true)
	defer r.disk.SetStuck(false)
	row, err := r.VolumeRow(context.WithoutCancel(t.Context()), ref)
	r.must(err)
	if row.Volume.Usage.Blocks == 0 {
		t.Error("what was measured before is not told")
	}
	rows, err := r.VolumeRows(context.WithoutCancel(t.Context()), "web")
	r.must(err)
	if len(rows) != 2 {
		t.Errorf("%d volumes are listed", len(rows))
	}
	_, err = r.UpdateVolume(context.WithoutCancel(t.Context()), ref, hangar.VolumeUpdate{SnapshotRetention: new(7)})
	r.must(err)
}
