package ext4

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/loopdev"
)

// TestProgramsAreExposed: programs that check, make or grow a tenant's file system do not inherit
// the daemon's protection from the kernel's out-of-memory killer.
func TestProgramsAreExposed(t *testing.T) {
	const untilExposed = `until grep -qx 500 /proc/$$/oom_score_adj; do :; done; echo exposed`
	if said, err := run(t.Context(), "sh", "-c", untilExposed); err != nil || said != "exposed" {
		t.Errorf("%q, %v", said, err)
	}
	if said, err := run(t.Context(), "sh", "-c", "echo why >&2; exit 3"); err == nil || said != "why" {
		t.Errorf("one that fails: %q, %v", said, err)
	} else if code, ok := exitCode(err); !ok || code != 3 {
		t.Errorf("it ended with %d", code)
	}
}

// TestDeviceInUse: while something else uses a device, such as the kernel during an unmount, a
// check concludes nothing about its file system.
func TestDeviceInUse(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a loop device takes root")
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(64 << 20); err != nil {
		t.Fatal(err)
	}
	dev, err := loopdev.Open(f, loopdev.Config{AutoClear: true})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if err := Make(t.Context(), dev.Name()); err != nil {
		t.Fatal(err)
	}
	claim, err := unix.Open(dev.Name(), unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, report, err := Repair(t.Context(), dev.Name(), true)
	if err == nil || errors.Is(err, ErrUnrepairable) {
		t.Errorf("while it is in use: %v: %s", err, report)
	}
	if err := unix.Close(claim); err != nil {
		t.Fatal(err)
	}
	if repaired, report, err := Repair(t.Context(), dev.Name(), true); err != nil || repaired {
		t.Errorf("afterwards: %t, %v: %s", repaired, err, report)
	}
}
