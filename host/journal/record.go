package journal

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/machinejson"
)

// Record is everything that a host knows of one Machine: what others see of it, and what the host
// needs to continue after a kill at any moment. A record is written before its effect is caused.
type Record struct {
	Machine hangar.Machine `json:"machine"` // without events
	Org     hangar.OrgSlug `json:"org"`
	OrgID   hangar.OrgID   `json:"org_id"`
	// AnyRegistry: an administrator has named the image, so any registry is allowed.
	AnyRegistry bool             `json:"any_registry,omitempty"`
	Network     hangar.NetworkID `json:"network"`
	Number      uint64           `json:"number"` // of the Machine on this host, never reused; its address derives from it

	// Prepared: the image of the current version is unpacked and in use.
	Prepared bool `json:"prepared,omitempty"`
	// SkipLaunch: once prepared, the Machine stays stopped.
	SkipLaunch bool `json:"skip_launch,omitempty"`
	// Handle is the handle of the sandbox, from the moment the driver returned it until the sandbox
	// was destroyed.
	Handle []byte `json:"handle,omitempty"`
	// Ended: the sandbox of Handle has ended, and there is an event for it.
	Ended bool `json:"ended,omitempty"`
	// Snapshot: the directory of the Machine holds memory to resume from.
	Snapshot bool `json:"snapshot,omitempty"`
	// Resuming: a resume from the snapshot has begun. If that is still so after a restart of the
	// daemon, the snapshot must not be used again, because the root file system may have changed.
	Resuming bool `json:"resuming,omitempty"`
	// HasRoot: the Machine has run, so that it has a writable layer.
	HasRoot bool `json:"has_root,omitempty"`
	// KeepRoot: the next start must not reset the writable layer.
	KeepRoot bool `json:"keep_root,omitempty"`
	// FreshVersion: the current version has not booted yet.
	FreshVersion bool `json:"fresh_version,omitempty"`
	// ColdBoot is the reason why the next start from suspended cannot restore memory.
	ColdBoot string `json:"cold_boot,omitempty"`
	// Stop is how the sandbox is being ended, while State is stopping, restarting, replacing or
	// destroying and Handle is set.
	Stop *Stop `json:"stop,omitempty"`
	// Previous is the version that an update replaces, until the new version is in place.
	Previous *Previous `json:"previous,omitempty"`
	// Losses counts how often the Machine has lost its connections.
	Losses uint64 `json:"losses,omitempty"`
	// Crashes counts how often the program has ended by itself.
	Crashes uint64 `json:"crashes,omitempty"`
	// Restarts are the times of restarts by policy within the last window.
	Restarts []time.Time `json:"restarts,omitempty"`
	// RestartAt is when a Machine in state restarting boots again.
	RestartAt time.Time `json:"restart_at,omitzero"`
	// MetadataTimes are the times at which the metadata's pairs were written.
	MetadataTimes hangar.MetadataTimes `json:"metadata_times,omitzero"`
	// DestroyedAt is when the Machine was destroyed; its record stays for a day.
	DestroyedAt time.Time `json:"destroyed_at,omitzero"`
	// Since is when the Machine entered its state.
	Since time.Time `json:"since,omitzero"`
	// Scheduled is the latest completed time of the Machine's schedule: the Machine was started then,
	// or an event says why not.
	Scheduled time.Time `json:"scheduled,omitzero"`
	// Seq is the number of the commit that wrote the record, or Health if that is newer. PutMachine
	// sets it.
	Seq uint64 `json:"seq"`

	// Health is the last known result of the health checks. It is read with the record, but PutHealth
	// writes it separately.
	Health *Health `json:"-"`
}

// Health is the result of a Machine's health checks.
type Health struct {
	// Since is the record's Since at the time of the checks. The result does not apply to a Machine
	// that has been stopped or started since.
	Since  time.Time             `json:"since"`
	Checks []hangar.MachineCheck `json:"checks"`
	Seq    uint64                `json:"seq"` // of the commit that wrote it; set by PutHealth
}

// Says reports whether h and other have the same statuses for the same stay of the Machine in its
// state. A nil h has no statuses.
func (h *Health) Says(other *Health) bool {
	return h != nil && h.Since.Equal(other.Since) && slices.EqualFunc(h.Checks, other.Checks, func(a, b hangar.MachineCheck) bool {
		return a.Name == b.Name && a.Status == b.Status && a.UpdatedAt.Equal(b.UpdatedAt)
	})
}

// Stop is how a sandbox is to be ended.
type Stop struct {
	Signal hangar.Signal `json:"signal"`
	Grace  time.Duration `json:"grace"` // before SIGKILL
}

// Previous is the version that an update replaces.
type Previous struct {
	Config     hangar.MachineConfig `json:"config"`
	InstanceID hangar.InstanceID    `json:"instance_id"`
	ImageRef   hangar.ImageRef      `json:"image_ref"`
	State      hangar.MachineState  `json:"state"` // started, stopped, suspended or failed
	Cordoned   bool                 `json:"cordoned,omitempty"`
	// SecretsVersion is the version of the App's secrets that this version has.
	SecretsVersion int  `json:"secrets_version,omitempty"`
	AnyRegistry    bool `json:"any_registry,omitempty"`
}

// decodeRecord decodes a record that PutMachine wrote. Records that are decoded with the same pool
// share the content that their Machines have in common.
func decodeRecord(value []byte, pool *machinejson.Pool) (*Record, error) {
	r := new(Record)
	stored := struct {
		*Record
		Machine machinejson.Machine `json:"machine"`
	}{Record: r, Machine: pool.Stored(&r.Machine)}
	if err := json.Unmarshal(value, &stored); err != nil {
		return nil, err
	}
	stored.Machine.Restore()
	return r, nil
}
