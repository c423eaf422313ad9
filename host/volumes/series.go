package volumes

import (
	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// MountedAt is where a volume is mounted on this host. It does not wait: a volume that is just
// being opened or closed counts as not mounted.
func (s *Store) MountedAt(id hangar.VolumeID) (dir string, ok bool) {
	v := s.byID(id)
	if v == nil || !v.open.mu.TryLock() {
		return "", false
	}
	defer v.open.mu.Unlock()
	if v.open.mounted == nil || isLost(v.open.device) {
		return "", false
	}
	return v.open.mounted.Dir, true
}

// Metrics yields the series of volumes, as hangar.MetricSource has it. The usage of an unmounted
// volume was measured when it was closed.
func (s *Store) Metrics(yield func(hangar.Metric) bool) {
	for _, v := range s.all() {
		rec := v.rec.Load()
		if !rec.Volume.DestroyedAt.IsZero() {
			continue
		}
		if !v.metrics(rec, yield) {
			return
		}
	}
}

func (v *volume) metrics(rec *journal.VolumeRecord, yield func(hangar.Metric) bool) bool {
	label := []hangar.MetricLabel{{Name: "id", Value: string(v.id)}}
	series := func(name string, value float64) bool {
		return yield(hangar.Metric{App: rec.Volume.AppID, Name: name, Labels: label, Value: value})
	}
	if !series("volume_size_bytes", float64(int64(rec.Volume.SizeGB)<<30)) {
		return false
	}
	usage := rec.Volume.Usage
	if now, ok := v.open.usage(v.store.work.Context); ok {
		usage = now
	}
	// As df(1) says it: of what is not root's alone.
	used := usage.Blocks - usage.BlocksFree
	if all := used + usage.BlocksAvail; all > 0 {
		return series("volume_used_pct", 100*float64(used)/float64(all))
	}
	return true
}
