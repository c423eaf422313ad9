package host

import (
	"context"
	"fmt"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// purgeVolumes removes what is left of volumes whose time to be had back is over, and
// forgets those of which there are no snapshots any more.
func (a *Agent) purgeVolumes(ctx context.Context) {
	for _, v := range a.allVolumes() {
		if ctx.Err() != nil {
			return
		}
		if err := v.purge(ctx); err != nil && ctx.Err() == nil {
			a.o.Log.Error("remove a destroyed volume", keyVolume, v.id, keyError, err)
		}
	}
}

// purge does what the state of a destroyed volume asks for by now.
func (v *volume) purge(ctx context.Context) error {
	if err := v.destroyKey(ctx); err != nil {
		return err
	}
	if v.rec.Load().Volume.State == hangar.VolumeDestroying {
		if err := v.destroyImage(ctx); err != nil {
			return err
		}
	}
	if rec := v.rec.Load(); rec.Volume.State == hangar.VolumeDestroyed && len(rec.Snapshots)+len(rec.Discarded) == 0 {
		return v.agent.forgetVolume(ctx, v)
	}
	return nil
}

// destroyKey makes a volume unreadable for ever, once its user cannot have it back.
func (v *volume) destroyKey(ctx context.Context) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	rec := v.rec.Load()
	if rec.Volume.State != hangar.VolumePendingDestroy || v.agent.o.Now().Sub(rec.Volume.DestroyedAt) < hangar.VolumeGrace {
		return nil
	}
	_, err := v.commit(ctx, func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		next.Volume.State = hangar.VolumeDestroying
		next.Key = nil
		return nil
	})
	return err
}

// destroyImage removes the image, unless somebody still reads it: then later.
func (v *volume) destroyImage(ctx context.Context) error {
	v.open.mu.Lock()
	defer v.open.mu.Unlock()
	if v.open.readers > 0 {
		return nil
	}
	if err := v.detach(ctx); err != nil {
		return err
	}
	if err := v.agent.o.Devices.Remove(ctx, v.id); err != nil {
		return fmt.Errorf("remove volume %s: %w", v.id, err)
	}
	_, err := v.record(ctx, func(next *journal.VolumeRecord) []hangar.VolumeEvent {
		next.Volume.State = hangar.VolumeDestroyed
		return []hangar.VolumeEvent{{Type: hangar.VolumeEventDestroy, Text: "its key and its image are gone"}}
	})
	return err
}
