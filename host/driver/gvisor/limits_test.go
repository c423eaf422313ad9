package gvisor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
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
	for deadline := time.Now().Add(step); ; {
		after := memoryLimit(t, opts.CgroupParent, spec.ID)
		if after == before {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("limit %s after resume, %s before", after, before)
		}
		time.Sleep(time.Millisecond)
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
	for _, file := range []string{"memory/" + parent + "/" + string(id) + "/memory.limit_in_bytes", parent + "/" + string(id) + "/memory.max"} {
		if b, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", file)); err == nil {
			return strings.TrimSpace(string(b))
		}
	}
	t.Fatal("no memory limit")
	return ""
}
