package control

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/ledger"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
)

// Volumes implements hangar.VolumeService. A volume is found by the row that its host has
// published; its host answers all requests about it. The host's answer is published at
// once, so that the caller's next requests see it.
//
// Rows outlive their Apps, because snapshots do. They are stored by the App's id, so a new App with
// the same name has no access to them.
type Volumes struct {
	store   state.Store
	tenants *tenants.Directory
	ledger  *ledger.Ledger
	hosts   *hosts
	rows    *Rows
	log     *slog.Logger
	now     func() time.Time
	unused  state.Sightings // of claims that no host has used; only healClaims uses it
}

var _ hangar.VolumeService = (*Volumes)(nil)

// find returns the row of a volume if the caller may do action to its App.
func (v *Volumes) find(ctx context.Context, ref hangar.VolumeRef, action hangar.Action) (hangar.VolumeRow, error) {
	rec, _, err := v.tenants.App(ctx, ref.App, action)
	if err != nil {
		return hangar.VolumeRow{}, err
	}
	return v.rows.volumeOf(ctx, rec.ID, ref.ID)
}

// rowsFor is volumesOf with a check of an action on the App.
func (v *Volumes) rowsFor(ctx context.Context, app hangar.AppName, action hangar.Action) ([]hangar.VolumeRow, error) {
	rec, _, err := v.tenants.App(ctx, app, action)
	if err != nil {
		return nil, err
	}
	return v.rows.volumesOf(ctx, rec.ID)
}

// answered returns a volume from its host's answer.
func answered(row *hangar.VolumeRow) *hangar.Volume {
	volume := row.Volume
	volume.HostStatus = cmp.Or(volume.HostStatus, hostOK)
	return &volume
}

// lastKnown returns a volume of a host that cannot be reached.
func lastKnown(row hangar.VolumeRow) *hangar.Volume {
	row.Volume.HostStatus = hostUnreachable
	return &row.Volume
}

// order forwards a change of a volume to its host.
func (v *Volumes) order(
	ctx context.Context, ref hangar.VolumeRef, action hangar.Action, give func(hangar.VolumeAgent, hangar.VolumeRef) (*hangar.VolumeRow, error),
) (*hangar.Volume, error) {
	row, err := v.find(ctx, ref, action)
	if err != nil {
		return nil, err
	}
	agent, err := v.hosts.agent(row.Volume.Host)
	if err != nil {
		return nil, err
	}
	done, err := give(agent, row.Volume.Ref())
	if err != nil {
		return nil, volumeRoom(err)
	}
	v.rows.publishAnswer(ctx, done)
	return answered(done), nil
}

// volumeRoom returns the error for a host without room for volumes.
func volumeRoom(err error) error {
	if hangar.ReasonOf(err) != hangar.ReasonInsufficientCapacity {
		return err
	}
	return hangar.Errorf(hangar.CodeConflict, hangar.ReasonVolumeCapacity, "no capacity: %s", strings.TrimPrefix(err.Error(), "no capacity: "))
}

// Volume implements hangar.VolumeService. While its host cannot be reached, the volume is
// shown as it was published.
func (v *Volumes) Volume(ctx context.Context, ref hangar.VolumeRef) (*hangar.Volume, error) {
	row, err := v.find(ctx, ref, hangar.ActionRead)
	if err != nil {
		return nil, err
	}
	now, err := v.latest(ctx, row)
	switch {
	case err == nil:
		return answered(now), nil
	case unreachable(err) && ctx.Err() == nil:
		return lastKnown(row), nil
	default:
		return nil, err
	}
}

// latest asks the host of a volume for its row.
func (v *Volumes) latest(ctx context.Context, row hangar.VolumeRow) (*hangar.VolumeRow, error) {
	agent, err := v.hosts.agent(row.Volume.Host)
	if err != nil {
		return nil, err
	}
	return agent.VolumeRow(ctx, row.Volume.Ref())
}

