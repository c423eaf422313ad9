package gvisor_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
)

// TestNobodyInheritsCalls: processes that start during a long call, such as the sandboxes of
// others, do not inherit its connection.
func TestNobodyInheritsCalls(t *testing.T) {
	d := open(t)
	spec := newSpec(t, "sleep")
	discardOutput(t, spec.Output)
	h, err := d.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer destroyed(t, d, spec)
	before := inheritable(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = d.Exec(ctx, h, command("sleep"), hangar.ExecStreams{})
	}()
	for deadline := time.Now().Add(step); ; time.Sleep(5 * time.Millisecond) {
		list, err := d.Processes(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		if len(list) > 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the command does not run")
		}
	}
	for fd, what := range inheritable(t) {
		if before[fd] == "" {
			t.Errorf("a started process inherits %s", what)
		}
	}
	cancel()
	<-ended
}

// inheritable returns the descriptors of this process that its children inherit.
func inheritable(t *testing.T) map[int]string {
	t.Helper()
	files, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil {
		t.Fatal(err)
	}
	found := map[int]string{}
	for _, file := range files {
		raw, _ := os.ReadFile(file) // it may be closed by now
		_, rest, ok := strings.Cut(string(raw), "flags:")
		if !ok {
			continue
		}
		flags, err := strconv.ParseUint(strings.Fields(rest)[0], 8, 64)
		if err != nil {
			t.Fatal(err)
		}
		fd, err := strconv.Atoi(filepath.Base(file))
		if err == nil && flags&unix.O_CLOEXEC == 0 {
			found[fd], _ = os.Readlink(filepath.Join("/proc/self/fd", filepath.Base(file)))
		}
	}
	return found
}

// TestManyCallsAtOnce: more callers than the sandbox's socket holds wait for their turn.
func TestManyCallsAtOnce(t *testing.T) {
	d := open(t)
	spec := newSpec(t, "sleep")
	discardOutput(t, spec.Output)
	h, err := d.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer destroyed(t, d, spec)
	var calls sync.WaitGroup
	for range 200 {
		calls.Go(func() {
			if _, err := d.Processes(t.Context(), h); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
}
