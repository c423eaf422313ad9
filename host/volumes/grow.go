package volumes

import (
	"context"
	"fmt"
	"time"

	"github.com/hangar-platform/hangar"
)

// usageTick is how often the volumes of running Machines are measured.
const usageTick = 10 * time.Second

// keepUsage measures the volumes of running Machines until ctx ends, and extends them as the
// configs of their Machines say. First it continues the extensions that an earlier daemon has left.
// A failure is logged once for each volume.
func (s *Store) keepUsage(ctx context.Context, left []*volume) {
	s.resume(ctx, left)
	tick := time.NewTicker(usageTick)
	defer tick.Stop()
	reported := make(map[hangar.VolumeID]string)
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		s.Tend(ctx, reported)
	}
}

// Tend is one round of keepUsage. reported has the last failure of each volume.
func (s *Store) Tend(ctx context.Context, reported map[hangar.VolumeID]string) {
	for _, v := range s.all() {
		if ctx.Err() != nil {
			return
		}
		usage, ok := v.open.usage(ctx)
		if !ok {
			delete(reported, v.id)
			continue
		}
		if usageMoved(v.rec.Load().Volume.Usage, usage) {
			if err := v.remember(usage); err != nil {
				s.o.Log.Error("record the usage of a volume", keyVolume, v.id, keyError, err)
			}
		}
		switch why := v.autoExtend(ctx, usage, reported[v.id]); why {
		case "":
			delete(reported, v.id)
		default:
			reported[v.id] = why
		}
	}
}

// usageMoved reports whether the usage of a volume has moved enough to be published: by one
// percent.
func usageMoved(before, now hangar.VolumeUsage) bool {
	moved := before.Used() - now.Used()
	return before.Total() != now.Total() || max(moved, -moved)*100 >= now.Total()
}

// autoExtend extends a volume whose usage exceeds the threshold in its Machine's config. It returns
// why it could not; before is the failure of the previous round.
func (v *volume) autoExtend(ctx context.Context, usage hangar.VolumeUsage, before string) string {
	rec := v.rec.Load()
	machine := rec.Volume.AttachedMachine
	mount, mounted := v.store.o.Machines.MountOf(machine, v.id)
	if !mounted || mount.ExtendThresholdPercent <= 0 || rec.Volume.State != hangar.VolumeCreated || rec.Volume.NeedsRestart || !v.claimable() {
		return before
	}
	if usage.Used()*100 < int64(mount.ExtendThresholdPercent)*usage.Total() {
		return ""
	}
	size := rec.Volume.SizeGB
	limit := hangar.MaxVolumeGB
	if mount.SizeGBLimit > 0 {
		limit = min(limit, mount.SizeGBLimit)
	}
	percent := usage.Used() * 100 / usage.Total()
	why := fmt.Sprintf("it has the %d GB that it may have", size)
	if to := min(size+max(1, mount.AddSizeGB), limit); to > size {
		event := hangar.VolumeEvent{
			Source: hangar.SourceAgent, Machine: machine, Text: fmt.Sprintf("extended from %d to %d GB: %d%% of it was used", size, to, percent),
		}
		err := v.extend(ctx, to, event)
		if err == nil {
			v.note(machine, "info", "Volume %s %s", v.id, event.Text)
			return ""
		}
		why = hangar.MessageOf(err)
	}
	if why == before || ctx.Err() != nil {
		return why
	}
	v.note(machine, "warn", "Volume %s is %d%% full and cannot be extended: %s", v.id, percent, why)
	err := v.recordEvents(hangar.VolumeEvent{Type: hangar.VolumeEventExtend, Machine: machine, Fault: why})
	if err != nil {
		v.store.o.Log.Error("record the event of a volume", keyVolume, v.id, keyError, err)
	}
	return why
}
