package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// podman is Podman with crun: containers of the host's own kernel.
type podman struct {
	prefix []string // words of every command, up to Podman's own command
	dir    string
	rootfs string
	wires  []*wire
	parent string // cgroup of all that it makes
	limits []string
	view   *exec.Cmd    // see hybrid
	made   atomic.Int64 // containers, whose names Podman does not always free at once
}

// newPodman finds out how Podman runs here. It answers an error that says why it
// does not.
func newPodman(ctx context.Context, dir, rootfs string, wires []*wire) (*podman, error) {
	for _, name := range []string{"podman", "crun"} {
		if _, err := exec.LookPath(name); err != nil {
			return nil, fmt.Errorf("%s is not installed", name)
		}
	}
	p := &podman{dir: dir, rootfs: rootfs, wires: wires, parent: "hangar-bench-" + strconv.Itoa(os.Getpid())}
	if err := p.hybrid(); err != nil {
		return nil, err
	}
	p.prefix = append(p.prefix,
		"podman", "--root", filepath.Join(dir, "storage"), "--runroot", filepath.Join(dir, "run"), "--storage-driver", "vfs",
		"--cgroup-manager", "cgroupfs", "--runtime", "crun")
	// Podman asks for limits that root may not set inside a container.
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return nil, err
	}
	p.limits = []string{"--ulimit", fmt.Sprintf("nofile=%d:%d", files.Max, files.Max), "--ulimit", "nproc=32768:32768"}
	in, _, err := p.Boot(ctx, 0, 0)
	if err == nil {
		err = in.Destroy(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, p.remove())
	}
	return p, nil
}

// hybrid lets crun run on a server with both versions of cgroups, which it refuses
// where the second has controllers: Podman's commands get a view of the file systems
// in which there is only the first. Entering it costs each command about a
// millisecond.
func (p *podman) hybrid() error {
	controllers, err := os.ReadFile("/sys/fs/cgroup/unified/cgroup.controllers")
	if err != nil || len(bytes.TrimSpace(controllers)) == 0 {
		return nil //nolint:nilerr // there is no such thing: nothing to hide
	}
	p.view = exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", "umount /sys/fs/cgroup/unified && echo && exec cat") //nolint:noctx // remove ends it
	p.view.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// It lives until its input is closed.
	if _, err := p.view.StdinPipe(); err != nil {
		return err
	}
	ready, err := p.view.StdoutPipe()
	if err != nil {
		return err
	}
	if err := p.view.Start(); err != nil {
		return err
	}
	if _, err := ready.Read(make([]byte, 1)); err != nil {
		return errors.Join(errors.New("hide unified cgroups from crun"), p.remove())
	}
	p.prefix = []string{"nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", p.view.Process.Pid), "--"}
	return nil
}

// remove ends what newPodman began. Cgroups are files, whose deepest go first.
func (p *podman) remove() error {
	var errs []error
	if p.view != nil {
		errs = append(errs, p.view.Process.Kill())
		_ = p.view.Wait() // it was killed
	}
	for _, pattern := range []string{"/sys/fs/cgroup/*/%s/*/*", "/sys/fs/cgroup/*/%s/*", "/sys/fs/cgroup/*/%s", "/sys/fs/cgroup/%s/*", "/sys/fs/cgroup/%s"} {
		groups, err := filepath.Glob(fmt.Sprintf(pattern, p.parent))
		errs = append(errs, err)
		for _, group := range groups {
			if fi, err := os.Stat(group); err == nil && fi.IsDir() {
				errs = append(errs, unix.Rmdir(group))
			}
		}
	}
	return errors.Join(errs...)
}

// Name implements system.
func (*podman) Name() string { return namePodman }

// Suspends implements system: it would need CRIU, which Debian does not have.
func (*podman) Suspends() bool { return false }

// Restarts implements system.
func (*podman) Restarts() bool { return true }

// Boot implements system.
func (p *podman) Boot(ctx context.Context, slot, _ int) (instance, boot, error) {
	c := &container{podman: p, wire: p.wires[slot], name: "c" + strconv.FormatInt(p.made.Add(1), 10)}
	if err := c.wire.refill(ctx); err != nil {
		return nil, boot{}, err
	}
	args := append([]string{"run", "--detach", "--name", c.name, "--network", "ns:" + c.wire.path(), "--log-driver", "none", "--cgroup-parent", p.parent}, p.limits...)
	var b boot
	var err error
	began := time.Now()
	b.Started, b.Replied, err = untilReply(ctx, began, c.Address(), func(ctx context.Context) error {
		return p.command(ctx, append(args, "--rootfs", p.rootfs+":O", "/guest")...)
	})
	return c, b, err
}

// command runs one command of Podman.
func (p *podman) command(ctx context.Context, args ...string) error {
	words := slices.Concat(p.prefix, args)
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	said, err := os.CreateTemp(p.dir, "out")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(said.Name()) }()
	defer said.Close()
	cmd.Stderr = said
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(said.Name())
		return fmt.Errorf("podman %s: %w: %s", args[0], err, strings.TrimSpace(string(text)))
	}
	return nil
}

// container is one instance of podman.
type container struct {
	*podman
	wire *wire
	name string
}

// Address implements instance.
func (c *container) Address() string { return c.wire.inside.Addr().String() + ":" + port }

// Exec implements instance.
func (c *container) Exec(ctx context.Context) error {
	return c.command(ctx, append([]string{"exec", c.name}, exited...)...)
}

// Stop implements instance.
func (c *container) Stop(ctx context.Context) error {
	return c.command(ctx, "stop", "--time", "5", c.name)
}

// Start implements instance.
func (c *container) Start(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	_, replied, err := untilReply(ctx, began, c.Address(), func(ctx context.Context) error {
		return c.command(ctx, "start", c.name)
	})
	return replied, err
}

// Suspend implements instance.
func (*container) Suspend(context.Context) error { return errNever }

// Resume implements instance.
func (*container) Resume(context.Context) (time.Duration, error) { return 0, errNever }

// Destroy implements instance.
func (c *container) Destroy(ctx context.Context) error {
	return c.command(ctx, "rm", "--force", "--time", "0", c.name)
}
