package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/hangar-platform/hangar"
)

// volumeAnswer is a volume as the API writes it.
type volumeAnswer struct {
	ID                hangar.VolumeID    `json:"id"`
	Name              string             `json:"name"`
	App               hangar.AppName     `json:"app_name"`
	State             hangar.VolumeState `json:"state"`
	SizeGB            int                `json:"size_gb"`
	Region            hangar.Region      `json:"region"`
	Zone              string             `json:"zone"`
	Host              hangar.HostID      `json:"host_id"`
	Encrypted         bool               `json:"encrypted"`
	AttachedMachine   hangar.MachineID   `json:"attached_machine_id"`
	CreatedAt         time.Time          `json:"created_at"`
	UpdatedAt         time.Time          `json:"updated_at"`
	Blocks            int64              `json:"blocks"`
	BlockSize         int64              `json:"block_size"`
	BlocksFree        int64              `json:"blocks_free"`
	BlocksAvail       int64              `json:"blocks_avail"`
	FSType            hangar.FSType      `json:"fstype"`
	SnapshotRetention int                `json:"snapshot_retention"`
	AutoBackup        bool               `json:"auto_backup_enabled"`
	HostStatus        string             `json:"host_status"`
	Wanted            hangar.FSType      `json:"wanted_fstype"`
	NeedsRestart      bool               `json:"needs_restart"`
	Filling           hangar.Filling     `json:"filling"`
	DestroyedAt       time.Time          `json:"destroyed_at"`
	UndeleteUntil     time.Time          `json:"undelete_until"`
}

func (a volumeAnswer) volume() *hangar.Volume {
	v := &hangar.Volume{
		ID: a.ID, Name: a.Name, App: a.App, State: a.State, SizeGB: a.SizeGB, Region: a.Region, Zone: a.Zone, Host: a.Host, Encrypted: a.Encrypted,
		AttachedMachine: a.AttachedMachine, CreatedAt: a.CreatedAt, UpdatedAt: a.UpdatedAt, SnapshotRetention: a.SnapshotRetention,
		AutoBackup: a.AutoBackup, HostStatus: a.HostStatus, Wanted: a.Wanted, NeedsRestart: a.NeedsRestart, Filling: a.Filling, DestroyedAt: a.DestroyedAt,
		Usage: hangar.VolumeUsage{
			FSType: a.FSType, Blocks: a.Blocks, BlockSize: a.BlockSize, BlocksFree: a.BlocksFree, BlocksAvail: a.BlocksAvail,
		},
	}
	if !a.UndeleteUntil.IsZero() { // what is told to clients who do not know the state
		v.State = hangar.VolumePendingDestroy
	}
	return v
}

func volumesOf(answers []volumeAnswer) []*hangar.Volume {
	list := make([]*hangar.Volume, len(answers))
	for i, a := range answers {
		list[i] = a.volume()
	}
	return list
}

// volumeWish is the body of create.
type volumeWish struct {
	Name              string            `json:"name"`
	Region            hangar.Region     `json:"region,omitempty"`
	SizeGB            int               `json:"size_gb,omitempty"`
	Encrypted         *bool             `json:"encrypted,omitempty"`
	FSType            hangar.FSType     `json:"fstype,omitempty"`
	SnapshotRetention int               `json:"snapshot_retention,omitempty"`
	AutoBackup        *bool             `json:"auto_backup_enabled,omitempty"`
	Snapshot          hangar.SnapshotID `json:"snapshot_id,omitempty"`
	Source            hangar.VolumeID   `json:"source_volume_id,omitempty"`
	UniqueZone        *bool             `json:"require_unique_zone,omitempty"`
	UniqueZoneAppWide bool              `json:"unique_zone_app_wide,omitempty"`
	Compute           *hangar.Guest     `json:"compute,omitempty"`
}

// CreateVolume implements hangar.VolumeService.
func (c *Client) CreateVolume(ctx context.Context, app hangar.AppName, in hangar.VolumeCreate) (*hangar.Volume, error) {
	to := post(appPath(app, "volumes"))
	to.in = volumeWish(in)
	return c.volume(ctx, to)
}

