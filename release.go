package hangar

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ReleaseID identifies a release permanently: the AppID of its App, a dash and its version.
type ReleaseID string

// NewReleaseID returns the id of a version of an App.
func NewReleaseID(app AppID, version int) ReleaseID {
	return ReleaseID(string(app) + "-" + strconv.Itoa(version))
}

// Parts returns the App and the version of a release; false: the id is not valid.
func (id ReleaseID) Parts() (app AppID, version int, ok bool) {
	before, after, found := strings.Cut(string(id), "-")
	version, err := strconv.Atoi(after)
	return AppID(before), version, found && err == nil && version > 0 && NewReleaseID(AppID(before), version) == id
}

// ReleaseStatus is the progress of a release, as its deployer reports it.
type ReleaseStatus string

// The statuses of a release.
const (
	ReleasePending     ReleaseStatus = "pending" // created, not begun
	ReleaseRunning     ReleaseStatus = "running" // Machines are being changed
	ReleaseComplete    ReleaseStatus = "complete"
	ReleaseFailed      ReleaseStatus = "failed"
	ReleaseInterrupted ReleaseStatus = "interrupted" // its deployer gave up
)

// ReleaseStatuses lists every status.
func ReleaseStatuses() []ReleaseStatus {
	return []ReleaseStatus{ReleasePending, ReleaseRunning, ReleaseComplete, ReleaseFailed, ReleaseInterrupted}
}

// InProgress reports whether the release has not ended.
func (s ReleaseStatus) InProgress() bool { return s == ReleasePending || s == ReleaseRunning }

// ReleaseStrategy is the order in which a deployer changes Machines. It is stored only.
type ReleaseStrategy string

// The strategies. Clients of the public platform write them in capitals.
const (
	StrategyRolling    ReleaseStrategy = "rolling"
	StrategyRollingOne ReleaseStrategy = "rolling_one"
	StrategyBlueGreen  ReleaseStrategy = "bluegreen"
	StrategyCanary     ReleaseStrategy = "canary"
	StrategyImmediate  ReleaseStrategy = "immediate"
	StrategySimple     ReleaseStrategy = "simple"
)

// ReleaseStrategies lists every strategy.
func ReleaseStrategies() []ReleaseStrategy {
	return []ReleaseStrategy{StrategyRolling, StrategyRollingOne, StrategyBlueGreen, StrategyCanary, StrategyImmediate, StrategySimple}
}

// The bounds of releases.
const (
	MaxReleases          = 100       // of an App; the newest are kept
	MaxReleaseDefinition = 32 << 10  // bytes of JSON
	MaxReleaseDocuments  = 256 << 10 // bytes of JSON in all releases of an App
	MaxReleaseMetadata   = 4 << 10   // bytes of JSON
	maxReleaseText       = 255       // bytes of an image, a reason or a description
)

// Release is a record of a deployment to an App, which its deployer creates and updates. It changes no
// Machine. A caller who may read the App may read its definition. It does not hold the App's secrets.
type Release struct {
	ID       ReleaseID       `json:"id"`
	App      AppName         `json:"app_name"`
	Version  int             `json:"version"` // from 1 on, never reused in the App
	Status   ReleaseStatus   `json:"status"`
	Strategy ReleaseStrategy `json:"strategy"`
	Image    string          `json:"image_ref"` // empty: the release does not change it
	// Definition is the configuration of the App, an object, as in the deployer's file. Nil: none was
	// given, or it was removed because of MaxReleaseDocuments.
	Definition  json.RawMessage `json:"definition,omitempty"`
	Metadata    json.RawMessage `json:"metadata,omitempty"` // an object that the deployer chooses
	Reason      string          `json:"reason"`
	Description string          `json:"description"`
	// User is the subject of the creator, and UserID the user of the creator's token; empty: not a
	// user's.
	User      string    `json:"user"`
	UserID    UserID    `json:"user_id,omitempty"`
	CreatedAt time.Time `json:"created_at"` // UTC, whole seconds
	UpdatedAt time.Time `json:"updated_at"` // UTC, whole seconds
}

