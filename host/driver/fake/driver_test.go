package fake_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/driver/drivertest"
	"github.com/hangar-platform/hangar/host/driver/fake"
)

// TestDriver: the fake driver behaves like the real ones.
func TestDriver(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		t.Helper()
		world := filepath.Join(t.TempDir(), "world")
		options := fake.Options{Programs: []string{"guest"}}
		return drivertest.Harness{
			Driver: fake.New(fake.NewWorld(world), options), Spec: newSpec, Command: command,
			Restart: func(testing.TB) driver.Driver { return fake.New(fake.NewWorld(world), options) },
			Damage: func(tb testing.TB, dir string) {
				tb.Helper()
				path := filepath.Join(dir, "memory")
				b, err := os.ReadFile(path)
				if err != nil {
					tb.Fatal(err)
				}
				b[len(b)/2] ^= 1
				if err := os.WriteFile(path, b, 0o600); err != nil {
					tb.Fatal(err)
				}
			},
		}
	})
}

func newSpec(tb testing.TB, words ...string) driver.Spec {
	tb.Helper()
	dir := tb.TempDir()
	layer, out := filepath.Join(dir, "layer"), filepath.Join(dir, "output")
	if err := os.Mkdir(layer, 0o700); err != nil {
		tb.Fatal(err)
	}
	if err := syscall.Mkfifo(out, 0o600); err != nil {
		tb.Fatal(err)
	}
	return driver.Spec{
		ID: hangar.NewMachineID(), Instance: hangar.NewInstanceID(time.Now()), Dir: dir, Hostname: "guest",
		Root:    driver.Root{Layers: []string{layer}, Writable: filepath.Join(dir, "root")},
		Command: command(words...),
		CPUs:    1, MemoryMB: 256, Output: out,
	}
}

func command(words ...string) driver.Command {
	return driver.Command{Args: append([]string{"guest"}, words...), Env: []string{"PATH=/bin"}, Dir: "/"}
}
