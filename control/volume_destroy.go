package control

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/internal/pause"
)

// destroyPause is the pause between attempts to destroy a busy volume: one that is being made, or
// is still attached to a Machine that is being destroyed.
const destroyPause = 100 * time.Millisecond

// destroyAll destroys the volumes of an App that is being destroyed. They cannot be undeleted,
// because App ids are never reused; a caller that may read all of the organization can restore
// their snapshots.
func (v *Volumes) destroyAll(ctx context.Context, rows []hangar.VolumeRow) error {
	var group errgroup.Group
	group.SetLimit(destroysAtOnce)
	for _, row := range rows {
		if !row.Volume.State.Gone() {
			group.Go(func() error { return v.destroyVolume(ctx, row) })
		}
	}
	return group.Wait()
}

func (v *Volumes) destroyVolume(ctx context.Context, row hangar.VolumeRow) error {
	agent, err := v.hosts.agent(row.Volume.Host)
	if err != nil {
		return err
	}
	for {
		done, err := agent.DestroyVolume(platform(ctx), row.Volume.Ref())
		switch reason := hangar.ReasonOf(err); {
		case err == nil:
			v.rows.publishAnswer(ctx, done)
			return nil
		case hangar.CodeOf(err) == hangar.CodeNotFound:
			return nil
		case reason != hangar.ReasonVolumeAttached && reason != hangar.ReasonWrongState:
			return err
		}
		if pause.For(ctx, destroyPause) != nil {
			return err
		}
	}
}

// heal destroys volumes whose App is missing: their creators were interrupted while it
// was destroyed.
func (v *Volumes) heal(ctx context.Context) error {
	rows, err := v.rows.volumes(ctx, state.VolumesPrefix)
	if err != nil {
		return err
	}
	for _, row := range rows {
		if row.Volume.State.Gone() || v.now().Sub(row.Volume.CreatedAt) < createTimeout {
			continue
		}
		rec, _, err := v.tenants.AnyApp(ctx, row.Volume.App)
		switch {
		case err == nil && rec.ID == row.Volume.AppID:
			continue
		case hangar.ReasonOf(err) == hangar.ReasonRecordDamaged:
			v.log.Error("whether the app of a volume exists is not known", keyApp, row.Volume.App, keyVolume, row.Volume.ID, keyError, err)
			continue
		case err != nil && hangar.CodeOf(err) != hangar.CodeNotFound:
			return err
		}
		v.log.Info("destroying a volume without an app", keyApp, row.Volume.App, keyVolume, row.Volume.ID)
		v.undo(ctx, &row)
	}
	return nil
}
