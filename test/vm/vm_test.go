package vm_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/test/vm"
)

// asked skips a test that boots a machine and was not asked for.
func asked(t *testing.T) {
	t.Helper()
	if os.Getenv("VM") == "" {
		t.Skip("boots a machine and takes minutes: `make vm` runs it")
	}
}

func cacheDir(t *testing.T) string {
	t.Helper()
	dir, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "hangar-vm")
}

// A machine that fails is told from a test that fails, and its last output is reported.
func TestFailures(t *testing.T) {
	asked(t)
	small := vm.Guest{
		Modules: []string{"virtio_pci", "virtio_blk"}, Programs: map[string]string{"mke2fs": "e2fsprogs"},
		Files: []string{"/etc/mke2fs.conf"}, Memory: 512, Disk: 256 << 20,
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	run := func(t *testing.T, ctx context.Context, g vm.Guest, inside string) (int, error) {
		t.Helper()
		return vm.Run(ctx, cacheDir(t), t.TempDir(), g, vm.Test{Binary: self, Args: []string{"-test.run=^" + inside + "$"}}, io.Discard)
	}
	for _, c := range []struct {
		inside, want string
		bound        time.Duration
	}{
		{"TestInsideCrash", "sysrq triggered crash", time.Minute},
		{"TestInsideHang", context.DeadlineExceeded.Error(), 20 * time.Second},
	} {
		t.Run(c.inside, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), c.bound)
			defer cancel()
			if _, err := run(t, ctx, small, c.inside); !errors.Is(err, vm.ErrMachine) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want one that says %q", err, c.want)
			}
		})
	}
	t.Run("test", func(t *testing.T) {
		if exit, err := run(t, t.Context(), small, "TestInsideFailure"); exit != 1 || err != nil {
			t.Errorf("exit %d, %v", exit, err)
		}
	})
	t.Run("program", func(t *testing.T) {
		g := small
		g.Programs = map[string]string{"no-such-program": "no-such-package"}
		if _, err := run(t, t.Context(), g, "TestInsideFailure"); err == nil || !strings.Contains(err.Error(), "apt-get install no-such-package") {
			t.Error(err)
		}
	})
	t.Run("module", func(t *testing.T) {
		g := small
		g.Modules = []string{"no_such_module"}
		if _, err := run(t, t.Context(), g, "TestInsideFailure"); err == nil || !strings.Contains(err.Error(), "no module no_such_module") {
			t.Error(err)
		}
	})
}

// inside skips what is for the machine.
func inside(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/modules/order"); err != nil {
		t.Skip("a part of TestFailures")
	}
}

func TestInsideCrash(t *testing.T) {
	inside(t)
	t.Error(os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0))
}

func TestInsideHang(t *testing.T) {
	inside(t)
	<-time.After(time.Hour)
}

func TestInsideFailure(t *testing.T) {
	inside(t)
	t.Error("as it is meant to")
}