func (c *Client) volume(ctx context.Context, in call) (*hangar.Volume, error) {
	var out volumeAnswer
	if err := c.do(ctx, in, &out); err != nil {
		return nil, err
	}
	return out.volume(), nil
}

// Volume implements hangar.VolumeService.
func (c *Client) Volume(ctx context.Context, ref hangar.VolumeRef) (*hangar.Volume, error) {
	return c.volume(ctx, get(volumePath(ref)))
}

// Volumes implements hangar.VolumeService.
func (c *Client) Volumes(ctx context.Context, app hangar.AppName) ([]*hangar.Volume, error) {
	var out []volumeAnswer
	if err := c.do(ctx, get(appPath(app, "volumes")), &out); err != nil {
		return nil, err
	}
	return volumesOf(out), nil
}

// maxVolumePage is how many volumes the API lists at once.
const maxVolumePage = 1000

// OrgVolumes implements hangar.VolumeService.
func (c *Client) OrgVolumes(ctx context.Context, org hangar.OrgSlug, after hangar.VolumeID, limit int) ([]*hangar.Volume, error) {
	var list []*hangar.Volume
	for {
		asked := min(max(limit-len(list), 1), maxVolumePage)
		in := get(pathOf("v1", "orgs", string(org), "volumes"))
		in.query = url.Values{"include_deleted": {"true"}, "limit": {strconv.Itoa(asked)}}
		if after != "" {
			in.query.Set("after", string(after))
		}
		var out struct {
			Volumes []volumeAnswer `json:"volumes"`
		}
		if err := c.do(ctx, in, &out); err != nil {
			return nil, err
		}
		list = append(list, volumesOf(out.Volumes)...)
		if len(out.Volumes) < asked || len(list) >= limit {
			return list[:min(len(list), max(limit, 0))], nil
		}
		after = list[len(list)-1].ID
	}
}

// UpdateVolume implements hangar.VolumeService.
func (c *Client) UpdateVolume(ctx context.Context, ref hangar.VolumeRef, in hangar.VolumeUpdate) (*hangar.Volume, error) {
	return c.volume(ctx, call{method: http.MethodPut, path: volumePath(ref), in: struct {
		SnapshotRetention *int  `json:"snapshot_retention,omitempty"`
		AutoBackup        *bool `json:"auto_backup_enabled,omitempty"`
	}(in)})
}

// ExtendVolume implements hangar.VolumeService.
func (c *Client) ExtendVolume(ctx context.Context, ref hangar.VolumeRef, sizeGB int) (hangar.VolumeExtended, error) {
	var out struct {
		Volume       volumeAnswer `json:"volume"`
		NeedsRestart bool         `json:"needs_restart"`
	}
	err := c.do(ctx, call{method: http.MethodPut, path: volumePath(ref, "extend"), in: map[string]any{"size_gb": sizeGB}}, &out)
	if err != nil {
		return hangar.VolumeExtended{}, err
	}
	return hangar.VolumeExtended{Volume: out.Volume.volume(), NeedsRestart: out.NeedsRestart}, nil
}

// DestroyVolume implements hangar.VolumeService.
func (c *Client) DestroyVolume(ctx context.Context, ref hangar.VolumeRef) (*hangar.Volume, error) {
	return c.volume(ctx, call{method: http.MethodDelete, path: volumePath(ref)})
}

// UndeleteVolume implements hangar.VolumeService.
func (c *Client) UndeleteVolume(ctx context.Context, ref hangar.VolumeRef) (*hangar.Volume, error) {
	return c.volume(ctx, post(volumePath(ref, "undelete")))
}

// DestroyedVolumes implements hangar.VolumeService.
func (c *Client) DestroyedVolumes(ctx context.Context, org hangar.OrgSlug) ([]*hangar.Volume, error) {
	var out []volumeAnswer
	if err := c.do(ctx, get(pathOf("v1", "orgs", string(org), "destroyed_volumes")), &out); err != nil {
		return nil, err
	}
	return volumesOf(out), nil
}

