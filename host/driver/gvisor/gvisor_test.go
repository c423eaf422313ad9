package gvisor_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/driver/drivertest"
	"github.com/hangar-platform/hangar/host/driver/gvisor"
	"github.com/hangar-platform/hangar/internal/gobuild"
)

// built holds the programs of the tests: the engine of `make build`, and what TestMain builds.
var built struct{ engine, image string }

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if work := os.Getenv(daemonEnv); work != "" {
		return runDaemon(work)
	}
	if os.Getuid() != 0 {
		fmt.Println("skipped: sandboxes need root")
		return 0
	}
	tmp, err := os.MkdirTemp("", "hangar-gvisor-test-")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(tmp)
	if built.engine, err = filepath.Abs("../../../bin/hangar-sandbox"); err == nil {
		_, err = os.Stat(built.engine)
	}
	if err != nil {
		fmt.Println("no sandbox engine, which `make build` makes:", err)
		return 1
	}
	built.image = filepath.Join(tmp, "image")
	if err := gobuild.Build(context.Background(), filepath.Join(built.image, "bin", "guest"), "./testdata/guest"); err != nil {
		fmt.Println(err)
		return 1
	}
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	return code
}

// newDriver returns an open driver, and removes everything that it made after the test.
func newDriver(tb testing.TB) (*gvisor.Driver, gvisor.Options) {
	tb.Helper()
	// go test records the files that tests use, but not those that TestMain uses before it runs
	// them.
	_, engineErr := os.Stat(built.engine)
	if _, err := os.ReadDir("testdata/guest"); err != nil || engineErr != nil {
		tb.Fatal(err, engineErr)
	}
	run, err := os.MkdirTemp("/run", "hangar-test-") //nolint:usetesting // sockets need a short path, the name marks mounts
	if err != nil {
		tb.Fatal(err)
	}
	opts := gvisor.Options{
		Root: filepath.Join(run, "runsc"), Engine: built.engine, CgroupParent: filepath.Base(run),
		Log: slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	d := openDriver(tb, opts)
	tb.Cleanup(func() {
		last := openDriver(tb, opts)
		defer last.Close()
		ids, err := last.List(context.Background())
		if err != nil || len(ids) > 0 {
			tb.Errorf("left behind: %v, %v", ids, err)
		}
		if err := last.Remove(context.Background()); err != nil {
			tb.Errorf("Remove: %v", err)
		}
		if err := os.Remove(run); err != nil {
			tb.Error(err)
		}
	})
	return d, opts
}

func openDriver(tb testing.TB, opts gvisor.Options) *gvisor.Driver {
	tb.Helper()
	d := gvisor.New(opts)
	if err := d.Open(context.Background()); err != nil {
		tb.Fatal(err)
	}
	return d
}

// newSpec returns a Machine that runs the test guest with args.
func newSpec(tb testing.TB, args ...string) driver.Spec {
	tb.Helper()
	dir := tb.TempDir()
	out := filepath.Join(dir, "output")
	if err := unix.Mkfifo(out, 0o600); err != nil {
		tb.Fatal(err)
	}
	return driver.Spec{
		ID: hangar.NewMachineID(), Instance: hangar.NewInstanceID(time.Now()), Dir: dir, Hostname: "guest",
		Root:    driver.Root{Layers: []string{built.image}, Writable: filepath.Join(dir, "root")},
		Command: command(args...),
		CPUs:    1, MemoryMB: 256, Output: out,
	}
}

func command(args ...string) driver.Command {
	return driver.Command{Args: append([]string{"guest"}, args...), Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/"}
}

func TestDriver(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		t.Helper()
		d, opts := newDriver(t)
		current := d
		t.Cleanup(func() { _ = current.Close() })
		return drivertest.Harness{
			Driver: d, Spec: newSpec, Command: command,
			Restart: func(tb testing.TB) driver.Driver {
				tb.Helper()
				if err := current.Close(); err != nil {
					tb.Fatal(err)
				}
				current = openDriver(tb, opts)
				return current
			},
			Damage: damage,
		}
	})
}

// damage flips one bit in the middle of the largest file. gVisor itself would not notice it.
func damage(tb testing.TB, dir string) {
	tb.Helper()
	path := filepath.Join(dir, "pages.img")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		tb.Fatal(err)
	}
	var b [1]byte
	_, err = f.ReadAt(b[:], info.Size()/2)
	b[0] ^= 0x10
	_, err2 := f.WriteAt(b[:], info.Size()/2)
	if err := errors.Join(err, err2); err != nil {
		tb.Fatal(err)
	}
}
