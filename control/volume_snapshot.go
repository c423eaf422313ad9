package control

import (
	"context"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/random"
)

// Snapshots implements hangar.SnapshotService. While the host of the volume cannot be
// reached, they are listed as they were published.
func (v *Volumes) Snapshots(ctx context.Context, ref hangar.VolumeRef) ([]*hangar.Snapshot, error) {
	row, err := v.find(ctx, ref, hangar.ActionRead)
	if err != nil {
		return nil, err
	}
	agent, err := v.hosts.agent(row.Volume.Host)
	if err == nil {
		var list []*hangar.Snapshot
		if list, err = agent.Snapshots(ctx, row.Volume.Ref()); err == nil {
			return list, nil
		}
	}
	if !unreachable(err) || ctx.Err() != nil {
		return nil, err
	}
	list := make([]*hangar.Snapshot, len(row.Snapshots))
	for i, snapshot := range row.Snapshots {
		list[i] = &snapshot
	}
	return list, nil
}

// CreateSnapshot implements hangar.SnapshotService.
func (v *Volumes) CreateSnapshot(ctx context.Context, ref hangar.VolumeRef) (*hangar.Snapshot, error) {
	row, err := v.find(ctx, ref, hangar.ActionCreate)
	if err != nil {
		return nil, err
	}
	agent, err := v.hosts.agent(row.Volume.Host)
	if err != nil {
		return nil, err
	}
	made, err := agent.CreateSnapshot(ctx, row.Volume.Ref())
	if err != nil {
		return nil, err
	}
	made.AppID = row.Volume.AppID
	// A restore looks for the snapshot in the published rows.
	if now, err := agent.VolumeRow(ctx, row.Volume.Ref()); err == nil {
		v.rows.publishAnswer(ctx, now)
	}
	return made, nil
}

// DrillVolumes implements hangar.SnapshotService. The host of any of the App's snapshots,
// each as likely as any other, chooses one of its own.
func (v *Volumes) DrillVolumes(ctx context.Context, app hangar.AppName) (*hangar.VolumeDrill, error) {
	rows, err := v.rowsFor(ctx, app, hangar.ActionCreate)
	if err != nil {
		return nil, err
	}
	var hosts []hangar.HostID // of each snapshot
	for _, row := range rows {
		for _, snapshot := range row.Snapshots {
			if snapshot.State != hangar.SnapshotFailed {
				hosts = append(hosts, row.Volume.Host)
			}
		}
	}
	if len(hosts) == 0 {
		return nil, hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonSnapshotNotFound, "app %q has no snapshot to restore", app)
	}
	agent, err := v.hosts.agent(hosts[random.Below(len(hosts))])
	if err != nil {
		return nil, err
	}
	return agent.DrillVolumes(ctx, rows[0].Volume.AppID)
}

// VolumeDrill implements hangar.SnapshotService. Unreachable hosts are left out, unless no other
// host knows of a drill.
func (v *Volumes) VolumeDrill(ctx context.Context, app hangar.AppName) (*hangar.VolumeDrill, error) {
	rows, err := v.rowsFor(ctx, app, hangar.ActionRead)
	if err != nil {
		return nil, err
	}
	asked := map[hangar.HostID]bool{}
	var latest *hangar.VolumeDrill
	var away error
	for _, row := range rows {
		host := row.Volume.Host
		if asked[host] {
			continue
		}
		asked[host] = true
		drill, err := v.drillOf(ctx, host, row.Volume.AppID)
		switch {
		case hangar.CodeOf(err) == hangar.CodeNotFound:
		case unreachable(err) && ctx.Err() == nil:
			away = err
		case err != nil:
			return nil, err
		case latest == nil || drill.StartedAt.After(latest.StartedAt):
			latest = drill
		}
	}
	switch {
	case latest != nil:
		return latest, nil
	case away != nil:
		return nil, away
	default:
		return nil, hangar.Errorf(hangar.CodeNotFound, "", "app %q had no drill", app)
	}
}

func (v *Volumes) drillOf(ctx context.Context, host hangar.HostID, app hangar.AppID) (*hangar.VolumeDrill, error) {
	agent, err := v.hosts.agent(host)
	if err != nil {
		return nil, err
	}
	return agent.VolumeDrill(ctx, app)
}
