package storaged_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/host/volume/storaged"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
)

// TestQuitAfterAKill: a daemon that is killed before it is asked to quit is released once, so a
// later forced end reports no error.
func TestQuitAfterAKill(t *testing.T) {
	dir := t.TempDir()
	image := filepath.Join(dir, "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 64<<20); err != nil {
		t.Fatal(err)
	}
	run := filepath.Join(dir, "run")
	d, err := storaged.Start(t.Context(), storaged.Spec{Dir: run, Image: image})
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(d.PID(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := d.Quit(finishtest.Context(t)); err == nil {
		t.Error("a daemon that was killed has ended in order")
	}
	for range 2 {
		if err := d.Leave(); err != nil {
			t.Errorf("leave: %v", err)
		}
	}
	if err := storaged.Kill(run); err != nil {
		t.Errorf("by force: %v", err)
	}
}
