// Package driver is the contract of how a Machine runs on its host: from a root file system and a
// command to an isolated, running system and back.
//
// A driver keeps no durable state. Start returns a Handle, which the agent journals; after a
// restart of the daemon, Recover takes the same Handle back. What a driver starts outlives the
// daemon, and its exit is reported exactly even when no daemon was running. Package drivertest is
// the suite that every driver passes.
//
// Methods may be called from many goroutines, for different Machines at once; for
// one Machine the agent calls one of Start, Resume, Suspend, Stop and Destroy at a
// time, while Wait, Signal, Exec, Processes, Stats and Usage may run beside them.
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

// The errors that every driver answers with, wrapped.
var (
	// ErrNotFound: there is no such sandbox, or no more.
	ErrNotFound = errors.New("sandbox not found")
	// ErrCommandNotFound: the file to execute does not exist or is not executable.
	ErrCommandNotFound = errors.New("command not found")
	// ErrSnapshotUnusable: the snapshot is missing, damaged or of another engine;
	// a cold boot with the same writable layer is what remains.
	ErrSnapshotUnusable = errors.New("snapshot unusable")
)

// Driver runs Machines.
type Driver interface {
	// Capabilities says what the driver offers. It does not change.
	Capabilities() Capabilities
	// Start boots spec and returns once its main process runs. On an error only spec.Dir is left
	// behind. ErrCommandNotFound when the command is missing.
	Start(ctx context.Context, spec Spec) (Handle, error)
	// Recover takes back what a Handle stands for, after the daemon was restarted.
	// It answers ErrNotFound when nothing is known of it; a sandbox that ended
	// meanwhile is recovered too, and Wait then returns its exit.
	Recover(ctx context.Context, h Handle) error
	// Wait returns the exit of the main process: of the one that ended first, where
	// there are Spec.Others. After it, everything but Destroy
	// answers ErrNotFound. It may be called many times.
	Wait(ctx context.Context, h Handle) (Exit, error)
	// Signal sends to the main process and to Spec.Others.
	Signal(ctx context.Context, h Handle, sig hangar.Signal) error
	// Stop sends sig and, when grace has passed, SIGKILL; it returns once the
	// sandbox has ended. The exit is reported by Wait.
	Stop(ctx context.Context, h Handle, sig hangar.Signal, grace time.Duration) error
	// Exec runs a command beside the main process. See hangar.MachineExecer.
	Exec(ctx context.Context, h Handle, cmd Command, streams hangar.ExecStreams) (hangar.ExecResult, error)
	// Processes lists what runs inside.
	Processes(ctx context.Context, h Handle) ([]hangar.Process, error)
	// Destroy ends the sandbox, if it has not, and releases all it held on the
	// host: processes, cgroup, mounts. Idempotent; needs only id and dir, so that
	// it also cleans up after a Start whose Handle was never journaled.
	Destroy(ctx finish.Context, id hangar.MachineID, dir string) error
	// List returns the Machines of which anything is left on the host.
	List(ctx context.Context) ([]hangar.MachineID, error)
}

// Suspender is a driver that can write the memory of a Machine to disk.
type Suspender interface {
	// Suspend writes the snapshot atomically to dir, which must not exist, and ends the sandbox:
	// no process of it remains. Other state stays on the host for Resume; Destroy releases it. On
	// an error there is no dir, and the sandbox either still runs or Wait returns its exit.
	Suspend(ctx context.Context, h Handle, dir string) error
	// Resume continues from the snapshot in dir, with the writable layer as it was
	// left. It answers ErrSnapshotUnusable, leaving nothing behind but spec.Dir. It
	// does not remove dir.
	Resume(ctx context.Context, spec Spec, dir string) (Handle, error)
}

// Adopter is a driver that finds what it started for a daemon that died before the Handle was
// journaled.
type Adopter interface {
	// Adopt returns the Handle that the last Start or Resume of the Machine returned,
	// or would have returned, waiting for it if it is not over yet. It answers
	// ErrNotFound when that did not succeed. A sandbox that ended meanwhile is adopted
	// too, and Wait then returns its exit.
	Adopt(ctx context.Context, id hangar.MachineID, dir string) (Handle, error)
}

// StatsReader is a driver that measures Machines.
type StatsReader interface {
	// Stats answers ErrNotFound for a sandbox that does not run.
	Stats(ctx context.Context, h Handle) (Stats, error)
}

