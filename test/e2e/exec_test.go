package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/test/e2e/debian"
	"github.com/hangar-platform/hangar/test/e2e/software"
)

// shell is a Debian system that sleeps.
func (p *platform) shell(t *testing.T, name string) *machine {
	t.Helper()
	img := build(t, debian.Recipe{Packages: []string{"base-files"}, Version: "cat /etc/debian_version", Config: v1.Config{
		Cmd: []string{"sleep", "infinity"}, Env: append(software.Path, "GREETING=hello"), WorkingDir: "/var/lib", User: "daemon",
	}})
	return p.run(t, name, hangar.MachineConfig{Image: p.push(t, img, "shell:1")})
}

// TestExec runs commands in a Machine through the API.
func TestExec(t *testing.T) {
	p := start(t)
	m := p.shell(t, "shell")
	exec := func(t *testing.T, req hangar.ExecRequest, streams hangar.ExecStreams) (hangar.ExecResult, error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		return p.c.ExecMachine(ctx, m.ref, req, streams)
	}
	sh := func(script string) hangar.ExecRequest {
		return hangar.ExecRequest{Command: []string{"sh", "-c", script}}
	}

	t.Run("streams", func(t *testing.T) {
		sent := make([]byte, 8<<20)
		for i := range sent {
			sent[i] = byte(rand.Uint32())
		}
		want := sha256.Sum256(sent)
		got := sha256.New()
		var stderr bytes.Buffer
		result, err := exec(t, sh("cat; echo done >&2; exit 3"), hangar.ExecStreams{Stdin: bytes.NewReader(sent), Stdout: got, Stderr: &stderr})
		if err != nil || result.ExitCode != 3 {
			t.Fatalf("%+v, %v", result, err)
		}
		if !bytes.Equal(got.Sum(nil), want[:]) || stderr.String() != "done\n" {
			t.Fatalf("what was sent came back changed; stderr: %q", stderr.String())
		}
	})
	t.Run("a signal ends it", func(t *testing.T) {
		result, err := exec(t, sh("kill -KILL $$"), hangar.ExecStreams{})
		if err != nil || result != (hangar.ExecResult{ExitCode: 137, ExitSignal: 9}) {
			t.Fatalf("%+v, %v", result, err)
		}
	})
	t.Run("time is up", func(t *testing.T) {
		_, err := exec(t, hangar.ExecRequest{Command: []string{"sleep", "7001"}, Timeout: 300 * time.Millisecond}, hangar.ExecStreams{})
		if hangar.CodeOf(err) != hangar.CodeTimeout {
			t.Fatalf("answered %v", err)
		}
		m.gone(t, "sleep 7001")
	})
	t.Run("the caller leaves", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r, w := io.Pipe()
		ended := make(chan error, 1)
		go func() {
			_, err := p.c.ExecMachine(ctx, m.ref, sh("echo here; exec sleep 7002"), hangar.ExecStreams{Stdout: w})
			ended <- errors.Join(err, w.Close())
		}()
		if _, err := io.ReadFull(r, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := <-ended; err == nil {
			t.Fatal("no error")
		}
		m.gone(t, "sleep 7002")
	})
	t.Run("the image's environment and directory", func(t *testing.T) {
		if out := m.exec(t, "sh", "-c", "echo $GREETING; pwd"); out != "hello\n/var/lib\n" {
			t.Fatalf("printed %q", out)
		}
	})
	t.Run("many at once", func(t *testing.T) {
		var all sync.WaitGroup
		for n := range 20 {
			all.Go(func() {
				out, code, err := m.tryExec(t.Context(), "sh", "-c", fmt.Sprintf("echo %d; exit %d", n, n))
				if err != nil || code != n || out != fmt.Sprintln(n) {
					t.Errorf("command %d: code %d, %v, %q", n, code, err, out)
				}
			})
		}
		all.Wait()
	})
	t.Run("no such command", func(t *testing.T) {
		result, err := exec(t, hangar.ExecRequest{Command: []string{"/no/such/command"}}, hangar.ExecStreams{})
		if err == nil && result.ExitCode != 127 {
			t.Fatalf("%+v", result)
		}
	})
	t.Run("terminal", func(t *testing.T) { testTerminal(t, p, m) })
	t.Run("after a resume", func(t *testing.T) {
		m.suspend(t)
		_, err := exec(t, sh("true"), hangar.ExecStreams{})
		if hangar.CodeOf(err) != hangar.CodeFailedPrecondition {
			t.Fatalf("a suspended Machine answered %v", err)
		}
		m.resume(t)
		if out := m.exec(t, "echo", "back"); out != "back\n" {
			t.Fatalf("printed %q", out)
		}
	})
}

