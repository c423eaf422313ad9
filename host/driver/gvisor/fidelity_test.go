package gvisor_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
)

// TestFidelity boots a Machine whose program checks, as root and as a user, that its environment
// looks like an ordinary computer.
func TestFidelity(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.address(t)
	spec := newSpec(t, "fidelity")
	spec.NetNS = n.path
	m := boot(t, open(t), spec)
	for line := m.line(); line != "done"; line = m.line() {
		name, result, ok := strings.Cut(line, ": ")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !ok || result != "ok" {
				t.Error(line)
			}
		})
	}
}

// TestReopenOutput: a program that is not root may open its own output by name.
func TestReopenOutput(t *testing.T) {
	t.Parallel()
	d := open(t)
	for _, uid := range []uint32{0, 1000} {
		spec := newSpec(t, "reopen")
		spec.Command.UID, spec.Command.GID = uid, uid
		m := boot(t, d, spec)
		for _, want := range []string{"through /dev/stdout", "through /dev/stderr", "through /proc/self/fd/1"} {
			if got := m.line(); got != want {
				t.Errorf("as %d: %q, want %q", uid, got, want)
			}
		}
	}
}

// TestFileCapabilities: a program of the image may have privileges of its own, as
// ping does.
func TestFileCapabilities(t *testing.T) {
	t.Parallel()
	layer := t.TempDir()
	program, err := os.ReadFile(filepath.Join(built.image, "bin", "guest"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(layer, "capable")
	if err := os.WriteFile(file, program, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(layer, 0o755); err != nil {
		t.Fatal(err)
	}
	// struct vfs_cap_data of version 2: CAP_NET_RAW, permitted and effective.
	if err := unix.Setxattr(file, "security.capability", []byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0); err != nil {
		t.Skip("no file capabilities here:", err)
	}
	spec := newSpec(t)
	spec.Root.Layers = append(spec.Root.Layers, layer)
	spec.Command.Args = []string{"/capable", "capable"}
	spec.Command.UID, spec.Command.GID = 1000, 1000
	if got, want := boot(t, open(t), spec).line(), "2000"; got != want {
		t.Errorf("capabilities %s, want %s", got, want)
	}
}

// TestExecLimits: another command has the same limits as the main one.
func TestExecLimits(t *testing.T) {
	t.Parallel()
	d := open(t)
	m := boot(t, d, newSpec(t, "sleep"))
	m.line()
	var out bytes.Buffer
	if _, err := d.Exec(t.Context(), m.handle, command("fidelity", "limits"), hangar.ExecStreams{Stdout: &out}); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "limits: ok\numask: ok\ncapabilities: ok\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestCommands: the guest executes the program that the driver has found before the start.
func TestCommands(t *testing.T) {
	t.Parallel()
	d := open(t)
	volume := t.TempDir()
	write := func(name, content string) {
		if err := os.WriteFile(filepath.Join(volume, name), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write("script", "#!/bin/guest echo\n")
	write("program", "#!guest echo\n")
	if err := os.Symlink("/bin/guest", filepath.Join(volume, "guest")); err != nil {
		t.Fatal(err)
	}
	layer := t.TempDir()
	if err := os.Chmod(layer, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/data/script", filepath.Join(layer, "entrypoint")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ command, path, dir, want string }{
		{"/entrypoint", "", "/", "/entrypoint"},
		{"./script", "", "/data", "./script"},
		{"script", "/bin:data", "/", "data/script"},
		{"script", "/bin:", "/data", "script"},
		{"./program", "", "/data", "./program"},
	} {
		spec := newSpec(t)
		spec.Root.Layers = append(spec.Root.Layers, layer)
		spec.Mounts = append(spec.Mounts, driver.Mount{Source: volume, Target: "/data"})
		spec.Command = driver.Command{Args: []string{tt.command}, Env: []string{"PATH=" + tt.path}, Dir: tt.dir}
		if got := boot(t, d, spec).line(); got != tt.want {
			t.Errorf("%s in %s: %q, want %q", tt.command, tt.dir, got, tt.want)
		}
	}
}
