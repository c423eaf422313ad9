package fake

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/internal/pause"
)

const (
	sigInt  = hangar.Signal(syscall.SIGINT)
	sigKill = hangar.Signal(syscall.SIGKILL)
	sigUSR1 = hangar.Signal(syscall.SIGUSR1)
)

// sandbox is the content of a sandbox's file.
type sandbox struct {
	Spec driver.Spec `json:"spec"`
	// Boot names the boot of the Machine; like memory, it survives suspend and resume.
	Boot string `json:"boot"`
	// Incarnation names this sandbox; a resumed Machine has a new one.
	Incarnation string    `json:"incarnation"`
	Started     time.Time `json:"started"`
	Memory      memory    `json:"memory"`
	// Exit is the planned exit.
	Exit *driver.Exit `json:"exit,omitempty"`
	// Ended is the exit; nil while the sandbox runs.
	Ended *driver.Exit `json:"ended,omitempty"`

	said string // output of the processes as they started
}

// memory is lost at the end of a sandbox unless it is suspended.
type memory struct {
	Counter uint64 `json:"counter"` // see the command incr
	Writes  uint64 `json:"writes"`  // to the root file system, which must agree
}

func (s *sandbox) handle() handle { return handle{s.Spec.ID, s.Incarnation} }

func (s *sandbox) suspended() bool { return s.Ended != nil && s.Ended.Suspended }

func (s *sandbox) memoryBytes() int64 {
	const idle = 8
	mb := int64(idle)
	if v, err := strconv.ParseInt(parseEnv(s.Spec.Command.Env)[EnvMemoryMB], 10, 32); err == nil {
		mb = v
	}
	return mb << 20
}

// settle makes the planned exit happen if its time has come.
func (s *sandbox) settle(t time.Time) {
	if s.Ended == nil && s.Exit != nil && !s.Exit.At.After(t) {
		s.Ended, s.Exit = s.Exit, nil
	}
}

// commands are the main process and the ones beside it.
func (s *sandbox) commands() []driver.Command {
	return append([]driver.Command{s.Spec.Command}, s.Spec.Others...)
}

// plan records how one of the processes will end. The first to end ends the sandbox.
func (s *sandbox) plan(exit *driver.Exit) {
	if exit != nil && (s.Exit == nil || exit.At.Before(s.Exit.At)) {
		s.Exit = exit
	}
}

// say appends to the output of the processes as they start.
func (s *sandbox) say(text string) {
	if s.said != "" && !strings.HasSuffix(s.said, "\n") {
		s.said += "\n"
	}
	s.said += text
}

// signal plays the reaction of all processes to sig, and returns their output.
func (s *sandbox) signal(sig hangar.Signal) (said string, err error) {
	if sig <= 0 || sig > 64 {
		return "", fmt.Errorf("invalid signal %d", int(sig))
	}
	for _, cmd := range s.commands() {
		words, err := s.signalCommand(cmd, sig)
		if err != nil {
			return "", err
		}
		said += words
	}
	return said, nil
}

func (s *sandbox) signalCommand(cmd driver.Command, sig hangar.Signal) (said string, err error) {
	if said, ok, err := s.guestSignal(guestWords(cmd.Args), sig); ok || err != nil {
		return said, err
	}
	switch syscall.Signal(sig) {
	case syscall.SIGCHLD, syscall.SIGCONT, syscall.SIGURG, syscall.SIGWINCH:
		return "", nil
	default: // the signal ends a process without another plan
	}
	end := driver.Exit{Code: 128 + int(sig), Signal: int(sig), At: now()}
	if answer := parseEnv(cmd.Env)[EnvStop]; answer != "" && sig != sigKill {
		if answer == "ignore" {
			return "", nil
		}
		exit, err := parseExit(answer, end.At)
		if err != nil {
			return "", fmt.Errorf("%s: %w", EnvStop, err)
		}
		end = exit
	}
	s.plan(&end)
	return "", nil
}

// rootFile counts the writes to the writable layer.
func (s *sandbox) rootFile() string { return filepath.Join(s.Spec.Root.Writable, ".fake-writes") }

// bootRoot prepares the writable layer for a boot, and reads its counter into memory.
func (s *sandbox) bootRoot() error {
	for _, layer := range s.Spec.Root.Layers {
		if _, err := os.Stat(layer); err != nil {
			return err
		}
	}
	dir := s.Spec.Root.Writable
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	n, err := s.rootWrites()
	s.Memory.Writes = n
	return err
}

// writeFiles writes the files of the Machine to the writable layer.
func (s *sandbox) writeFiles() error {
	p := &process{sandbox: s, cmd: s.Spec.Command}
	for _, f := range s.Spec.Files {
		if err := p.write(f.Path, string(f.Content)); err != nil {
			return fmt.Errorf("write %s: %w", f.Path, err)
		}
	}
	return nil
}

func (s *sandbox) rootWrites() (uint64, error) {
	if s.Spec.Root.Writable == "" {
		return 0, nil
	}
	b, err := os.ReadFile(s.rootFile())
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(string(b), 10, 64)
}

