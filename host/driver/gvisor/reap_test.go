package gvisor_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/host/driver"
)

// TestCutOffStartsAreReaped: a cancelled start leaves no zombie, at whatever moment it is
// cancelled.
func TestCutOffStartsAreReaped(t *testing.T) {
	d, _ := newDriver(t)
	spec := newSpec(t, "sleep")
	before := zombies(t) // of other tests
	for after := 10 * time.Millisecond; after < 130*time.Millisecond; after += 4 * time.Millisecond {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		_, err := d.Start(ctx, spec)
		cancel()
		destroyed(t, d, spec)
		list := zombies(t) // one that another goroutine waits for is there for a moment
		for deadline := time.Now().Add(step); len(list) > len(before) && time.Now().Before(deadline); list = zombies(t) {
			time.Sleep(time.Millisecond)
		}
		if len(list) > len(before) {
			t.Fatalf("%q is not reaped, of a start that was cut off after %s: %v", list, after, err)
		}
	}
}

// TestAdoptOfAHangingStart: a start whose engine hangs is none once its time is over, so that it can be
// ended and repeated. Until then, it may yet succeed.
func TestAdoptOfAHangingStart(t *testing.T) {
	d, _ := newDriver(t)
	spec := newSpec(t, "sleep")
	defer working(t, spec.Dir)()
	over, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := d.Adopt(over, spec.ID, spec.Dir); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("adopted a start that hangs: %v", err)
	}
	ends, end := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, end)
	if _, err := d.Adopt(ends, spec.ID, spec.Dir); !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrNotFound) {
		t.Errorf("given up because the daemon ends: %v", err)
	}
}

// working starts what the driver takes for an engine that works on the bundle in dir, until end is called.
func working(t *testing.T, dir string) (end func()) {
	t.Helper()
	engine := exec.CommandContext(t.Context(), "cat")
	engine.Args = []string{"runsc", "-", dir} // reads until its input ends
	input, err := engine.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.Start(); err != nil {
		t.Fatal(err)
	}
	return func() {
		_ = input.Close()
		_ = engine.Wait() // the driver may have collected it
	}
}

// zombies lists the children of this process that have ended.
func zombies(t *testing.T) (list []string) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // it has gone
		}
		name, rest, _ := strings.Cut(string(raw), ") ")
		if strings.HasPrefix(rest, fmt.Sprintf("Z %d ", os.Getpid())) {
			list = append(list, name+") "+rest[:24])
		}
	}
	return list
}
