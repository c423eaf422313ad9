package contract

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

func machineWatch(t *testing.T, h Harness) {
	m := h.started(t, h.newApp(t))
	ctx, cancel := context.WithTimeout(h.Context(t), patience)
	defer cancel()
	var seen []hangar.MachineState
	var last hangar.EventID
	acted := false
	for change, err := range h.Machines.WatchMachine(ctx, m.Ref()) {
		must(t, "watch", err)
		if change.Machine == nil || change.Machine.ID != m.ID {
			t.Fatalf("change %+v is not of the machine", change)
		}
		if e := change.Event; e != nil {
			if e.ID <= last {
				t.Errorf("event %s comes after %s", e.ID, last)
			}
			last = e.ID
		}
		if n := len(seen); n == 0 || seen[n-1] != change.Machine.State {
			seen = append(seen, change.Machine.State)
		}
		switch {
		case !acted:
			if change.Machine.State != hangar.MachineStarted {
				t.Errorf("the first state is %s", change.Machine.State)
			}
			acted = true
			must(t, "stop", h.Machines.StopMachine(h.Context(t), m.Ref(), hangar.MachineStop{}))
		case change.Machine.State == hangar.MachineStopped:
			must(t, "destroy", h.Machines.DestroyMachine(h.Context(t), m.Ref(), hangar.MachineDestroy{}))
		}
	}
	if ctx.Err() != nil {
		t.Fatalf("the watch of a destroyed machine does not end; it saw %v", seen)
	}
	if n := len(seen); n == 0 || seen[n-1] != hangar.MachineDestroyed {
		t.Errorf("saw %v, want destroyed at last", seen)
	}
	for i := 1; i < len(seen); i++ {
		if !seen[i-1].CanBecome(seen[i]) {
			t.Errorf("saw %s turn into %s", seen[i-1], seen[i])
		}
	}
}

func machineWatchBreak(t *testing.T, h Harness) {
	m := h.stopped(t, h.newApp(t))
	for _, err := range h.Machines.WatchMachine(h.Context(t), m.Ref()) {
		must(t, "watch", err)
		break
	}
	ctx, cancel := context.WithCancel(h.Context(t))
	defer cancel()
	for range h.Machines.WatchMachine(ctx, m.Ref()) {
		cancel() // a watch ends with its context, with an error or without
	}
}

func machineProcesses(t *testing.T, h Harness) {
	app := h.newApp(t)
	m := h.started(t, app)
	ctx := h.Context(t)
	var processes []hangar.Process
	for len(processes) == 0 { // the command comes a moment after what starts it
		if ctx.Err() != nil {
			t.Fatal("a started machine has no processes")
		}
		var err error
		processes, err = h.Machines.MachineProcesses(ctx, m.Ref())
		must(t, "ps", err)
	}
	for _, p := range processes {
		if p.PID <= 0 || p.Command == "" {
			t.Errorf("process %+v is incomplete", p)
		}
	}
	stopped := h.stopped(t, app)
	_, err := h.Machines.MachineProcesses(h.Context(t), stopped.Ref())
	wantError(t, "ps of a stopped machine", err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
}

func machineExec(t *testing.T, h Harness) {
	m := h.started(t, h.newApp(t))
	big := strings.Repeat("0123456789abcdef", 1<<14) // 256 KiB
	for _, test := range []struct {
		name    string
		command []string
		stdin   string
		stdout  string
		code    int
	}{
		{"echo", []string{"echo", "hello", "big world"}, "", "hello big world\n", 0},
		{"cat nothing", []string{"cat"}, "", "", 0},
		{"cat", []string{"cat"}, "a line\n\x00\xff", "a line\n\x00\xff", 0},
		{"cat much", []string{"cat"}, big, big, 0},
		{"exit 0", h.Exit(0), "", "", 0},
		{"exit 7", h.Exit(7), "", "", 7},
		{"stdin that is not read", h.Exit(3), big, "", 3},
	} {
		var stdout, stderr bytes.Buffer
		res, err := h.Machines.ExecMachine(h.Context(t), m.Ref(), hangar.ExecRequest{Command: test.command, Timeout: patience},
			hangar.ExecStreams{Stdin: strings.NewReader(test.stdin), Stdout: &stdout, Stderr: &stderr})
		must(t, test.name, err)
		if res.ExitCode != test.code || res.ExitSignal != 0 {
			t.Errorf("%s: ended with %+v (stderr %q), want code %d", test.name, res, stderr.String(), test.code)
		}
		if got := stdout.String(); got != test.stdout {
			t.Errorf("%s: stdout has %d bytes %.40q, want %d bytes %.40q", test.name, len(got), got, len(test.stdout), test.stdout)
		}
	}
	res, err := h.Machines.ExecMachine(h.Context(t), m.Ref(), hangar.ExecRequest{Command: []string{"echo", "unseen"}}, hangar.ExecStreams{})
	must(t, "exec without streams", err)
	if res.ExitCode != 0 {
		t.Errorf("exec without streams ended with %+v", res)
	}
}

func machineExecRefused(t *testing.T, h Harness) {
	app := h.newApp(t)
	stopped := h.stopped(t, app)
	_, err := h.Machines.ExecMachine(h.Context(t), stopped.Ref(), hangar.ExecRequest{Command: []string{"echo"}}, hangar.ExecStreams{})
	wantError(t, "exec in a stopped machine", err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
	m := h.started(t, app)
	_, err = h.Machines.ExecMachine(h.Context(t), m.Ref(), hangar.ExecRequest{}, hangar.ExecStreams{})
	wantError(t, "exec of nothing", err, hangar.CodeInvalid, "")
}

func machineExecEnds(t *testing.T, h Harness) {
	m := h.started(t, h.newApp(t))
	_, err := h.Machines.ExecMachine(h.Context(t), m.Ref(), hangar.ExecRequest{Command: h.Sleep, Timeout: 50 * time.Millisecond}, hangar.ExecStreams{})
	wantError(t, "exec beyond its time", err, hangar.CodeTimeout, "")

	ctx, cancel := context.WithCancel(h.Context(t))
	stdin, feed := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		_, err := h.Machines.ExecMachine(ctx, m.Ref(), hangar.ExecRequest{Command: []string{"cat"}},
			hangar.ExecStreams{Stdin: stdin, Stdout: writerFunc(func(p []byte) (int, error) {
				cancel() // the command runs: leave
				return len(p), nil
			})})
		ended <- err
	}()
	_, err = feed.Write([]byte("ping\n"))
	must(t, "write to stdin", err)
	if err := <-ended; err == nil {
		t.Error("exec whose caller has left succeeded")
	}
	must(t, "close stdin", feed.Close())
	if got := h.get(t, m.Ref()); got.State != hangar.MachineStarted {
		t.Errorf("exec left the machine %s", got.State)
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
