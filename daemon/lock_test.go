package daemon

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestLockIsExclusiveAndEndsWithItsHolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := lockDir(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockDir(t.Context(), dir); !errors.Is(err, errLocked) {
		t.Errorf("second lock: %v", err)
	}
	d, err := Find(dir)
	if err != nil {
		t.Fatal(err)
	}
	if d.pid != os.Getpid() {
		t.Errorf("found process %d", d.pid)
	}
	d.Close()
	first.release()
	again, err := lockDir(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	again.release()
}

// TestLockOutlivesItsHolder: a killed daemon that was starting a child leaves the lock to the child
// until that executes its own program. The next daemon waits for it.
func TestLockOutlivesItsHolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	lock, err := lockDir(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sleep", "60")
	child.ExtraFiles = []*os.File{lock.f}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lock.release()
	ended := make(chan error, 1)
	time.AfterFunc(100*time.Millisecond, func() {
		_ = child.Process.Kill()
		ended <- child.Wait()
	})
	again, err := lockDir(t.Context(), dir)
	<-ended
	if err != nil {
		t.Fatal(err)
	}
	again.release()
}

// TestFindTrustsNoPID: a process that has reused a pid is not killed.
func TestFindTrustsNoPID(t *testing.T) {
	t.Parallel()
	stranger := exec.Command("sleep", "60")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stranger.Process.Kill()
		_ = stranger.Wait()
	})
	for _, content := range []string{strconv.Itoa(stranger.Process.Pid), "1", "-1", "", "x", strconv.Itoa(1 << 30)} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, lockFile), []byte(content+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if d, err := Find(dir); err == nil {
			t.Errorf("%q: found process %d", content, d.pid)
			d.Close()
		}
	}
	if _, err := Find(t.TempDir()); err == nil {
		t.Error("found a daemon where there is no lock")
	}
}

// TestStopKillsWhatDoesNotEnd: a process that ignores SIGTERM is killed.
func TestStopKillsWhatDoesNotEnd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// The shell holds the lock file open, as a daemon does.
	cmd := exec.Command("sh", "-c", `exec 9>"$1"; echo $$ >&9; trap '' TERM; echo ready; while :; do read x || exec sleep 60; done`, "sh", filepath.Join(dir, lockFile))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	d, err := Find(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if d.managed() != (os.Getenv("NOTIFY_SOCKET") != "") {
		t.Error("wrong about systemd")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Stop(ctx, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("stop with a context that ended: %v", err)
	}
	if err := d.Stop(t.Context(), 0); err != nil {
		// Patience runs out at once, also for the kill, which takes effect soon.
		if ended, _ := d.Ended(t.Context(), time.Minute); !ended {
			t.Errorf("stop: %v", err)
		}
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(interface{ Signal() unix.Signal }).Signal() != unix.SIGKILL {
		t.Errorf("it ended with %v", err)
	}
}

func TestMountsBelow(t *testing.T) {
	t.Parallel()
	all, err := mountsBelow("")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(all, "/proc") {
		t.Errorf("/proc is not among %v", all)
	}
	parent := t.TempDir()
	none, err := mountsBelow(parent)
	if err != nil || len(none) > 0 {
		t.Errorf("below a new directory: %v, %v", none, err)
	}
	if os.Geteuid() != 0 {
		t.Skip("mounting at a name that has to be escaped needs root")
	}
	escaped := filepath.Join(parent, `a b\c`)
	if err := errors.Join(os.Mkdir(escaped, 0o700), unix.Mount("tmpfs", escaped, "tmpfs", 0, "")); err != nil {
		t.Fatal(err)
	}
	mounts, err := mountsBelow(parent)
	if err != nil || !slices.Equal(mounts, []string{escaped}) {
		t.Errorf("mounted: %q, %v, want %q", mounts, err, escaped)
	}
	if err := unix.Unmount(escaped, 0); err != nil {
		t.Error(err)
	}
}
