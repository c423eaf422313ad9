package control

import (
	"context"
	"errors"
	"fmt"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/placement"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/internal/finish"
)

// CreateVolume implements hangar.VolumeService. Nothing is reserved: a volume whose
// answer was lost is found by the row that its host publishes.
func (v *Volumes) CreateVolume(ctx context.Context, app hangar.AppName, in hangar.VolumeCreate) (*hangar.Volume, error) {
	rec, item, err := v.tenants.App(ctx, app, hangar.ActionCreate)
	if err != nil {
		return nil, err
	}
	if err := in.Complete(); err != nil {
		return nil, err
	}
	if rec.Deleting {
		return nil, tenants.AppIsGoing(app)
	}
	hosts, load, err := v.volumeHosts(ctx, rec, &in)
	if err != nil {
		return nil, err
	}
	// The creation continues if the caller disconnects: otherwise it would be unknown whether the
	// host has the volume.
	ctx, cancel := finish.Within(ctx, createTimeout)
	defer cancel()
	spec := hangar.VolumeSpec{
		ID: hangar.NewVolumeID(), Name: in.Name, App: app, AppID: rec.ID, Org: rec.Org, OrgID: rec.OrgID, Region: in.Region, SizeGB: in.SizeGB,
		Encrypted: in.Encrypted == nil || *in.Encrypted, FSType: in.FSType, SnapshotRetention: in.SnapshotRetention,
		AutoBackup: in.AutoBackup == nil || *in.AutoBackup, Snapshot: in.Snapshot, Source: in.Source, Compute: in.Compute,
	}
	if err := v.claim(ctx, rec, &spec); err != nil {
		return nil, err
	}
	row, err := v.createOn(ctx, placement.New(hosts, load, string(spec.ID), askFor(&spec), v.hosts.bid), spec)
	if err != nil {
		v.unclaim(ctx, spec.ID, err)
		return nil, err
	}
	v.rows.publishAnswer(ctx, row)
	if err := v.stillThere(ctx, rec, item); err != nil {
		v.undo(ctx, row)
		return nil, err
	}
	return answered(row), nil
}

// unclaim stops counting a volume whose creation has failed. If it is unknown whether the host has
// made the volume, it stays counted until a host publishes its row, or healClaims has asked the
// hosts.
func (v *Volumes) unclaim(ctx context.Context, id hangar.VolumeID, failure error) {
	switch hangar.CodeOf(failure) {
	case hangar.CodeUnavailable, hangar.CodeTimeout, hangar.CodeInternal:
		return
	default:
	}
	ctx, cancel := finish.Within(ctx, undoTimeout)
	defer cancel()
	if err := v.rows.disclaimVolume(ctx, id); err != nil {
		v.log.WarnContext(ctx, "volume that was not made is still counted", keyVolume, id, keyError, err)
	}
}

// stillThere reports whether an App still exists, and is not about to be destroyed,
// after something was made in it: a destroyer marks the App first and then looks for
// its content.
func (v *Volumes) stillThere(ctx context.Context, rec tenants.AppRecord, item state.Item) error {
	for {
		// A transaction reads the store itself instead of a mirror, and needs a write.
		put := state.Put(item.Key, item.Value)
		_, err := v.store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{put}})
		if !errors.Is(err, state.ErrConflict) {
			return state.HangarError(err)
		}
		var now tenants.AppRecord
		if now, item, err = v.tenants.AnyApp(ctx, rec.Name); err != nil {
			return err
		}
		if now.ID != rec.ID {
			return hangar.AppNotFound()
		}
		if now.Deleting {
			return tenants.AppIsGoing(rec.Name)
		}
	}
}

// undo destroys a volume whose App was destroyed meanwhile.
func (v *Volumes) undo(ctx context.Context, row *hangar.VolumeRow) {
	ctx, cancel := finish.Within(ctx, undoTimeout)
	defer cancel()
	agent, err := v.hosts.agent(row.Volume.Host)
	var gone *hangar.VolumeRow
	if err == nil {
		gone, err = agent.DestroyVolume(platform(ctx), row.Volume.Ref())
	}
	if err != nil {
		v.log.Warn("volume without an app is not destroyed yet", keyVolume, row.Volume.ID, keyApp, row.Volume.App, keyError, err)
		return
	}
	v.rows.publishAnswer(ctx, gone)
}

