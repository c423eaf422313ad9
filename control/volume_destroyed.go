package control

import (
	"context"
	"slices"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
)

// DestroyedVolumes implements hangar.VolumeService. Volumes are listed as they were published.
func (v *Volumes) DestroyedVolumes(ctx context.Context, org hangar.OrgSlug) ([]*hangar.Volume, error) {
	p, of, err := v.tenants.OrgReader(ctx, org)
	if err != nil {
		return nil, err
	}
	rows, err := v.rows.destroyedVolumes(ctx, of.ID)
	if err != nil {
		return nil, err
	}
	list := []*hangar.Volume{}
	for _, row := range rows {
		if !p.May(hangar.ActionRead, volumeTarget(of, &row)) {
			continue
		}
		if _, err := v.hosts.agent(row.Volume.Host); err != nil {
			list = append(list, lastKnown(row))
		} else {
			list = append(list, answered(&row))
		}
	}
	return list, nil
}

// volumeTarget returns the App of a volume as a target. It has the App's id, because the App may be
// destroyed and its name reused.
func volumeTarget(org hangar.Org, row *hangar.VolumeRow) hangar.Target {
	return hangar.Target{Org: org.Slug, OrgID: org.ID, App: row.Volume.App, AppID: row.Volume.AppID}
}

// PurgeVolume implements hangar.VolumeService.
func (v *Volumes) PurgeVolume(ctx context.Context, org hangar.OrgSlug, id hangar.VolumeID) (*hangar.Volume, error) {
	p, of, err := v.tenants.OrgReader(ctx, org)
	if err != nil {
		return nil, err
	}
	rows, err := v.rows.volumes(ctx, state.VolumesPrefix)
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
		return nil, tenants.Denied(p, t)
	}
	agent, err := v.hosts.agent(row.Volume.Host)
	if err != nil {
		return nil, err
	}
	done, err := agent.PurgeVolume(ctx, row.Volume.Ref())
	if err != nil {
		return nil, err
	}
	v.log.InfoContext(ctx, "destroyed volume purged by its organization", keyVolume, id, keyApp, row.Volume.App)
	v.rows.publishAnswer(ctx, done)
	return answered(done), nil
}
