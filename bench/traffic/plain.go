package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/host/network"
)

// plain are two sandboxes of runsc whose namespaces are joined directly.
type plain struct {
	program string
	dir     string
}

// plainAddress is that of one of the two, in a range set aside for documentation.
func plainAddress(which int) string { return fmt.Sprintf("2001:db8:7aff::%d", which+1) }

func plainName(which int) string { return fmt.Sprintf("hgt%d-%d", os.Getpid(), which) }

func startPlain(ctx context.Context, p programs, undo *harness.Undo) (*plain, error) {
	x := &plain{program: p.runsc, dir: filepath.Join(filepath.Dir(p.guest), "plain")}
	if err := os.MkdirAll(filepath.Join(x.dir, "rootfs"), 0o755); err != nil { //nolint:gosec // a root directory
		return nil, err
	}
	raw, err := os.ReadFile(p.guest)
	if err == nil {
		err = os.WriteFile(filepath.Join(x.dir, "rootfs", "guest"), raw, 0o755) //nolint:gosec // a program
	}
	if err != nil {
		return nil, err
	}
	for which := range 2 {
		if err := ip(ctx, "netns", "add", plainName(which)); err != nil {
			return nil, err
		}
		undo.Add(func() error { return ip(context.Background(), "netns", "delete", plainName(which)) })
	}
	mtu := fmt.Sprint(network.MTU)
	if err := ip(ctx, "link", "add", "eth0", "netns", plainName(0), "mtu", mtu, "type", "veth",
		"peer", "name", "eth0", "netns", plainName(1), "mtu", mtu); err != nil {
		return nil, err
	}
	undo.Add(x.removeMounts)
	for which := range 2 {
		ns := plainName(which)
		for _, command := range []string{
			"link set lo up", "link set eth0 up", "address add " + plainAddress(which) + "/64 dev eth0 nodad",
		} {
			if err := ip(ctx, append([]string{"-netns", ns}, strings.Fields(command)...)...); err != nil {
				return nil, err
			}
		}
	}
	for which := range 2 {
		if err := x.start(ctx, which, undo); err != nil {
			return nil, err
		}
	}
	return x, listening(ctx, x)
}

// start runs the guest. The two share a root file system, which they do not write.
func (x *plain) start(ctx context.Context, which int, undo *harness.Undo) error {
	bundle := filepath.Join(x.dir, plainName(which))
	if err := os.MkdirAll(bundle, 0o700); err != nil {
		return err
	}
	raw, err := json.Marshal(&specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{Args: []string{"/guest"}, Cwd: "/"},
		Root:    &specs.Root{Path: filepath.Join(x.dir, "rootfs"), Readonly: true},
		Mounts:  []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace},
			{Type: specs.IPCNamespace},
			{Type: specs.UTSNamespace},
			{Type: specs.MountNamespace},
			{Type: specs.NetworkNamespace, Path: "/run/netns/" + plainName(which)},
		}},
	})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), raw, 0o600); err != nil {
		return err
	}
	undo.Add(func() error {
		_, err := x.command(context.Background(), "delete", "-force", plainName(which))
		return err
	})
	_, err = x.command(ctx, "run", "-detach", "-bundle", bundle, plainName(which))
	return err
}

// command runs one command of runsc and returns what it prints.
func (x *plain) command(ctx context.Context, args ...string) (string, error) {
	// Files, because a sandbox keeps what it is given for its whole life; a pipe would
	// make Wait wait for that.
	out, err := os.CreateTemp(x.dir, "out")
	if err != nil {
		return "", err
	}
	defer func() { _, _ = out.Close(), os.Remove(out.Name()) }()
	flags := []string{
		"--root=" + filepath.Join(x.dir, "run"), "--ignore-cgroups", "--overlay2=none", "--network=sandbox", "--platform=systrap",
	}
	cmd := exec.CommandContext(ctx, x.program, append(flags, args...)...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Run()
	said, _ := os.ReadFile(out.Name())
	if err != nil {
		return "", fmt.Errorf("runsc %s: %w: %s", args[0], err, bytes.TrimSpace(said))
	}
	return string(said), nil
}

func (x *plain) run(ctx context.Context, command string, n int) (string, error) {
	return x.command(ctx, "exec", plainName(0), "/guest", command, plainAddress(1), fmt.Sprint(n))
}

// removeMounts unmounts what runsc leaves in its directory.
func (x *plain) removeMounts() error {
	for {
		err := unix.Unmount(filepath.Join(x.dir, "run", "null-netns"), unix.MNT_DETACH)
		switch {
		case err == nil:
		case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL): // EINVAL: not mounted
			return nil
		default:
			return err
		}
	}
}

// ip runs a command of iproute2.
func ip(ctx context.Context, args ...string) error {
	if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}