// UsageReader is a driver that measures Machines often, without asking them.
type UsageReader interface {
	// Usage answers ErrNotFound for a sandbox that does not run. It is cheap, and starts nothing.
	Usage(ctx context.Context, h Handle) (Usage, error)
}

// RootHolder is a driver whose Machines have their root file systems on the host.
type RootHolder interface {
	// Root returns the directory at which the root file system of a sandbox that runs is,
	// as the Machine sees it, without Spec.Mounts. It answers ErrNotFound.
	Root(ctx context.Context, h Handle) (dir string, err error)
}

// Capabilities says what a driver can do.
type Capabilities struct {
	Name    string // e.g. "gvisor"
	Suspend bool   // it is a Suspender
	// MaxSuspendMemoryMB bounds the memory, in MiB, of a Machine that can be
	// suspended.
	MaxSuspendMemoryMB int
	// Swap: the host has swap that Machines can be given.
	Swap bool
}

// Handle is what a driver needs to find a sandbox again. It is opaque to all but
// the driver that made it, and at most a few hundred bytes.
type Handle []byte

// Spec is a Machine as a driver sees it: everything resolved.
type Spec struct {
	ID       hangar.MachineID
	Instance hangar.InstanceID
	Dir      string // of this Machine alone, exists; the driver's files live in it
	Hostname string
	Root     Root
	Command  Command
	// Others are processes that run beside Command, which then has no TTY. When any of
	// them all ends, the rest are sent StopSignal, unless they have been sent a signal
	// to stop already, and are killed when StopGrace has passed.
	Others     []Command
	StopSignal hangar.Signal `json:",omitzero"` // none cannot be read back
	StopGrace  time.Duration
	Mounts     []Mount
	// Files are written to the root file system by Start, in this order; Resume finds
	// what the Machine has made of them.
	Files    []File
	CPUs     int // cores the Machine may use
	MemoryMB int // MiB visible inside
	// SwapMB is how many MiB of the Machine's memory the host may swap out beyond what
	// MemoryMB lets it keep. Without Capabilities.Swap it has no effect. A Machine with
	// swap is not suspended.
	SwapMB int
	NetNS  string // path of the network namespace; empty: none
	// Output is the path of a FIFO that receives stdout and stderr.
	Output string
	// TTY gives the main process a terminal; its output still goes to Output.
	TTY bool
}

// Root is a root file system: read-only layers under a writable one.
type Root struct {
	Layers   []string // directories, lowest first, at least one
	Writable string   // directory of this Machine, in which all that it writes is; the driver makes it
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
	Path    string // absolute; directories that are missing are made, links are followed within the Machine
	Content []byte
	Mode    uint32 // permissions
}

// Mount puts a directory or file of the host into the Machine.
type Mount struct {
	Source   string
	Target   string // absolute, inside
	ReadOnly bool
}

// Exit says how the main process ended.
type Exit struct {
	Code      int // 128+Signal when a signal ended it
	Signal    int // 0: none
	OOMKilled bool
	At        time.Time
	// Suspended: it did not end, its memory was written to disk by Suspend.
	Suspended bool
	// Unknown: it is gone and left no status, as after a loss of power; Code is 137.
	Unknown bool
}

// Stats are counters of a running Machine.
type Stats struct {
	CPUTime     time.Duration
	MemoryBytes int64 // used by the Machine, with the sandbox's own
	Processes   int
}

// NotKnown is Usage's value for a number that a driver does not know.
const NotKnown = -1

// Usage is what a Machine uses and has used. Times begin at 0 with every Start and Resume, and
// do not go back until the sandbox ends.
type Usage struct {
	User, System time.Duration // processor time, of the sandbox included
	Throttled    time.Duration // for which its limit kept it from running; or NotKnown
	Memory       MemoryUsage
}

// MemoryUsage is in bytes. Each may be NotKnown.
type MemoryUsage struct {
	Used   int64 // by the Machine itself, of Spec.MemoryMB
	Cached int64 // of files that the Machine has used, and beside Used
	// Dirty and Writeback are what of Cached is not on the disk yet, and is just being written.
	Dirty, Writeback int64
	// SwapTotal is Spec.SwapMB where that has an effect; SwapUsed is what of Used is swapped out.
	SwapTotal, SwapUsed int64
}
