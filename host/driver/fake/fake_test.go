package fake_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/driver/fake"
	"github.com/hangar-platform/hangar/internal/finish/finishtest"
)

const id = hangar.MachineID("0123456789abcd")

// bench is a World with one Machine that can be started.
type bench struct {
	testing.TB
	world *fake.World
	*fake.Driver
	spec driver.Spec
}

func newBench(tb testing.TB, env ...string) *bench {
	tb.Helper()
	return newBenchWith(tb, fake.Options{}, env...)
}

func newBenchWith(tb testing.TB, o fake.Options, env ...string) *bench {
	tb.Helper()
	dir := tb.TempDir()
	machine, layer := filepath.Join(dir, "machine"), filepath.Join(dir, "layer")
	for _, d := range []string{machine, layer} {
		if err := os.Mkdir(d, 0o755); err != nil {
			tb.Fatal(err)
		}
	}
	w := fake.NewWorld(filepath.Join(dir, "world"))
	return &bench{TB: tb, world: w, Driver: fake.New(w, o), spec: driver.Spec{
		ID: id, Dir: machine, CPUs: 1, MemoryMB: 256,
		Root:    driver.Root{Layers: []string{layer}, Writable: filepath.Join(machine, "root")},
		Command: driver.Command{Args: []string{"/server", "--serve"}, Env: env, Dir: "/srv"},
	}}
}

func (b *bench) start() driver.Handle {
	b.Helper()
	h, err := b.Start(b.Context(), b.spec)
	if err != nil {
		b.Fatal(err)
	}
	return h
}

// say returns the output of a command.
func (b *bench) say(h driver.Handle, args ...string) string {
	b.Helper()
	var out bytes.Buffer
	result, err := b.Exec(b.Context(), h, driver.Command{Args: args, Dir: "/srv"}, hangar.ExecStreams{Stdout: &out})
	if err != nil || result.ExitCode != 0 {
		b.Fatalf("exec %q: %+v, %v", args, result, err)
	}
	return strings.TrimSuffix(out.String(), "\n")
}

func (b *bench) exit(h driver.Handle) driver.Exit {
	b.Helper()
	exit, err := b.Wait(b.Context(), h)
	if err != nil {
		b.Fatal(err)
	}
	return exit
}

func (b *bench) destroy() {
	b.Helper()
	if err := b.Destroy(finishtest.Context(b), id, b.spec.Dir); err != nil {
		b.Fatal(err)
	}
}

// restarted returns the same host after its daemon was killed and started again.
func (b *bench) restarted() *bench {
	b.Helper()
	dir := filepath.Join(filepath.Dir(b.spec.Dir), "world")
	w := fake.NewWorld(dir)
	return &bench{TB: b.TB, world: w, Driver: fake.New(w, fake.Options{}), spec: b.spec}
}

func (b *bench) wantNoMisuse() {
	b.Helper()
	if m, err := b.world.Misuses(); err != nil || len(m) != 0 {
		b.Errorf("Misuses = %q, %v", m, err)
	}
}

func wantErr(tb testing.TB, what string, err, want error) {
	tb.Helper()
	if !errors.Is(err, want) {
		tb.Errorf("%s: error %v, want %v", what, err, want)
	}
}

