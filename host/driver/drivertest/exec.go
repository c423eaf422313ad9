package drivertest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
)

func (m *machine) exec(cmd driver.Command, streams hangar.ExecStreams) hangar.ExecResult {
	m.t.Helper()
	r, err := m.d.Exec(m.context(), m.handle, cmd, streams)
	if err != nil {
		m.t.Fatalf("Exec of %v: %v", cmd.Args, err)
	}
	return r
}

func (t test) exec() {
	m := t.start("sleep")
	for _, tt := range []struct {
		words []string
		want  hangar.ExecResult
	}{
		{[]string{"exit", "0"}, hangar.ExecResult{}},
		{[]string{"exit", "9"}, hangar.ExecResult{ExitCode: 9}},
		{[]string{"die", "TERM"}, hangar.ExecResult{ExitCode: 143, ExitSignal: int(unix.SIGTERM)}},
	} {
		if got := m.exec(t.Command(tt.words...), hangar.ExecStreams{}); got != tt.want {
			t.Errorf("%v: %+v, want %+v", tt.words, got, tt.want)
		}
	}
	cmd := t.Command("exit", "0")
	cmd.Args = []string{"no-such-command"}
	if _, err := m.d.Exec(m.context(), m.handle, cmd, hangar.ExecStreams{}); !errors.Is(err, driver.ErrCommandNotFound) {
		t.Errorf("Exec of a missing command: %v, want ErrCommandNotFound", err)
	}
	m.signal(sigTERM) // it still runs
	m.wait()
}

func (t test) execStreams() {
	m := t.start("sleep")
	var out, errs bytes.Buffer
	m.exec(t.Command("echo", "hello", "world"), hangar.ExecStreams{Stdout: &out, Stderr: &errs})
	if out.String() != "hello world\n" || errs.Len() != 0 {
		t.Errorf("stdout %q, stderr %q", &out, &errs)
	}
	out.Reset()
	m.exec(t.Command("complain", "loudly"), hangar.ExecStreams{Stdout: &out, Stderr: &errs})
	if out.Len() != 0 || errs.String() != "loudly\n" {
		t.Errorf("stdout %q, stderr %q", &out, &errs)
	}
	in := bytes.Repeat([]byte("all of this\n"), 50_000)
	out.Reset()
	m.exec(t.Command("cat"), hangar.ExecStreams{Stdin: bytes.NewReader(in), Stdout: &out})
	if !bytes.Equal(out.Bytes(), in) {
		t.Errorf("%d of %d bytes came back", out.Len(), len(in))
	}
	out.Reset()
	cmd := t.Command("whoami")
	cmd.UID, cmd.GID, cmd.Groups, cmd.Dir = 7, 8, []uint32{8}, "/"
	m.exec(cmd, hangar.ExecStreams{Stdout: &out})
	if got, want := strings.TrimSpace(out.String()), "7 8 [8] /"; got != want {
		t.Errorf("whoami %q, want %q", got, want)
	}
}

// execBrokenInput: a command does not take an input that fails for one that ends.
func (t test) execBrokenInput() {
	m := t.start("sleep")
	broken := errors.New("broken")
	in := io.MultiReader(strings.NewReader("part"), iotest.ErrReader(broken))
	var out bytes.Buffer
	if r, err := m.d.Exec(m.context(), m.handle, t.Command("cat"), hangar.ExecStreams{Stdin: in, Stdout: &out}); !errors.Is(err, broken) {
		t.Errorf("Exec: %+v, %v after %q, want the error of the input", r, err, &out)
	}
	m.awaitNone("cat")
}

