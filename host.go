package hangar

import (
	"context"
	"iter"
	"time"
)

// Host is a server that runs Machines.
type Host struct {
	ID      HostID            `json:"id"`
	Name    string            `json:"name,omitempty"`
	Region  Region            `json:"region"`
	Zone    string            `json:"zone,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	CPUs    int               `json:"cpus"`
	Memory  int64             `json:"memory"`            // bytes
	Address string            `json:"address,omitempty"` // host:port where other hosts reach it; empty: it is alone
	// MeshKey and MeshAddress, host:port of UDP, belong to its WireGuard interface in the private
	// network between hosts. Empty: it has none.
	MeshKey     PeerKey `json:"mesh_key,omitempty"`
	MeshAddress string  `json:"mesh_address,omitempty"`
	// MeshHandshake is when the answering host last heard from this one over WireGuard, at least every
	// two minutes. For the answering host itself it is now. Zero: not since the answering daemon
	// started.
	MeshHandshake time.Time `json:"mesh_handshake,omitzero"`

	Cordoned bool      `json:"cordoned,omitempty"` // it takes no new Machines
	State    HostState `json:"state,omitempty"`
}

// HostState says whether other hosts consider a host alive.
type HostState string

// The states of a host.
const (
	HostAlive   HostState = "alive"
	HostSuspect HostState = "suspect" // its lease has ended; it may still run its Machines
	HostDead    HostState = "dead"    // it has been suspect for long, or was removed
)

// HostChange is a host that appeared, changed or (Host nil) was removed.
type HostChange struct {
	ID     HostID
	Host   *Host
	Synced bool // all hosts that existed at the start have been yielded
}

// HostFeed is how the planes learn of every host of the platform.
type HostFeed interface {
	// WatchHosts yields every host, then a change with Synced set, then every change, until ctx
	// ends. After an error the caller starts again.
	WatchHosts(ctx context.Context) iter.Seq2[HostChange, error]
}

// MachineSpec is a Machine as control hands it to its host: named, validated and
// placed.
type MachineSpec struct {
	ID    MachineID
	Name  string
	App   AppName
	AppID AppID
	Org   OrgSlug
	OrgID OrgID
	// AnyRegistry says that an administrator has named the image. Its registry may then be at an
	// address that tenants must not make the host call.
	AnyRegistry bool
	Network     NetworkID
	Region      Region
	Config      MachineConfig
	Secrets     SecretValues // of the App; kept encrypted, and never shown
	SkipLaunch  bool
	Cordoned    bool
	LeaseTTL    time.Duration // 0: it is not leased
}

// Agent is one host as the other planes see it, in this process or over the
// network. The host owns its Machines: their config, state and events.
type Agent interface {
	MachineAgent
	VolumeAgent
	ImageAgent
	LogAgent
	// Host returns the record of the host; of another host, the last known one.
	Host() Host
	// Room says what the host has left. Like Bid it promises nothing.
	Room(ctx context.Context) (HostRoom, error)
	// Bid says what the host offers to a Machine.
	Bid(ctx context.Context, ask MachineAsk) (MachineBid, error)
}

// MachineAgent is what a host does for Machines.
type MachineAgent interface {
	MachineOps
	MachineLeaser
	MachineReader
	MachineExecer
	MachineDialer
	MachineTagger
	MachineBusier
	// CreateMachine records the Machine and starts to prepare it. Repeated with the same ID, it returns
	// the existing Machine. An error for which NoRoom is true says that another host may take the
	// Machine. A reference that names no image is refused. An unreachable registry is no error here:
	// the Machine fails later.
	CreateMachine(ctx context.Context, spec MachineSpec) (*Machine, error)
	// Machines are sorted by id and, unless filter.Events, come without events. An empty app means all
	// Apps.
	Machines(ctx context.Context, app AppID, filter MachineFilter) ([]*Machine, error)
	// OrgMachines returns the first limit Machines of an organization whose ids follow after, sorted by
	// id and without events.
	OrgMachines(ctx context.Context, org OrgID, after MachineID, limit int, filter MachineFilter) ([]*Machine, error)
}

// LogAgent is what a host does for logs.
type LogAgent interface {
	// Logs and FollowLogs are those of LogService, for an App that control has resolved.
	Logs(ctx context.Context, app AppID, q LogQuery) (LogPage, error)
	FollowLogs(ctx context.Context, app AppID, q LogQuery) iter.Seq2[LogEntry, error]
}

// ImageAgent is what a host does for images.
type ImageAgent interface {
	ImageService
	// Resolve is ImageResolver.ResolveImage, for a puller that control has authorized.
	Resolve(ctx context.Context, who ImagePuller, ref string) (*ResolvedImage, error)
	// ImageUsage says how much disk space the images of an organization use on the host.
	ImageUsage(ctx context.Context, org OrgID) (ImageUsage, error)
	// RemoveOrg removes what the host keeps of an organization that is being deleted and has
	// no Machines: its repositories in the built-in registry, and its images. It may be
	// repeated.
	RemoveOrg(ctx context.Context, org OrgID) error
}

// Agents finds hosts.
type Agents interface {
	// Agent answers CodeNotFound for a host that is unknown and CodeUnavailable
	// for one that cannot be reached.
	Agent(id HostID) (Agent, error)
	// Hosts are the hosts that may take new Machines.
	Hosts() []Host
	// Known are all hosts that may have Machines, also those that take no new ones.
	Known() []Host
}

// MachineRow is what a host publishes of a Machine. Seq grows with every commit
// of the host's journal, so that an older row never replaces a newer one.
type MachineRow struct {
	Machine Machine   `json:"machine"` // without events
	Org     OrgSlug   `json:"org"`
	OrgID   OrgID     `json:"org_id"`
	Network NetworkID `json:"network"`
	// Losses grows when the Machine loses its connections, because its program or its memory has ended.
	// A suspend counts only once the memory is discarded.
	Losses uint64 `json:"losses,omitempty"`
	// Crashes counts how often the program has ended by itself
	Crashes uint64 `json:"crashes,omitempty"`
	Seq     uint64 `json:"seq"`
}

// Publisher takes the rows of a host. A failed call is repeated by the host until
// it succeeds, unless the answer is CodeInvalid: then that row cannot be published.
type Publisher interface {
	// PublishMachine stores a row, unless the stored one has the same or a higher Seq.
	PublishMachine(ctx context.Context, row MachineRow) error
	// RetractMachine removes the row of a destroyed Machine, frees its name, and reduces the counts
	// that included it. Without an App in ref, the row's counts.
	RetractMachine(ctx context.Context, host HostID, ref MachineRef) error
	// PublishedMachines returns the Seq of each row of a host, so that the host finds outdated rows
	// after a restart. It is 0 for a row that cannot be read.
	PublishedMachines(ctx context.Context, host HostID) (map[MachineID]uint64, error)
}

// MachineView tells a host whether the edge has seen a change of a Machine.
type MachineView interface {
	// AwaitMachine returns once the edge routes requests by the row of a Machine with this seq or a
	// later one, or once that row has gone. It returns the error of ctx if that ends first.
	AwaitMachine(ctx context.Context, ref MachineRef, seq uint64) error
}

// MachineFeed is how the edge learns of every Machine.
type MachineFeed interface {
	// WatchMachines yields every row there is, then a change with Synced set, then
	// every change, until ctx ends. A row that cannot be read is skipped. After an
	// error the caller starts again.
	WatchMachines(ctx context.Context) iter.Seq2[MachineRowChange, error]
}

// MachineRowChange is a row that appeared, changed or (Row nil) was retracted.
type MachineRowChange struct {
	ID     MachineID
	Row    *MachineRow
	Synced bool // all rows that existed at the start have been yielded
}
