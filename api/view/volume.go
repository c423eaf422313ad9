package view

import (
	"cmp"
	"time"

	"github.com/hangar-platform/hangar"
)

// Volume is a volume as clients decode it.
type Volume struct {
	ID        hangar.VolumeID    `json:"id"`
	Name      string             `json:"name"`
	App       hangar.AppName     `json:"app_name"`
	State     hangar.VolumeState `json:"state"`
	SizeGB    int                `json:"size_gb"`
	Region    hangar.Region      `json:"region"`
	Zone      string             `json:"zone"`
	Encrypted bool               `json:"encrypted"`
	// Clients take everything but null, even an empty text, to be a Machine that has the volume.
	AttachedMachine   *hangar.MachineID `json:"attached_machine_id"`
	AttachedAlloc     *string           `json:"attached_alloc_id"` // always null
	CreatedAt         string            `json:"created_at"`
	UpdatedAt         string            `json:"updated_at"`
	Blocks            int64             `json:"blocks"`
	BlockSize         int64             `json:"block_size"`
	BlocksFree        int64             `json:"blocks_free"`
	BlocksAvail       int64             `json:"blocks_avail"`
	BytesUsed         int64             `json:"bytes_used"`
	BytesTotal        int64             `json:"bytes_total"`
	FSType            hangar.FSType     `json:"fstype"`
	SnapshotRetention int               `json:"snapshot_retention"`
	AutoBackup        bool              `json:"auto_backup_enabled"`
	HostDedicationID  string            `json:"host_dedication_id"`  // always empty
	HostDedicationKey string            `json:"host_dedication_key"` // always empty
	HostStatus        string            `json:"host_status"`
	Type              string            `json:"type"` // always "local"
	Host              hangar.HostID     `json:"host_id"`
	Wanted            hangar.FSType     `json:"wanted_fstype"`
	NeedsRestart      bool              `json:"needs_restart,omitempty"`
	Filling           *hangar.Filling   `json:"filling,omitempty"`
	DestroyedAt       string            `json:"destroyed_at,omitempty"`
	UndeleteUntil     string            `json:"undelete_until,omitempty"`
}

// OfVolume is a volume as it is listed.
func OfVolume(v *hangar.Volume) Volume {
	view := Volume{
		ID: v.ID, Name: v.Name, App: v.App, State: v.State, SizeGB: v.SizeGB, Region: v.Region, Zone: v.Zone, Encrypted: v.Encrypted,
		CreatedAt: exactTime(v.CreatedAt), UpdatedAt: exactTime(v.UpdatedAt),
		Blocks: v.Usage.Blocks, BlockSize: v.Usage.BlockSize, BlocksFree: v.Usage.BlocksFree, BlocksAvail: v.Usage.BlocksAvail,
		BytesUsed: v.Usage.Used(), BytesTotal: v.Usage.Total(), FSType: v.Usage.FSType,
		SnapshotRetention: v.SnapshotRetention, AutoBackup: v.AutoBackup, HostStatus: cmp.Or(v.HostStatus, hostOK), Type: "local",
		Host: v.Host, Wanted: v.Wanted, NeedsRestart: v.NeedsRestart,
	}
	if v.AttachedMachine != "" {
		view.AttachedMachine = &v.AttachedMachine
	}
	if v.Filling != (hangar.Filling{}) {
		view.Filling = &v.Filling
	}
	if v.State.Gone() && !v.DestroyedAt.IsZero() {
		view.DestroyedAt = exactTime(v.DestroyedAt)
		if v.State == hangar.VolumePendingDestroy {
			view.UndeleteUntil = exactTime(v.DestroyedAt.Add(hangar.VolumeGrace))
		}
	}
	return view
}

// OfVolumes returns the views of a list. They are empty and not null when there are none.
func OfVolumes(list []*hangar.Volume) []Volume {
	views := make([]Volume, 0, len(list))
	for _, v := range list {
		views = append(views, OfVolume(v))
	}
	return views
}

// OfOneVolume returns a single volume. Clients see one that can still be undeleted as destroyed.
func OfOneVolume(v *hangar.Volume) Volume {
	view := OfVolume(v)
	if v.State.Gone() {
		view.State, view.SnapshotRetention = hangar.VolumeDestroyed, 0
	}
	return view
}

// exactTime writes a time as clients expect it of volumes: UTC, with milliseconds.
func exactTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

// Extended answers an extension.
type Extended struct {
	Volume       Volume `json:"volume"`
	NeedsRestart bool   `json:"needs_restart"`
}

// Snapshot is a snapshot as clients decode it.
type Snapshot struct {
	ID            hangar.SnapshotID    `json:"id"`
	Volume        hangar.VolumeID      `json:"volume_id"`
	Status        hangar.SnapshotState `json:"status"`
	Size          int64                `json:"size"`
	VolumeSize    int64                `json:"volume_size"`
	Digest        string               `json:"digest"`
	CreatedAt     string               `json:"created_at"`
	RetentionDays int                  `json:"retention_days"`
	FinishedAt    string               `json:"finished_at,omitempty"`
	Daily         bool                 `json:"daily"`
	FrozenMS      int64                `json:"frozen_ms"`
	Fault         string               `json:"fault,omitempty"`
	Progress      *hangar.Progress     `json:"progress,omitempty"`
}

// OfSnapshot is a snapshot as it is listed.
func OfSnapshot(s *hangar.Snapshot) Snapshot {
	view := Snapshot{
		ID: s.ID, Volume: s.Volume, Status: s.State, Size: s.Size, VolumeSize: s.VolumeSize, Digest: s.Digest, CreatedAt: offsetTime(s.CreatedAt),
		RetentionDays: s.RetentionDays, Daily: s.Daily, FrozenMS: s.Frozen.Milliseconds(), Fault: s.Fault,
	}
	if !s.FinishedAt.IsZero() {
		view.FinishedAt = offsetTime(s.FinishedAt)
	}
	if s.Progress != (hangar.Progress{}) {
		view.Progress = &s.Progress
	}
	return view
}

// offsetTime writes a time as the public platform does for snapshots.
func offsetTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05-07:00") }

// SnapshotAnswer answers the request for a snapshot, in the form that clients know and in the form of
// the listing.
type SnapshotAnswer struct {
	Msg      backupMessage `json:"Msg"`
	Snapshot Snapshot      `json:"snapshot"`
}

type backupMessage struct {
	Backup Backup `json:"backup"`
}

// Backup is the work of making a snapshot.
type Backup struct {
	ID         string            `json:"id"`
	App        hangar.AppID      `json:"app_id"`
	Volume     hangar.VolumeID   `json:"volume_id"`
	State      string            `json:"state"` // always "prepare"
	Type       string            `json:"type"`
	Message    string            `json:"message"`
	CreatedAt  string            `json:"created_at"`
	UpdatedAt  string            `json:"updated_at"`
	FinishedAt *string           `json:"finished_at"` // always null
	Snapshot   hangar.SnapshotID `json:"graph_id"`
}

// OfBackup is the answer to the request for a snapshot, which is being made.
func OfBackup(s *hangar.Snapshot) SnapshotAnswer {
	at := exactTime(s.CreatedAt)
	return SnapshotAnswer{
		Msg: backupMessage{Backup{
			ID: string(s.ID), App: s.AppID, Volume: s.Volume, State: "prepare", Type: "BACKUP_TYPE_ON_DEMAND",
			Message: "", CreatedAt: at, UpdatedAt: at, Snapshot: s.ID,
		}},
		Snapshot: OfSnapshot(s),
	}
}
