package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/platform"
	"gvisor.dev/gvisor/runsc/boot/filter"

	"github.com/hangar-platform/hangar/host/driver/gvisor/bundle"
)

// TestSeccompProgramsAreCurrent: the programs are of the linked gVisor. Others would not be used, and every
// boot would take 20 ms longer.
func TestSeccompProgramsAreCurrent(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("programs are committed for amd64 alone")
	}
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Version}}", gvisorModule).Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(string(out)); got != seccompVersion {
		t.Fatalf("programs of gVisor %s, linked is %s: run `go generate`", seccompVersion, got)
	}
	gvisorVersion = seccompVersion
	registerSeccomp()
	systrap, err := platform.Lookup("systrap")
	if err != nil {
		t.Fatal(err)
	}
	// The engine is built without the race detector, although this test may have it.
	plain := strings.NewReplacer("Instrumentation=true", "Instrumentation=false", "CgoEnabled=true", "CgoEnabled=false")
	for _, info := range systrap.PrecompiledSeccompInfo() {
		opt := filter.Options{Platform: info, HostFilesystem: true}
		key := plain.Replace(opt.ConfigKey())
		if _, ok := filter.GetPrecompiled(key); !ok {
			t.Errorf("no program for %s", key)
		}
	}
}

func TestTotalMemoryIsOverridden(t *testing.T) {
	dir := t.TempDir()
	old := os.Args
	defer func() { os.Args = old }()
	args := []string{argv0Sentry, "--root=/x", "boot", "--bundle=" + dir, "--total-memory", "1000", "id"}

	os.Args = append([]string(nil), args...)
	overrideTotalMemory()
	if got := os.Args[5]; got != "1000" {
		t.Errorf("without a file: %s", got)
	}
	if err := os.WriteFile(filepath.Join(dir, "totalmem"), []byte("777"), 0o600); err != nil {
		t.Fatal(err)
	}
	overrideTotalMemory()
	if got := os.Args[5]; got != "777" {
		t.Errorf("with a file: %s", got)
	}
	os.Args = []string{argv0Sentry}
	overrideTotalMemory() // it does nothing without the flag
}

func TestProcessorsAreOverridden(t *testing.T) {
	dir := t.TempDir()
	old := os.Args
	defer func() { os.Args = old }()
	config := `{"linux":{"resources":{"cpu":{"quota":150000,"period":100000}}}}`
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cpus := strconv.Itoa(min(2, runtime.NumCPU()))
	for _, test := range []struct{ given, want []string }{
		{
			[]string{argv0Sentry, "boot", "--bundle=" + dir, "--total-memory", "1000", "id"},
			[]string{argv0Sentry, "boot", "--bundle=" + dir, "--cpu-num", cpus, "--cpu-quota", "150000", "--cpu-period", "100000", "--total-memory", "1000", "id"},
		},
		{ // runsc has joined the cgroup itself
			[]string{argv0Sentry, "boot", "--bundle=" + dir, "--cpu-num", "7", "--total-memory", "1000", "id"},
			[]string{argv0Sentry, "boot", "--bundle=" + dir, "--cpu-num", "7", "--total-memory", "1000", "id"},
		},
		{
			[]string{argv0Sentry, "boot", "--bundle=/nowhere", "--total-memory", "1000", "id"},
			[]string{argv0Sentry, "boot", "--bundle=/nowhere", "--total-memory", "1000", "id"},
		},
	} {
		os.Args = test.given
		overrideCPUs()
		if !slices.Equal(os.Args, test.want) {
			t.Errorf("arguments %q, want %q", os.Args, test.want)
		}
	}
}

// TestNotRestored: a snapshot that the sentry refuses, or does not survive, is lost. It is not because the host lacks
// something, or because the resume failed before the sentry was asked.
func TestNotRestored(t *testing.T) {
	call := func(err string) error { return fmt.Errorf("restoring container %q: %v", "id", err) }
	for err, lost := range map[error]bool{
		call("failed to load kernel: unknown type"):                                 true,
		call(`urpc method "containerManager.Restore" failed: EOF`):                  true,
		call("creating memory file: " + unix.ENOMEM.Error()):                        false,
		call("main MF start failed: " + unix.ENOSPC.Error()):                        false,
		call("vfs.CompleteRestore() failed: " + linuxerr.ENFILE.Error()):            false,
		fmt.Errorf("setting up network: %w", io.ErrClosedPipe):                      false,
		fmt.Errorf("opening state file: %w", &os.PathError{Err: unix.EMFILE}):       false,
		errors.New("connecting to control server at PID 7: " + unix.ENOENT.Error()): false,
	} {
		if got := errors.Is(notRestored(err), bundle.ErrDamaged); got != lost {
			t.Errorf("%v: lost %v, want %v", err, got, lost)
		}
	}
}

// TestRoomForTheExit: a sandbox does not start without room to record how it ends.
func TestRoomForTheExit(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Close(ownFD)
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	other, path := filepath.Join(dir, "other"), filepath.Join(dir, "exit")
	fill := func() {
		t.Helper()
		if err := os.WriteFile(other, make([]byte, 128<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("filled the disk: %v", err)
		}
	}
	fill()
	if err := openExitFile(path); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("opened on a full disk: %v", err)
	}
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	if err := openExitFile(path); err != nil {
		t.Fatal(err)
	}
	fill()
	if _, err := unix.Write(ownFD, []byte("{}")); err != nil {
		t.Errorf("recorded on a full disk: %v", err)
	}
	if raw, err := os.ReadFile(path); err != nil || string(raw) != "{}" {
		t.Errorf("recorded %q, %v", raw, err)
	}
}
