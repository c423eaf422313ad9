package drivertest

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/host/driver"
)

// prepareSeveral returns a Machine with several commands that is not started.
func (t test) prepareSeveral(words ...[]string) *machine {
	t.Helper()
	m := t.prepare(words[0]...)
	for _, w := range words[1:] {
		m.spec.Others = append(m.spec.Others, t.Command(w...))
	}
	m.spec.StopSignal, m.spec.StopGrace = sigTERM, timeout
	return m
}

// startSeveral starts commands each of which prints "ready".
func (t test) startSeveral(words ...[]string) *machine {
	t.Helper()
	m := t.prepareSeveral(words...)
	m.start()
	for range words {
		m.out.expect("ready")
	}
	return m
}

// several: the first command that ends stops the others, and its exit is the Machine's.
func (t test) several() {
	for _, tt := range []struct {
		words [][]string
		grace time.Duration
		want  driver.Exit
	}{
		{[][]string{{"exit", "7"}, {"sleep"}}, timeout, driver.Exit{Code: 7}},
		{[][]string{{"sleep"}, {"trap", "TERM", "3"}, {"exit", "0"}}, timeout, driver.Exit{}},
		{[][]string{{"sleep"}, {"die", "HUP"}}, timeout, killedBy(unix.SIGHUP)},
		{[][]string{{"exit", "5"}, {"ignore", "TERM"}}, 100 * time.Millisecond, driver.Exit{Code: 5}},
	} {
		m := t.prepareSeveral(tt.words...)
		m.spec.StopGrace = tt.grace
		m.start()
		if got := m.wait(); got != tt.want {
			t.Errorf("%v: exit %+v, want %+v", tt.words, got, tt.want)
		}
	}

	m := t.prepareSeveral([]string{"whoami"}, []string{"sleep"})
	m.spec.Command.UID, m.spec.Command.GID, m.spec.Command.Groups = 1000, 1001, []uint32{2002}
	m.spec.Command.Dir = "/not/there/yet"
	m.start()
	m.out.expectBeside("ready", "1000 1001 [2002] /not/there/yet")
	m = t.prepareSeveral([]string{"sleep"}, []string{"env", "GREETING"})
	m.spec.Command.Env = append(slices.Clone(m.spec.Command.Env), "GREETING=not this")
	m.spec.Others[0].Env = append(slices.Clone(m.spec.Others[0].Env), "GREETING=good day")
	m.start()
	m.out.expectBeside("ready", "good day")

	m = t.prepareSeveral([]string{"sleep"}, []string{"sleep"})
	m.spec.Others[0].Args = []string{"no-such-command"}
	if _, err := m.d.Start(m.context(), m.spec); !errors.Is(err, driver.ErrCommandNotFound) {
		t.Errorf("Start with a missing second command: %v, want ErrCommandNotFound", err)
	}
}

// severalStop: all commands receive a signal.
func (t test) severalStop() {
	m := t.startSeveral([]string{"sleep"}, []string{"trap", "USR1", "33"}, []string{"ignore", "USR1"})
	list, err := m.d.Processes(m.context(), m.handle)
	if err != nil || len(list) != 3 {
		t.Errorf("%d processes, %v, want 3", len(list), err)
	}
	if err := m.d.Stop(m.context(), m.handle, sigKILL, timeout); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	if got, want := m.wait(), killedBy(unix.SIGKILL); got != want {
		t.Errorf("killed: exit %+v, want %+v", got, want)
	}
	m = t.startSeveral([]string{"ignore", "USR1"}, []string{"trap", "USR1", "33"})
	m.signal(sigUSR1)
	if got, want := m.wait(), (driver.Exit{Code: 33}); got != want {
		t.Errorf("signalled: exit %+v, want %+v", got, want)
	}
	m = t.startSeveral([]string{"trap", "INT", "3"}, []string{"trap", "INT", "3"})
	if err := m.d.Stop(m.context(), m.handle, sigINT, timeout); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	if got, want := m.wait(), (driver.Exit{Code: 3}); got != want {
		t.Errorf("stopped: exit %+v, want %+v", got, want)
	}
	m = t.startSeveral([]string{"ignore", "INT"}, []string{"ignore", "INT"})
	if err := m.d.Stop(m.context(), m.handle, sigINT, 50*time.Millisecond); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	if got, want := m.wait(), killedBy(unix.SIGKILL); got != want {
		t.Errorf("stopped by force: exit %+v, want %+v", got, want)
	}
}

// severalOutlive: several commands survive the daemon, and being suspended.
func (t test) severalOutlive() {
	m := t.startSeveral([]string{"count"}, []string{"trap", "INT", "5"}, []string{"ignore", "USR1"})
	m.spec.Others[0].Env = append(m.spec.Others[0].Env, "LATER=changed") // as its secrets may be
	if t.Restart != nil {
		t.Driver = t.Restart(t.T)
		m.d = t.Driver
		handle := m.handle
		if adopter, ok := t.Driver.(driver.Adopter); ok {
			adopted, err := adopter.Adopt(m.context(), m.spec.ID, m.spec.Dir)
			if err != nil {
				t.Fatalf("Adopt: %v", err)
			}
			handle = adopted
		}
		if err := m.d.Recover(m.context(), handle); err != nil {
			t.Fatalf("Recover: %v", err)
		}
		m.handle = handle
	}
	if _, ok := t.Driver.(driver.Suspender); ok {
		for i := range 2 {
			dir := filepath.Join(m.spec.Dir, fmt.Sprint("snapshot", i))
			m.suspend(dir)
			m.resume(dir)
		}
	}
	m.signal(sigINT)
	if got := m.wait(); got != (driver.Exit{Code: 5}) && got != killedBy(unix.SIGINT) {
		t.Errorf("exit %+v, want one of those that the signal ends", got)
	}
}
