package harness

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
)

// Runsc runs sandboxes of the unchanged runsc, to compare with.
type Runsc struct {
	Program string
	Dir     string // holds its files and the sandboxes' bundles; exists
	Network string // "none", or "sandbox" for its own in the namespace of the spec
}

// Launch runs a sandbox in the background. Undo gets its end.
func (r *Runsc) Launch(ctx context.Context, name string, spec *specs.Spec, undo *Undo) error {
	raw, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.bundle(name), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(r.bundle(name), "config.json"), raw, 0o600); err != nil {
		return err
	}
	undo.Add(func() error { return r.Delete(context.Background(), name) })
	return r.Again(ctx, name)
}

// Again runs a sandbox that was launched and deleted.
func (r *Runsc) Again(ctx context.Context, name string) error {
	_, err := r.command(ctx, "run", "-detach", "-bundle", r.bundle(name), name)
	return err
}

// Delete ends a sandbox.
func (r *Runsc) Delete(ctx context.Context, name string) error {
	_, err := r.command(ctx, "delete", "-force", name)
	return err
}

// Exec runs a program in a sandbox and returns what it prints.
func (r *Runsc) Exec(ctx context.Context, name string, args ...string) (string, error) {
	return r.command(ctx, append([]string{"exec", name}, args...)...)
}

func (r *Runsc) bundle(name string) string { return filepath.Join(r.Dir, "bundle-"+name) }

// command runs one command of runsc and returns what it prints.
func (r *Runsc) command(ctx context.Context, args ...string) (string, error) {
	// A file, because a sandbox keeps what it is given for its whole life; a pipe would
	// make Wait wait for that.
	out, err := os.CreateTemp(r.Dir, "out")
	if err != nil {
		return "", err
	}
	defer func() { _, _ = out.Close(), os.Remove(out.Name()) }()
	flags := []string{
		"--root=" + filepath.Join(r.Dir, "run"), "--ignore-cgroups", "--overlay2=none", "--network=" + r.Network, "--platform=systrap",
	}
	cmd := exec.CommandContext(ctx, r.Program, append(flags, args...)...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Run()
	said, _ := os.ReadFile(out.Name())
	if err != nil {
		return "", fmt.Errorf("runsc %s: %w: %s", args[0], err, bytes.TrimSpace(said))
	}
	return string(said), nil
}

// UnmountRunsc unmounts what runsc leaves in its root directory: as many mounts, one over
// the other, as its first commands came at once.
func UnmountRunsc(root string) error {
	for {
		err := unix.Unmount(filepath.Join(root, "null-netns"), unix.MNT_DETACH)
		switch {
		case err == nil:
		case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL): // EINVAL: not mounted
			return nil
		default:
			return err
		}
	}
}

// RemoveMounts is UnmountRunsc for when all sandboxes are deleted.
func (r *Runsc) RemoveMounts() error { return UnmountRunsc(filepath.Join(r.Dir, "run")) }
