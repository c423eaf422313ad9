package guestinit

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestBinaryIsBuiltFromSource rebuilds the program where there is a C compiler.
// Compilers differ, so what is compared is the behaviour of both, below; here, that
// the source still compiles, and that both are of about the same size.
func TestBinaryIsBuiltFromSource(t *testing.T) {
	built := rebuild(t)
	got, err := os.ReadFile(built)
	if err != nil {
		t.Fatal(err)
	}
	if len(Binary()) == 0 {
		t.Skip("no committed program for this architecture")
	}
	if diff := len(got) - len(Binary()); diff > 1024 || diff < -1024 {
		t.Errorf("the source makes %d bytes, committed are %d: run `go generate`", len(got), len(Binary()))
	}
}

func rebuild(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler")
	}
	if _, err := os.ReadDir("src"); err != nil { // go test notes that, and not what the script reads
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "init")
	if text, err := exec.CommandContext(t.Context(), "sh", "src/build.sh", out).CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, text)
	}
	return out
}

// TestRun runs the committed program and the one that the source makes.
func TestRun(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("changing the user needs root")
	}
	committed := filepath.Join(t.TempDir(), "init")
	if err := os.WriteFile(committed, Binary(), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Run("committed", func(t *testing.T) { testRun(t, committed) })
	t.Run("source", func(t *testing.T) { testRun(t, rebuild(t)) })
}

func testRun(t *testing.T, program string) {
	t.Helper()
	missing := filepath.Join(t.TempDir(), "made", "for", "it")
	for _, tt := range []struct {
		name   string
		tty    bool
		uid    uint32
		groups []uint32
		dir    string
		script string
		stdin  string
		code   int // -1: ended by a signal
		out    string
	}{
		{name: "code", script: "exit 7", code: 7},
		{name: "signal", script: "kill -TERM $$", code: -1},
		{name: "user", uid: 65534, groups: []uint32{12, 34}, script: "id -u; id -G", out: "65534\n65534 12 34\n"},
		{name: "directory", dir: missing, script: "pwd", out: missing + "\n"},
		{name: "input", script: "cat", stdin: "some text", out: "some text"},
		{name: "terminal", tty: true, script: "stty size; exit 3", code: 3, out: "24 80\n"},
		{name: "terminal input", tty: true, script: "stty -echo; read x; echo got $x", stdin: "it\n", out: "got it\n"},
		{name: "terminal end of input", tty: true, script: "stty -echo; cat; exit 4", code: 4},
		{name: "terminal output", tty: true, script: "seq 5000 | tail -n 1; seq 20000 >/dev/tty", out: ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := Args(program, tt.tty, tt.uid, tt.uid, tt.groups, tt.dir, []string{"sh", "-c", tt.script})
			cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
			cmd.Stdin = strings.NewReader(tt.stdin)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			_ = cmd.Run()
			if got := cmd.ProcessState.ExitCode(); got != tt.code {
				t.Errorf("exit code %d, want %d; %s", got, tt.code, &out)
			}
			text := strings.ReplaceAll(out.String(), "\r", "")
			if tt.name == "terminal output" {
				if !strings.HasSuffix(text, "20000\n") {
					t.Errorf("the end of the output is missing: %d bytes", len(text))
				}
			} else if !strings.HasSuffix(text, tt.out) {
				t.Errorf("output %q, want %q", text, tt.out)
			}
		})
	}
}

func TestRunErrors(t *testing.T) {
	program := filepath.Join(t.TempDir(), "init")
	if err := os.WriteFile(program, Binary(), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		command string
		want    int
	}{
		{"no-such-command", ExitNotFound},
		{"/no/such/command", ExitNotFound},
		{"/etc", ExitCannotExec},
		{"/etc/passwd", ExitCannotExec},
	} {
		args := Args(program, false, 0, 0, nil, "", []string{tt.command})
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		out, _ := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != tt.want {
			t.Errorf("%s: exit code %d, want %d", tt.command, got, tt.want)
		}
		if !strings.Contains(string(out), tt.command) {
			t.Errorf("%s: output %q does not name it", tt.command, out)
		}
	}
}

func TestArgs(t *testing.T) {
	got := Args("/init", true, 1, 2, []uint32{3, 4}, "", []string{"a", "b"})
	if want := []string{"/init", "-t", "1", "2", "3,4", "/", "a", "b"}; !slices.Equal(got, want) {
		t.Errorf("Args = %q, want %q", got, want)
	}
	if got, want := Command(got), []string{"a", "b"}; !slices.Equal(got, want) {
		t.Errorf("Command = %q, want %q", got, want)
	}
	got = Args("/init", false, 0, 0, nil, "/x", []string{"a"})
	if want := []string{"/init", "0", "0", "-", "/x", "a"}; !slices.Equal(got, want) {
		t.Errorf("Args = %q, want %q", got, want)
	}
	if got, want := Command(got), []string{"a"}; !slices.Equal(got, want) {
		t.Errorf("Command = %q, want %q", got, want)
	}
}