// Volumes implements hangar.VolumeService.
func (v *Volumes) Volumes(ctx context.Context, app hangar.AppName) ([]*hangar.Volume, error) {
	rec, _, err := v.tenants.App(ctx, app, hangar.ActionRead)
	if err != nil {
		return nil, err
	}
	rows, err := v.rows.volumesOf(ctx, rec.ID)
	if err != nil {
		return nil, err
	}
	byHost := map[hangar.HostID]map[hangar.VolumeID]*hangar.Volume{}
	for _, row := range rows {
		if byHost[row.Volume.Host] == nil {
			byHost[row.Volume.Host] = map[hangar.VolumeID]*hangar.Volume{}
		}
		byHost[row.Volume.Host][row.Volume.ID] = lastKnown(row)
	}
	var group errgroup.Group
	for host, known := range byHost {
		group.Go(func() error { return v.ask(ctx, rec.ID, host, known) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	list := []*hangar.Volume{}
	for _, known := range byHost {
		for _, volume := range known {
			if volume.State != hangar.VolumeDestroyed {
				list = append(list, volume)
			}
		}
	}
	slices.SortFunc(list, byVolume)
	return list, nil
}

func byVolume(a, b *hangar.Volume) int { return strings.Compare(string(a.ID), string(b.ID)) }

// ask replaces the known volumes of a host by the host's answer, unless it cannot be reached.
func (v *Volumes) ask(ctx context.Context, app hangar.AppID, host hangar.HostID, known map[hangar.VolumeID]*hangar.Volume) error {
	agent, err := v.hosts.agent(host)
	if err == nil {
		bounded, cancel := context.WithTimeout(ctx, listTimeout)
		defer cancel()
		var rows []*hangar.VolumeRow
		if rows, err = agent.VolumeRows(bounded, app); err == nil {
			for _, row := range rows {
				if known[row.Volume.ID] != nil {
					known[row.Volume.ID] = answered(row)
				}
			}
			return nil
		}
	}
	if unreachable(err) && ctx.Err() == nil {
		return nil
	}
	return err
}

// OrgVolumes implements hangar.VolumeService. Volumes are listed as they were published.
func (v *Volumes) OrgVolumes(ctx context.Context, org hangar.OrgSlug, after hangar.VolumeID, limit int) ([]*hangar.Volume, error) {
	p, of, err := v.tenants.OrgReader(ctx, org)
	if err != nil {
		return nil, err
	}
	apps, err := v.tenants.AppsOf(ctx, of.ID, func(item state.Item, err error) { v.log.Error("app skipped", keyKey, item.Key, keyError, err) })
	if err != nil {
		return nil, err
	}
	var rows []hangar.VolumeRow
	for _, app := range apps {
		if !p.May(hangar.ActionRead, app.Target("")) {
			continue
		}
		of, err := v.rows.volumesOf(ctx, app.ID)
		if err != nil {
			return nil, err
		}
		rows = append(rows, of...)
	}
	away := map[hangar.HostID]bool{}
	list := []*hangar.Volume{}
	for _, row := range rows {
		if row.Volume.ID <= after || row.Volume.State == hangar.VolumeDestroyed {
			continue
		}
		host := row.Volume.Host
		if _, known := away[host]; !known {
			_, err := v.hosts.agent(host)
			away[host] = err != nil
		}
		if away[host] {
			list = append(list, lastKnown(row))
		} else {
			list = append(list, answered(&row))
		}
	}
	slices.SortFunc(list, byVolume)
	return list[:min(len(list), max(limit, 0))], nil
}

// UpdateVolume implements hangar.VolumeService.
func (v *Volumes) UpdateVolume(ctx context.Context, ref hangar.VolumeRef, in hangar.VolumeUpdate) (*hangar.Volume, error) {
	return v.order(ctx, ref, hangar.ActionWrite, func(a hangar.VolumeAgent, ref hangar.VolumeRef) (*hangar.VolumeRow, error) {
		if err := in.Validate(); err != nil {
			return nil, err
		}
		return a.UpdateVolume(ctx, ref, in)
	})
}

// ExtendVolume implements hangar.VolumeService.
func (v *Volumes) ExtendVolume(ctx context.Context, ref hangar.VolumeRef, sizeGB int) (hangar.VolumeExtended, error) {
	volume, err := v.order(ctx, ref, hangar.ActionWrite, func(a hangar.VolumeAgent, ref hangar.VolumeRef) (*hangar.VolumeRow, error) {
		now, err := a.VolumeRow(ctx, ref)
		if err != nil {
			return nil, err
		}
		if err := now.Volume.CheckExtension(sizeGB); err != nil {
			return nil, err
		}
		if now.Volume.SizeGB == sizeGB && now.Volume.State.Usable() {
			return now, nil // not an error: clients repeat a call whose answer was lost
		}
		app, err := v.tenants.AppOf(ctx, ref.App, ref.AppID)
		if err != nil {
			return nil, err
		}
		org, err := v.tenants.OrgOfApp(ctx, app)
		if err != nil {
			return nil, err
		}
		var extended *hangar.VolumeRow
		more := hangar.Quotas{hangar.QuotaVolumeGB: int64(sizeGB - now.Volume.SizeGB)}
		err = v.reclaiming(ctx, org, more, func() (err error) {
			extended, err = a.ExtendVolume(ctx, ref, sizeGB)
			return err
		})
		return extended, err
	})
	if err != nil {
		return hangar.VolumeExtended{}, err
	}
	return hangar.VolumeExtended{Volume: volume, NeedsRestart: volume.NeedsRestart}, nil
}

// DestroyVolume implements hangar.VolumeService.
func (v *Volumes) DestroyVolume(ctx context.Context, ref hangar.VolumeRef) (*hangar.Volume, error) {
	return v.order(ctx, ref, hangar.ActionDelete, func(a hangar.VolumeAgent, ref hangar.VolumeRef) (*hangar.VolumeRow, error) {
		return a.DestroyVolume(ctx, ref)
	})
}

// UndeleteVolume implements hangar.VolumeService.
func (v *Volumes) UndeleteVolume(ctx context.Context, ref hangar.VolumeRef) (*hangar.Volume, error) {
	return v.order(ctx, ref, hangar.ActionWrite, func(a hangar.VolumeAgent, ref hangar.VolumeRef) (*hangar.VolumeRow, error) {
		return a.UndeleteVolume(ctx, ref)
	})
}

// VolumeEvents implements hangar.VolumeService.
func (v *Volumes) VolumeEvents(ctx context.Context, ref hangar.VolumeRef) ([]hangar.VolumeEvent, error) {
	row, err := v.find(ctx, ref, hangar.ActionRead)
	if err != nil {
		return nil, err
	}
	agent, err := v.hosts.agent(row.Volume.Host)
	if err != nil {
		return nil, err
	}
	return agent.VolumeEvents(ctx, row.Volume.Ref())
}