// increment increments the counters in memory and on the root file system.
func (s *sandbox) increment() error {
	s.Memory.Counter++
	if s.Spec.Root.Writable == "" {
		return nil
	}
	s.Memory.Writes++
	return writeFile(s.rootFile(), strconv.AppendUint(nil, s.Memory.Writes, 10))
}

// startAll starts the processes: it keeps their output and plans their exits.
func (s *sandbox) startAll(ctx context.Context) error {
	for _, cmd := range s.commands() {
		if err := s.startCommand(ctx, cmd); err != nil {
			return err
		}
	}
	return nil
}

func (s *sandbox) startCommand(ctx context.Context, cmd driver.Command) error {
	if words := guestWords(cmd.Args); words != nil {
		return s.startGuest(ctx, cmd, words)
	}
	env := parseEnv(cmd.Env)
	plan, err := planMain(cmd, env)
	if err != nil {
		return err
	}
	s.plan(plan)
	s.say(env[EnvOutput])
	for _, words := range script(cmd.Args) {
		if filepath.Base(words[0]) != "echo" {
			break
		}
		s.say(strings.Join(words[1:], " ") + "\n")
	}
	return nil
}

// print writes the main process's output. It does not wait for a reader.
func (s *sandbox) print(text string) {
	if text == "" || s.Spec.Output == "" {
		return
	}
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	f, err := os.OpenFile(s.Spec.Output, os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return // no reader: the output is lost
	}
	_, _ = f.WriteString(text) // without a reader, the output is lost
	_ = f.Close()
}

// planMain returns when and how the main process ends by itself, from its environment or its command;
// nil: never.
func planMain(cmd driver.Command, env environment) (*driver.Exit, error) {
	if text := env[EnvExit]; text != "" {
		exit, err := parseExit(text, now())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", EnvExit, err)
		}
		return &exit, nil
	}
	exit := driver.Exit{At: now()}
	for _, words := range script(cmd.Args) {
		args := words[1:]
		switch filepath.Base(words[0]) {
		case "true", "echo":
			exit.Code = 0
		case "false":
			exit.Code = 1
		case "sleep":
			d, err := parseSleep(args)
			if err != nil || d < 0 {
				return nil, err
			}
			exit.Code, exit.At = 0, exit.At.Add(d)
		case "exit":
			last, err := parseExit(strings.Join(args, ""), exit.At)
			return &last, err
		default:
			return nil, nil
		}
	}
	return &exit, nil
}

// script returns the commands of sh -c "A; B", or args as the only command.
func script(args []string) [][]string {
	if len(args) != 3 || filepath.Base(args[0]) != "sh" || args[1] != "-c" {
		return [][]string{args}
	}
	var commands [][]string
	for line := range strings.SplitSeq(args[2], ";") {
		if words := strings.Fields(line); len(words) > 0 {
			commands = append(commands, words)
		}
	}
	return commands
}

// parseExit reads "7", "7@200ms", "signal:9@1s" and "oom@1s".
func parseExit(text string, from time.Time) (driver.Exit, error) {
	how, when, timed := strings.Cut(text, "@")
	exit := driver.Exit{At: from}
	if timed {
		d, err := time.ParseDuration(when)
		if err != nil {
			return exit, err
		}
		exit.At = from.Add(d)
	}
	number, signalled := strings.CutPrefix(how, "signal:")
	if how == "oom" {
		exit.OOMKilled, number, signalled = true, "9", true
	}
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 || n > 255 {
		return exit, fmt.Errorf("exit %q: want a code from 0 to 255, signal:NUMBER or oom", how)
	}
	exit.Code = n
	if signalled {
		exit.Code, exit.Signal = 128+n, n
	}
	return exit, nil
}

// parseSleep reads the arguments of sleep: seconds, a duration, or infinity (-1).
func parseSleep(args []string) (time.Duration, error) {
	if len(args) != 1 {
		return 0, errors.New("sleep: want one argument")
	}
	if args[0] == "infinity" {
		return -1, nil
	}
	if s, err := strconv.ParseFloat(args[0], 64); err == nil {
		return time.Duration(s * float64(time.Second)), nil
	}
	return time.ParseDuration(args[0])
}

// environment is the parsed environment of a command.
type environment map[string]string

func parseEnv(env []string) environment {
	m := make(environment, len(env))
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		m[name] = value
	}
	return m
}

// fault waits and fails as two variables of the environment request.
func (e environment) fault(ctx context.Context, delayName, errorName string) error {
	var delay time.Duration
	if text := e[delayName]; text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("%s: %w", delayName, err)
		}
		delay = d
	}
	if err := pause.For(ctx, delay); err != nil {
		return err
	}
	switch text := e[errorName]; text {
	case "":
		return nil
	case "command not found":
		return driver.ErrCommandNotFound
	case "snapshot unusable":
		return driver.ErrSnapshotUnusable
	default:
		return errors.New(text)
	}
}
