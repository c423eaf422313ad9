package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/bench/harness"
)

// runsc is gVisor's own program, as its documentation has it called.
type runsc struct {
	program string
	dir     string // for everything it makes
	rootfs  string // of every instance, below an overlay
	wires   []*wire
}

// flags are those with which runsc does the same work: a root file system on disk and a
// network of its own; no cgroups, which spares it what they cost.
func (r *runsc) flags() []string {
	return []string{
		"--root=" + filepath.Join(r.dir, "run"), "--ignore-cgroups", "--overlay2=none", "--network=sandbox", "--platform=systrap",
	}
}

// Name implements system.
func (*runsc) Name() string { return nameRunsc }

// Suspends implements system.
func (*runsc) Suspends() bool { return true }

// Restarts implements system: a container of runsc is run once.
func (*runsc) Restarts() bool { return false }

// Boot implements system. What surrounds the sandbox (network, overlay, bundle) is
// made before the clock starts.
func (r *runsc) Boot(ctx context.Context, slot, _ int) (instance, boot, error) {
	s := &sandbox{runsc: r, wire: r.wires[slot], id: fmt.Sprintf("s%03d", slot), dir: filepath.Join(r.dir, strconv.Itoa(slot))}
	if err := s.prepare(ctx); err != nil {
		return nil, boot{}, errors.Join(err, s.Destroy(context.WithoutCancel(ctx)))
	}
	var b boot
	var err error
	began := time.Now()
	b.Started, b.Replied, err = untilReply(ctx, began, s.Address(), func(ctx context.Context) error {
		return s.launch(ctx, "run")
	})
	return s, b, err
}

// remove unmounts what runsc leaves in its directory.
func (r *runsc) remove() error { return harness.UnmountRunsc(filepath.Join(r.dir, "run")) }

func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) // EINVAL: not mounted
}

// sandbox is one instance of runsc.
type sandbox struct {
	*runsc
	wire *wire
	id   string
	dir  string // bundle, overlay and snapshot
}

// Address implements instance.
func (s *sandbox) Address() string { return s.wire.inside.Addr().String() + ":" + port }

func (s *sandbox) image() string { return filepath.Join(s.dir, "checkpoint") }
func (s *sandbox) root() string  { return filepath.Join(s.dir, "rootfs") }
func (s *sandbox) pid() string   { return filepath.Join(s.dir, "pid") }

func (s *sandbox) prepare(ctx context.Context) error {
	for _, d := range []string{"upper", "work", "rootfs"} {
		if err := os.MkdirAll(filepath.Join(s.dir, d), 0o755); err != nil { //nolint:gosec // a root directory
			return err
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", s.rootfs, filepath.Join(s.dir, "upper"), filepath.Join(s.dir, "work"))
	if err := unix.Mount("overlay", s.root(), "overlay", 0, options); err != nil {
		return fmt.Errorf("mount overlay: %w", err)
	}
	raw, err := json.Marshal(s.spec())
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.dir, "config.json"), raw, 0o600); err != nil {
		return err
	}
	return s.wire.refill(ctx)
}

// spec is what `runsc spec` writes, with our program in our network.
func (s *sandbox) spec() *specs.Spec {
	caps := []string{"CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"}
	return &specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{
			Args: []string{"/guest"}, Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, Cwd: "/",
			Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Inheritable: caps, Permitted: caps},
			Rlimits:      []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 1024, Soft: 1024}},
		},
		Root:     &specs.Root{Path: s.root()},
		Hostname: "runsc",
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace},
			{Type: specs.IPCNamespace},
			{Type: specs.UTSNamespace},
			{Type: specs.MountNamespace},
			{Type: specs.NetworkNamespace, Path: s.wire.path()},
		}},
	}
}

// launch runs or restores.
func (s *sandbox) launch(ctx context.Context, command string, args ...string) error {
	args = append([]string{command, "-detach", "-bundle", s.dir, "-pid-file", s.pid()}, args...)
	return s.command(ctx, append(args, s.id)...)
}

// command runs one command of runsc.
func (s *sandbox) command(ctx context.Context, args ...string) error {
	// A file, because a sandbox keeps what it is given for its whole life; a pipe
	// would make Wait wait for that.
	out, err := os.CreateTemp(s.dir, "out")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(out.Name()) }()
	defer out.Close()
	cmd := exec.CommandContext(ctx, s.program, append(s.flags(), args...)...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(out.Name())
		return fmt.Errorf("runsc %s: %w: %s", args[0], err, bytes.TrimSpace(said))
	}
	return nil
}

// Exec implements instance.
func (s *sandbox) Exec(ctx context.Context) error {
	return s.command(ctx, append([]string{"exec", s.id}, exited...)...)
}

var errNever = errors.New("this system cannot do that")

// Stop implements instance.
func (*sandbox) Stop(context.Context) error { return errNever }

// Start implements instance.
func (*sandbox) Start(context.Context) (time.Duration, error) { return 0, errNever }

// Suspend implements instance.
func (s *sandbox) Suspend(ctx context.Context) error {
	raw, err := os.ReadFile(s.pid())
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("find sandbox %d: %w", pid, err)
	}
	process := os.NewFile(uintptr(fd), "pidfd")
	defer process.Close()
	if err := s.command(ctx, "checkpoint", "-image-path", s.image(), s.id); err != nil {
		return err
	}
	// The sandbox ends by itself, and only then is its memory free.
	poll := []unix.PollFd{{Fd: int32(process.Fd()), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(poll, int(patience.Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return errors.New("sandbox does not end after its checkpoint")
		default:
			return nil
		}
	}
}

// Resume implements instance. That the container is deleted and its network filled
// again is not measured.
func (s *sandbox) Resume(ctx context.Context) (time.Duration, error) {
	if err := s.command(ctx, "delete", "-force", s.id); err != nil {
		return 0, err
	}
	if err := s.wire.refill(ctx); err != nil {
		return 0, err
	}
	began := time.Now()
	_, replied, err := untilReply(ctx, began, s.Address(), func(ctx context.Context) error {
		return s.launch(ctx, "restore", "-image-path", s.image())
	})
	return replied, err
}

// Destroy implements instance.
func (s *sandbox) Destroy(ctx context.Context) error {
	err := s.command(ctx, "delete", "-force", s.id)
	if umount := unix.Unmount(s.root(), unix.MNT_DETACH); umount != nil && !gone(umount) {
		err = errors.Join(err, umount)
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}
