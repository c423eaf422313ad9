package hangar

import "context"

// VolumeSpec is a volume as control hands it to its host: validated, with its defaults,
// and placed.
type VolumeSpec struct {
	ID                VolumeID
	Name              string
	App               AppName
	AppID             AppID
	Org               OrgSlug
	OrgID             OrgID
	Region            Region
	SizeGB            int // 0: the size of what it is made from
	Encrypted         bool
	FSType            FSType
	SnapshotRetention int
	AutoBackup        bool
	Snapshot          SnapshotID // to restore; empty: none
	Source            VolumeID   // to fork; empty: none
	Compute           *Guest     // nil: any
}

// VolumeAgent is what a host does for volumes. Methods without a comment are as in VolumeService and
// SnapshotService, with the same errors, except that a host without room answers
// ReasonInsufficientCapacity, as for Machines. They return a row, so that the caller can publish it at
// once.
type VolumeAgent interface {
	// CreateVolume records the volume and begins to make it. Repeated with the same ID, it returns the
	// existing volume.
	CreateVolume(ctx context.Context, spec VolumeSpec) (*VolumeRow, error)
	// VolumeRow is the row of a volume as it is now.
	VolumeRow(ctx context.Context, ref VolumeRef) (*VolumeRow, error)
	// VolumeRows are sorted by id, including those in VolumeDestroyed. An empty App means all Apps.
	VolumeRows(ctx context.Context, app AppID) ([]*VolumeRow, error)
	UpdateVolume(ctx context.Context, ref VolumeRef, in VolumeUpdate) (*VolumeRow, error)
	ExtendVolume(ctx context.Context, ref VolumeRef, sizeGB int) (*VolumeRow, error)
	DestroyVolume(ctx context.Context, ref VolumeRef) (*VolumeRow, error)
	UndeleteVolume(ctx context.Context, ref VolumeRef) (*VolumeRow, error)
	// PurgeVolume removes the key and the image of a volume in VolumePendingDestroy before
	// VolumeGrace is over. It answers CodeFailedPrecondition with ReasonWrongState for a volume
	// that is not destroyed, or whose content is still being read. It may be repeated.
	PurgeVolume(ctx context.Context, ref VolumeRef) (*VolumeRow, error)
	VolumeEvents(ctx context.Context, ref VolumeRef) ([]VolumeEvent, error)
	Snapshots(ctx context.Context, ref VolumeRef) ([]*Snapshot, error)
	CreateSnapshot(ctx context.Context, ref VolumeRef) (*Snapshot, error)
	DrillVolumes(ctx context.Context, app AppID) (*VolumeDrill, error)
	VolumeDrill(ctx context.Context, app AppID) (*VolumeDrill, error)
}

// VolumeRow is what a host publishes of a volume. Seq grows with every commit of the
// host's journal, so that an older row never replaces a newer one.
type VolumeRow struct {
	Volume    Volume     `json:"volume"`
	Org       OrgSlug    `json:"org"`
	OrgID     OrgID      `json:"org_id"`
	Snapshots []Snapshot `json:"snapshots,omitempty"` // newest first
	Seq       uint64     `json:"seq"`
}

// VolumePublisher takes the rows of a host's volumes. The rules of Publisher hold here, too.
type VolumePublisher interface {
	// PublishVolume stores a row, unless the stored one has the same or a higher Seq.
	PublishVolume(ctx context.Context, row VolumeRow) error
	// ClaimVolume counts a volume against the quotas of its organization as row says that it will be.
	// The host calls it before it commits growth or another snapshot. It answers CodeExhausted with
	// ReasonQuota for growth beyond a quota. The claim holds until a row with a higher Seq is
	// published.
	ClaimVolume(ctx context.Context, row VolumeRow) error
	// RetractVolume removes the row of a volume that its host no longer has a record of.
	RetractVolume(ctx context.Context, host HostID, ref VolumeRef) error
	// PublishedVolumes returns the Seq of each row of a host.
	PublishedVolumes(ctx context.Context, host HostID) (map[VolumeRef]uint64, error)
}
