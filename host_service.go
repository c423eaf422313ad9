package hangar

import (
	"context"
	"regexp"
	"time"
)

// The limits of hosts.
const (
	MaxHostLabels     = 64  // of one host
	MaxHostLabelBytes = 128 // of a name or a value
	MaxHostNameBytes  = 253
	MaxJoinTokens     = 100 // that are valid at the same time
	DefaultJoinTTL    = time.Hour
	MaxJoinTTL        = 7 * 24 * time.Hour
)

var hostIDShape = regexp.MustCompile(`^[0-9a-f]{8}$`)

// ParseHostID answers CodeInvalid for text that is not the id of a host. Two ids are reserved: private
// addresses use them for the platform's services and for Apps.
func ParseHostID(text string) (HostID, error) {
	if !hostIDShape.MatchString(text) || text == "00000000" || text == "00000001" {
		return "", Errorf(CodeInvalid, "", "invalid host %q: an id has 8 lowercase hexadecimal characters", text)
	}
	return HostID(text), nil
}

// HostUpdate changes the settings of a host. Nil fields stay as they are.
type HostUpdate struct {
	Cordoned *bool              `json:"cordoned,omitempty"`
	Labels   *map[string]string `json:"labels,omitempty"` // all of them
}

// HostUsage is how much of a host is used.
type HostUsage struct {
	Host

	Machines int `json:"machines"` // that it has published, including stopped ones
	Volumes  int `json:"volumes"`  // that it has published
	// Reached says that the host has answered. Otherwise the fields below are not known.
	Reached         bool  `json:"reached"`
	MemoryPromised  int64 `json:"memory_promised"`  // bytes, to Machines
	VolumesPromised int64 `json:"volumes_promised"` // bytes, to volumes
	VolumesFree     int64 `json:"volumes_free"`     // bytes that it would promise to new volumes
}

// HostRemoval says how a host is removed.
type HostRemoval struct {
	// Force also removes a host that has Machines or volumes. They are lost, and their rows are
	// removed.
	Force bool `json:"force,omitempty"`
}

// JoinTokenID identifies a token for joining: 12 characters of a-z and 2-7.
type JoinTokenID string

// JoinToken lets servers join the platform.
type JoinToken struct {
	ID        JoinTokenID `json:"id"`
	Note      string      `json:"note,omitempty"`
	Reusable  bool        `json:"reusable,omitempty"` // until it expires; else one server may use it
	CreatedAt time.Time   `json:"created_at"`
	ExpiresAt time.Time   `json:"expires_at"`
	UsedBy    HostID      `json:"used_by,omitempty"` // the server that has used a token which is not reusable
}

// JoinTokenCreate describes a new token for joining.
type JoinTokenCreate struct {
	Note     string   `json:"note,omitempty"`
	Reusable bool     `json:"reusable,omitempty"`
	TTL      Duration `json:"ttl,omitempty"` // 0: DefaultJoinTTL
}

// NewJoinToken is a token with its text, which is shown once.
type NewJoinToken struct {
	JoinToken
	Token string `json:"token"`
	// URL is where a server joins with the token; empty: servers cannot join here.
	URL string `json:"url,omitempty"`
}

// StateBackup is a copy of the cluster state in a file.
type StateBackup struct {
	Host HostID    `json:"host"` // on whose disk it is
	Path string    `json:"path"`
	Size int64     `json:"size"` // bytes
	At   time.Time `json:"at"`
}

// HostService is for administrators of the platform alone.
type HostService interface {
	// Hosts are sorted by id.
	Hosts(ctx context.Context) ([]Host, error)
	// Host answers CodeNotFound for an unknown host.
	Host(ctx context.Context, id HostID) (Host, error)
	// HostUsage asks all hosts how much room they have left, and waits only briefly for each. The
	// answer is sorted by id.
	HostUsage(ctx context.Context) ([]HostUsage, error)
	// UpdateHost changes labels and cordon, and returns the host as it is then. It answers
	// CodeInvalid for a bad label, and CodeNotFound. It may be repeated.
	UpdateHost(ctx context.Context, id HostID, in HostUpdate) (Host, error)
	// RemoveHost answers CodeConflict for a host that is alive and, unless in.Force, for one that
	// has Machines or volumes. Its server cannot come back without joining again.
	RemoveHost(ctx context.Context, id HostID, in HostRemoval) error
	// CreateJoinToken answers CodeConflict where no server can join.
	CreateJoinToken(ctx context.Context, in JoinTokenCreate) (NewJoinToken, error)
	// JoinTokens are the tokens that have not expired, including used ones.
	JoinTokens(ctx context.Context) ([]JoinToken, error)
	// RevokeJoinToken answers CodeNotFound for an unknown token. Servers that have joined with it stay.
	RevokeJoinToken(ctx context.Context, id JoinTokenID) error
	// BackupState copies the cluster state to the disk of the answering host. It answers
	// CodeFailedPrecondition where an external etcd keeps the state.
	BackupState(ctx context.Context) (StateBackup, error)
}

// HostApplicant is a server that wants to join.
type HostApplicant struct {
	Token   JoinTokenID
	Digest  []byte // SHA-256 of the text of the token
	Host    HostID
	Name    string
	Address string // host:port where other hosts reach it
	Key     []byte // SHA-256 of its public key, in the form of PKIX
}

// HostRegistrar decides which servers may join.
type HostRegistrar interface {
	// AdmitHost records a server as a host of the platform, and uses up the token. It may be
	// repeated with the same key. It answers CodeUnauthenticated for a token that is not valid, in
	// the same words for every cause, and CodeConflict for an id that another server has.
	AdmitHost(ctx context.Context, a HostApplicant) error
}
