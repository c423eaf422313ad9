package storaged_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/host/volume/storaged"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
)

// TestHangingStart: a program that hangs is killed and reaped when the wait for it ends.
func TestHangingStart(t *testing.T) {
	dir := t.TempDir()
	started := filepath.Join(dir, "started")
	if err := unix.Mkfifo(started, 0o600); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\necho $$ >" + started + "\nexec sleep 60\n"
	if err := os.WriteFile(filepath.Join(dir, storaged.Program), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	ctx, cancel := context.WithCancel(t.Context())
	pid := make(chan string, 1)
	go func() {
		defer cancel()
		raw, err := os.ReadFile(started)
		if err != nil {
			t.Error(err)
		}
		pid <- strings.TrimSpace(string(raw))
	}()
	_, err := storaged.Start(ctx, storaged.Spec{Dir: filepath.Join(dir, "run"), Image: "image"})
	if !errors.Is(err, context.Canceled) || errors.Is(err, storaged.ErrGone) {
		t.Errorf("the start ended with %v", err)
	}
	if _, err := os.Stat("/proc/" + <-pid); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its process is still there: %v", err)
	}
}

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
