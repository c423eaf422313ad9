package machines_test

import (
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/volumes/volumestest"
)

// TestVolumesStayWithinTheQuota: a volume does not extend itself beyond the quota of its
// organization, and its owner learns why.
func TestVolumesStayWithinTheQuota(t *testing.T) {
	r := newRig(t)
	r.disk.SetOnline(true)
	ref := r.NewVolume()
	m := r.create(nil, mounting(ref), func(s *hangar.MachineSpec) {
		mount := &s.Config.Mounts[0]
		mount.ExtendThresholdPercent, mount.AddSizeGB = 80, 1
	})
	r.wait(m, hangar.MachineStarted)
	r.disk.Set(ref.ID, func(im *volumestest.Image) { im.Used = im.FSSize * 9 / 10 })
	r.vols.Answer(volumestest.OverQuota)
	told := make(map[hangar.VolumeID]string)
	for range 3 {
		r.volumes().Tend(t.Context(), told)
	}
	if v := r.Look(ref); v.SizeGB != 1 || v.State != hangar.VolumeCreated {
		t.Errorf("beyond the quota: %+v", v)
	}
	if got := r.Story(ref); got != "create attach format extend!" {
		t.Errorf("events: %s", got)
	}
	_, err := r.ExtendVolume(t.Context(), ref, 2)
	r.Declined(err, hangar.CodeExhausted, hangar.ReasonQuota, "volume_gb")
	r.vols.Answer(nil)
	r.volumes().Tend(t.Context(), told)
	if v := r.Look(ref); v.SizeGB != 2 {
		t.Errorf("with a larger quota: %+v", v)
	}
}
