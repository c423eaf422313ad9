package hangar

import (
	"context"
	"iter"
	"net/netip"
	"slices"
	"time"
)

// Machine is a fast-launching VM: its config, state and latest events.
type Machine struct {
	ID         MachineID      `json:"id"`
	Name       string         `json:"name"` // unique among the App's Machines that exist
	App        AppName        `json:"app_name"`
	AppID      AppID          `json:"app_id,omitempty"` // identifies the App; the API does not show it
	State      MachineState   `json:"state"`
	Region     Region         `json:"region"`
	Host       HostID         `json:"host_id"`
	InstanceID InstanceID     `json:"instance_id"` // of the current config version
	PrivateIP  netip.Addr     `json:"private_ip"`
	ImageRef   ImageRef       `json:"image_ref"`
	Config     MachineConfig  `json:"config"`
	CreatedAt  time.Time      `json:"created_at"` // UTC, whole seconds
	UpdatedAt  time.Time      `json:"updated_at"` // UTC, whole seconds
	Cordoned   bool           `json:"cordoned"`
	HostStatus string         `json:"host_status"`      // "ok", "unknown" or "unreachable"
	Checks     []MachineCheck `json:"checks,omitempty"` // in the order of MachineConfig.NamedChecks
	Events     []Event        `json:"events,omitempty"` // newest first
	Nonce      string         `json:"nonce,omitempty"`  // only in the answer to a creation or update with LeaseTTL
	// SecretsVersion is the version of the App's secrets that the current config version has; 0 if it
	// has none.
	SecretsVersion int `json:"secrets_version,omitempty"`
}

// Ref returns the name under which the services know the Machine.
func (m *Machine) Ref() MachineRef { return MachineRef{App: m.App, AppID: m.AppID, ID: m.ID} }

// MachineVersion is one config that a Machine has had.
type MachineVersion struct {
	Version InstanceID    `json:"version"`
	Config  MachineConfig `json:"user_config"`
}

// MachineCreate is the request for a new Machine.
type MachineCreate struct {
	Name                    string // empty: a generated one
	Region                  Region // empty: the server's
	Config                  MachineConfig
	SkipLaunch              bool          // prepare it, and leave it stopped
	SkipServiceRegistration bool          // start it cordoned
	LeaseTTL                time.Duration // 0: none; else it is leased to its creator from the start
	SkipSecrets             bool          // leave out the App's secrets
	MinSecretsVersion       int           // the least acceptable version of the App's secrets
}

// MachineUpdate replaces the config of a Machine.
type MachineUpdate struct {
	Config                  MachineConfig
	CurrentVersion          InstanceID // when set, must be the Machine's, else ReasonStaleVersion
	Name                    string     // when set, must be the Machine's
	Region                  Region     // when set, must be the Machine's
	SkipLaunch              bool       // leave it stopped
	SkipServiceRegistration bool
	LeaseTTL                time.Duration // 0: none; else the update acquires a lease, too
	SkipSecrets             bool          // leave out the App's secrets
	MinSecretsVersion       int           // the least acceptable version of the App's secrets
	// AnyRegistry is as in MachineSpec. control sets it and ignores the caller's value.
	AnyRegistry bool
	// Secrets are the secrets of the App. control sets them for the host and ignores the caller's
	// value.
	Secrets SecretValues
}

// MachineFilter selects Machines of an App. The zero value selects all that were
// not destroyed.
type MachineFilter struct {
	IncludeDestroyed bool
	Regions          []Region          // any of them; empty: all
	States           []MachineState    // any of them; empty: all
	Metadata         map[string]string // the Machine must have every pair
	UpdatedAfter     time.Time         // zero: at any time
	Events           bool              // not a condition: list the Machines with their newest events
}

