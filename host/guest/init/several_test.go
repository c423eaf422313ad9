package guestinit

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSeveral runs the committed program and the one that the source makes.
func TestSeveral(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("changing the user needs root")
	}
	committed := filepath.Join(t.TempDir(), "init")
	if err := os.WriteFile(committed, Binary(), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Run("committed", func(t *testing.T) { testSeveral(t, committed) })
	t.Run("source", func(t *testing.T) { testSeveral(t, rebuild(t)) })
}

func testSeveral(t *testing.T, program string) {
	t.Helper()
	const waits = `trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.01; done`
	for _, tt := range []struct {
		name    string
		scripts []string
		signal  unix.Signal // sent to the program once all are ready
		grace   time.Duration
		code    int // -1: ended by a signal
		told    int // how many received the signal to stop, and said so
	}{
		{name: "first ends", scripts: []string{"exit 7", waits, waits}, grace: time.Minute, code: 7, told: 2},
		{name: "last ends", scripts: []string{waits, "exit 0"}, grace: time.Minute, code: 0, told: 1},
		{name: "one is killed", scripts: []string{waits, "kill -KILL $$"}, grace: time.Minute, code: -1, told: 1},
		{name: "one cannot start", scripts: []string{waits, ""}, grace: time.Minute, code: ExitNotFound, told: 1},
		{name: "deaf", scripts: []string{"exit 3", "trap '' TERM; exec sleep 2"}, grace: 50 * time.Millisecond, code: 3},
		{name: "no grace", scripts: []string{"exit 3", "trap '' TERM; exec sleep 2"}, code: 3},
		{
			name: "stopped", signal: unix.SIGTERM, grace: time.Minute, code: 0, told: 2,
			scripts: []string{waits, `n=0; trap 'n=$((n+1))' TERM; echo ready; while [ $n = 0 ]; do sleep 0.01; done; sleep 0.3; echo told $n; exit 0`},
		},
		{name: "another signal", scripts: []string{"trap 'exit 9' USR1; echo ready; while :; do sleep 0.01; done", "trap '' USR1; " + waits}, signal: unix.SIGUSR1, grace: time.Minute, code: 9, told: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var commands []ManyCommand
			for _, s := range tt.scripts {
				c := ManyCommand{Args: []string{"sh", "-c", s}, Env: []string{"PATH=/usr/bin:/bin"}}
				if s == "" {
					c.Args = []string{"no-such-command"}
				}
				commands = append(commands, c)
			}
			cmd, out := runSeveral(t, program, tt.grace, commands)
			if tt.signal != 0 {
				out.await(t, "ready\n", 2)
				if err := cmd.Process.Signal(tt.signal); err != nil {
					t.Fatal(err)
				}
			}
			_ = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != tt.code {
				t.Errorf("exit code %d, want %d; %s", got, tt.code, out)
			}
			// A command may get the signal before it listens, and is then ended by it.
			if got := strings.Count(out.String(), "told"); got > tt.told || got < tt.told && strings.Count(out.String(), "ready") >= tt.told {
				t.Errorf("%d received the signal, want %d; %s", got, tt.told, out)
			}
			if strings.Contains(out.String(), "told 2") {
				t.Errorf("one received the signal twice: %s", out)
			}
		})
	}
}

// TestSeveralIdentities: each command has its own user, directory and environment.
func TestSeveralIdentities(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("changing the user needs root")
	}
	program := filepath.Join(t.TempDir(), "init")
	if err := os.WriteFile(program, Binary(), 0o700); err != nil {
		t.Fatal(err)
	}
	const script = `echo "$MINE $ALL $(id -u) $(id -G) $(pwd) $0" "$(env | grep -c '^[0-9]*:')"; exec sleep 30`
	const last = `n=0; while [ "$(wc -l <"/proc/$$/fd/1")" -lt 2 ] && [ $n -lt 2000 ]; do n=$((n+1)); sleep 0.01; done; exit 4`
	commands := []ManyCommand{
		{Args: []string{"sh", "-c", script, "two words"}, Env: []string{"PATH=/usr/bin:/bin", "ALL=all", "MINE=first"}, Dir: "/tmp"},
		{Args: []string{"sh", "-c", script, ""}, Env: []string{"PATH=/bin:/usr/bin", "ALL=all", "MINE=second"}, UID: 1000, GID: 1001, Groups: []uint32{1001, 7}},
		{Args: []string{"sh", "-c", last}, Env: []string{"PATH=/usr/bin:/bin", "ALL=all"}},
	}
	cmd, out := runSeveral(t, program, 0, commands)
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 4 {
		t.Errorf("exit code %d, want 4", got)
	}
	for _, want := range []string{"first all 0 0 /tmp two words 0\n", "second all 1000 1001 7 /  0\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output %q lacks %q", out, want)
		}
	}
}

func TestSeveralArgs(t *testing.T) {
	args, env := SeveralArgs("/init", 15, 2*time.Second, []ManyCommand{
		{Args: []string{"a", "b"}, Env: []string{"X=1", "Y=1"}, Dir: "/d", UID: 5, GID: 6, Groups: []uint32{7, 8}},
		{Args: []string{"c"}, Env: []string{"X=1", "Y=2"}},
	})
	if want := []string{"/init", "-m", "15", "2000", "5", "6", "7,8", "/d", "2", "a", "b", "0", "0", "-", "/", "1", "c"}; !slices.Equal(args, want) {
		t.Errorf("SeveralArgs = %q, want %q", args, want)
	}
	if want := []string{":X=1", "0:Y=1", "1:Y=2"}; !slices.Equal(env, want) {
		t.Errorf("environment %q, want %q", env, want)
	}
	for _, tt := range []struct {
		args []string
		want int
	}{
		{args, 2},
		{args[:len(args)-1], 1},
		{args[:4], 0},
		{Args("/init", false, 0, 0, nil, "", []string{"a"}), 1},
		{[]string{"/init"}, 1},
	} {
		if got := Count(tt.args); got != tt.want {
			t.Errorf("Count(%q) = %d, want %d", tt.args, got, tt.want)
		}
	}
	if got := Command(args); got != nil {
		t.Errorf("Command = %q, want none", got)
	}
}

// output collects what several processes print.
type output struct{ file *os.File }

func runSeveral(t *testing.T, program string, grace time.Duration, commands []ManyCommand) (*exec.Cmd, *output) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	args, env := SeveralArgs(program, int(unix.SIGTERM), grace, commands)
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, file, file
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, &output{file: file}
}

func (o *output) String() string {
	b, err := os.ReadFile(o.file.Name())
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// await returns once text was printed that many times.
func (o *output) await(t *testing.T, text string, times int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); strings.Count(o.String(), text) < times; {
		if time.Now().After(deadline) {
			t.Fatalf("waiting for %d times %q: %s", times, text, o)
		}
		time.Sleep(time.Millisecond)
	}
}
