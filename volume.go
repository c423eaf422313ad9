package hangar

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"time"
)

// VolumeID identifies a volume and is never reused: "vol_" and 16 characters of a-z and 0-9.
type VolumeID string

const (
	volumeIDPrefix = "vol_"
	volumeIDLength = 16 // characters after the prefix
	idAlphabet     = "0123456789abcdefghijklmnopqrstuvwxyz"
)

// NewVolumeID returns a random VolumeID.
func NewVolumeID() VolumeID { return VolumeID(volumeIDPrefix + randomID(volumeIDLength)) }

// Valid reports whether the id has the shape of a VolumeID.
func (id VolumeID) Valid() bool { return validID(string(id), volumeIDPrefix, volumeIDLength) }

func validID(id, prefix string, length int) bool {
	rest, ok := strings.CutPrefix(id, prefix)
	return ok && len(rest) == length && strings.Trim(rest, idAlphabet) == ""
}

// randomID returns n characters of a-z and 0-9, each as likely as any other.
func randomID(n int) string {
	const fair = 256 - 256%len(idAlphabet)
	id := make([]byte, 0, n)
	for len(id) < n {
		var b [32]byte
		_, _ = rand.Read(b[:]) // never fails: crypto/rand.Read aborts the program instead
		for _, c := range b {
			if int(c) < fair && len(id) < n {
				id = append(id, idAlphabet[int(c)%len(idAlphabet)])
			}
		}
	}
	return string(id)
}

// VolumeRef names a volume within its App, as MachineRef does a Machine.
type VolumeRef struct {
	App   AppName
	AppID AppID
	ID    VolumeID
}

// VolumeState is where a volume is in its life.
type VolumeState string

// The states of a volume. The public platform has more, of moves between hosts, which
// do not take place here.
const (
	VolumeCreating       VolumeState = "creating"        // its image is being made
	VolumeCreated        VolumeState = "created"         // usable, attached or not
	VolumeExtending      VolumeState = "extending"       // it grows; usable
	VolumeRestoring      VolumeState = "restoring"       // being filled from a snapshot or another volume
	VolumePendingDestroy VolumeState = "pending_destroy" // destroyed by its user; kept for a while
	VolumeDestroying     VolumeState = "destroying"      // its key and its image are being removed
	VolumeDestroyed      VolumeState = "destroyed"       // gone; its snapshots may still exist
	VolumeFailed         VolumeState = "failed"          // could not be made or filled; an event says why
)

// VolumeStates lists every state, in the order of a volume's life.
func VolumeStates() []VolumeState {
	return []VolumeState{
		VolumeCreating, VolumeRestoring, VolumeCreated, VolumeExtending, VolumePendingDestroy, VolumeDestroying,
		VolumeDestroyed, VolumeFailed,
	}
}

// Valid reports whether the state is one of VolumeStates.
func (s VolumeState) Valid() bool { return slices.Contains(VolumeStates(), s) }

// Usable reports whether a volume in that state can be attached, extended and
// snapshotted.
func (s VolumeState) Usable() bool { return s == VolumeCreated || s == VolumeExtending }

// Gone reports whether users can do nothing with the volume, except perhaps undelete it.
func (s VolumeState) Gone() bool {
	return s == VolumePendingDestroy || s == VolumeDestroying || s == VolumeDestroyed
}

// FSType is what is on a volume.
type FSType string

// The types of file systems.
const (
	FSExt4 FSType = "ext4"
	FSRaw  FSType = "raw" // nothing: a block device
)

// The bounds of volumes.
const (
	MinVolumeGB           = 1
	MaxVolumeGB           = 500
	DefaultVolumeGB       = 3
	MaxVolumeName         = 30 // characters of a-z, 0-9 and underscore
	MinSnapshotRetention  = 1  // days
	MaxSnapshotRetention  = 60
	DefaultSnapshotRetain = 5
	// VolumeGrace is how long a destroyed volume can be undeleted.
	VolumeGrace = 24 * time.Hour
	// MaxVolumeEvents is how many events of a volume are kept, the newest.
	MaxVolumeEvents = 50
)