// Matches reports whether the filter selects m.
func (f MachineFilter) Matches(m *Machine) bool {
	if m.State == MachineDestroyed && !f.IncludeDestroyed {
		return false
	}
	if len(f.Regions) > 0 && !slices.Contains(f.Regions, m.Region) {
		return false
	}
	if !f.UpdatedAfter.IsZero() && !m.UpdatedAt.After(f.UpdatedAfter) {
		return false
	}
	if len(f.States) > 0 && !slices.Contains(f.States, m.State) {
		return false
	}
	for k, v := range f.Metadata {
		if got, ok := m.Config.Metadata[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// StartResult answers a start.
type StartResult struct {
	PreviousState MachineState `json:"previous_state"`
}

// MachineStop says how to stop. Zero fields mean the config's stop_config.
type MachineStop struct {
	Signal  Signal
	Timeout time.Duration
}

// MachineRestart says how to stop before starting again.
type MachineRestart struct {
	MachineStop
	ForceStop bool // SIGKILL at once
}

// MachineDestroy says how to destroy.
type MachineDestroy struct {
	Force bool // also a Machine that is not stopped
}

// WaitSettled is the pseudo-state that any settled state satisfies.
const WaitSettled MachineState = "settled"

// DefaultWaitTimeout and MaxWaitTimeout bound a wait.
const (
	DefaultWaitTimeout = 60 * time.Second
	MaxWaitTimeout     = 60 * time.Second
)

// MachineWait is what to wait for. If the Machine has destroyed itself (see MachineConfig.AutoDestroy),
// every state that it has had counts.
type MachineWait struct {
	States    []MachineState // any of them; empty: MachineStarted; WaitSettled is allowed
	Instance  InstanceID     // when set, that version or a newer one must have the state
	FromEvent EventID        // when set, states reached after that event count, even past ones
	Timeout   time.Duration  // 0: DefaultWaitTimeout
}

// Validate answers CodeInvalid and names the field that is wrong.
func (w *MachineWait) Validate() error {
	for _, s := range w.States {
		if !s.Valid() && s != WaitSettled {
			return Errorf(CodeInvalid, "", "invalid state: %q is not a state of a machine", s)
		}
	}
	switch {
	case w.Timeout < 0 || w.Timeout > MaxWaitTimeout:
		return Errorf(CodeInvalid, "", "invalid timeout: %s is not from 0s to %s", w.Timeout, MaxWaitTimeout)
	case w.FromEvent != "" && !w.FromEvent.Valid():
		return Errorf(CodeInvalid, "", "invalid from_event_id: %q is not the id of an event", w.FromEvent)
	default:
		return nil
	}
}

// MachineReached answers a wait.
type MachineReached struct {
	EventID EventID      `json:"event_id"` // of the event that brought the state
	State   MachineState `json:"state"`
	Version InstanceID   `json:"version"`
}

// MachineChange is one step of a Machine's life as a watcher sees it: the Machine
// without its events, and what happened.
type MachineChange struct {
	Machine  *Machine      `json:"machine"`
	Event    *Event        `json:"event,omitempty"`
	Progress *PullProgress `json:"progress,omitempty"` // while its image is being fetched
}

// MachineOps acts on one Machine. Every method answers CodeNotFound with
// ReasonMachineNotFound for a Machine that does not exist, and
// CodeFailedPrecondition with ReasonWrongState when MachineState.Answers refuses.
// Verbs return when the intent is durable; WaitMachine waits for the effect.
type MachineOps interface {
	// Machine returns the Machine with its newest events. A destroyed one is
	// returned for a day.
	Machine(ctx context.Context, ref MachineRef) (*Machine, error)
	// UpdateMachine gives the Machine a new version. A started one reboots, any other stays stopped. It
	// answers CodeConflict with ReasonStaleVersion, CodeConflict while another update is under way,
	// CodeExhausted while too many updates wait for their turn, and CodeFailedPrecondition with
	// ReasonSecretsVersion. If the new version turns out to be impossible, the Machine keeps the
	// previous one or returns to it.
	UpdateMachine(ctx context.Context, ref MachineRef, in MachineUpdate) (*Machine, error)
	// StartMachine boots or resumes. It may be repeated.
	StartMachine(ctx context.Context, ref MachineRef) (StartResult, error)
	// StopMachine signals, and kills after the timeout. It may be repeated.
	StopMachine(ctx context.Context, ref MachineRef, in MachineStop) error
	// SuspendMachine writes the memory to disk and frees it. It answers
	// CodeFailedPrecondition for a Machine that cannot be suspended, saying why.
	SuspendMachine(ctx context.Context, ref MachineRef) error
	// RestartMachine stops, if need be, and starts the same version.
	RestartMachine(ctx context.Context, ref MachineRef, in MachineRestart) error
	// SignalMachine sends a signal to the main process.
	SignalMachine(ctx context.Context, ref MachineRef, sig Signal) error
	// DestroyMachine removes the Machine. The intent is durable when it returns, and the removal is
	// complete once the Machine is MachineDestroyed. It may be repeated.
	DestroyMachine(ctx context.Context, ref MachineRef, in MachineDestroy) error
	// CordonMachine keeps the edge from sending requests to the Machine. It may be
	// repeated.
	CordonMachine(ctx context.Context, ref MachineRef) error
	// UncordonMachine ends what CordonMachine began. It may be repeated.
	UncordonMachine(ctx context.Context, ref MachineRef) error
	// WaitMachine returns as soon as the Machine has reached the wanted state. It
	// answers CodeTimeout with ReasonWaitTimeout when the time passed, CodeInvalid for
	// a bad request and CodeFailedPrecondition when the state can no longer be reached.
	WaitMachine(ctx context.Context, ref MachineRef, in MachineWait) (MachineReached, error)
}

// MachineAwaiter is an optional interface of MachineOps: it waits without a goroutine
// for each waiter.
type MachineAwaiter interface {
	// AwaitMachine calls done once with what WaitMachine would answer, as soon as that is
	// known, perhaps before AwaitMachine returns. done is called with the Machine's lock held,
	// so it must not block nor call this interface. ctx bounds the call, not the wait. forget
	// ends the wait; the caller calls it in any case, also after done, and may repeat it. After
	// an error done is never called; errors.ErrUnsupported means that the host does not offer
	// AwaitMachine.
	AwaitMachine(ctx context.Context, ref MachineRef, in MachineWait, done func(MachineReached, error)) (forget func(), err error)
}

// MachineReader reads one Machine.
type MachineReader interface {
	// MachineEvents are newest first, at most limit (0: 20, at most 50).
	MachineEvents(ctx context.Context, ref MachineRef, limit int) ([]Event, error)
	// MachineVersions are newest first.
	MachineVersions(ctx context.Context, ref MachineRef) ([]MachineVersion, error)
	// MachineProcesses answers CodeFailedPrecondition for one that is not started.
	MachineProcesses(ctx context.Context, ref MachineRef) ([]Process, error)
	// WatchMachine yields the Machine as it is and then every change, until it is
	// destroyed, ctx ends or the caller breaks off. A watcher that is too slow
	// misses progress, never an event.
	WatchMachine(ctx context.Context, ref MachineRef) iter.Seq2[MachineChange, error]
}

// MachineService is the Machines of a server, as a user sees them.
type MachineService interface {
	MachineOps
	MachineLeaser
	MachineReader
	MachineExecer
	MachineDialer
	MachineTagger
	MachineBusier
	// CreateMachine returns when the Machine is recorded. The Machine boots in the background. It
	// answers CodeConflict with ReasonNameTaken, CodeConflict with ReasonInsufficientCapacity,
	// CodeInvalid with ReasonBadConfig, and CodeFailedPrecondition with ReasonSecretsVersion.
	CreateMachine(ctx context.Context, app AppName, in MachineCreate) (*Machine, error)
	// Machines are sorted by id and, unless filter.Events, come without events.
	Machines(ctx context.Context, app AppName, filter MachineFilter) ([]*Machine, error)
	// OrgMachines returns a page of the Machines of all Apps of an organization that the caller may
	// see. It answers CodeNotFound for an unknown organization.
	OrgMachines(ctx context.Context, org OrgSlug, q MachinePageQuery) (MachinePage, error)
}