// askFor returns what hosts bid for.
func askFor(spec *hangar.VolumeSpec) hangar.MachineAsk {
	ask := hangar.MachineAsk{App: spec.AppID, Volume: int64(spec.SizeGB) << 30}
	if spec.Compute != nil {
		ask.Guest = *spec.Compute
	}
	return ask
}

// createOn asks hosts in turn to make a volume. A host that lacks the room, or the snapshot
// to restore, is passed over.
func (v *Volumes) createOn(ctx context.Context, market *placement.Market, spec hangar.VolumeSpec) (*hangar.VolumeRow, error) {
	elsewhere := false // a host lacks the snapshot
	for host := range market.Hosts(ctx) {
		agent, err := v.hosts.agent(host.ID)
		if err == nil {
			var row *hangar.VolumeRow
			if row, err = v.createAt(ctx, agent, spec); err == nil {
				return row, nil
			}
		}
		switch {
		case hangar.NoRoom(err), agent == nil:
			market.Refuse(host.ID, err)
		case hangar.ReasonOf(err) == hangar.ReasonSnapshotNotFound && spec.Snapshot != "":
			elsewhere = true
		default:
			return nil, err
		}
	}
	// A host without the snapshot says less than a host without room, so the latter's error is preferred.
	if elsewhere && !market.Refused() {
		return nil, badRegion("snapshot %s cannot be restored in %q: the servers there do not have it", spec.Snapshot, spec.Region)
	}
	return nil, volumeRoom(market.Err())
}

func badRegion(rule string, args ...any) error {
	return hangar.Errorf(hangar.CodeInvalid, "", "invalid region: %s", fmt.Sprintf(rule, args...))
}

// createAt makes a volume on a host. After a failure it finds out whether the host has the volume
// nevertheless.
func (v *Volumes) createAt(ctx context.Context, agent hangar.VolumeAgent, spec hangar.VolumeSpec) (*hangar.VolumeRow, error) {
	row, err := agent.CreateVolume(ctx, spec)
	if err == nil || !unreachable(err) {
		return row, err
	}
	ctx, cancel := finish.Within(ctx, listTimeout)
	defer cancel()
	row, unknown := agent.VolumeRow(ctx, hangar.VolumeRef{AppID: spec.AppID, ID: spec.ID})
	if unknown != nil {
		return nil, err
	}
	return row, nil
}

// volumeHosts returns the hosts that may make a volume, with the load of each: those with the least
// are asked first. It completes the request from the source of the volume.
func (v *Volumes) volumeHosts(ctx context.Context, rec tenants.AppRecord, in *hangar.VolumeCreate) (hosts []hangar.Host, load map[hangar.HostID]int, err error) {
	switch {
	case in.Source != "":
		hosts, err = v.forkHosts(ctx, rec, in)
		return hosts, nil, err
	case in.Snapshot != "":
		return v.restoreHosts(ctx, rec, in)
	}
	in.Region = regionFor(in.Region, v.hosts.regions())
	if hosts, err = v.hosts.hostsIn(in.Region); err != nil {
		return nil, nil, err
	}
	rows, err := v.rows.volumesOf(ctx, rec.ID)
	if err != nil {
		return nil, nil, err
	}
	// Volumes of one name belong to Machines that replace one another.
	load = map[hangar.HostID]int{}
	for _, row := range rows {
		if row.Volume.Name == in.Name && !row.Volume.State.Gone() {
			load[row.Volume.Host]++
		}
	}
	return hosts, load, nil
}