func TestLife(t *testing.T) {
	b := newBench(t)
	h := b.start()
	if running, err := b.world.Running(); err != nil || !slices.Equal(running, []hangar.MachineID{id}) {
		t.Errorf("Running = %v, %v", running, err)
	}
	if p, err := b.Processes(t.Context(), h); err != nil || len(p) != 1 || p[0].Command != "/server --serve" {
		t.Errorf("Processes = %+v, %v", p, err)
	}
	if s, err := b.Stats(t.Context(), h); err != nil || s.MemoryBytes == 0 || s.Processes != 1 {
		t.Errorf("Stats = %+v, %v", s, err)
	}
	if err := b.Stop(t.Context(), h, hangar.Signal(syscall.SIGTERM), time.Minute); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if exit := b.exit(h); exit.Code != 143 || exit.Signal != 15 || exit.At.IsZero() {
			t.Errorf("exit %+v", exit)
		}
	}
	ctx := t.Context()
	wantErr(t, "Signal", b.Signal(ctx, h, 15), driver.ErrNotFound)
	wantErr(t, "Stop", b.Stop(ctx, h, 15, 0), nil)
	wantErr(t, "Suspend", b.Suspend(ctx, h, filepath.Join(b.spec.Dir, "snapshot")), driver.ErrNotFound)
	_, err := b.Exec(ctx, h, driver.Command{Args: []string{"true"}}, hangar.ExecStreams{})
	wantErr(t, "Exec", err, driver.ErrNotFound)
	_, err = b.Stats(ctx, h)
	wantErr(t, "Stats", err, driver.ErrNotFound)
	_, err = b.Processes(ctx, h)
	wantErr(t, "Processes", err, driver.ErrNotFound)
	if err := b.Recover(ctx, h); err != nil {
		t.Errorf("Recover of one that ended: %v", err)
	}

	b.destroy()
	b.destroy()
	wantErr(t, "Recover", b.Recover(ctx, h), driver.ErrNotFound)
	if ids, err := b.List(ctx); err != nil || len(ids) != 0 {
		t.Errorf("List = %v, %v", ids, err)
	}
	second := b.start()
	wantErr(t, "Signal by the handle of an earlier boot", b.Signal(ctx, h, 15), driver.ErrNotFound)
	if bytes.Equal(h, second) {
		t.Error("two boots have one handle")
	}
	b.wantNoMisuse()
}

func TestDestroyWakesWait(t *testing.T) {
	b := newBench(t)
	h := b.start()
	done := make(chan error)
	go func() {
		_, err := b.Wait(t.Context(), h)
		done <- err
	}()
	b.destroy()
	wantErr(t, "Wait", <-done, driver.ErrNotFound)
}

func TestExits(t *testing.T) {
	for name, c := range map[string]struct {
		env  string
		args []string
		want driver.Exit
		at   time.Duration
	}{
		"by code":       {env: fake.EnvExit + "=7@200ms", want: driver.Exit{Code: 7}, at: 200 * time.Millisecond},
		"by signal":     {env: fake.EnvExit + "=signal:11@1s", want: driver.Exit{Code: 139, Signal: 11}, at: time.Second},
		"out of memory": {env: fake.EnvExit + "=oom", want: driver.Exit{Code: 137, Signal: 9, OOMKilled: true}},
		"true":          {args: []string{"true"}},
		"false":         {args: []string{"/bin/false"}, want: driver.Exit{Code: 1}},
		"exit":          {args: []string{"exit", "3"}, want: driver.Exit{Code: 3}},
		"script":        {args: []string{"/bin/sh", "-c", "echo a; sleep 2; sleep 1; exit 9; sleep 5"}, want: driver.Exit{Code: 9}, at: 3 * time.Second},
		"sleep":         {args: []string{"sleep", "1.5"}, at: 1500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, c.env)
				if c.args != nil {
					b.spec.Command.Args = c.args
				}
				begin := time.Now().UTC().Round(0)
				exit := b.exit(b.start())
				if !exit.At.Equal(begin.Add(c.at)) {
					t.Errorf("ended after %v, want %v", exit.At.Sub(begin), c.at)
				}
				exit.At = time.Time{}
				if exit != c.want {
					t.Errorf("exit %+v, want %+v", exit, c.want)
				}
			})
		})
	}
}

func TestExitWhileTheDaemonIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, fake.EnvExit+"=7@200ms")
		begin := time.Now().UTC().Round(0)
		h := b.start()
		time.Sleep(time.Hour)
		b = b.restarted()
		if err := b.Recover(t.Context(), h); err != nil {
			t.Fatal(err)
		}
		if exit := b.exit(h); exit.Code != 7 || !exit.At.Equal(begin.Add(200*time.Millisecond)) {
			t.Errorf("exit %+v, started at %v", exit, begin)
		}
		if running, err := b.world.Running(); err != nil || len(running) != 0 {
			t.Errorf("Running = %v, %v", running, err)
		}
	})
}