// Volume is storage that a Machine can mount: one file system on one host.
type Volume struct {
	ID     VolumeID    `json:"id"`
	Name   string      `json:"name"` // not unique
	App    AppName     `json:"app_name"`
	AppID  AppID       `json:"app_id,omitempty"` // identifies the App; the API does not show it
	State  VolumeState `json:"state"`
	SizeGB int         `json:"size_gb"` // GiB
	Region Region      `json:"region"`
	Zone   string      `json:"zone"` // 4 hexadecimal characters; on one host each volume has its own
	Host   HostID      `json:"host_id"`
	// Filling is set in VolumeRestoring.
	Filling Filling `json:"filling,omitzero"`

	Encrypted bool `json:"encrypted"`
	// AttachedMachine is the Machine whose config mounts the volume, running or not;
	// empty: none.
	AttachedMachine   MachineID `json:"attached_machine,omitempty"`
	CreatedAt         time.Time `json:"created_at"` // UTC, whole milliseconds
	UpdatedAt         time.Time `json:"updated_at"` // UTC, whole milliseconds
	SnapshotRetention int       `json:"snapshot_retention"`
	AutoBackup        bool      `json:"auto_backup_enabled"`
	HostStatus        string    `json:"host_status"` // "ok", "unknown" or "unreachable"
	// Wanted is the requested type; Usage.FSType is the actual one.
	Wanted FSType      `json:"wanted_fstype"`
	Usage  VolumeUsage `json:"usage"`
	// NeedsRestart says that the image is larger than the file system, which grows at the next start of
	// the Machine.
	NeedsRestart bool `json:"needs_restart,omitempty"`
	// DestroyedAt is when its user destroyed it; zero: not yet.
	DestroyedAt time.Time `json:"destroyed_at,omitzero"`
}

// Ref returns the name under which the services know the volume.
func (v *Volume) Ref() VolumeRef { return VolumeRef{App: v.App, AppID: v.AppID, ID: v.ID} }

// Filling says from what a volume is filled, and the progress.
type Filling struct {
	Snapshot SnapshotID `json:"snapshot_id,omitempty"`
	Source   VolumeID   `json:"source_volume_id,omitempty"` // the volume that it was forked from
	Progress Progress   `json:"progress,omitzero"`
}

// Progress is the progress of long work, in bytes. Both are 0 before it is known.
type Progress struct {
	Done  int64 `json:"done"`
	Total int64 `json:"total"`
}

// VolumeUsage is what statfs(2) reports for a file system. It is zero for a volume that was never used.
type VolumeUsage struct {
	FSType      FSType `json:"fstype"`
	Blocks      int64  `json:"blocks"`
	BlockSize   int64  `json:"block_size"` // bytes
	BlocksFree  int64  `json:"blocks_free"`
	BlocksAvail int64  `json:"blocks_avail"` // of BlocksFree, those not reserved for root
}

// Used are the bytes that are not free.
func (u VolumeUsage) Used() int64 { return (u.Blocks - u.BlocksFree) * u.BlockSize }

// Total are the bytes of the file system.
func (u VolumeUsage) Total() int64 { return u.Blocks * u.BlockSize }

// VolumeCreate is the request for a new volume.
type VolumeCreate struct {
	Name              string     `json:"name"`
	Region            Region     `json:"region,omitempty"`              // empty: the server's
	SizeGB            int        `json:"size_gb,omitempty"`             // 0: DefaultVolumeGB, or the size of what it is made from
	Encrypted         *bool      `json:"encrypted,omitempty"`           // nil: true
	FSType            FSType     `json:"fstype,omitempty"`              // empty: FSExt4
	SnapshotRetention int        `json:"snapshot_retention,omitempty"`  // days; 0: DefaultSnapshotRetain
	AutoBackup        *bool      `json:"auto_backup_enabled,omitempty"` // nil: true
	Snapshot          SnapshotID `json:"snapshot_id,omitempty"`         // to restore; empty: none
	Source            VolumeID   `json:"source_volume_id,omitempty"`    // to fork; empty: none
	UniqueZone        *bool      `json:"require_unique_zone,omitempty"` // nil: true; every volume of one host has a zone of its own
	UniqueZoneAppWide bool       `json:"unique_zone_app_wide,omitempty"`
	Compute           *Guest     `json:"compute,omitempty"` // of the Machine that will mount it, for which the host must have room
}

