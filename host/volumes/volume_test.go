package volumes_test

import (
	"errors"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/volumes/volumestest"
)

func TestVolumeIsMadeOnce(t *testing.T) {
	r := newRig(t)
	spec := hangar.VolumeSpec{ID: hangar.NewVolumeID(), Name: "data", App: "web", AppID: "web", Org: "personal", OrgID: volumestest.Org, Region: "loc", SizeGB: 3, Encrypted: true, FSType: hangar.FSExt4}
	first, err := r.CreateVolume(t.Context(), spec)
	r.must(err)
	again, err := r.CreateVolume(t.Context(), spec)
	r.must(err)
	if first.Seq != again.Seq || first.Volume != again.Volume {
		t.Errorf("made again: %+v, then %+v", first, again)
	}
	v := first.Volume
	if v.State != hangar.VolumeCreated || len(v.Zone) != 4 || v.Usage.Blocks != 0 || v.HostStatus != "ok" || first.Org != "personal" {
		t.Errorf("volume %+v", first)
	}
	if im, ok := r.disk.Get(v.ID); !ok || im.Spec.Size != 3<<30 || len(im.Spec.Key) != 32 {
		t.Errorf("image %+v", im)
	}
	r.until(func() bool { row, ok := r.vols.Row(v.Ref()); return ok && row.Seq == first.Seq })
	spec.App, spec.AppID = "other", "other"
	_, err = r.CreateVolume(t.Context(), spec)
	r.Declined(err, hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
	_, err = r.VolumeRow(t.Context(), hangar.VolumeRef{App: "other", AppID: "other", ID: v.ID})
	r.Declined(err, hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
}

func TestVolumeThatCannotBeMadeLeavesNothing(t *testing.T) {
	r := newRig(t)
	r.disk.Inject(func(op string, _ hangar.VolumeID) error {
		if op == "create" {
			return errors.New("disk full")
		}
		return nil
	})
	ref := hangar.VolumeRef{App: "web", AppID: "web", ID: hangar.NewVolumeID()}
	if _, err := r.CreateVolume(t.Context(), hangar.VolumeSpec{ID: ref.ID, App: "web", AppID: "web", SizeGB: 1}); err == nil {
		t.Fatal("it was made")
	}
	_, err := r.VolumeRow(t.Context(), ref)
	r.Declined(err, hangar.CodeNotFound, hangar.ReasonVolumeNotFound)
	r.until(func() bool { _, ok := r.vols.Row(ref); return !ok })
}

func TestDiskIsNotPromisedTwice(t *testing.T) {
	r := newRig(t)
	r.disk.SetFree(10 << 30)
	ref := r.NewVolume(func(s *hangar.VolumeSpec) { s.SizeGB = 6 })
	_, err := r.CreateVolume(t.Context(), hangar.VolumeSpec{ID: hangar.NewVolumeID(), App: "web", AppID: "web", SizeGB: 5})
	r.Declined(err, hangar.CodeConflict, hangar.ReasonInsufficientCapacity, "5 GB asked", "6 GB promised", "10.0 GB")
	_, err = r.ExtendVolume(t.Context(), ref, 11)
	r.Declined(err, hangar.CodeConflict, hangar.ReasonInsufficientCapacity)
	if v := r.Look(ref); v.State != hangar.VolumeCreated || v.SizeGB != 6 {
		t.Errorf("after a refused extension: %+v", v)
	}
	_, err = r.CreateVolume(t.Context(), hangar.VolumeSpec{
		ID: hangar.NewVolumeID(), App: "web", AppID: "web", SizeGB: 1, Compute: &hangar.Guest{CPUKind: "shared", CPUs: 1, MemoryMB: 64 << 10},
	})
	r.Declined(err, hangar.CodeConflict, hangar.ReasonInsufficientCapacity, "compute")
	r.NewVolume(func(s *hangar.VolumeSpec) { s.SizeGB = 4 })
}
