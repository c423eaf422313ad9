package hangar

import (
	"context"
	"slices"
	"time"
)

// SnapshotID identifies a snapshot of a volume and is never reused: "vs_" and 20
// characters of a-z and 0-9.
type SnapshotID string

const (
	snapshotIDPrefix = "vs_"
	snapshotIDLength = 20 // characters after the prefix
)

// NewSnapshotID returns a random SnapshotID.
func NewSnapshotID() SnapshotID { return SnapshotID(snapshotIDPrefix + randomID(snapshotIDLength)) }

// Valid reports whether the id has the shape of a SnapshotID.
func (id SnapshotID) Valid() bool { return validID(string(id), snapshotIDPrefix, snapshotIDLength) }

// SnapshotState is where a snapshot is in its life.
type SnapshotState string

// The states of a snapshot.
const (
	SnapshotWaiting SnapshotState = "waiting" // requested
	SnapshotRunning SnapshotState = "running" // being read from the volume
	SnapshotCreated SnapshotState = "created" // complete and durable
	SnapshotFailed  SnapshotState = "failed"  // Fault says why
)

// SnapshotStates lists every state, in the order of a snapshot's life.
func SnapshotStates() []SnapshotState {
	return []SnapshotState{SnapshotWaiting, SnapshotRunning, SnapshotCreated, SnapshotFailed}
}

// Valid reports whether the state is one of SnapshotStates.
func (s SnapshotState) Valid() bool { return slices.Contains(SnapshotStates(), s) }

// MaxSnapshots is how many snapshots of a volume are kept at once. When there are as many, none is made
// on demand, and a daily one replaces the oldest daily one.
const MaxSnapshots = 200

// Snapshot is the content of a volume at one moment, as after a loss of power. It outlives its volume.
type Snapshot struct {
	ID     SnapshotID    `json:"id"`
	AppID  AppID         `json:"-"` // of the volume; CreateSnapshot alone fills it in
	Volume VolumeID      `json:"volume_id"`
	State  SnapshotState `json:"status"`
	// Size is what the snapshot added to the store, in bytes: compressed, without what
	// other snapshots had stored already. 0 until it is SnapshotCreated.
	Size int64 `json:"size"`
	// VolumeSize is the size of the volume at that moment, in bytes.
	VolumeSize int64 `json:"volume_size"`
	// Digest is "sha256:" and 64 hexadecimal characters: of the content, independently
	// of where it is stored. Equal contents of equal size have equal digests. Empty
	// until it is SnapshotCreated.
	Digest        string    `json:"digest"`
	CreatedAt     time.Time `json:"created_at"` // when it was requested; UTC, whole seconds
	FinishedAt    time.Time `json:"finished_at,omitzero"`
	RetentionDays int       `json:"retention_days"` // how long after CreatedAt it is removed
	Daily         bool      `json:"daily,omitempty"`
	// Frozen is how long writes to the volume waited.
	Frozen time.Duration `json:"frozen,omitempty"`
	Fault  string        `json:"fault,omitempty"` // of SnapshotFailed
	// Progress of SnapshotRunning. It is not kept up to date in published rows.
	Progress Progress `json:"progress,omitzero"`
}

// Expires is when the snapshot may be removed.
func (s *Snapshot) Expires() time.Time { return s.CreatedAt.AddDate(0, 0, s.RetentionDays) }

// SnapshotService takes snapshots of volumes and tests that they can be restored.
type SnapshotService interface {
	// Snapshots are newest first, including those of a volume in VolumeDestroyed.
	Snapshots(ctx context.Context, ref VolumeRef) ([]*Snapshot, error)
	// CreateSnapshot begins a snapshot and returns it in SnapshotWaiting. It answers
	// CodeFailedPrecondition with ReasonSnapshotRunning while another one of the volume is under way
	// and with ReasonWrongState for a volume that is not usable, and CodeExhausted when there are
	// MaxSnapshots.
	CreateSnapshot(ctx context.Context, ref VolumeRef) (*Snapshot, error)
	// DrillVolumes restores one random snapshot of the App to scratch, checks its file system and
	// compares its digest. It returns after the start; VolumeDrill reports the progress. It answers
	// CodeFailedPrecondition with ReasonSnapshotNotFound when there is no snapshot, and with
	// ReasonWrongState while a drill of the App is under way.
	DrillVolumes(ctx context.Context, app AppName) (*VolumeDrill, error)
	// VolumeDrill is the latest drill of the App, or CodeNotFound.
	VolumeDrill(ctx context.Context, app AppName) (*VolumeDrill, error)
}

// VolumeDrill is one trial restore.
type VolumeDrill struct {
	App        AppName    `json:"app_name"`
	Volume     VolumeID   `json:"volume_id"`
	Snapshot   SnapshotID `json:"snapshot_id"`
	StartedAt  time.Time  `json:"started_at"`
	FinishedAt time.Time  `json:"finished_at,omitzero"` // zero: under way
	Passed     bool       `json:"passed"`
	Fault      string     `json:"fault,omitempty"` // why it did not pass
	Progress   Progress   `json:"progress,omitzero"`
}

// VolumeEventType is the type of an event of a volume.
type VolumeEventType string

// The types of events of volumes.
const (
	VolumeEventCreate   VolumeEventType = "create"
	VolumeEventFormat   VolumeEventType = "format"   // the file system was made
	VolumeEventAttach   VolumeEventType = "attach"   // a Machine got it
	VolumeEventDetach   VolumeEventType = "detach"   // the Machine is gone
	VolumeEventRepair   VolumeEventType = "repair"   // the file system was checked after an unclean end
	VolumeEventDamaged  VolumeEventType = "damaged"  // it cannot be opened or repaired, and is not mounted
	VolumeEventLost     VolumeEventType = "lost"     // it went away under a running Machine
	VolumeEventExtend   VolumeEventType = "extend"   // Fault: why it did not grow
	VolumeEventSnapshot VolumeEventType = "snapshot" // Fault: why there is none
	VolumeEventRestore  VolumeEventType = "restore"  // it was filled; Fault: why it was not
	VolumeEventDrill    VolumeEventType = "drill"    // Fault: why it did not pass
	VolumeEventUpdate   VolumeEventType = "update"
	VolumeEventDestroy  VolumeEventType = "destroy"
	VolumeEventUndelete VolumeEventType = "undelete"
)

// VolumeEvent is something that happened to a volume.
type VolumeEvent struct {
	ID        EventID         `json:"id"`
	Type      VolumeEventType `json:"type"`
	Source    EventSource     `json:"source"`
	Timestamp int64           `json:"timestamp"` // milliseconds since 1970
	Machine   MachineID       `json:"machine_id,omitempty"`
	Snapshot  SnapshotID      `json:"snapshot_id,omitempty"`
	Text      string          `json:"message,omitempty"` // for people
	Fault     string          `json:"error,omitempty"`   // empty: it went well
}
