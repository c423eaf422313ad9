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
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/bench/harness"
)

// sandboxName is that of the only one.
const sandboxName = "volumes"

// sandbox is one of the unchanged runsc, with a directory of the host.
type sandbox struct {
	program string
	dir     string
}

// startRunsc runs the guest in a sandbox.
func (b *bench) startRunsc(ctx context.Context, undo *harness.Undo) (*place, error) {
	s := &sandbox{program: filepath.Join(b.dir, "runsc"), dir: filepath.Join(b.dir, "sandbox")}
	if err := build(ctx, s.program, "-tags", "runsc", "./bench/runsc"); err != nil {
		return nil, err
	}
	for _, dir := range []string{"rootfs" + onVolume, "data", "bundle"} {
		if err := os.MkdirAll(filepath.Join(s.dir, dir), 0o700); err != nil {
			return nil, err
		}
	}
	raw, err := os.ReadFile(b.guest)
	if err == nil {
		err = os.WriteFile(filepath.Join(s.dir, "rootfs", "guest"), raw, 0o755) //nolint:gosec // a program
	}
	if err != nil {
		return nil, err
	}
	spec, err := json.Marshal(&specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{Args: []string{"/guest"}, Cwd: "/"},
		Root:    &specs.Root{Path: filepath.Join(s.dir, "rootfs")},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: onVolume, Type: "bind", Source: filepath.Join(s.dir, "data"), Options: []string{"bind", "rw"}},
		},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
		}},
	})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(s.dir, "bundle", "config.json"), spec, 0o600); err != nil {
		return nil, err
	}
	undo.Add(s.removeMounts)
	undo.Add(func() error { return s.delete(context.Background()) })
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	return &place{
		name: placeRunsc,
		run: func(ctx context.Context, op string, args ...string) (string, error) {
			return s.guest(ctx, append([]string{op, onVolume}, args...)...)
		},
		forget: func(ctx context.Context) error { return errors.Join(s.delete(ctx), dropCaches(ctx), s.start(ctx)) },
	}, nil
}

func (s *sandbox) start(ctx context.Context) error {
	_, err := s.command(ctx, "run", "-detach", "-bundle", filepath.Join(s.dir, "bundle"), sandboxName)
	return err
}

func (s *sandbox) delete(ctx context.Context) error {
	_, err := s.command(ctx, "delete", "-force", sandboxName)
	return err
}

func (s *sandbox) guest(ctx context.Context, args ...string) (string, error) {
	return s.command(ctx, append([]string{"exec", sandboxName, "/guest"}, args...)...)
}

// command runs one command of runsc and returns what it prints.
func (s *sandbox) command(ctx context.Context, args ...string) (string, error) {
	// A file, because a sandbox keeps what it is given for its whole life; a pipe would
	// make Wait wait for that.
	out, err := os.CreateTemp(s.dir, "out")
	if err != nil {
		return "", err
	}
	defer func() { _, _ = out.Close(), os.Remove(out.Name()) }()
	flags := []string{
		"--root=" + filepath.Join(s.dir, "run"), "--ignore-cgroups", "--overlay2=none", "--network=none", "--platform=systrap",
	}
	cmd := exec.CommandContext(ctx, s.program, append(flags, args...)...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Run()
	said, _ := os.ReadFile(out.Name())
	if err != nil {
		return "", fmt.Errorf("runsc %s: %w: %s", args[0], err, bytes.TrimSpace(said))
	}
	return string(said), nil
}

// removeMounts unmounts what runsc leaves in its directory.
func (s *sandbox) removeMounts() error {
	for {
		err := unix.Unmount(filepath.Join(s.dir, "run", "null-netns"), unix.MNT_DETACH)
		switch {
		case err == nil:
		case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL): // EINVAL: not mounted
			return nil
		default:
			return err
		}
	}
}