func TestStop(t *testing.T) {
	for name, c := range map[string]struct {
		env   string
		grace time.Duration
		code  int
		after time.Duration
	}{
		"at once":                     {grace: time.Second, code: 143},
		"gracefully":                  {env: fake.EnvStop + "=0@300ms", grace: time.Second, after: 300 * time.Millisecond},
		"too slowly":                  {env: fake.EnvStop + "=0@3s", grace: time.Second, code: 137, after: time.Second},
		"not at all":                  {env: fake.EnvStop + "=ignore", grace: time.Second, code: 137, after: time.Second},
		"no patience":                 {env: fake.EnvStop + "=ignore", code: 137},
		"though it was to end later":  {env: fake.EnvExit + "=4@100ms", grace: time.Second, code: 143},
		"and it ends by itself first": {env: fake.EnvStop + "=ignore\x00" + fake.EnvExit + "=4@100ms", grace: time.Second, code: 4, after: 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, strings.Split(c.env, "\x00")...)
				h := b.start()
				begin := time.Now()
				if err := b.Stop(t.Context(), h, 15, c.grace); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(begin); took != c.after {
					t.Errorf("took %v, want %v", took, c.after)
				}
				if exit := b.exit(h); exit.Code != c.code {
					t.Errorf("exit %+v, want code %d", exit, c.code)
				}
				b.wantNoMisuse()
			})
		})
	}
}

func TestStopGivesUpWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, fake.EnvStop+"=ignore")
		h := b.start()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantErr(t, "Stop", b.Stop(ctx, h, 15, time.Hour), context.DeadlineExceeded)
		if running, err := b.world.Running(); err != nil || len(running) != 1 {
			t.Errorf("Running = %v, %v", running, err)
		}
	})
}

func TestHarmlessSignals(t *testing.T) {
	b := newBench(t)
	h := b.start()
	for _, sig := range []syscall.Signal{syscall.SIGWINCH, syscall.SIGCONT, syscall.SIGCHLD, syscall.SIGURG} {
		if err := b.Signal(t.Context(), h, hangar.Signal(sig)); err != nil {
			t.Error(err)
		}
	}
	if err := b.Signal(t.Context(), h, 99); err == nil {
		t.Error("signal 99 was accepted")
	}
	if running, err := b.world.Running(); err != nil || len(running) != 1 {
		t.Errorf("Running = %v, %v", running, err)
	}
}

func TestSuspendKeepsEverything(t *testing.T) {
	b := newBench(t)
	h := b.start()
	boot := b.say(h, "boot")
	snapshot := filepath.Join(b.spec.Dir, "snapshot")
	for cycle, want := range []string{"1", "2", "3", "4", "5"} {
		if got := b.say(h, "incr"); got != want {
			t.Fatalf("cycle %d: counter %s, want %s", cycle, got, want)
		}
		if err := b.Suspend(t.Context(), h, snapshot); err != nil {
			t.Fatal(err)
		}
		if exit := b.exit(h); !exit.Suspended {
			t.Fatalf("exit %+v", exit)
		}
		b.destroy()
		b = b.restarted()
		resumed, err := b.Resume(t.Context(), b.spec, snapshot)
		if err != nil {
			t.Fatal(err)
		}
		wantErr(t, "Recover by the old handle", b.Recover(t.Context(), h), driver.ErrNotFound)
		h = resumed
		if got := b.say(h, "boot"); got != boot {
			t.Fatalf("boot %s, want %s", got, boot)
		}
		if err := os.RemoveAll(snapshot); err != nil {
			t.Fatal(err)
		}
	}
	b.destroy()
	h = b.start()
	if got := b.say(h, "memory"); got != "0" {
		t.Errorf("after a boot the counter is %s", got)
	}
	if got := b.say(h, "boot"); got == boot {
		t.Error("a boot kept its name")
	}
	b.wantNoMisuse()
}

func TestSuspendStopsTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, fake.EnvExit+"=3@10s")
		h := b.start()
		time.Sleep(4 * time.Second)
		snapshot := filepath.Join(b.spec.Dir, "snapshot")
		if err := b.Suspend(t.Context(), h, snapshot); err != nil {
			t.Fatal(err)
		}
		b.destroy()
		time.Sleep(time.Hour)
		begin := time.Now()
		h, err := b.Resume(t.Context(), b.spec, snapshot)
		if err != nil {
			t.Fatal(err)
		}
		exit := b.exit(h)
		if took := time.Since(begin); exit.Code != 3 || took != 6*time.Second {
			t.Errorf("exit %+v after %v, want 6s", exit, took)
		}
	})
}

