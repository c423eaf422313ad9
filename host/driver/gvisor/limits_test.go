package gvisor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/driver/gvisor"
	"github.com/hangar-platform/hangar/host/driver/gvisor/bundle"
)

// TestMoreCoresThanTheHost: a Machine may have more cores in its config than the host has.
func TestMoreCoresThanTheHost(t *testing.T) {
	t.Parallel()
	spec := newSpec(t, "resources")
	spec.CPUs = 1000
	var visible, memory int
	if _, err := fmt.Sscan(boot(t, open(t), spec).line(), &visible, &memory); err != nil {
		t.Fatal(err)
	}
	if visible != runtime.NumCPU() {
		t.Errorf("%d processors visible, want the host's %d", visible, runtime.NumCPU())
	}
}

// TestLimitAfterResume: the extra memory that a Machine may use during its resume is not available
// afterwards.
func TestLimitAfterResume(t *testing.T) {
	t.Parallel()
	d, opts := newDriver(t)
	t.Cleanup(func() { _ = d.Close() })
	spec := newSpec(t, "sleep")
	m := boot(t, d, spec)
	m.line()
	before := memoryLimit(t, opts.CgroupParent, spec.ID)
	snapshot := filepath.Join(spec.Dir, "snapshot")
	if err := d.Suspend(t.Context(), m.handle, snapshot); err != nil {
		t.Fatal(err)
	}
	var err error
	if m.handle, err = d.Resume(t.Context(), spec, snapshot); err != nil {
		t.Fatal(err)
	}
	awaitLimit(t, opts, spec.ID, before)
}

// awaitLimit waits until a sandbox has a limit of its memory.
func awaitLimit(t *testing.T, opts gvisor.Options, id hangar.MachineID, want string) {
	t.Helper()
	for deadline := time.Now().Add(step); ; <-time.After(time.Millisecond) {
		limit := memoryLimit(t, opts.CgroupParent, id)
		if limit == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("limit %s, want %s", limit, want)
		}
	}
}

// doubled doubles the limit of a sandbox's memory, as a daemon that dies during a suspend leaves it.
func doubled(t *testing.T, opts gvisor.Options, spec *driver.Spec) (before, after string) {
	t.Helper()
	before = memoryLimit(t, opts.CgroupParent, spec.ID)
	n, err := strconv.ParseInt(before, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	after = strconv.FormatInt(2*n, 10)
	if err := os.WriteFile(limitFile(opts.CgroupParent, spec.ID), []byte(after), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(spec.Dir, bundle.SuspendFile), []byte(filepath.Join(spec.Dir, "snapshot")), 0o600); err != nil {
		t.Fatal(err)
	}
	return before, after
}

// TestLimitAfterASuspendThatIsGivenUp: a Machine that the daemon did not suspend before it was killed has no more memory
// than before, once the engine has ended.
func TestLimitAfterASuspendThatIsGivenUp(t *testing.T) {
	t.Parallel()
	for _, adopted := range []bool{false, true} {
		opts := options(t)
		spec := newSpec(t, "sleep")
		discardOutput(t, spec.Output)
		old := startDaemon(t, daemonWork{Options: opts, Spec: spec})
		h := driver.Handle(old.line())
		old.kill()
		d := reopen(t, opts)
		t.Cleanup(func() { destroyed(t, d, spec) })
		before, after := doubled(t, opts, &spec)
		if adopted {
			if _, err := d.Adopt(t.Context(), spec.ID, spec.Dir); err != nil {
				t.Fatal(err)
			}
			awaitLimit(t, opts, spec.ID, before)
			continue
		}
		end := working(t, spec.Dir)
		if err := d.Recover(t.Context(), h); err != nil {
			t.Fatal(err)
		}
		if limit := memoryLimit(t, opts.CgroupParent, spec.ID); limit != after {
			t.Errorf("limit %s while the snapshot is written, want %s", limit, after)
		}
		end()
		awaitLimit(t, opts, spec.ID, before)
	}
}

// TestLimitAfterAFailedSuspend: a suspend that fails leaves the limit that a Machine should have, whatever it had.
func TestLimitAfterAFailedSuspend(t *testing.T) {
	t.Parallel()
	d, opts := newDriver(t)
	t.Cleanup(func() { _ = d.Close() })
	spec := newSpec(t, "sleep")
	m := boot(t, d, spec)
	m.line()
	before, _ := doubled(t, opts, &spec)
	if err := d.Suspend(t.Context(), m.handle, filepath.Join(spec.Dir, "missing", "snapshot")); err == nil {
		t.Fatal("suspended to a directory that does not exist")
	}
	if after := memoryLimit(t, opts.CgroupParent, spec.ID); after != before {
		t.Errorf("limit %s after a suspend that failed, %s before", after, before)
	}
}

// TestTasksAreBounded: a Machine's share of the server's tasks is at most its share of the server's
// memory, and there are process ids for all of them.
func TestTasksAreBounded(t *testing.T) {
	t.Parallel()
	d, opts := newDriver(t)
	t.Cleanup(func() { _ = d.Close() })
	spec := newSpec(t, "sleep")
	boot(t, d, spec).line()
	files, err := filepath.Glob(filepath.Join("/sys/fs/cgroup", "*", opts.CgroupParent, string(spec.ID), "pids.max"))
	if err != nil {
		t.Fatal(err)
	}
	if more, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup", opts.CgroupParent, string(spec.ID), "pids.max")); len(files)+len(more) != 1 {
		t.Fatalf("limits of tasks: %v %v", files, more)
	} else {
		files = append(files, more...)
	}
	raw, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprint(spec.MemoryMB*4 + 256); strings.TrimSpace(string(raw)) != want {
		t.Errorf("%s: %s tasks, want %s for %d MB", files[0], raw, want, spec.MemoryMB)
	}
	raw, err = os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		t.Fatal(err)
	}
	if most := strings.TrimSpace(string(raw)); most != "4194304" {
		t.Errorf("the server has %s process ids, want as many as a Linux can have", most)
	}
}

// memoryLimit returns the limit that the kernel enforces.
func memoryLimit(t *testing.T, parent string, id hangar.MachineID) string {
	t.Helper()
	b, err := os.ReadFile(limitFile(parent, id))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func limitFile(parent string, id hangar.MachineID) string {
	if file := filepath.Join("/sys/fs/cgroup/memory", parent, string(id), "memory.limit_in_bytes"); fileExists(file) {
		return file
	}
	return filepath.Join("/sys/fs/cgroup", parent, string(id), "memory.max")
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
