package drivertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
)

const (
	sigINT  = hangar.Signal(unix.SIGINT)
	sigTERM = hangar.Signal(unix.SIGTERM)
	sigKILL = hangar.Signal(unix.SIGKILL)
	sigUSR1 = hangar.Signal(unix.SIGUSR1)
)

func killedBy(sig unix.Signal) driver.Exit {
	return driver.Exit{Code: 128 + int(sig), Signal: int(sig)}
}

func (t test) exit() {
	for _, tt := range []struct {
		words []string
		want  driver.Exit
	}{
		{[]string{"exit", "0"}, driver.Exit{}},
		{[]string{"exit", "7"}, driver.Exit{Code: 7}},
		{[]string{"exit", "137"}, driver.Exit{Code: 137}},
		{[]string{"die", "HUP"}, killedBy(unix.SIGHUP)},
		{[]string{"die", "TERM"}, killedBy(unix.SIGTERM)},
		{[]string{"die", "KILL"}, killedBy(unix.SIGKILL)},
		{[]string{"orphan"}, driver.Exit{}},
	} {
		m := t.prepare(tt.words...)
		m.start()
		for range 2 { // Wait may be repeated
			if got := m.wait(); got != tt.want {
				t.Errorf("%v: exit %+v, want %+v", tt.words, got, tt.want)
			}
		}
		if err := m.d.Signal(m.context(), m.handle, sigTERM); !errors.Is(err, driver.ErrNotFound) {
			t.Errorf("Signal after the end: %v, want ErrNotFound", err)
		}
		if _, err := m.d.Processes(m.context(), m.handle); !errors.Is(err, driver.ErrNotFound) {
			t.Errorf("Processes after the end: %v, want ErrNotFound", err)
		}
		if _, err := m.d.Exec(m.context(), m.handle, t.Command("exit", "0"), hangar.ExecStreams{}); !errors.Is(err, driver.ErrNotFound) {
			t.Errorf("Exec after the end: %v, want ErrNotFound", err)
		}
	}
}

func (t test) signal() {
	m := t.start("trap", "USR1", "33")
	ctx, cancel := context.WithTimeout(m.context(), time.Millisecond)
	defer cancel()
	if _, err := m.d.Wait(ctx, m.handle); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait with a deadline: %v", err)
	}
	m.signal(sigUSR1)
	if got, want := m.wait(), (driver.Exit{Code: 33}); got != want {
		t.Errorf("exit %+v, want %+v", got, want)
	}
	m = t.start("sleep")
	m.signal(sigTERM)
	if got, want := m.wait(), killedBy(unix.SIGTERM); got != want {
		t.Errorf("exit %+v, want %+v", got, want)
	}
}

func (t test) stop() {
	for _, tt := range []struct {
		words []string
		sig   hangar.Signal
		grace time.Duration
		want  driver.Exit
	}{
		{[]string{"trap", "INT", "3"}, sigINT, timeout, driver.Exit{Code: 3}},
		{[]string{"sleep"}, sigINT, timeout, killedBy(unix.SIGINT)},
		{[]string{"ignore", "INT"}, sigINT, 50 * time.Millisecond, killedBy(unix.SIGKILL)},
		{[]string{"sleep"}, sigKILL, timeout, killedBy(unix.SIGKILL)},
		{[]string{"ignore", "INT"}, sigINT, 0, killedBy(unix.SIGKILL)},
	} {
		m := t.start(tt.words...)
		for range 2 {
			if err := m.d.Stop(m.context(), m.handle, tt.sig, tt.grace); err != nil {
				t.Fatalf("Stop: %v", err)
			}
		}
		if got := m.wait(); got != tt.want {
			t.Errorf("%v stopped by %v: exit %+v, want %+v", tt.words, tt.sig, got, tt.want)
		}
	}
}

