// Package drivertest is the suite that every driver.Driver passes.
//
// It runs a driver as the agent does: one Machine per test, of which it remembers only the handle,
// and a second Driver where a daemon would have restarted. A Machine runs a program whose arguments
// are one of these commands:
//
//	exit N            ends with code N
//	die SIGNAL        ends by that signal
//	sleep             prints "ready" and runs until a signal ends it
//	trap SIGNAL N     prints "ready" and ends with code N when the signal comes
//	ignore SIGNAL     prints "ready" and ignores the signal
//	echo WORD...      prints the words
//	complain WORD...  prints them on standard error
//	yell N            prints N lines, "line 0 of many" and so on
//	cat               copies standard input to standard output
//	count             prints "ready" and at each SIGUSR1 "count A B": A from memory, B
//	                  the length of a file on the root file system
//	whoami            prints user, group, supplementary groups as [1 2], directory
//	env NAME          prints the variable
//	hostname          prints it
//	resources         prints the number of processors and MiB of memory
//	tty               prints "DIR ROWS COLUMNS" of its terminal, DIR "/dev/pts"
//	size ROWS         prints "ready" and, once its terminal has ROWS, "rows ROWS"
//	write FILE TEXT   writes a file
//	read FILE         prints the content of a file
//	orphan            ends with 0 once PID 1 has collected an orphaned process
//
// Tests run in parallel. The package does not test a driver's speed, its networks or its optional
// features.
package drivertest

import (
	"slices"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
)

// timeout bounds each step of a test.
const timeout = 30 * time.Second

// Harness is a driver to be tested and what its tests need.
type Harness struct {
	Driver driver.Driver
	// Spec returns the spec of a new Machine that runs the words, with all fields set and with a FIFO
	// as Output, which the suite reads. The caller of Run cleans up after it.
	Spec func(t testing.TB, words ...string) driver.Spec
	// Command returns a command with which Exec runs the words as root.
	Command func(words ...string) driver.Command
	// Restart closes Driver as the death of the daemon would, and returns the next daemon's Driver.
	// Nil: the driver cannot outlive the process.
	Restart func(t testing.TB) driver.Driver
	// Damage damages a snapshot. Nil: the driver has none on disk.
	Damage func(t testing.TB, dir string)
}

// Run runs the suite. newHarness is called once per test.
func Run(t *testing.T, newHarness func(t *testing.T) Harness) {
	t.Helper()
	for _, tt := range []struct {
		name string
		run  func(test)
	}{
		{"exit", test.exit},
		{"signal", test.signal},
		{"stop", test.stop},
		{"start errors", test.startErrors},
		{"destroy", test.destroy},
		{"restart", test.restart},
		{"adopt", test.adopt},
		{"writable layer", test.writableLayer},
		{"exec", test.exec},
		{"exec streams", test.execStreams},
		{"exec of a broken input", test.execBrokenInput},
		{"exec terminal", test.execTerminal},
		{"exec ends with its context", test.execContext},
		{"exec that was called off leaves nothing", test.execCalledOff},
		{"processes", test.processes},
		{"output", test.output},
		{"identity", test.identity},
		{"files", test.files},
		{"resources", test.resources},
		{"usage", test.usage},
		{"several commands", test.several},
		{"several commands stop", test.severalStop},
		{"several commands outlive", test.severalOutlive},
		{"suspend", test.suspend},
		{"snapshot errors", test.snapshotErrors},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.run(test{t, newHarness(t)})
		})
	}
}

// test is one run of one test.
type test struct {
	*testing.T
	Harness
}

// machine is one Machine under test.
type machine struct {
	t      *testing.T
	d      driver.Driver
	spec   driver.Spec
	handle driver.Handle
	out    *output
}

// start boots the words and waits for "ready" if they print it.
func (t test) start(words ...string) *machine {
	t.Helper()
	m := t.prepare(words...)
	m.start()
	switch words[0] {
	case "sleep", "trap", "ignore", "count":
		m.out.expect("ready")
	}
	return m
}

// prepare returns a Machine that is not started.
func (t test) prepare(words ...string) *machine {
	t.Helper()
	m := &machine{t: t.T, d: t.Driver, spec: t.Spec(t.T, words...)}
	m.out = openOutput(t.T, m.spec.Output)
	t.Cleanup(func() {
		if err := m.d.Destroy(finishtest.Context(t), m.spec.ID, m.spec.Dir); err != nil {
			t.Errorf("Destroy: %v", err)
		}
	})
	return m
}

func (m *machine) start() {
	m.t.Helper()
	handle, err := m.d.Start(m.context(), m.spec)
	if err != nil {
		m.t.Fatalf("Start: %v", err)
	}
	m.handle = handle
}

func (m *machine) wait() driver.Exit {
	m.t.Helper()
	e, err := m.d.Wait(m.context(), m.handle)
	if err != nil {
		m.t.Fatalf("Wait: %v", err)
	}
	if e.At.IsZero() || time.Since(e.At) > timeout {
		m.t.Errorf("exit at %v", e.At)
	}
	e.At = time.Time{}
	return e
}

func (m *machine) signal(sig hangar.Signal) {
	m.t.Helper()
	if err := m.d.Signal(m.context(), m.handle, sig); err != nil {
		m.t.Fatalf("Signal: %v", err)
	}
}

func (m *machine) destroy() {
	m.t.Helper()
	if err := m.d.Destroy(finishtest.Context(m.t), m.spec.ID, m.spec.Dir); err != nil {
		m.t.Fatalf("Destroy: %v", err)
	}
}

// listed reports whether the Machine has left anything on the host.
func (m *machine) listed() bool {
	m.t.Helper()
	ids, err := m.d.List(m.context())
	if err != nil {
		m.t.Fatalf("List: %v", err)
	}
	return slices.Contains(ids, m.spec.ID)
}