// gone waits until no process of the Machine has a command.
func (m *machine) gone(t *testing.T, command string) {
	t.Helper()
	until(t, "end of "+command, func() error {
		if left := m.processes(t, command); len(left) > 0 {
			return fmt.Errorf("still there: %v", left)
		}
		return nil
	})
}

// testTerminal talks to a shell on a terminal.
func testTerminal(t *testing.T, p *platform, m *machine) {
	t.Helper()
	stdin, typed := io.Pipe()
	screen, stdout := io.Pipe()
	resize := make(chan hangar.TerminalSize)
	type end struct {
		result hangar.ExecResult
		err    error
	}
	ended := make(chan end, 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(func() {
		cancel()
		typed.Close()
		screen.Close()
	})
	go func() {
		result, err := p.c.ExecMachine(ctx, m.ref, hangar.ExecRequest{
			Command: []string{"sh", "-i"}, TTY: true, Size: hangar.TerminalSize{Rows: 40, Cols: 100},
		}, hangar.ExecStreams{Stdin: stdin, Stdout: stdout, Resize: resize})
		stdout.Close()
		ended <- end{result, err}
	}()
	seen := ""
	sees := func(what string) {
		t.Helper()
		buf := make([]byte, 4096)
		for !strings.Contains(seen, what) {
			n, err := screen.Read(buf)
			if err != nil {
				t.Fatalf("the screen shows no %q but %q: %v", what, seen, err)
			}
			seen += string(buf[:n])
		}
		_, seen, _ = strings.Cut(seen, what)
	}
	types := func(text string) {
		t.Helper()
		if _, err := io.WriteString(typed, text); err != nil {
			t.Fatal(err)
		}
	}
	types("stty size\n")
	sees("40 100")
	select {
	case resize <- hangar.TerminalSize{Rows: 51, Cols: 132}:
	case <-ctx.Done():
		t.Fatal("the new size is not taken")
	}
	until(t, "the new size", func() error {
		types("stty size; echo asked\n")
		sees("; echo asked") // as it is typed
		before, _, found := strings.Cut(seen, "asked")
		for !found {
			sees("")
			buf := make([]byte, 4096)
			n, err := screen.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			seen += string(buf[:n])
			before, _, found = strings.Cut(seen, "asked")
		}
		if !strings.Contains(before, "51 132") {
			return fmt.Errorf("the terminal shows %q", before)
		}
		return nil
	})
	types("test -t 0 && test -t 1 && echo is a ter''minal\n")
	sees("is a terminal")
	types("sleep 7003 || echo inter''rupted\n")
	until(t, "sleep", func() error {
		if len(m.processes(t, "sleep 7003")) == 0 {
			return errors.New("it does not run yet")
		}
		return nil
	})
	types("\x03")
	types("\necho still he''re\n")
	sees("still here")
	m.gone(t, "sleep 7003")
	types("exit 5\n")
	go func() { _, _ = io.Copy(io.Discard, screen) }()
	select {
	case e := <-ended:
		if e.err != nil || e.result.ExitCode != 5 {
			t.Fatalf("%+v", e)
		}
	case <-ctx.Done():
		t.Fatal("the shell does not end")
	}
}