// VolumeUpdate changes settings of a volume; nil leaves one as it is.
type VolumeUpdate struct {
	SnapshotRetention *int  `json:"snapshot_retention,omitempty"` // days; of later snapshots
	AutoBackup        *bool `json:"auto_backup_enabled,omitempty"`
}

// VolumeExtended answers an extension.
type VolumeExtended struct {
	Volume *Volume
	// NeedsRestart says that the Machine sees the new size only after its next start.
	NeedsRestart bool
}

// VolumeService keeps volumes and their snapshots. A volume that does not exist, or that the caller may
// not see, answers CodeNotFound with ReasonVolumeNotFound. A snapshot answers so with
// ReasonSnapshotNotFound.
//
// The caller needs these rights to the App: ActionRead to see volumes and snapshots, ActionWrite to
// update, extend and undelete, ActionCreate to create volumes and snapshots and to drill, ActionDelete
// to destroy and to purge. The source of a new volume may be in any App of the organization to which
// the caller has ActionControl, because a copy can be read.
type VolumeService interface {
	// CreateVolume makes a volume and returns it in VolumeCreated, or in
	// VolumeRestoring when it is filled from a snapshot or another volume. It answers
	// CodeInvalid for a bad field, CodeConflict with ReasonVolumeCapacity when no host
	// has the room, and CodeFailedPrecondition for a source in the wrong state.
	CreateVolume(ctx context.Context, app AppName, in VolumeCreate) (*Volume, error)
	Volume(ctx context.Context, ref VolumeRef) (*Volume, error)
	// Volumes are sorted by id, without those in VolumeDestroyed. Volumes of an unreachable host are
	// shown as they were published, with that host status.
	Volumes(ctx context.Context, app AppName) ([]*Volume, error)
	// OrgVolumes is Volumes for all Apps of an organization. It returns the first limit volumes whose
	// ids follow after.
	OrgVolumes(ctx context.Context, org OrgSlug, after VolumeID, limit int) ([]*Volume, error)
	UpdateVolume(ctx context.Context, ref VolumeRef, in VolumeUpdate) (*Volume, error)
	// ExtendVolume makes the volume sizeGB large. It answers CodeInvalid for a smaller
	// size than it has, and CodeConflict with ReasonVolumeCapacity.
	ExtendVolume(ctx context.Context, ref VolumeRef, sizeGB int) (VolumeExtended, error)
	// DestroyVolume answers CodeFailedPrecondition with ReasonVolumeAttached while a
	// Machine has the volume. For VolumeGrace it can be undone.
	DestroyVolume(ctx context.Context, ref VolumeRef) (*Volume, error)
	// UndeleteVolume answers CodeFailedPrecondition with ReasonWrongState for a volume that
	// is not VolumePendingDestroy.
	UndeleteVolume(ctx context.Context, ref VolumeRef) (*Volume, error)
	// DestroyedVolumes are the destroyed volumes of an organization that still take room, including
	// those of destroyed Apps, the oldest first.
	DestroyedVolumes(ctx context.Context, org OrgSlug) ([]*Volume, error)
	// PurgeVolume removes a destroyed volume of an organization for good. It answers
	// CodeFailedPrecondition with ReasonWrongState for one that is not destroyed, or whose content is
	// still being read. It may be repeated.
	PurgeVolume(ctx context.Context, org OrgSlug, id VolumeID) (*Volume, error)
	// VolumeEvents are newest first.
	VolumeEvents(ctx context.Context, ref VolumeRef) ([]VolumeEvent, error)
	SnapshotService
}