// forkHosts returns the host of the source, which alone has its content.
func (v *Volumes) forkHosts(ctx context.Context, rec tenants.AppRecord, in *hangar.VolumeCreate) ([]hangar.Host, error) {
	row, err := v.origin(ctx, rec, func(row *hangar.VolumeRow) bool { return row.Volume.ID == in.Source })
	if err != nil {
		return nil, err
	}
	if row == nil {
		return nil, hangar.VolumeNotFound(in.Source)
	}
	source := &row.Volume
	if in.Region = regionFor(in.Region, []hangar.Region{source.Region}); in.Region != source.Region {
		return nil, badRegion("%q is not that of volume %s, which is in %q, and a copy is made where its source is", in.Region, source.ID, source.Region)
	}
	if !source.State.Usable() {
		return nil, hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "volume %s cannot be copied: it is %s", source.ID, source.State)
	}
	if err := in.CheckSource(int64(source.SizeGB)<<30, source.Wanted); err != nil {
		return nil, err
	}
	in.FSType = source.Wanted
	return []hangar.Host{{ID: source.Host, Region: source.Region}}, nil
}

// restoreHosts returns the host that took the snapshot, with the least load, and all others, which
// may share the archive.
func (v *Volumes) restoreHosts(ctx context.Context, rec tenants.AppRecord, in *hangar.VolumeCreate) (hosts []hangar.Host, load map[hangar.HostID]int, err error) {
	row, err := v.origin(ctx, rec, func(row *hangar.VolumeRow) bool { return snapshotIn(row, in.Snapshot) != nil })
	if err != nil {
		return nil, nil, err
	}
	if row == nil {
		return nil, nil, hangar.SnapshotNotFound(in.Snapshot)
	}
	in.Region = regionFor(in.Region, append([]hangar.Region{row.Volume.Region}, v.hosts.regions()...))
	if hosts, err = v.hosts.hostsIn(in.Region); err != nil {
		return nil, nil, err
	}
	snapshot := snapshotIn(row, in.Snapshot)
	if snapshot == nil {
		return nil, nil, hangar.SnapshotNotFound(in.Snapshot)
	}
	if snapshot.State != hangar.SnapshotCreated {
		return nil, nil, hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "snapshot %s cannot be restored: it is %s", snapshot.ID, snapshot.State)
	}
	if err := in.CheckSource(snapshot.VolumeSize, row.Volume.Wanted); err != nil {
		return nil, nil, err
	}
	in.FSType = row.Volume.Wanted
	load = map[hangar.HostID]int{}
	for _, h := range hosts {
		if h.ID != row.Volume.Host {
			load[h.ID] = 1
		}
	}
	return hosts, load, nil
}

func snapshotIn(row *hangar.VolumeRow, id hangar.SnapshotID) *hangar.Snapshot {
	for i := range row.Snapshots {
		if row.Snapshots[i].ID == id {
			return &row.Snapshots[i]
		}
	}
	return nil
}

// origin returns the row of the volume to copy, from its host if that can be reached; nil: no
// source is named, or the caller may not see it. The volume must belong to the organization of the
// App. A copy gives access to all data on the volume, so it takes the same right as executing a
// command: hangar.ActionControl on the App of the source.
func (v *Volumes) origin(ctx context.Context, rec tenants.AppRecord, wanted func(*hangar.VolumeRow) bool) (*hangar.VolumeRow, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := v.rows.volumes(ctx, state.VolumesPrefix)
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		from := hangar.Target{Org: rec.Org, OrgID: rec.OrgID, App: row.Volume.App, AppID: row.Volume.AppID}
		if row.OrgID != rec.OrgID || !wanted(&row) || !p.Sees(from) {
			continue
		}
		if !p.May(hangar.ActionControl, from) {
			return nil, tenants.Forbidden("app %q, whose volume would be copied: that takes the action control, as executing a command does", from.App)
		}
		now, err := v.latest(ctx, row)
		switch {
		case err == nil:
			return now, nil
		case unreachable(err) && ctx.Err() == nil:
			return &row, nil
		default:
			return nil, err
		}
	}
	return nil, nil //nolint:nilnil // as documented
}