func TestUnusableSnapshots(t *testing.T) {
	b := newBench(t)
	h := b.start()
	good := filepath.Join(b.spec.Dir, "good")
	if err := b.Suspend(t.Context(), h, good); err != nil {
		t.Fatal(err)
	}
	b.destroy()
	memory, err := os.ReadFile(filepath.Join(good, "memory"))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"missing": nil,
		"empty":   {},
		"cut":     memory[:len(memory)/2],
		"altered": bytes.Replace(memory, []byte(`"counter":0`), []byte(`"counter":9`), 1),
	} {
		dir := filepath.Join(b.spec.Dir, name)
		if content != nil {
			if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "memory"), content, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		_, err := b.Resume(t.Context(), b.spec, dir)
		wantErr(t, name, err, driver.ErrSnapshotUnusable)
		if running, err := b.world.Running(); err != nil || len(running) != 0 {
			t.Errorf("%s: Running = %v, %v", name, running, err)
		}
	}
	if _, err := b.Resume(t.Context(), b.spec, good); err != nil {
		t.Errorf("the good one: %v", err)
	}
	b.wantNoMisuse()
}

func TestRoot(t *testing.T) {
	b := newBench(t)
	if err := os.WriteFile(filepath.Join(b.spec.Root.Layers[0], "motd"), []byte("from the image"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := b.start()
	if got := b.say(h, "cat", "/motd"); got != "from the image" {
		t.Errorf("cat = %q", got)
	}
	b.say(h, "write", "/etc/motd", "mine")
	b.say(h, "write", "motd", "over it")
	b.destroy()
	h = b.start()
	if got := b.say(h, "cat", "/etc/motd"); got != "mine" {
		t.Errorf("a kept root holds %q", got)
	}
	b.destroy()
	if err := os.RemoveAll(b.spec.Root.Writable); err != nil {
		t.Fatal(err)
	}
	h = b.start()
	if got := b.say(h, "cat", "/motd"); got != "from the image" {
		t.Errorf("with a new writable layer: %q", got)
	}
	var text bytes.Buffer
	result, err := b.Exec(t.Context(), h, driver.Command{Args: []string{"cat", "/../../../../etc/passwd"}}, hangar.ExecStreams{Stderr: &text})
	if err != nil || result.ExitCode == 0 {
		t.Errorf("a way out of the root: %+v, %v", result, err)
	}
}

func TestExec(t *testing.T) {
	b := newBench(t)
	h := b.start()
	for name, c := range map[string]struct {
		cmd         driver.Command
		in          string
		out, stderr string
		code, sig   int
	}{
		"echo":          {cmd: driver.Command{Args: []string{"/bin/echo", "a", "b"}}, out: "a b\n"},
		"stderr":        {cmd: driver.Command{Args: []string{"stderr", "oops"}}, stderr: "oops\n"},
		"tty":           {cmd: driver.Command{Args: []string{"stderr", "oops"}, TTY: true}, out: "oops\n"},
		"size":          {cmd: driver.Command{Args: []string{"size"}, TTY: true, Size: hangar.TerminalSize{Rows: 24, Cols: 80}}, out: "24x80\n"},
		"cat":           {cmd: driver.Command{Args: []string{"cat"}}, in: "through", out: "through"},
		"env":           {cmd: driver.Command{Args: []string{"env"}, Env: []string{"A=1", "B=2"}}, out: "A=1\nB=2\n"},
		"pwd":           {cmd: driver.Command{Args: []string{"pwd"}, Dir: "/tmp"}, out: "/tmp\n"},
		"exit":          {cmd: driver.Command{Args: []string{"exit", "42"}}, code: 42},
		"kill":          {cmd: driver.Command{Args: []string{"kill", "9"}}, code: 137, sig: 9},
		"false":         {cmd: driver.Command{Args: []string{"false"}}, code: 1},
		"bad number":    {cmd: driver.Command{Args: []string{"exit", "x"}}, code: 2, stderr: "exit: want a number\n"},
		"shell":         {cmd: driver.Command{Args: []string{"sh", "-c", "echo a; echo b; exit 3; echo c"}}, out: "a\nb\n", code: 3},
		"shell unknown": {cmd: driver.Command{Args: []string{"sh", "-c", "nothing"}}, code: 127, stderr: "nothing: not found\n"},
		"no file":       {cmd: driver.Command{Args: []string{"cat", "/none"}}, code: 2, stderr: "cat: /none: file does not exist\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, stderr bytes.Buffer
			result, err := b.Exec(t.Context(), h, c.cmd, hangar.ExecStreams{Stdin: strings.NewReader(c.in), Stdout: &out, Stderr: &stderr})
			if err != nil {
				t.Fatal(err)
			}
			if result.ExitCode != c.code || result.ExitSignal != c.sig || out.String() != c.out || stderr.String() != c.stderr {
				t.Errorf("%+v, out %q, err %q", result, out.String(), stderr.String())
			}
		})
	}
	_, err := b.Exec(t.Context(), h, driver.Command{Args: []string{"nothing"}}, hangar.ExecStreams{})
	wantErr(t, "unknown command", err, driver.ErrCommandNotFound)
}

func TestExecEndsWithItsContext(t *testing.T) {
	b := newBench(t)
	h := b.start()
	for _, args := range [][]string{{"sleep", "infinity"}, {"sleep", "1000"}, {"cat"}} {
		in, feed := io.Pipe()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		_, err := b.Exec(ctx, h, driver.Command{Args: args}, hangar.ExecStreams{Stdin: in})
		wantErr(t, args[0], err, context.Canceled)
		_ = feed.Close()
	}
}

func TestExecDiesWithItsSandbox(t *testing.T) {
	b := newBench(t)
	h := b.start()
	in, feed := io.Pipe()
	out, words := io.Pipe()
	go func() {
		_, _ = feed.Write([]byte("x"))
		_, _ = out.Read(make([]byte, 1)) // the command runs
		_ = b.world.Crash(id, driver.Exit{Code: 1})
	}()
	result, err := b.Exec(t.Context(), h, driver.Command{Args: []string{"cat"}}, hangar.ExecStreams{Stdin: in, Stdout: words})
	_ = feed.Close()
	if err != nil || result.ExitCode != 137 || result.ExitSignal != 9 {
		t.Errorf("%+v, %v", result, err)
	}
	if exit := b.exit(h); exit.Code != 1 || exit.At.IsZero() {
		t.Errorf("exit %+v", exit)
	}
}

func TestExecResize(t *testing.T) {
	b := newBench(t)
	h := b.start()
	in, feed := io.Pipe()
	out, words := io.Pipe()
	resize := make(chan hangar.TerminalSize)
	done := make(chan error)
	go func() {
		_, err := b.Exec(t.Context(), h, driver.Command{Args: []string{"cat"}, TTY: true}, hangar.ExecStreams{Stdin: in, Stdout: words, Resize: resize})
		done <- err
	}()
	resize <- hangar.TerminalSize{Rows: 10, Cols: 20}
	text := make([]byte, 6)
	if _, err := io.ReadFull(out, text); err != nil || string(text) != "10x20\n" {
		t.Errorf("%q, %v", text, err)
	}
	close(resize)
	_ = feed.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestOutput(t *testing.T) {
	b := newBench(t, fake.EnvOutput+"=line 1\nline 2")
	b.spec.Output = filepath.Join(b.spec.Dir, "output")
	if err := syscall.Mkfifo(b.spec.Output, 0o600); err != nil {
		t.Fatal(err)
	}
	b.start() // without a reader
	b.destroy()
	f, err := os.OpenFile(b.spec.Output, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b.start()
	text := make([]byte, len("line 1\nline 2\n"))
	if _, err := io.ReadFull(f, text); err != nil || string(text) != "line 1\nline 2\n" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestFaults(t *testing.T) {
	boom := errors.New("boom")
	var failing fake.Op
	o := fake.Options{Faults: func(op fake.Op, of hangar.MachineID) (time.Duration, error) {
		if (of == "") != (op == fake.OpList) {
			t.Errorf("fault asked for %q of %q", op, of)
		}
		if op == failing {
			return time.Millisecond, boom
		}
		return 0, nil
	}}
	b := newBenchWith(t, o)
	ctx := t.Context()
	snapshot := filepath.Join(b.spec.Dir, "snapshot")
	var h driver.Handle
	start := func() error {
		_, err := b.Start(ctx, b.spec)
		return err
	}
	resume := func() error {
		_, err := b.Resume(ctx, b.spec, snapshot)
		return err
	}
	wantLeft := func(op fake.Op, n int) {
		t.Helper()
		failing = ""
		if ids, err := b.List(ctx); err != nil || len(ids) != n {
			t.Errorf("after a failed %q: List = %v, %v, want %d", op, ids, err, n)
		}
	}
	for _, op := range []fake.Op{fake.OpStart, fake.OpStartDone} {
		failing = op
		wantErr(t, string(op), start(), boom)
		wantLeft(op, 0)
	}
	h = b.start()
	for op, fn := range map[fake.Op]func() error{
		fake.OpRecover: func() error { return b.Recover(ctx, h) },
		fake.OpSignal:  func() error { return b.Signal(ctx, h, 15) },
		fake.OpStop:    func() error { return b.Stop(ctx, h, 15, 0) },
		fake.OpSuspend: func() error { return b.Suspend(ctx, h, snapshot) },
		fake.OpDestroy: func() error { return b.Destroy(finishtest.Context(t), id, b.spec.Dir) },
		fake.OpExec: func() error {
			_, err := b.Exec(ctx, h, driver.Command{Args: []string{"true"}}, hangar.ExecStreams{})
			return err
		},
		fake.OpList: func() error {
			_, err := b.List(ctx)
			return err
		},
	} {
		failing = op
		wantErr(t, string(op), fn(), boom)
		wantLeft(op, 1)
		if _, err := os.Stat(snapshot); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after a failed %q there is a snapshot: %v", op, err)
		}
	}
	failing = fake.OpSuspendDone
	if err := b.Suspend(ctx, h, snapshot); err != nil {
		t.Error(err)
	}
	failing = fake.OpDestroyDone
	wantErr(t, "destroy done", b.Destroy(finishtest.Context(t), id, b.spec.Dir), boom)
	wantLeft(failing, 0)
	for _, op := range []fake.Op{fake.OpResume, fake.OpResumeDone} {
		failing = op
		wantErr(t, string(op), resume(), boom)
		wantLeft(op, 0)
	}
	if err := resume(); err != nil {
		t.Error(err)
	}
	b.wantNoMisuse()
}

func TestFaultsByEnvironment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, fake.EnvStartDelay+"=1s", fake.EnvStartError+"=no luck")
		begin := time.Now()
		_, err := b.Start(t.Context(), b.spec)
		if err == nil || !strings.Contains(err.Error(), "no luck") || time.Since(begin) != time.Second {
			t.Errorf("Start: %v after %v", err, time.Since(begin))
		}
		b.spec.Command.Env = []string{fake.EnvStartError + "=command not found"}
		_, err = b.Start(t.Context(), b.spec)
		wantErr(t, "Start", err, driver.ErrCommandNotFound)

		b.spec.Command.Env = []string{fake.EnvSuspendError + "=disk full"}
		snapshot := filepath.Join(b.spec.Dir, "snapshot")
		h := b.start()
		if err := b.Suspend(t.Context(), h, snapshot); err == nil || !strings.Contains(err.Error(), "disk full") {
			t.Errorf("Suspend: %v", err)
		}
		if b.say(h, "memory") != "0" {
			t.Error("it does not run any more")
		}
		b.destroy()

		b.spec.Command.Env = []string{fake.EnvResumeDelay + "=2s", fake.EnvResumeError + "=snapshot unusable"}
		h = b.start()
		if err := b.Suspend(t.Context(), h, snapshot); err != nil {
			t.Fatal(err)
		}
		b.destroy()
		begin = time.Now()
		_, err = b.Resume(t.Context(), b.spec, snapshot)
		wantErr(t, "Resume", err, driver.ErrSnapshotUnusable)
		if time.Since(begin) != 2*time.Second {
			t.Errorf("Resume took %v", time.Since(begin))
		}

		b.spec.Command.Env = []string{fake.EnvStartDelay + "=1h"}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = b.Start(ctx, b.spec)
		wantErr(t, "Start", err, context.DeadlineExceeded)
		b.wantNoMisuse()
	})
}