func (t test) startErrors() {
	m := t.prepare("exit", "0")
	good := m.spec.Command
	m.spec.Command.Args = []string{"no-such-command"}
	if _, err := m.d.Start(m.context(), m.spec); !errors.Is(err, driver.ErrCommandNotFound) {
		t.Errorf("Start of a missing command: %v, want ErrCommandNotFound", err)
	}
	m.spec.Command.Args = []string{"/etc/no/such/command"}
	if _, err := m.d.Start(m.context(), m.spec); !errors.Is(err, driver.ErrCommandNotFound) {
		t.Errorf("Start of a missing command: %v, want ErrCommandNotFound", err)
	}
	m.spec.Command = good
	layers := m.spec.Root.Layers
	m.spec.Root.Layers = []string{filepath.Join(m.spec.Dir, "no-such-layer")}
	if _, err := m.d.Start(m.context(), m.spec); err == nil {
		t.Error("Start without its layer: no error")
	}
	if m.listed() {
		t.Error("a failed start left something behind")
	}
	m.spec.Root.Layers = layers
	ctx, cancel := context.WithCancel(m.context())
	cancel()
	if _, err := m.d.Start(ctx, m.spec); !errors.Is(err, context.Canceled) {
		t.Errorf("Start with an ended context: %v", err)
	}
	if m.listed() {
		t.Error("a start that was called off left something behind")
	}
	m.start()
	if got := m.wait(); got != (driver.Exit{}) {
		t.Errorf("exit %+v after failed starts", got)
	}
}

func (t test) destroy() {
	m := t.prepare("sleep")
	m.destroy() // never started
	m.start()
	if !m.listed() {
		t.Error("a running Machine is not listed")
	}
	m.destroy()
	if m.listed() {
		t.Error("a destroyed Machine is listed")
	}
	m.destroy()
	if _, err := m.d.Wait(m.context(), m.handle); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("Wait after Destroy: %v, want ErrNotFound", err)
	}
	if err := m.d.Recover(m.context(), m.handle); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("Recover after Destroy: %v, want ErrNotFound", err)
	}
	if err := m.d.Recover(m.context(), driver.Handle("what is this")); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("Recover of nonsense: %v, want ErrNotFound", err)
	}
	m.start() // the same Machine again
	m.destroy()
}

func (t test) restart() {
	if t.Restart == nil {
		t.Skip("this driver does not outlive the process")
	}
	counting := t.start("count")
	counting.signal(sigUSR1)
	counting.out.expect("count 1 1")
	trapping := t.start("trap", "INT", "5")
	ended := t.start("trap", "INT", "6")
	killed := t.start("sleep")
	unknown := t.start("sleep") // the agent loses its handle
	if err := ended.d.Signal(ended.context(), ended.handle, sigINT); err != nil {
		t.Fatal(err)
	}
	killed.signal(sigTERM)
	ended.wait()
	killed.wait()

	d := t.Restart(t.T)
	for _, m := range []*machine{counting, trapping, ended, killed} {
		m.d = d
		for range 2 {
			if err := d.Recover(m.context(), m.handle); err != nil {
				t.Fatalf("Recover: %v", err)
			}
		}
	}
	unknown.d = d
	if got, want := ended.wait(), (driver.Exit{Code: 6}); got != want {
		t.Errorf("exit %+v meanwhile, want %+v", got, want)
	}
	if got, want := killed.wait(), killedBy(unix.SIGTERM); got != want {
		t.Errorf("exit %+v meanwhile, want %+v", got, want)
	}
	counting.signal(sigUSR1)
	counting.out.expect("count 2 2")
	var out strings.Builder
	if _, err := d.Exec(counting.context(), counting.handle, t.Command("echo", "back"), hangar.ExecStreams{Stdout: &out}); err != nil || out.String() != "back\n" {
		t.Errorf("Exec after recovery: %q, %v", out.String(), err)
	}
	trapping.signal(sigINT)
	if got, want := trapping.wait(), (driver.Exit{Code: 5}); got != want {
		t.Errorf("exit %+v after recovery, want %+v", got, want)
	}
	if !unknown.listed() {
		t.Error("a Machine without a handle is not listed")
	}
	unknown.destroy()
	if unknown.listed() {
		t.Error("a Machine without a handle survived Destroy")
	}
}

