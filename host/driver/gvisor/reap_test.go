package gvisor_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