// PurgeVolume implements hangar.VolumeService.
func (c *Client) PurgeVolume(ctx context.Context, org hangar.OrgSlug, id hangar.VolumeID) (*hangar.Volume, error) {
	return c.volume(ctx, call{method: http.MethodDelete, path: pathOf("v1", "orgs", string(org), "destroyed_volumes", string(id))})
}

// VolumeEvents implements hangar.VolumeService.
func (c *Client) VolumeEvents(ctx context.Context, ref hangar.VolumeRef) ([]hangar.VolumeEvent, error) {
	var out []hangar.VolumeEvent
	err := c.do(ctx, get(volumePath(ref, "events")), &out)
	return out, err
}

// snapshotAnswer is a snapshot as the API writes it.
type snapshotAnswer struct {
	ID            hangar.SnapshotID    `json:"id"`
	Volume        hangar.VolumeID      `json:"volume_id"`
	State         hangar.SnapshotState `json:"status"`
	Size          int64                `json:"size"`
	VolumeSize    int64                `json:"volume_size"`
	Digest        string               `json:"digest"`
	CreatedAt     time.Time            `json:"created_at"`
	FinishedAt    time.Time            `json:"finished_at"`
	RetentionDays int                  `json:"retention_days"`
	Daily         bool                 `json:"daily"`
	FrozenMS      int64                `json:"frozen_ms"`
	Fault         string               `json:"fault"`
	Progress      hangar.Progress      `json:"progress"`
}

func (a snapshotAnswer) snapshot() *hangar.Snapshot {
	s := &hangar.Snapshot{
		ID: a.ID, Volume: a.Volume, State: a.State, Size: a.Size, VolumeSize: a.VolumeSize, Digest: a.Digest, CreatedAt: a.CreatedAt.UTC(),
		RetentionDays: a.RetentionDays, Daily: a.Daily, Frozen: time.Duration(a.FrozenMS) * time.Millisecond, Fault: a.Fault, Progress: a.Progress,
	}
	if !a.FinishedAt.IsZero() {
		s.FinishedAt = a.FinishedAt.UTC()
	}
	return s
}

// Snapshots implements hangar.SnapshotService.
func (c *Client) Snapshots(ctx context.Context, ref hangar.VolumeRef) ([]*hangar.Snapshot, error) {
	var out []snapshotAnswer
	if err := c.do(ctx, get(volumePath(ref, "snapshots")), &out); err != nil {
		return nil, err
	}
	list := make([]*hangar.Snapshot, len(out))
	for i, a := range out {
		list[i] = a.snapshot()
	}
	return list, nil
}

// CreateSnapshot implements hangar.SnapshotService.
func (c *Client) CreateSnapshot(ctx context.Context, ref hangar.VolumeRef) (*hangar.Snapshot, error) {
	var out struct {
		Snapshot snapshotAnswer `json:"snapshot"`
	}
	if err := c.do(ctx, post(volumePath(ref, "snapshots")), &out); err != nil {
		return nil, err
	}
	return out.Snapshot.snapshot(), nil
}

// DrillVolumes implements hangar.SnapshotService.
func (c *Client) DrillVolumes(ctx context.Context, app hangar.AppName) (*hangar.VolumeDrill, error) {
	return c.drill(ctx, post(appPath(app, "volume_drill")))
}

// VolumeDrill implements hangar.SnapshotService.
func (c *Client) VolumeDrill(ctx context.Context, app hangar.AppName) (*hangar.VolumeDrill, error) {
	return c.drill(ctx, get(appPath(app, "volume_drill")))
}

func (c *Client) drill(ctx context.Context, in call) (*hangar.VolumeDrill, error) {
	var out hangar.VolumeDrill
	if err := c.do(ctx, in, &out); err != nil {
		return nil, err
	}
	return &out, nil
}

func volumePath(ref hangar.VolumeRef, more ...string) string {
	return appPath(ref.App, append([]string{"volumes", string(ref.ID)}, more...)...)
}
