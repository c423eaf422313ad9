package cli

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

const rawEnv = "HANGAR_TEST_RAW"

func TestMain(m *testing.M) {
	if os.Getenv(rawEnv) != "" {
		defer RestoreOnSignal(os.Stdin)()
		if _, err := term.MakeRaw(0); err != nil {
			panic(err)
		}
		fmt.Println("raw")
		select {}
	}
	os.Exit(m.Run())
}

// openTerminal returns the two ends of a pseudo-terminal.
func openTerminal(t *testing.T) (end, terminal *os.File) {
	t.Helper()
	end, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = end.Close() })
	if err := unix.IoctlSetPointerInt(int(end.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(end.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = terminal.Close() })
	return end, terminal
}

// TestRestoreOnSignal: a process that a signal ends leaves its terminal as it was.
func TestRestoreOnSignal(t *testing.T) {
	_, terminal := openTerminal(t)
	modes := func() uint32 {
		t.Helper()
		m, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		return m.Lflag
	}
	before := modes()
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		if signal.Ignored(s) {
			t.Logf("%s is ignored here, and was not tested", s)
			continue
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), rawEnv+"=1")
		cmd.Stdin = terminal
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fscanln(out, new(string)); err != nil {
			t.Fatal(err)
		}
		if modes() == before {
			t.Fatal("the terminal is not raw: nothing is tested")
		}
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != s {
			t.Errorf("%s: it ended with %s", s, cmd.ProcessState)
		}
		if modes() != before {
			t.Errorf("%s: the terminal stays raw", s)
		}
	}
}
