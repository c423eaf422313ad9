package gvisor_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/finish/finishtest"
)

// waiting returns the engines of this and all other processes that wait for a command.
func waiting(t *testing.T) []int {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, line := range lines {
		raw, err := os.ReadFile(line)
		exe, linkErr := os.Readlink(filepath.Join(filepath.Dir(line), "exe"))
		if err != nil || linkErr != nil || exe != built.engine || !bytes.Equal(raw, []byte("runsc\x00await\x00")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(line))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// newlyWaiting returns the one engine that waits and is not in before.
func newlyWaiting(t *testing.T, before []int) int {
	t.Helper()
	for began := time.Now(); time.Since(began) < step; time.Sleep(time.Millisecond) {
		for _, pid := range waiting(t) {
			if !slices.Contains(before, pid) {
				return pid
			}
		}
	}
	t.Fatal("no engine waits")
	return 0
}

// TestWaitingEngine: a Machine takes the waiting engine, and another engine takes its place. A
// killed one is replaced, and none outlives its driver.
func TestWaitingEngine(t *testing.T) {
	before := waiting(t)
	d, _ := newDriver(t)
	first := newlyWaiting(t, before)
	start := func() {
		t.Helper()
		spec := newSpec(t, "sleep")
		discardOutput(t, spec.Output)
		if _, err := d.Start(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		if err := d.Destroy(finishtest.Context(t), spec.ID, spec.Dir); err != nil {
			t.Fatal(err)
		}
	}
	start()
	awaitGone(t, first)
	second := newlyWaiting(t, before)
	if err := unix.Kill(second, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	start()
	third := newlyWaiting(t, append(before, second))
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, third)
}

// TestWaitingEngineOfKilledDaemon: the engine ends by itself.
func TestWaitingEngineOfKilledDaemon(t *testing.T) {
	opts := options(t)
	before := waiting(t)
	spec := newSpec(t, "sleep")
	discardOutput(t, spec.Output)
	old := startDaemon(t, daemonWork{Options: opts, Spec: spec})
	old.line()
	pid := newlyWaiting(t, before)
	old.kill()
	var ws unix.WaitStatus
	// It has become a child of this process, which is a subreaper.
	if got, err := unix.Wait4(pid, &ws, 0, nil); err != nil || got != pid || ws.ExitStatus() != 0 {
		t.Errorf("waiting engine: %d, %v, status %#x", got, err, ws)
	}
	destroyed(t, reopen(t, opts), spec)
}