// adopt finds Machines whose handle was lost with the daemon.
func (t test) adopt() {
	if _, ok := t.Driver.(driver.Adopter); !ok || t.Restart == nil {
		t.Skip("this driver does not adopt")
	}
	counting := t.start("count")
	counting.signal(sigUSR1)
	counting.out.expect("count 1 1")
	ended := t.start("trap", "INT", "6")
	ended.signal(sigINT)
	ended.wait()
	destroyed := t.start("sleep")
	destroyed.destroy()
	never := t.prepare("sleep")

	d := t.Restart(t.T)
	adopter := d.(driver.Adopter)
	for _, m := range []*machine{counting, ended} {
		m.d = d
		handle, err := adopter.Adopt(m.context(), m.spec.ID, m.spec.Dir)
		if err != nil {
			t.Fatalf("Adopt: %v", err)
		}
		m.handle = handle
		if err := d.Recover(m.context(), handle); err != nil {
			t.Errorf("Recover of an adopted sandbox: %v", err)
		}
	}
	counting.signal(sigUSR1)
	counting.out.expect("count 2 2")
	if got, want := ended.wait(), (driver.Exit{Code: 6}); got != want {
		t.Errorf("exit %+v meanwhile, want %+v", got, want)
	}
	for _, m := range []*machine{destroyed, never} {
		m.d = d
		if _, err := adopter.Adopt(m.context(), m.spec.ID, m.spec.Dir); !errors.Is(err, driver.ErrNotFound) {
			t.Errorf("Adopt of nothing: %v, want ErrNotFound", err)
		}
	}
}

func (t test) writableLayer() {
	m := t.prepare("write", "/kept", "safe")
	m.start()
	m.wait()
	m.destroy()
	m.spec.Command = t.Command("read", "/kept")
	m.start()
	m.out.expect("safe")
	m.wait()
	m.destroy()
	if err := os.RemoveAll(m.spec.Root.Writable); err != nil {
		t.Fatal(err)
	}
	m.start()
	if got := m.wait(); got.Code != 1 {
		t.Errorf("exit %+v: the file is in a new writable layer", got)
	}
}

func (t test) output() {
	const lines = 20_000 // more than a FIFO holds
	m := t.prepare("yell", fmt.Sprint(lines))
	m.start()
	for i := range lines {
		m.out.expect(fmt.Sprintf("line %d of many", i))
	}
	if got := m.wait(); got != (driver.Exit{}) {
		t.Errorf("exit %+v", got)
	}
	m = t.prepare("complain", "to", "stderr")
	m.start()
	m.out.expect("to stderr")
	m = t.prepare("tty")
	m.spec.TTY = true
	m.start()
	m.out.expect("/dev/pts 24 80")
	m.wait()
}

func (t test) identity() {
	m := t.prepare("whoami")
	m.spec.Command.UID, m.spec.Command.GID, m.spec.Command.Groups = 1000, 1001, []uint32{1001, 2002}
	m.spec.Command.Dir = "/not/there/yet"
	m.start()
	m.out.expect("1000 1001 [1001 2002] /not/there/yet")
	m = t.prepare("env", "GREETING")
	m.spec.Command.Env = append(m.spec.Command.Env, "GREETING=good day")
	m.start()
	m.out.expect("good day")
	m = t.prepare("hostname")
	m.spec.Hostname = "some-machine"
	m.start()
	m.out.expect("some-machine")
	m = t.prepare("read", "/mnt/file")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("from the host"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.spec.Mounts = append(m.spec.Mounts, driver.Mount{Source: filepath.Dir(file), Target: "/mnt", ReadOnly: true})
	m.start()
	m.out.expect("from the host")
	m = t.prepare("write", "/mnt/file", "changed")
	m.spec.Mounts = append(m.spec.Mounts, driver.Mount{Source: filepath.Dir(file), Target: "/mnt", ReadOnly: true})
	m.start()
	if got := m.wait(); got.Code != 1 {
		t.Errorf("exit %+v: a write through a read-only mount", got)
	}
	m = t.prepare("write", "/tmp/file", "on the root file system")
	m.start()
	m.wait()
	m.destroy()
	m.spec.Command = t.Command("read", "/tmp/file")
	m.start()
	m.out.expect("on the root file system")
}

func (t test) resources() {
	m := t.prepare("resources")
	m.spec.MemoryMB = 192
	m.start()
	var cpus, memory int
	if _, err := fmt.Sscan(m.out.line(), &cpus, &memory); err != nil {
		t.Fatal(err)
	}
	if memory != 192 {
		t.Errorf("%d MiB visible, want 192", memory)
	}
	if cpus < 1 {
		t.Errorf("%d processors visible", cpus)
	}
	stats, ok := t.Driver.(driver.StatsReader)
	if !ok {
		return
	}
	m = t.start("sleep")
	s, err := stats.Stats(m.context(), m.handle)
	if err != nil {
		t.Fatalf("Stats: %v", err)
	}
	if s.CPUTime <= 0 || s.MemoryBytes <= 0 || s.Processes < 1 {
		t.Errorf("Stats: %+v", s)
	}
}