func TestMisuse(t *testing.T) {
	var misuses int
	check := func(b *bench, what string, err error) {
		t.Helper()
		wantErr(t, what, err, fake.ErrMisuse)
		m, merr := b.world.Misuses()
		if merr != nil || len(m) != misuses+1 {
			t.Errorf("%s: Misuses = %q, %v", what, m, merr)
		}
		misuses = len(m)
	}
	b := newBench(t)
	ctx := t.Context()
	snapshot := filepath.Join(b.spec.Dir, "snapshot")
	h := b.start()
	b.say(h, "incr")
	_, err := b.Start(ctx, b.spec)
	check(b, "Start of one that runs", err)
	_, err = b.Resume(ctx, b.spec, snapshot)
	check(b, "Resume of one that runs", err)
	check(b, "a foreign handle", b.Recover(ctx, driver.Handle("gvisor")))
	_, err = b.Exec(ctx, h, driver.Command{}, hangar.ExecStreams{})
	check(b, "Exec of nothing", err)
	check(b, "Suspend to where something is", b.Suspend(ctx, h, b.spec.Dir))
	if err := b.Suspend(ctx, h, snapshot); err != nil {
		t.Fatal(err)
	}
	b.destroy()

	other := b.spec
	other.Root.Writable += "2"
	_, err = b.Resume(ctx, other, snapshot)
	check(b, "Resume with another root", err)

	for what, alter := range map[string]func(s *driver.Spec){
		"no id":        func(s *driver.Spec) { s.ID = "" },
		"no command":   func(s *driver.Spec) { s.Command.Args = nil },
		"no layer":     func(s *driver.Spec) { s.Root.Layers = nil },
		"no directory": func(s *driver.Spec) { s.Dir += "/none" },
	} {
		bad := b.spec
		alter(&bad)
		_, err := b.Start(ctx, bad)
		check(b, what, err)
	}
}

