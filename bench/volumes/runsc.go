package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hangar-platform/hangar/bench/harness"
)

// sandboxName is that of the only one.
const sandboxName = "volumes"

// startRunsc runs the guest in a sandbox of the unchanged runsc, with a directory of the
// host.
func (b *bench) startRunsc(ctx context.Context, undo *harness.Undo) (*place, error) {
	r := &harness.Runsc{Program: filepath.Join(b.dir, "runsc"), Dir: filepath.Join(b.dir, "sandbox"), Network: "none"}
	if err := harness.Build(ctx, r.Program, "-tags", "runsc", "./bench/runsc"); err != nil {
		return nil, err
	}
	for _, dir := range []string{"rootfs" + onVolume, "data"} {
		if err := os.MkdirAll(filepath.Join(r.Dir, dir), 0o700); err != nil {
			return nil, err
		}
	}
	raw, err := os.ReadFile(b.guest)
	if err == nil {
		err = os.WriteFile(filepath.Join(r.Dir, "rootfs", "guest"), raw, 0o755) //nolint:gosec // a program
	}
	if err != nil {
		return nil, err
	}
	undo.Add(r.RemoveMounts)
	err = r.Launch(ctx, sandboxName, &specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{Args: []string{"/guest"}, Cwd: "/"},
		Root:    &specs.Root{Path: filepath.Join(r.Dir, "rootfs")},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: onVolume, Type: "bind", Source: filepath.Join(r.Dir, "data"), Options: []string{"bind", "rw"}},
		},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
		}},
	}, undo)
	if err != nil {
		return nil, err
	}
	return &place{
		name: placeRunsc,
		run: func(ctx context.Context, op string, args ...string) (string, error) {
			return r.Exec(ctx, sandboxName, append([]string{"/guest", op, onVolume}, args...)...)
		},
		forget: func(ctx context.Context) error {
			return errors.Join(r.Delete(ctx, sandboxName), dropCaches(ctx), r.Again(ctx, sandboxName))
		},
	}, nil
}
