package fake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
)

// guestProgram is the program whose commands package drivertest defines.
const guestProgram = "guest"

// The commands of the guest that keep running.
const (
	wordSleep  = "sleep"
	wordTrap   = "trap"
	wordIgnore = "ignore"
	wordCount  = "count"
)

// guestWords returns the command of the guest, if args run the guest.
func guestWords(args []string) []string {
	if len(args) < 2 || filepath.Base(args[0]) != guestProgram {
		return nil
	}
	return args[1:]
}

// startGuest plays a command of the guest as a process of the Machine. It keeps the output in the
// sandbox, and plans the exit if the command ends by itself.
func (s *sandbox) startGuest(ctx context.Context, cmd driver.Command, words []string) error {
	var out strings.Builder
	p := &process{sandbox: s, cmd: cmd, in: strings.NewReader(""), out: &out, err: &out}
	if s.Spec.TTY {
		p.size = hangar.TerminalSize{Rows: 24, Cols: 80}
	}
	if stays(words) {
		out.WriteString("ready\n")
	} else {
		r, err := p.guest(ctx, words)
		if err != nil {
			return err
		}
		s.plan(&driver.Exit{Code: r.ExitCode, Signal: r.ExitSignal, At: now()})
	}
	s.say(out.String())
	return nil
}

func stays(words []string) bool {
	return slices.Contains([]string{wordSleep, wordTrap, wordIgnore, wordCount}, words[0])
}

// guestSignal is the reaction of a guest's command to a signal. ok is false if the command does not
// handle the signal.
func (s *sandbox) guestSignal(words []string, sig hangar.Signal) (said string, ok bool, err error) {
	if len(words) == 0 || sig == sigKill {
		return "", false, nil
	}
	if words[0] == wordCount {
		if sig != sigUSR1 {
			return "", false, nil
		}
		if err := s.increment(); err != nil {
			return "", false, err
		}
		return fmt.Sprintf("count %d %d\n", s.Memory.Counter, s.Memory.Writes), true, nil
	}
	if len(words) < 2 || words[0] != wordTrap && words[0] != wordIgnore {
		return "", false, nil
	}
	if mine, err := hangar.ParseSignal(words[1]); err != nil || mine != sig {
		return "", false, err
	}
	if words[0] == wordTrap {
		if len(words) != 3 {
			return "", false, errors.New("trap: want a signal and a code")
		}
		code, err := strconv.Atoi(words[2])
		if err != nil {
			return "", false, err
		}
		s.plan(&driver.Exit{Code: code, At: now()})
	}
	return "", true, nil
}

// guest plays a command of the guest beside the main process.
func (p *process) guest(ctx context.Context, words []string) (hangar.ExecResult, error) {
	args := append(slices.Clone(words[1:]), "", "")
	switch words[0] {
	case wordSleep, wordTrap, wordIgnore, wordCount:
		return p.stay(ctx, words)
	case "exit":
		code, err := strconv.Atoi(args[0])
		if err != nil {
			return p.fail("exit: %v", err)
		}
		return hangar.ExecResult{ExitCode: code}, nil
	case "die":
		sig, err := hangar.ParseSignal(args[0])
		if err != nil {
			return p.fail("die: %v", err)
		}
		return endedBy(sig), nil
	case "echo":
		return p.print(p.out, strings.Join(words[1:], " "))
	case "complain":
		return p.print(p.err, strings.Join(words[1:], " "))
	case "yell":
		return p.yell(args[0])
	case "cat":
		return p.cat(ctx, nil)
	case "whoami":
		return p.print(p.out, fmt.Sprintf("%d %d %d %s", p.cmd.UID, p.cmd.GID, p.cmd.Groups, p.cmd.Dir))
	case "env":
		return p.print(p.out, parseEnv(p.cmd.Env)[args[0]])
	case "hostname":
		return p.print(p.out, p.sandbox.Spec.Hostname)
	case "resources":
		return p.print(p.out, fmt.Sprint(p.sandbox.Spec.CPUs, p.sandbox.Spec.MemoryMB))
	case "tty":
		return p.print(p.out, fmt.Sprintf("/dev/pts %d %d", p.size.Rows, p.size.Cols))
	case "size":
		return p.awaitSize(ctx, args[0])
	case "write":
		if err := p.write(args[0], args[1]); err != nil {
			return p.failure(err)
		}
		return hangar.ExecResult{}, nil
	case "read":
		b, err := p.read(args[0])
		if err != nil {
			return p.failure(err)
		}
		return p.print(p.out, string(b))
	case "orphan": // a fake sandbox has no processes to orphan
		return hangar.ExecResult{}, nil
	default:
		return p.fail("guest: unknown word %s", words[0])
	}
}

func endedBy(sig hangar.Signal) hangar.ExecResult {
	return hangar.ExecResult{ExitCode: 128 + int(sig), ExitSignal: int(sig)}
}

func (p *process) failure(err error) (hangar.ExecResult, error) {
	result, _ := p.fail("%v", err)
	result.ExitCode = 1
	return result, nil
}

func (p *process) yell(lines string) (hangar.ExecResult, error) {
	n, err := strconv.Atoi(lines)
	if err != nil {
		return p.fail("yell: %v", err)
	}
	for i := range n {
		if _, err := fmt.Fprintf(p.out, "line %d of many\n", i); err != nil {
			return written(err), nil
		}
	}
	return hangar.ExecResult{}, nil
}

// stay ends with the context, or by ^C at its terminal.
func (p *process) stay(ctx context.Context, words []string) (hangar.ExecResult, error) {
	interrupted := make(chan struct{})
	if ignores := words[0] == wordIgnore && len(words) > 1 && words[1] == "INT"; p.cmd.TTY && !ignores {
		// A read cannot be interrupted; the goroutine ends with the stream.
		go func() {
			for b := make([]byte, 1); ; {
				n, err := p.in.Read(b)
				if n == 1 && b[0] == ctrlC {
					close(interrupted)
					return
				}
				if err != nil {
					return
				}
			}
		}()
	}
	if _, err := io.WriteString(p.out, "ready\n"); err != nil {
		return written(err), nil
	}
	select {
	case <-interrupted:
		return endedBy(sigInt), nil
	case <-ctx.Done():
		return hangar.ExecResult{}, ctx.Err()
	}
}

const ctrlC = 3

func (p *process) awaitSize(ctx context.Context, rows string) (hangar.ExecResult, error) {
	want, err := strconv.Atoi(rows)
	if err != nil {
		return p.fail("size: %v", err)
	}
	if _, err := io.WriteString(p.out, "ready\n"); err != nil {
		return written(err), nil
	}
	for int(p.size.Rows) != want {
		select {
		case size, ok := <-p.resize:
			if !ok {
				return p.fail("size: no more sizes")
			}
			p.size = size
		case <-ctx.Done():
			return hangar.ExecResult{}, ctx.Err()
		}
	}
	return p.print(p.out, "rows "+rows)
}
