package volume_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/host/volume/storaged"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
)

// TestStorageDaemonsAreReaped: no daemon stays a zombie in a process that is a subreaper, however
// it ended.
func TestStorageDaemonsAreReaped(t *testing.T) {
	w := newWorld(t)
	spec := encrypted(64 * mib)
	d, _ := w.mounted(spec)
	if byKernel(d) {
		t.Skip("there is no storage daemon")
	}
	w.close(d)
	beSubreaper(t)
	for _, end := range []func(){
		func() { w.close(d) },
		func() { killDaemon(t, w, spec); <-d.Lost(); w.closeLost(d) },
		func() {
			if err := w.Release(finishtest.Context(t), spec.ID); err != nil {
				t.Fatal(err)
			}
		},
	} {
		d = w.attach(spec)
		pid := daemonPID(t, w, spec)
		end()
		if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
			t.Errorf("process %d is still there: %v", pid, err)
		}
		noZombies(t)
	}
}

// TestFailedStartsAreReaped: a daemon that failed to start, or whose start was cancelled, leaves
// nothing behind.
func TestFailedStartsAreReaped(t *testing.T) {
	if _, err := exec.LookPath(storaged.Program); err != nil {
		t.Skip(err)
	}
	beSubreaper(t)
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, make([]byte, mib), 0o600); err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tt := range map[string]struct {
		ctx   context.Context
		image string
	}{
		"no image":  {t.Context(), image + "-that-is-not-there"},
		"cancelled": {gone, image},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(runDir(), strings.ToLower(rand.Text()[:6]))
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			if _, err := storaged.Start(tt.ctx, storaged.Spec{Dir: dir, Image: tt.image}); err == nil {
				t.Error("started")
			}
			if err := storaged.Kill(dir); err != nil {
				t.Error(err)
			}
			noZombies(t)
		})
	}
}

// TestKilledWhileItStarts: a daemon whose start fails without a message was killed.
func TestKilledWhileItStarts(t *testing.T) {
	programs := t.TempDir()
	if err := os.WriteFile(filepath.Join(programs, storaged.Program), []byte("#!/bin/sh\nkill -9 $$\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", programs+":"+os.Getenv("PATH"))
	dir := filepath.Join(t.TempDir(), "d")
	if _, err := storaged.Start(t.Context(), storaged.Spec{Dir: dir, Image: "image"}); !errors.Is(err, storaged.ErrGone) {
		t.Errorf("%v, want ErrGone", err)
	}
}

// beSubreaper makes this process a subreaper, as drivers do, until the end of the test.
func beSubreaper(t *testing.T) {
	t.Helper()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) })
}

// noZombies fails if an ended child of this process remains. One that another goroutine waits for
// may exist for a moment.
func noZombies(t *testing.T) {
	t.Helper()
	list := zombies(t)
	for deadline := time.Now().Add(time.Minute); len(list) > 0 && time.Now().Before(deadline); list = zombies(t) {
		<-time.After(10 * time.Millisecond)
	}
	if len(list) > 0 {
		t.Fatalf("%q are not reaped", list)
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
		stat := string(raw)
		if strings.HasPrefix(stat[strings.LastIndexByte(stat, ')')+1:], fmt.Sprintf(" Z %d ", os.Getpid())) {
			list = append(list, stat[:strings.LastIndexByte(stat, ')')+1])
		}
	}
	return list
}