func TestConcurrentLifecycleIsMisuse(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	var once sync.Once
	b := newBenchWith(t, fake.Options{Faults: func(op fake.Op, _ hangar.MachineID) (time.Duration, error) {
		once.Do(func() {
			close(entered)
			<-leave
		})
		return 0, nil
	}})
	done := make(chan error)
	go func() {
		_, err := b.Start(t.Context(), b.spec)
		done <- err
	}()
	<-entered
	_, err := b.Start(t.Context(), b.spec)
	wantErr(t, "second Start", err, fake.ErrMisuse)
	wantErr(t, "Destroy during Start", b.Destroy(finishtest.Context(t), id, b.spec.Dir), fake.ErrMisuse)
	close(leave)
	if err := <-done; err != nil {
		t.Errorf("first Start: %v", err)
	}
	if m, err := b.world.Misuses(); err != nil || len(m) != 2 {
		t.Errorf("Misuses = %q, %v", m, err)
	}
}

func TestVanish(t *testing.T) {
	b := newBench(t)
	h := b.start()
	if err := b.world.Vanish(); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "Recover", b.Recover(t.Context(), h), driver.ErrNotFound)
	wantErr(t, "Crash", b.world.Crash(id, driver.Exit{}), driver.ErrNotFound)
	b.start()
}

func TestManyAtOnce(t *testing.T) {
	b := newBench(t, fake.EnvExit+"=5@20ms")
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() {
			spec := b.spec
			spec.ID = hangar.MachineID(strings.Repeat("a", i+1))
			spec.Root.Writable += string(spec.ID)
			h, err := b.Start(t.Context(), spec)
			if err != nil {
				t.Error(err)
				return
			}
			if i%2 == 0 {
				if err := b.Stop(t.Context(), h, 9, 0); err != nil && !errors.Is(err, driver.ErrNotFound) {
					t.Error(err)
				}
			}
			if exit, err := b.Wait(t.Context(), h); err != nil || exit.Code != 5 && exit.Code != 137 {
				t.Errorf("exit %+v, %v", exit, err)
			}
			if err := b.Destroy(finishtest.Context(t), spec.ID, spec.Dir); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if ids, err := b.List(t.Context()); err != nil || len(ids) != 0 {
		t.Errorf("List = %v, %v", ids, err)
	}
	b.wantNoMisuse()
}
