package control

import (
	"context"
	"slices"

	"github.com/hangar-platform/hangar"
)

// DestroyedVolumes implements hangar.VolumeService. Volumes are listed as they were published.
func (v *Volumes) DestroyedVolumes(ctx context.Context, org hangar.OrgSlug) ([]*hangar.Volume, error) {
	p, of, err := v.orgReader(ctx, org)
	if err != nil {
		return nil, err
	}
	rows, err := v.destroyedVolumes(ctx, of.ID)
	if err != nil {
		return nil, err
	}
	list := []*hangar.Volume{}
	for _, row := range rows {
		if !p.May(hangar.ActionRead, volumeTarget(of, &row)) {
			continue
		}
		if _, err := v.agent(row.Volume.Host); err != nil {
			list = append(list, lastKnown(row))
		} else {
			list = append(list, answered(&row))
		}
	}
	return list, nil
}

// volumeTarget is the App of a volume as it was when the volume was made. The App may be gone,
// and another one may have its name: its id tells.
func volumeTarget(org hangar.Org, row *hangar.VolumeRow) hangar.Target {
	return hangar.Target{Org: org.Slug, OrgID: org.ID, App: row.Volume.App, AppID: row.Volume.AppID}
}

// destroyedVolumes are the rows of an organization's volumes that are destroyed and still take
// room, the oldest first.
func (c *Control) destroyedVolumes(ctx context.Context, org hangar.OrgID) ([]hangar.VolumeRow, error) {
	all, err := c.rows.volumes(ctx, volumesPrefix)
	if err != nil {
		return nil, err
	}
	rows := slices.DeleteFunc(all, func(row hangar.VolumeRow) bool {
		return row.OrgID != org || !row.Volume.State.Gone() || row.Volume.State == hangar.VolumeDestroyed
	})
	slices.SortStableFunc(rows, func(a, b hangar.VolumeRow) int { return a.Volume.DestroyedAt.Compare(b.Volume.DestroyedAt) })
	return rows, nil
}

// PurgeVolume implements hangar.VolumeService.
func (v *Volumes) PurgeVolume(ctx context.Context, org hangar.OrgSlug, id hangar.VolumeID) (*hangar.Volume, error) {
	p, of, err := v.orgReader(ctx, org)
	if err != nil {
		return nil, err
	}
	rows, err := v.rows.volumes(ctx, volumesPrefix)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(rows, func(row hangar.VolumeRow) bool { return row.OrgID == of.ID && row.Volume.ID == id })
	if i < 0 {
		return nil, hangar.VolumeNotFound(id)
	}
	row := rows[i]
	if t := volumeTarget(of, &row); !p.Sees(t) {
		return nil, hangar.VolumeNotFound(id)
	} else if !p.May(hangar.ActionDelete, t) {
		return nil, denied(p, t)
	}
	agent, err := v.agent(row.Volume.Host)
	if err != nil {
		return nil, err
	}
	done, err := agent.PurgeVolume(ctx, row.Volume.Ref())
	if err != nil {
		return nil, err
	}
	v.log.InfoContext(ctx, "destroyed volume purged by its organization", keyVolume, id, keyApp, row.Volume.App)
	v.tell(ctx, done)
	return answered(done), nil
}
