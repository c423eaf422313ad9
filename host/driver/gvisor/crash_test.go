package gvisor_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/driver/gvisor"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
)

// daemonEnv makes the test binary run as a daemon with the daemonWork in its value; see runDaemon.
const daemonEnv = "HANGAR_TEST_DAEMON"

// daemonWork describes the task of a daemon.
type daemonWork struct {
	Options  gvisor.Options
	Spec     driver.Spec
	Snapshot string // suspend to it
}

// runDaemon starts a Machine, prints its handle, suspends it if daemonWork says so, and waits to be
// killed.
func runDaemon(raw string) int {
	var w daemonWork
	if err := json.Unmarshal([]byte(raw), &w); err != nil {
		fmt.Println(err)
		return 1
	}
	ctx := context.Background()
	d := gvisor.New(w.Options)
	if err := d.Open(ctx); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("starting")
	h, err := d.Start(ctx, w.Spec)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(string(h))
	if w.Snapshot != "" {
		if err := d.Suspend(ctx, h, w.Snapshot); err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println("suspended")
	}
	select {}
}

// daemon is a process that runs runDaemon.
type daemon struct {
	t   *testing.T
	cmd *exec.Cmd
	out *bufio.Scanner
}

func startDaemon(t *testing.T, w daemonWork) *daemon {
	t.Helper()
	raw, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), daemonEnv+"="+string(raw))
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, cmd: cmd, out: bufio.NewScanner(pipe)}
	t.Cleanup(d.kill)
	if got := d.line(); got != "starting" {
		t.Fatalf("the daemon said %q", got)
	}
	return d
}

func (d *daemon) line() string {
	d.t.Helper()
	if !d.out.Scan() {
		d.t.Fatal("the daemon said no more")
	}
	return d.out.Text()
}

// kill kills the daemon with SIGKILL, as a crash would, and waits until it has ended.
func (d *daemon) kill() {
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait()
}

// options returns the options of an unopened driver, which is cleaned up like that of newDriver.
func options(t *testing.T) gvisor.Options {
	t.Helper()
	d, opts := newDriver(t)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	opts.Log = nil
	return opts
}

func reopen(t *testing.T, opts gvisor.Options) *gvisor.Driver {
	t.Helper()
	d := openDriver(t, opts)
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func destroyed(t *testing.T, d *gvisor.Driver, spec driver.Spec) {
	t.Helper()
	if err := d.Destroy(finishtest.Context(t), spec.ID, spec.Dir); err != nil {
		t.Error(err)
	}
	if ids, err := d.List(t.Context()); err != nil || len(ids) > 0 {
		t.Errorf("left behind: %v, %v", ids, err)
	}
}

// TestKilledDaemon: a Machine keeps running, and the next daemon knows its exact exit, whether it
// happened before or after the daemon's start.
func TestKilledDaemon(t *testing.T) {
	for _, before := range []bool{true, false} {
		opts := options(t)
		spec := newSpec(t, "trap", "TERM", "42")
		old := startDaemon(t, daemonWork{Options: opts, Spec: spec})
		h := driver.Handle(old.line())
		awaitReady(t, spec.Output)
		old.kill()

		d := reopen(t, opts)
		if before { // no daemon runs: by the pid in the guest's only sentry
			var parsed struct {
				Sentry struct{ PID int } `json:"sentry"`
			}
			if err := json.Unmarshal(h, &parsed); err != nil {
				t.Fatal(err)
			}
			other := reopen(t, opts)
			if err := other.Recover(t.Context(), h); err != nil {
				t.Fatal(err)
			}
			if err := other.Signal(t.Context(), h, 15); err != nil {
				t.Fatal(err)
			}
			awaitGone(t, parsed.Sentry.PID)
		}
		if err := d.Recover(t.Context(), h); err != nil {
			t.Fatal(err)
		}
		if !before {
			if err := d.Signal(t.Context(), h, 15); err != nil {
				t.Fatal(err)
			}
		}
		e, err := d.Wait(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		if e.Code != 42 || e.Unknown {
			t.Errorf("before %t: exit %+v, want code 42", before, e)
		}
		destroyed(t, d, spec)
	}
}

// TestRecoverWithoutDescriptors: a sandbox keeps running even if the daemon may open too few files
// while it recovers the sandbox.
func TestRecoverWithoutDescriptors(t *testing.T) {
	opts := options(t)
	spec := newSpec(t, "trap", "TERM", "42")
	old := startDaemon(t, daemonWork{Options: opts, Spec: spec})
	h := driver.Handle(old.line())
	awaitReady(t, spec.Output)
	old.kill()

	d := reopen(t, opts)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	free, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	few := uint64(free.Fd())
	_ = free.Close()
	refused := 0
	for err := os.ErrInvalid; err != nil; few++ {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: few, Max: limit.Max}); err != nil {
			t.Fatal(err)
		}
		err = d.Recover(t.Context(), h)
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		if errors.Is(err, driver.ErrNotFound) {
			t.Fatal(err)
		}
		if err != nil {
			refused++
		}
	}
	if refused < 2 {
		t.Errorf("there were files enough but %d times", refused)
	}
	if err := d.Signal(t.Context(), h, 15); err != nil {
		t.Fatal(err)
	}
	if e, err := d.Wait(t.Context(), h); err != nil || e.Code != 42 || e.Unknown {
		t.Errorf("exit %+v, %v, want code 42", e, err)
	}
	destroyed(t, d, spec)
}

