package drivertest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hangar-platform/hangar/host/driver"
)

func (t test) suspender() {
	t.Helper()
	_, ok := t.Driver.(driver.Suspender)
	if ok != t.Driver.Capabilities().Suspend {
		t.Fatalf("Capabilities say %t to suspending, the methods %t", t.Driver.Capabilities().Suspend, ok)
	}
	if !ok {
		t.Skip("this driver cannot suspend")
	}
}

func (m *machine) suspend(dir string) {
	m.t.Helper()
	if err := m.d.(driver.Suspender).Suspend(m.context(), m.handle, dir); err != nil {
		m.t.Fatalf("Suspend: %v", err)
	}
	if got, want := m.wait(), (driver.Exit{Suspended: true}); got != want {
		m.t.Errorf("exit %+v of a suspended Machine, want %+v", got, want)
	}
}

func (m *machine) resume(dir string) {
	m.t.Helper()
	handle, err := m.d.(driver.Suspender).Resume(m.context(), m.spec, dir)
	if err != nil {
		m.t.Fatalf("Resume: %v", err)
	}
	m.handle = handle
}

func (t test) suspend() {
	t.suspender()
	m := t.start("count")
	m.signal(sigUSR1)
	m.out.expect("count 1 1")
	for i := 2; i < 5; i++ {
		dir := filepath.Join(m.spec.Dir, fmt.Sprint("snapshot", i))
		m.suspend(dir)
		if i == 3 && t.Restart != nil { // a suspended Machine needs no daemon
			m.destroy()
			t.Driver = t.Restart(t.T)
			m.d = t.Driver
		}
		m.resume(dir)
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		m.signal(sigUSR1)
		m.out.expect(fmt.Sprintf("count %d %d", i, i))
	}
	m.signal(sigTERM)
	if got := m.wait(); got.Code != 143 {
		t.Errorf("exit %+v after resuming", got)
	}
}

func (t test) snapshotErrors() {
	t.suspender()
	m := t.start("count")
	dir := filepath.Join(m.spec.Dir, "snapshot")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := m.d.(driver.Suspender).Suspend(m.context(), m.handle, dir); err == nil {
		t.Fatal("Suspend over a directory that exists: no error")
	}
	m.signal(sigUSR1) // it still runs
	m.out.expect("count 1 1")
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	m.suspend(dir)
	if err := m.d.(driver.Suspender).Suspend(m.context(), m.handle, dir+"2"); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("Suspend of a stopped sandbox: %v, want ErrNotFound", err)
	}

	unusable := func(what string, spec driver.Spec, dir string) {
		t.Helper()
		began := time.Now()
		_, err := m.d.(driver.Suspender).Resume(m.context(), spec, dir)
		if !errors.Is(err, driver.ErrSnapshotUnusable) {
			t.Errorf("Resume from %s: %v, want ErrSnapshotUnusable", what, err)
		}
		if m.listed() {
			t.Errorf("Resume from %s left something running after %v", what, time.Since(began))
		}
	}
	unusable("nothing", m.spec, dir+".none")
	other := m.spec
	other.Command.Args = append([]string(nil), m.spec.Command.Args...)
	other.Command.Args[len(other.Command.Args)-1] = "sleep"
	unusable("another program's snapshot", other, dir)
	if t.Damage != nil {
		t.Damage(t.T, dir)
		unusable("a damaged snapshot", m.spec, dir)
	}
	// A cold boot with the same writable layer still works.
	m.start()
	m.out.expect("ready")
	m.signal(sigUSR1)
	m.out.expect("count 1 2")
}
