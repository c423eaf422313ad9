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
	hangar.Volume
	hangar.VolumeUsage
	AttachedTo    hangar.MachineID `json:"attached_machine_id"`
	UndeleteUntil time.Time        `json:"undelete_until"`
}

func (a volumeAnswer) volume() *hangar.Volume {
	v := a.Volume
	v.Usage, v.AttachedMachine = a.VolumeUsage, a.AttachedTo
	if !a.UndeleteUntil.IsZero() { // older clients know the state destroyed only
		v.State = hangar.VolumePendingDestroy
	}
	return &v
}

func volumesOf(answers []volumeAnswer) []*hangar.Volume {
	list := make([]*hangar.Volume, len(answers))
	for i, a := range answers {
		list[i] = a.volume()
	}
	return list
}

// CreateVolume implements hangar.VolumeService.
func (c *Client) CreateVolume(ctx context.Context, app hangar.AppName, in hangar.VolumeCreate) (*hangar.Volume, error) {
	to := post(appPath(app, "volumes"))
	to.in = in
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

// maxVolumePage is how many volumes the API lists at most at once.
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
	return c.volume(ctx, call{method: http.MethodPut, path: volumePath(ref), in: in})
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
	hangar.Snapshot
	FrozenMS int64 `json:"frozen_ms"`
}

func (a snapshotAnswer) snapshot() *hangar.Snapshot {
	s := a.Snapshot
	s.CreatedAt, s.FinishedAt, s.Frozen = s.CreatedAt.UTC(), s.FinishedAt.UTC(), time.Duration(a.FrozenMS)*time.Millisecond
	return &s
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