func (t test) execTerminal() {
	m := t.start("sleep")
	var out bytes.Buffer
	cmd := t.Command("tty")
	cmd.TTY, cmd.Size = true, hangar.TerminalSize{Rows: 30, Cols: 100}
	m.exec(cmd, hangar.ExecStreams{Stdout: &out})
	if got, want := strings.TrimSpace(out.String()), "/dev/pts 30 100"; got != want {
		t.Errorf("tty %q, want %q", got, want)
	}
	// A resize reaches the process as a signal.
	resize := make(chan hangar.TerminalSize, 1)
	pr, pw := io.Pipe()
	defer pw.Close()
	lines := &lineWriter{on: func(line string) {
		if line == "ready" {
			resize <- hangar.TerminalSize{Rows: 55, Cols: 100}
		}
	}}
	cmd = t.Command("size", "55")
	cmd.TTY, cmd.Size = true, hangar.TerminalSize{Rows: 30, Cols: 100}
	m.exec(cmd, hangar.ExecStreams{Stdin: pr, Stdout: lines, Resize: resize})
	if got := lines.all(); !strings.Contains(got, "rows 55") {
		t.Errorf("output %q after a resize", got)
	}
	// ^C is a signal.
	pr2, pw2 := io.Pipe()
	defer pw2.Close()
	lines = &lineWriter{on: func(line string) {
		if line == "ready" {
			go func() { _, _ = pw2.Write([]byte{3}) }()
		}
	}}
	cmd = t.Command("sleep")
	cmd.TTY = true
	got := m.exec(cmd, hangar.ExecStreams{Stdin: pr2, Stdout: lines})
	if want := (hangar.ExecResult{ExitCode: 130, ExitSignal: 2}); got != want {
		t.Errorf("after ^C %+v, want %+v", got, want)
	}
}

func (t test) execContext() {
	m := t.start("sleep")
	for _, tty := range []bool{false, true} {
		ctx, cancel := context.WithCancel(m.context())
		cmd := t.Command("ignore", "INT")
		cmd.TTY = tty
		lines := &lineWriter{on: func(string) { cancel() }}
		_, err := m.d.Exec(ctx, m.handle, cmd, hangar.ExecStreams{Stdout: lines})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Exec: %v, want the context's error", err)
		}
		m.awaitNone("ignore")
		cancel()
	}
}

// execCalledOff ends the context at several moments while a command starts.
func (t test) execCalledOff() {
	m := t.start("sleep")
	const moments = 24
	for n := range moments {
		ctx, cancel := context.WithTimeout(m.context(), time.Duration(n)*250*time.Microsecond)
		_, err := m.d.Exec(ctx, m.handle, t.Command("ignore", "INT"), hangar.ExecStreams{})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Exec: %v, want the context's error", err)
		}
		cancel()
	}
	m.awaitNone("ignore")
}

// awaitNone waits until no process has the word in its command.
func (m *machine) awaitNone(word string) {
	m.t.Helper()
	for deadline := time.Now().Add(timeout); ; {
		n := m.count(word)
		if n == 0 {
			return
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("%d processes of a command that was called off", n)
		}
	}
}

// count returns how many processes have the word in their command.
func (m *machine) count(word string) int {
	m.t.Helper()
	ps, err := m.d.Processes(m.context(), m.handle)
	if err != nil {
		m.t.Fatalf("Processes: %v", err)
	}
	n := 0
	for _, p := range ps {
		if strings.Contains(p.Command, word) {
			n++
		}
	}
	return n
}

func (t test) processes() {
	m := t.start("sleep")
	if m.count("sleep") == 0 {
		ps, err := m.d.Processes(m.context(), m.handle)
		t.Errorf("the main process is not among %+v, %v", ps, err)
	}
	ps, err := m.d.Processes(m.context(), m.handle)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range ps {
		if p.PID < 1 || p.Directory == "" || p.ListenSockets == nil {
			t.Errorf("process %+v", p)
		}
	}
}

// lineWriter calls on with each complete line that is written to it.
type lineWriter struct {
	on func(string)

	mu   sync.Mutex
	text strings.Builder
	line strings.Builder
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(p)
	for _, b := range p {
		if b == '\n' {
			w.on(strings.TrimRight(w.line.String(), "\r"))
			w.line.Reset()
		} else {
			w.line.WriteByte(b)
		}
	}
	return len(p), nil
}

func (w *lineWriter) all() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}