// ReleaseCreate is the request for a release.
type ReleaseCreate struct {
	Image       string          `json:"image,omitempty"`
	Strategy    ReleaseStrategy `json:"strategy,omitempty"` // empty: StrategyRolling
	Definition  json.RawMessage `json:"definition,omitempty"`
	Reason      string          `json:"reason,omitempty"`
	Description string          `json:"description,omitempty"`
	// Rollback is the version from which the release takes its image and definition; 0: none. With it,
	// Image and Definition must be empty.
	Rollback int `json:"rollback,omitempty"`
}

// Validate checks a request. It answers CodeInvalid, naming the field.
func (in *ReleaseCreate) Validate() error {
	bad := func(field, rule string, args ...any) error {
		return Errorf(CodeInvalid, "", "invalid %s: %s", field, fmt.Sprintf(rule, args...))
	}
	for field, text := range map[string]string{"image": in.Image, "reason": in.Reason, "description": in.Description} {
		if len(text) > maxReleaseText {
			return bad(field, "has %d bytes, more than %d", len(text), maxReleaseText)
		}
	}
	switch {
	case in.Strategy != "" && !slices.Contains(ReleaseStrategies(), in.Strategy):
		return bad("strategy", "%.40q is none of %v", in.Strategy, ReleaseStrategies())
	case in.Rollback < 0:
		return bad("rollback", "%d is not a version", in.Rollback)
	case in.Rollback > 0 && (in.Image != "" || in.Definition != nil):
		return bad("rollback", "image and definition are those of the version; leave them out")
	}
	return validateDocument("definition", in.Definition, MaxReleaseDefinition)
}

// ReleaseUpdate is a change of a release's progress.
type ReleaseUpdate struct {
	Status   ReleaseStatus   `json:"status" schema:"required"`
	Metadata json.RawMessage `json:"metadata,omitempty"` // nil: unchanged
}

// Validate checks a request. It answers CodeInvalid, naming the field.
func (in *ReleaseUpdate) Validate() error {
	if !slices.Contains(ReleaseStatuses(), in.Status) {
		return Errorf(CodeInvalid, "", "invalid status: %.40q is none of %v", in.Status, ReleaseStatuses())
	}
	return validateDocument("metadata", in.Metadata, MaxReleaseMetadata)
}

// validateDocument checks a JSON object that is stored as it is.
func validateDocument(field string, raw json.RawMessage, limit int) error {
	raw = bytes.TrimSpace(raw)
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return nil
	case len(raw) > limit:
		return Errorf(CodeInvalid, "", "invalid %s: has %d bytes, more than %d", field, len(raw), limit)
	case raw[0] != '{' || !json.Valid(raw):
		return Errorf(CodeInvalid, "", "invalid %s: is not an object", field)
	default:
		return nil
	}
}

// ReleaseNotFound is the error for a release that does not exist, or that the caller may not see.
func ReleaseNotFound() error {
	return &Error{Code: CodeNotFound, Reason: ReasonReleaseNotFound, Message: "Could not find Release"}
}

// ReleaseService keeps the releases of Apps. It answers CodeNotFound with ReasonAppNotFound for an App
// that the caller does not see.
type ReleaseService interface {
	// CreateRelease creates the next version, in ReleasePending, and removes the oldest beyond
	// MaxReleases. It answers CodeNotFound with ReasonReleaseNotFound when in.Rollback is not kept.
	CreateRelease(ctx context.Context, app AppName, in ReleaseCreate) (*Release, error)
	// UpdateRelease answers CodeNotFound with ReasonReleaseNotFound, and CodeFailedPrecondition with
	// ReasonWrongState for another status of a release that has ended. It may be repeated.
	UpdateRelease(ctx context.Context, id ReleaseID, in ReleaseUpdate) (*Release, error)
	// Releases are newest first, at most limit; 0: MaxReleases.
	Releases(ctx context.Context, app AppName, limit int) ([]*Release, error)
	// CurrentRelease is the newest that is ReleaseComplete or, if none is, the newest. It answers
	// CodeNotFound with ReasonReleaseNotFound.
	CurrentRelease(ctx context.Context, app AppName) (*Release, error)
}