// awaitReady waits until the guest prints that it is ready. It reads no later output, which must
// fit the FIFO.
func awaitReady(tb testing.TB, fifo string) {
	tb.Helper()
	f, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = f.Close() })
	if err := f.SetReadDeadline(time.Now().Add(step)); err != nil {
		tb.Fatal(err)
	}
	if line, err := bufio.NewReader(f).ReadString('\n'); err != nil || line != "ready\n" {
		tb.Fatalf("output %q, %v", line, err)
	}
}

// awaitGone waits until a process that is no child has ended.
func awaitGone(t *testing.T, pid int) {
	t.Helper()
	for began := time.Now(); unix.Kill(pid, 0) == nil; {
		if time.Since(began) > step {
			t.Fatal("the sandbox does not end")
		}
		time.Sleep(time.Millisecond)
	}
}

// TestKilledDuringStart: Destroy removes everything, wherever a start was interrupted.
func TestKilledDuringStart(t *testing.T) {
	opts := options(t)
	d := reopen(t, opts)
	for i := range 16 {
		spec := newSpec(t, "sleep")
		discardOutput(t, spec.Output)
		old := startDaemon(t, daemonWork{Options: opts, Spec: spec})
		time.Sleep(time.Duration(i) * 6 * time.Millisecond)
		old.kill()
		destroyed(t, d, spec)
		if h, err := d.Start(t.Context(), spec); err != nil { // and can be done again
			t.Error(err)
		} else if _, err := d.Processes(t.Context(), h); err != nil {
			t.Error(err)
		}
		destroyed(t, d, spec)
	}
}

// TestKilledDuringSuspend: the snapshot is complete or absent, and the next daemon knows whether it
// exists.
func TestKilledDuringSuspend(t *testing.T) {
	opts := options(t)
	d := reopen(t, opts)
	suspended := 0
	for i := 0; i < 10 || suspended == 0 && i < 100; i++ {
		spec := newSpec(t, "count")
		dir := filepath.Join(spec.Dir, "snapshot")
		old := startDaemon(t, daemonWork{Options: opts, Spec: spec, Snapshot: dir})
		h := driver.Handle(old.line())
		time.Sleep(time.Duration(i) * 6 * time.Millisecond)
		old.kill()
		if err := d.Recover(t.Context(), h); err != nil {
			t.Fatal(err)
		}
		// If the engine had not started to suspend it, the Machine keeps running.
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		e, err := d.Wait(ctx, h)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			if d.Signal(t.Context(), h, 10) == nil {
				destroyed(t, d, spec)
				continue
			}
			e, err = d.Wait(t.Context(), h) // the engine is slow
		}
		switch {
		case err != nil:
			t.Error(err)
		case e.Suspended:
			suspended++
			if h, err = d.Resume(t.Context(), spec, dir); err != nil {
				t.Error(err)
			} else if err := d.Signal(t.Context(), h, 10); err != nil {
				t.Error(err)
			}
		default:
			t.Errorf("exit %+v", e)
		}
		destroyed(t, d, spec)
	}
	if suspended == 0 {
		t.Error("no snapshot was ever completed")
	}
}

// TestKilledSandbox: a sandbox killed by another process is not reported as one that ended by
// itself.
func TestKilledSandbox(t *testing.T) {
	d := open(t)
	spec := newSpec(t, "sleep")
	discardOutput(t, spec.Output)
	h, err := d.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	var parsed struct {
		Sentry struct{ PID int } `json:"sentry"`
	}
	if err := json.Unmarshal(h, &parsed); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(parsed.Sentry.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	e, err := d.Wait(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	if e.Code != 137 || e.Signal != 9 || e.OOMKilled {
		t.Errorf("exit %+v, want one by SIGKILL", e)
	}
	destroyed(t, d, spec)
}

// TestManyLayers: an image may have more layers than fit the options of mount(2).
func TestManyLayers(t *testing.T) {
	d := open(t)
	spec := newSpec(t, "read", "/layer119/name")
	long := filepath.Join(t.TempDir(), fmt.Sprintf("%0200d", 0))
	for i := range 120 {
		layer := filepath.Join(long, fmt.Sprint(i))
		if err := os.MkdirAll(filepath.Join(layer, fmt.Sprintf("layer%d", i)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(layer, fmt.Sprintf("layer%d", i), "name"), []byte("the highest"), 0o600); err != nil {
			t.Fatal(err)
		}
		spec.Root.Layers = append(spec.Root.Layers, layer)
	}
	out, err := os.OpenFile(spec.Output, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if _, err := d.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "the highest\n" {
		t.Errorf("output %q, %v", line, err)
	}
	destroyed(t, d, spec)
}
