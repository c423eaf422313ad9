package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/test/daemon"
)

// proxy runs `hangar proxy` for a port of a Machine, on the same port of an address of
// this host, and returns the Machine as clients see it through that. It ends with the
// test, as Ctrl-C does.
func (m *machine) proxy(t *testing.T, port int, bind string) *machine {
	t.Helper()
	cmd := exec.Command(daemon.Binary(t), "proxy", fmt.Sprint(port), string(app), "--machine", string(m.ref.ID), "--bind", bind, "--quiet")
	cmd.Env = append(os.Environ(), "HANGAR_DIR="+m.p.d.Dir())
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		killed := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		defer killed.Stop()
		_ = cmd.Process.Signal(syscall.SIGINT) // unless it has ended, which Wait reports
		if err := cmd.Wait(); err != nil {
			t.Errorf("hangar proxy: %v", err)
		}
		if complaints.Len() > 0 {
			t.Errorf("hangar proxy complained: %s", complaints.String())
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if want := net.JoinHostPort(bind, fmt.Sprint(port)); err != nil || strings.TrimSpace(line) != want {
		t.Fatalf("hangar proxy printed %q, %v, not %s\n%s", line, err, want, complaints.String())
	}
	return &machine{p: m.p, ref: m.ref, ip: bind}
}

// TestProxiedPrograms uses real programs with real clients through `hangar proxy`: on
// one connection over suspends and resumes, and on many.
func TestProxiedPrograms(t *testing.T) {
	p := start(t)
	for i, test := range []struct {
		program
		port int
	}{{redis(), 6379}, {postgres(), 5432}} {
		t.Run(test.title, func(t *testing.T) {
			name := fmt.Sprintf("proxied-%d", i)
			m := p.run(t, name, test.config(p.push(t, build(t, test.recipe), name+":1")))
			dial(t, m.addr(test.port)) // it listens
			here := m.proxy(t, test.port, fmt.Sprintf("127.13.7.%d", i+1))
			test.serves(t, here)
			s := test.session(t, here)
			for range times(5, 2) {
				steps(t, s, 3)
				m.suspend(t)
				answer := make(chan error, 1)
				go func() { answer <- s.step() }()
				m.resume(t)
				if err := <-answer; err != nil {
					t.Fatalf("a request that was sent while suspended: %v", err)
				}
			}
			test.own(t, here)
			steps(t, s, 3)
		})
	}
}

// TestProxyEnds: a connected client learns that the Machine or the daemon has ended.
func TestProxyEnds(t *testing.T) {
	p := start(t)
	m, _, _ := p.runKeeper(t, "keeper", nil)
	for _, test := range []struct {
		name  string
		end   func()
		byOwn bool // the program closes its connections when it is asked to end
	}{
		{"stop", func() { m.stop(t); m.start(t); m.serves(t, 8080, "/state") }, true},
		{"kill of the daemon", func() { p.d.Kill(); p.d.Up() }, false},
		{"end of the daemon", func() { p.d.Term(); p.d.Up() }, false},
		{"destruction", func() { m.destroy(t) }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			conn, err := p.c.DialMachine(t.Context(), m.ref, 7000)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			test.end()
			if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			_, err = io.Copy(io.Discard, conn)
			if err == nil && !test.byOwn {
				t.Error("the connection ended as if the program had ended it")
			} else if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection hangs")
			}
			t.Log(err)
		})
	}
}

// TestConsole opens the shells that images have.
func TestConsole(t *testing.T) {
	p := start(t)
	prog, applets := redis(), busybox()
	m := p.run(t, "debian", prog.config(p.push(t, build(t, prog.recipe), "console:1")))
	console := func(t *testing.T, script string, args ...string) (out string, code int) {
		t.Helper()
		cmd := exec.Command(daemon.Binary(t), append([]string{"ssh", "console"}, args...)...)
		cmd.Env = append(os.Environ(), "HANGAR_DIR="+p.d.Dir())
		cmd.Stdin = strings.NewReader(script)
		b, err := cmd.CombinedOutput()
		if err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return string(b), cmd.ProcessState.ExitCode()
	}
	const script = "echo \"$FLY_SSH$PLATFORM_SSH ${BASH_VERSION:+bash} $FLY_APP_NAME\"\ncat <<< line\nexit 3\n"
	if out, code := console(t, script, string(app)); code != 3 || out != "11 bash "+string(app)+"\nline\n" {
		t.Errorf("the shell of an App: exit code %d\n%s", code, out)
	}
	if out, code := console(t, "", string(m.ref.ID), "--command", "cat /etc/hostname"); code != 0 || strings.TrimSpace(out) != string(m.ref.ID) {
		t.Errorf("a command: exit code %d\n%s", code, out)
	}
	if out, code := console(t, "stty size; tty; exit 4\n", string(app), "--pty"); code != 4 || !strings.Contains(out, "/dev/pts/") {
		t.Errorf("the shell with a terminal: exit code %d\n%s", code, out)
	}

	busy := p.run(t, "busybox", applets.config(p.d.Push(daemon.Busybox(t, "sh", "sleep", "echo"), "sh:1", "--cmd", "sleep", "--cmd", "100000")))
	if out, code := console(t, "echo $FLY_SSH; exit 5\n", string(app), "--machine", string(busy.ref.ID)); code != 5 || out != "1\n" {
		t.Errorf("a Machine without bash: exit code %d\n%s", code, out)
	}
	bare, _, _ := p.runKeeper(t, "bare", nil)
	if out, code := console(t, "", string(app), "--machine", string(bare.ref.ID)); code != 125 || !strings.Contains(out, "the Machine has no shell") {
		t.Errorf("a Machine without a shell: exit code %d\n%s", code, out)
	}
}
