// Package driver is the contract of how a Machine runs on its host: from a root file system and a
// command to an isolated, running system and back.
//
// A driver keeps no durable state. Start returns a Handle, which the agent journals; after a restart
// of the daemon, the agent passes the same Handle to Recover. What a driver starts outlives the
// daemon, and Wait reports its exact exit even if it ended while no daemon was running. Package
// drivertest is the suite that every driver passes.
//
// Methods may be called from many goroutines, for different Machines at once. For one Machine, the
// agent calls one of Start, Resume, Suspend, Stop and Destroy at a time; Wait, Signal, Exec,
// Processes, Stats and Usage may run beside them.
//
// A driver knows nothing of Apps, events or policies.
package driver

import (
	"context"
	"errors"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/finish"
)

// The errors that every driver returns, wrapped.
var (
	// ErrNotFound: the sandbox does not exist, or no longer.
	ErrNotFound = errors.New("sandbox not found")
	// ErrCommandNotFound: the file to execute does not exist or is not executable.
	ErrCommandNotFound = errors.New("command not found")
	// ErrSnapshotUnusable: the snapshot is missing, damaged or of another engine; only a cold boot
	// with the same writable layer is left.
	ErrSnapshotUnusable = errors.New("snapshot unusable")
	// ErrNotBegun: the attempt failed before anything of the Machine ran, so that a snapshot can still be
	// resumed.
	ErrNotBegun = errors.New("sandbox not begun")
)

// Driver runs Machines.
type Driver interface {
	// Capabilities returns what the driver offers. It does not change.
	Capabilities() Capabilities
	// Start boots spec and returns once its main process runs. On an error only spec.Dir is left
	// behind. It returns ErrCommandNotFound when the command is missing.
	Start(ctx context.Context, spec Spec) (Handle, error)
	// Recover makes the sandbox of a Handle usable again after a restart of the daemon. It returns
	// ErrNotFound for an unknown sandbox. A sandbox that has ended meanwhile is recovered too, and
	// Wait then returns its exit.
	Recover(ctx context.Context, h Handle) error
	// Wait returns the exit of the main process; with Spec.Others, it is the exit of the process that
	// ended first. After it, all methods but Wait and Destroy return ErrNotFound. It may be called
	// many times.
	Wait(ctx context.Context, h Handle) (Exit, error)
	// Signal sends a signal to the main process and to Spec.Others.
	Signal(ctx context.Context, h Handle, sig hangar.Signal) error
	// Stop sends sig and, when grace has passed, SIGKILL; it returns once the sandbox has ended. Wait
	// reports the exit.
	Stop(ctx context.Context, h Handle, sig hangar.Signal, grace time.Duration) error
	// Exec runs a command beside the main process. See hangar.MachineExecer.
	Exec(ctx context.Context, h Handle, cmd Command, streams hangar.ExecStreams) (hangar.ExecResult, error)
	// Processes lists the processes of the sandbox.
	Processes(ctx context.Context, h Handle) ([]hangar.Process, error)
	// Destroy ends the sandbox and releases everything it held on the host: processes, cgroup, mounts.
	// It is idempotent. It needs only id and dir, so that it also cleans up after a Start whose Handle
	// was never journaled.
	Destroy(ctx finish.Context, id hangar.MachineID, dir string) error
	// List returns the Machines that have left anything on the host.
	List(ctx context.Context) ([]hangar.MachineID, error)
}

// Suspender is a driver that can write the memory of a Machine to disk.
type Suspender interface {
	// Suspend writes the snapshot atomically to dir, which must not exist, and ends the sandbox with
	// all its processes. Other state stays on the host for Resume, until Destroy releases it. On an
	// error dir does not exist, and the sandbox either still runs or Wait returns its exit.
	Suspend(ctx context.Context, h Handle, dir string) error
	// Resume continues from the snapshot in dir, with the writable layer as it was left. It does not
	// remove dir. On ErrSnapshotUnusable only spec.Dir is left behind. After ErrNotBegun it may be repeated.
	Resume(ctx context.Context, spec Spec, dir string) (Handle, error)
}

// Adopter is a driver that finds a sandbox even if the daemon died before it journaled the Handle.
type Adopter interface {
	// Adopt returns the Handle of the Machine's last Start or Resume, after waiting until that is
	// over. It returns ErrNotFound when that did not succeed, or takes longer than ctx. A sandbox that
	// has ended meanwhile is adopted too, and Wait then returns its exit.
	Adopt(ctx context.Context, id hangar.MachineID, dir string) (Handle, error)
}

// StatsReader is a driver that measures Machines.
type StatsReader interface {
	// Stats returns ErrNotFound for a sandbox that does not run.
	Stats(ctx context.Context, h Handle) (Stats, error)
}

