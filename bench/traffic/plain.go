package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/host/network"
)

// plain are two sandboxes of runsc whose namespaces are joined directly.
type plain struct{ runsc *harness.Runsc }

// plainAddress is that of one of the two, in a range set aside for documentation.
func plainAddress(which int) string { return fmt.Sprintf("2001:db8:7aff::%d", which+1) }

func plainName(which int) string { return fmt.Sprintf("hgt%d-%d", os.Getpid(), which) }

func startPlain(ctx context.Context, p programs, undo *harness.Undo) (*plain, error) {
	x := &plain{&harness.Runsc{Program: p.runsc, Dir: filepath.Join(filepath.Dir(p.guest), "plain"), Network: "sandbox"}}
	if err := os.MkdirAll(x.rootfs(), 0o755); err != nil { //nolint:gosec // a root directory
		return nil, err
	}
	raw, err := os.ReadFile(p.guest)
	if err == nil {
		err = os.WriteFile(filepath.Join(x.rootfs(), "guest"), raw, 0o755) //nolint:gosec // a program
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
	undo.Add(x.runsc.RemoveMounts)
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

func (x *plain) rootfs() string { return filepath.Join(x.runsc.Dir, "rootfs") }

// start runs the guest. The two share a root file system, which they do not write.
func (x *plain) start(ctx context.Context, which int, undo *harness.Undo) error {
	return x.runsc.Launch(ctx, plainName(which), &specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{Args: []string{"/guest"}, Cwd: "/"},
		Root:    &specs.Root{Path: x.rootfs(), Readonly: true},
		Mounts:  []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace},
			{Type: specs.IPCNamespace},
			{Type: specs.UTSNamespace},
			{Type: specs.MountNamespace},
			{Type: specs.NetworkNamespace, Path: "/run/netns/" + plainName(which)},
		}},
	}, undo)
}

func (x *plain) run(ctx context.Context, command string, n int) (string, error) {
	return x.runsc.Exec(ctx, plainName(0), "/guest", command, plainAddress(1), fmt.Sprint(n))
}

// ip runs a command of iproute2.
func ip(ctx context.Context, args ...string) error {
	if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}
