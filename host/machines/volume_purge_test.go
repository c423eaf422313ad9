package machines_test

import (
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/volumes/volumestest"
)

// errQuota is what the ledger of an organization answers.
func errQuota(row *hangar.VolumeRow) error {
	return hangar.QuotaExceeded(row.Org, hangar.QuotaVolumeGB, 1, 1, 1)
}

// TestVolumesStayWithinTheQuota: a volume does not extend itself beyond the quota of its
// organization, and its owner learns why.
func TestVolumesStayWithinTheQuota(t *testing.T) {
	r := newRig(t)
	r.disk.SetOnline(true)
	ref := r.volume()
	m := r.create(nil, mounting(ref), func(s *hangar.MachineSpec) {
		mount := &s.Config.Mounts[0]
		mount.ExtendThresholdPercent, mount.AddSizeGB = 80, 1
	})
	r.wait(m, hangar.MachineStarted)
	r.disk.Set(ref.ID, func(im *volumestest.Image) { im.Used = im.FSSize * 9 / 10 })
	r.vols.Answer(errQuota)
	told := make(map[hangar.VolumeID]string)
	for range 3 {
		r.volumes().Tend(t.Context(), told)
	}
	if v := r.look(ref); v.SizeGB != 1 || v.State != hangar.VolumeCreated {
		t.Errorf("beyond the quota: %+v", v)
	}
	if got := r.story(ref); got != "create attach format extend!" {
		t.Errorf("events: %s", got)
	}
	_, err := r.ExtendVolume(t.Context(), ref, 2)
	r.declined(err, hangar.CodeExhausted, hangar.ReasonQuota, "volume_gb")
	r.vols.Answer(nil)
	r.volumes().Tend(t.Context(), told)
	if v := r.look(ref); v.SizeGB != 2 {
		t.Errorf("with a larger quota: %+v", v)
	}
}
