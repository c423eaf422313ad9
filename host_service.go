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

// ParseHostID answers CodeInvalid for what is no id of a host. Two that look like one are in the place
// of the host in private addresses that all hosts have: those of the platform's services and of Apps.
func ParseHostID(text string) (HostID, error) {
	if !hostIDShape.MatchString(text) || text == "00000000" || text == "00000001" {
		return "", Errorf(CodeInvalid, "", "invalid host %q: an id has 8 lowercase hexadecimal characters", text)
	}
	return HostID(text), nil
}

// HostUpdate changes what administrators say of a host; nil stays.
type HostUpdate struct {
	Cordoned *bool              `json:"cordoned,omitempty"`
	Labels   *map[string]string `json:"labels,omitempty"` // all of them
}

// HostUsage is how much of a host is used.
type HostUsage struct {
	Host

	Machines int `json:"machines"` // that it has published, also those that are stopped
	Volumes  int `json:"volumes"`  // likewise
	// Reached says that the host has answered; what follows is not known otherwise.
	Reached         bool  `json:"reached"`
	MemoryPromised  int64 `json:"memory_promised"`  // bytes, to Machines
	VolumesPromised int64 `json:"volumes_promised"` // bytes, to volumes
	VolumesFree     int64 `json:"volumes_free"`     // bytes that it would promise to new volumes
}

// HostRemoval says how a host is removed.
type HostRemoval struct {
	// Force also removes a host that has Machines or volumes, whose rows are removed with it: they
	// are lost.
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
	UsedBy    HostID      `json:"used_by,omitempty"` // the server that has used one that is not reusable
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
	// URL is where a server joins with it; empty: this server lets none join.
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
	// HostUsage asks all hosts what they have left, and waits for none longer than a moment. The answer is sorted
	// by id.
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
	// RevokeJoinToken answers CodeNotFound for an unknown token. A server that has joined by it stays.
	RevokeJoinToken(ctx context.Context, id JoinTokenID) error
	// BackupState makes a copy of the cluster state on the disk of the host that answers. It answers
	// CodeFailedPrecondition where the state is kept by others.
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
