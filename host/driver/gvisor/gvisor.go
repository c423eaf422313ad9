// Package gvisor runs Machines as gVisor sandboxes: one user-space kernel per
// Machine, on any Linux, without hardware virtualization.
//
// A sandbox outlives the process that started it, and records its own exit, so a daemon that was
// killed finds its Machines, or their exit codes, when it starts again. A resume refuses a snapshot
// that is incomplete, damaged, or of another engine, processor or configuration. Destroy needs no
// record of earlier steps, and leaves nothing on the host.
//
// A Driver may be used from many goroutines. One goroutine per sandbox waits for its end and reaps
// it; Close ends these goroutines and keeps the sandboxes. Open makes the calling process a child
// subreaper (see prctl(2)): a short-lived helper process starts each sandbox, and the driver reaps
// the orphans. It reaps by process id, never just any child.
//
// The package does not make network namespaces, unpack images or keep records. It talks to sandboxes
// over their control socket with a few types of its own, so that only the engine program links gVisor
// itself (see docs/adr/0002).
package gvisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	guestinit "github.com/hangar-platform/hangar/host/guest/init"
)

// MaxSuspendMemoryMB is the most memory, in MiB, of a Machine that can be suspended.
const MaxSuspendMemoryMB = 2048

// Options configure a Driver.
type Options struct {
	// Root is a directory for run-time state, which is lost when the host restarts. It has at most 70
	// bytes, e.g. /run/hangar-1f2e/runsc.
	Root string
	// Engine is the path of the program hangar-sandbox; see package engine.
	Engine string
	// Guest is the path of the program that Machines have as hangar.SSHProgram; empty: they have none.
	Guest string
	// CgroupParent names the group of the cgroups of all Machines, e.g. "hangar-1f2e". It also marks
	// mounts, so it must be unique on the host.
	CgroupParent string
	// MemoryLimit is how many bytes all sandboxes together may use, including the engine's share of
	// each; 0: no limit.
	MemoryLimit int64
	Log         *slog.Logger
}

// Driver runs Machines as gVisor sandboxes. It implements driver.Driver and all its optional
// interfaces.
type Driver struct {
	opts   Options
	log    *slog.Logger
	origin origin
	cgroup cgroups
	layer  string // directory of the driver's files in every Machine; set by Open
	fdHold int    // keeps the descriptor table large; see growFDTable

	mu        sync.Mutex
	sandboxes map[hangar.MachineID]*sandbox // guarded by mu
	// kept are the Machines whose root file system Suspend has left mounted for Resume; guarded by mu.
	kept     map[hangar.MachineID]bool
	watchers sync.WaitGroup
	spare    spares
	closing  chan struct{} // closed by Close
}

var (
	_ driver.Driver      = (*Driver)(nil)
	_ driver.Suspender   = (*Driver)(nil)
	_ driver.Adopter     = (*Driver)(nil)
	_ driver.StatsReader = (*Driver)(nil)
	_ driver.UsageReader = (*Driver)(nil)
)

// New returns a Driver that Open makes usable.
func New(opts Options) *Driver {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	return &Driver{
		opts: opts, log: opts.Log, fdHold: -1,
		sandboxes: make(map[hangar.MachineID]*sandbox),
		kept:      make(map[hangar.MachineID]bool),
		closing:   make(chan struct{}),
	}
}

// Open checks the host and prepares the run-time directory. It makes the process a
// child subreaper.
func (d *Driver) Open(context.Context) error {
	if len(d.opts.Root) > maxRoot {
		return fmt.Errorf("directory %s: longer than the %d bytes that a socket name leaves", d.opts.Root, maxRoot)
	}
	if len(guestinit.Binary()) == 0 {
		return errors.New("no guest init for this architecture")
	}
	if err := unix.Access(d.opts.Engine, unix.X_OK); err != nil {
		return fmt.Errorf("engine %s: %w", d.opts.Engine, err)
	}
	if err := os.MkdirAll(d.opts.Root, 0o711); err != nil { //nolint:gosec // sandboxes traverse it
		return err
	}
	if err := d.openLayer(); err != nil {
		return fmt.Errorf("write guest init: %w", err)
	}
	var err error
	if d.origin, err = hostOrigin(d.opts.Engine); err != nil {
		return err
	}
	if d.cgroup, err = findCgroups(d.opts.CgroupParent); err != nil {
		return err
	}
	if err := raiseMaxPID(); err != nil {
		d.log.Warn("cannot raise the limit of process ids: Machines with very many processes may exhaust it", "error", err)
	}
	if d.opts.MemoryLimit > 0 {
		if err := d.cgroup.limitParent(d.opts.MemoryLimit); err != nil {
			d.log.Warn("the memory of all machines together is not limited", "error", err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a subreaper: %w", err)
	}
	d.fdHold = growFDTable()
	d.fillSpare()
	return nil
}

// Close stops watching the sandboxes, which keep running.
func (d *Driver) Close() error {
	d.mu.Lock()
	select {
	case <-d.closing:
		d.mu.Unlock()
		return nil
	default:
		close(d.closing)
	}
	for _, s := range d.sandboxes {
		s.release()
	}
	d.mu.Unlock()
	d.watchers.Wait()
	d.dismissSpare()
	if d.fdHold >= 0 {
		_ = unix.Close(d.fdHold)
	}
	return nil
}

// Capabilities implements driver.Driver.
func (d *Driver) Capabilities() driver.Capabilities {
	return driver.Capabilities{
		Name: "gvisor", Suspend: true, MaxSuspendMemoryMB: MaxSuspendMemoryMB, Swap: d.cgroup.hasSwap(),
	}
}

// Remove removes what all sandboxes share: the run-time directory and the parent of the cgroups.
// Destroy every Machine first. It may be repeated.
func (d *Driver) Remove(context.Context) error {
	// gVisor keeps a network namespace of its own mounted there.
	for _, m := range []string{filepath.Join(d.opts.Root, "null-netns"), d.opts.Root} {
		for unix.Unmount(m, unix.MNT_DETACH) == nil {
		}
	}
	return errors.Join(os.RemoveAll(d.opts.Root), d.cgroup.removeParent())
}

// growFDTable keeps a high descriptor open. It makes the descriptor table large, so that those that
// children inherit need not grow: in a process with threads, growing one waits up to 16 ms for an RCU
// grace period.
func growFDTable() int {
	fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 255)
	if err != nil {
		return -1
	}
	return fd
}