// UsageReader is a driver that can measure Machines often, without work inside the sandbox.
type UsageReader interface {
	// Usage returns ErrNotFound for a sandbox that does not run. It is cheap, and starts no process.
	Usage(ctx context.Context, h Handle) (Usage, error)
}

// RootHolder is a driver whose Machines have their root file systems on the host.
type RootHolder interface {
	// Root returns the directory of a running sandbox's root file system, as the Machine sees it but
	// without Spec.Mounts. It returns ErrNotFound for a sandbox that does not run.
	Root(ctx context.Context, h Handle) (dir string, err error)
}

// Capabilities are what a driver can do.
type Capabilities struct {
	Name    string // e.g. "gvisor"
	Suspend bool   // the driver is a Suspender
	// MaxSuspendMemoryMB is the most memory, in MiB, of a Machine that can be suspended.
	MaxSuspendMemoryMB int
	// Swap: Machines can use swap of the host.
	Swap bool
}

// Handle is what a driver needs to find a sandbox again. Only the driver that made it understands it.
// It has at most a few hundred bytes.
type Handle []byte

// Spec is a Machine as a driver sees it, with everything resolved.
type Spec struct {
	ID       hangar.MachineID
	Instance hangar.InstanceID
	Dir      string // an existing directory for the driver's files of this Machine
	Hostname string
	Root     Root
	Command  Command
	// Others are processes that run beside Command, which then has no TTY. When the first of all these
	// processes ends, the rest receive StopSignal, unless they have received a stop signal already.
	// They are killed when StopGrace has passed.
	Others     []Command
	StopSignal hangar.Signal `json:",omitzero"` // zero has no text form
	StopGrace  time.Duration
	Mounts     []Mount
	// Start writes Files to the root file system, in this order. Resume does not write them.
	Files    []File
	CPUs     int // cores the Machine may use
	MemoryMB int // MiB visible inside
	// SwapMB is how many MiB of the Machine's memory the host may swap out, beyond the MemoryMB that
	// it keeps. It has no effect without Capabilities.Swap. A Machine with swap is not suspended.
	SwapMB int
	NetNS  string // path of the network namespace; empty: no network
	// Output is the path of a FIFO that receives stdout and stderr.
	Output string
	// TTY gives the main process a terminal. Its output still goes to Output.
	TTY bool
}

// Root is a root file system: read-only layers under a writable one.
type Root struct {
	Layers   []string // directories, lowest first, at least one
	Writable string   // directory that receives the Machine's writes; the driver makes it
}

// Command is a command to execute.
type Command struct {
	Args []string // Args[0] is looked up in the PATH of Env
	Env  []string // "NAME=value"
	Dir  string   // working directory
	UID  uint32
	GID  uint32
	// Groups are supplementary.
	Groups []uint32
	TTY    bool                // Exec only
	Size   hangar.TerminalSize // Exec with TTY only
}

// File is a regular file of the Machine, owned by its root.
type File struct {
	Path    string // absolute; Start makes missing directories and follows links within the Machine
	Content []byte
	Mode    uint32 // permissions
}

// Mount puts a directory or file of the host into the Machine.
type Mount struct {
	Source   string
	Target   string // absolute, inside
	ReadOnly bool
}

// Exit is how the main process ended.
type Exit struct {
	Code      int // 128+Signal when a signal ended it
	Signal    int // 0: none
	OOMKilled bool
	At        time.Time
	// Suspended: the process did not end; Suspend wrote its memory to disk.
	Suspended bool
	// Unknown: the process is gone without a status, as after a loss of power; Code is 137.
	Unknown bool
}

// Stats are counters of a running Machine.
type Stats struct {
	CPUTime     time.Duration
	MemoryBytes int64 // used by the Machine and the sandbox
	Processes   int
}

// NotKnown is Usage's value for a number that the driver does not know.
const NotKnown = -1

// Usage is what a Machine uses and has used. Times begin at 0 with every Start and Resume, and never
// decrease until the sandbox ends.
type Usage struct {
	User, System time.Duration // processor time, with the sandbox's own
	Throttled    time.Duration // how long the CPU limit kept it from running; or NotKnown
	Memory       MemoryUsage
}

// MemoryUsage is in bytes. Each field may be NotKnown.
type MemoryUsage struct {
	Used   int64 // by the Machine itself, of Spec.MemoryMB
	Cached int64 // cached files that the Machine has used; not part of Used
	// Dirty and Writeback are the parts of Cached that are not on disk yet, and that are being
	// written.
	Dirty, Writeback int64
	// SwapTotal is Spec.SwapMB where that has an effect. SwapUsed is the part of Used that is swapped
	// out.
	SwapTotal, SwapUsed int64
}
