package fake

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/internal/pause"
)

// Exec plays one of a few commands beside the main process:
//
//	echo WORD…  stderr WORD…   print
//	say WORD…                  makes the main process print
//	cat [FILE]                 copies stdin, or a file of the root
//	write FILE TEXT            writes a file of the root
//	exit N   kill N            ends with a code or by a signal
//	true   false   sleep TIME
//	env   pwd   size           environment, directory, terminal as ROWSxCOLS
//	sizes N                    the next sizes of the terminal
//	boot                       the name of the boot: new with every start, kept by a resume
//	incr   memory              counts in memory and on the root; shows the count
//	sh -c "A; B"               runs one after the other
//	guest WORD…                plays a command of package drivertest's guest
//	/.hangar/guest sftp        serves files by SFTP, which are in memory
//
// Any other command is driver.ErrCommandNotFound. A main process plays echo, true, false, sleep,
// exit, sh and guest in the same way; any other main process runs until it is stopped.
func (d *Driver) Exec(
	ctx context.Context, h driver.Handle, cmd driver.Command, streams hangar.ExecStreams,
) (hangar.ExecResult, error) {
	v, err := d.decode(h)
	if err != nil {
		return hangar.ExecResult{}, err
	}
	if len(cmd.Args) == 0 {
		return hangar.ExecResult{}, d.world.misused(v.ID, "exec without a command")
	}
	if err := d.fault(ctx, OpExec, v.ID); err != nil {
		return hangar.ExecResult{}, fmt.Errorf("exec in %s: %w", v.ID, err)
	}
	s, err := d.world.findRunning(v)
	if err != nil {
		return hangar.ExecResult{}, err
	}
	p := &process{world: d.world, sandbox: s, cmd: cmd, in: streams.Stdin, out: streams.Stdout, err: streams.Stderr, size: cmd.Size, resize: streams.Resize}
	if p.in == nil {
		p.in = strings.NewReader("")
	}
	if p.out == nil {
		p.out = io.Discard
	}
	if p.err == nil {
		p.err = io.Discard
	}
	if cmd.TTY {
		p.err = p.out
	}
	// A command ends with its sandbox.
	alive, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p.in = input{p.in, cancel}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if _, err := d.world.wait(alive, v); err == nil || errors.Is(err, driver.ErrNotFound) {
			cancel(errSandboxEnded)
		}
	}()
	result, err := p.run(alive, cmd.Args)
	cause := context.Cause(alive)
	killed := errors.Is(cause, errSandboxEnded)
	if cause != nil && !killed && ctx.Err() == nil {
		err = cause // of its input
	}
	cancel(nil)
	<-ended
	if err != nil && killed {
		return hangar.ExecResult{ExitCode: 128 + int(sigKill), ExitSignal: int(sigKill)}, nil
	}
	return result, err
}

// input ends a command when it fails.
type input struct {
	io.Reader
	broken func(error)
}

func (r input) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		r.broken(hangar.Errorf(hangar.CodeInternal, "", "read the input of the command: %w", err))
	}
	return n, err
}

var errSandboxEnded = errors.New("sandbox ended")

// process is a command that Exec plays.
type process struct {
	world    *World
	sandbox  *sandbox // as it was when the command started
	cmd      driver.Command
	in       io.Reader
	out, err io.Writer
	size     hangar.TerminalSize
	resize   <-chan hangar.TerminalSize
}

func (p *process) run(ctx context.Context, args []string) (hangar.ExecResult, error) {
	if len(args) == 2 && args[0] == hangar.SSHProgram && args[1] == "sftp" {
		return p.sftp(ctx)
	}
	if words := guestWords(args); words != nil {
		return p.guest(ctx, words)
	}
	name, args := filepath.Base(args[0]), args[1:]
	switch name {
	case "sh":
		return p.shell(ctx, args)
	case "exit", "kill":
		n, err := strconv.Atoi(strings.Join(args, ""))
		if err != nil || n < 0 || n > 255 {
			return p.fail("%s: want a number", name)
		}
		if name == "kill" {
			return hangar.ExecResult{ExitCode: 128 + n, ExitSignal: n}, nil
		}
		return hangar.ExecResult{ExitCode: n}, nil
	case "true":
		return hangar.ExecResult{}, nil
	case "false":
		return hangar.ExecResult{ExitCode: 1}, nil
	case "sleep":
		d, err := parseSleep(args)
		if err != nil {
			return p.fail("%v", err)
		}
		if d < 0 {
			<-ctx.Done()
			return hangar.ExecResult{}, ctx.Err()
		}
		return hangar.ExecResult{}, pause.For(ctx, d)
	case "cat":
		return p.cat(ctx, args)
	case "sizes":
		return p.sizes(ctx, args)
	default:
		return p.runInstant(name, args)
	}
}

// runInstant plays the commands that take no time.
func (p *process) runInstant(name string, args []string) (hangar.ExecResult, error) {
	switch name {
	case "echo":
		return p.print(p.out, strings.Join(args, " "))
	case "stderr":
		return p.print(p.err, strings.Join(args, " "))
	case "say":
		p.sandbox.print(strings.Join(args, " "))
		return hangar.ExecResult{}, nil
	case "env":
		return p.print(p.out, strings.Join(p.cmd.Env, "\n"))
	case "pwd":
		return p.print(p.out, p.cmd.Dir)
	case "size":
		return p.print(p.out, fmt.Sprintf("%dx%d", p.size.Rows, p.size.Cols))
	case "boot":
		return p.print(p.out, p.sandbox.Boot)
	case "incr", "memory":
		var count uint64
		err := p.world.change(p.sandbox.handle(), func(s *sandbox) error {
			var err error
			if name == "incr" {
				err = s.increment()
			}
			count = s.Memory.Counter
			return err
		})
		if err != nil {
			return hangar.ExecResult{}, err
		}
		return p.print(p.out, strconv.FormatUint(count, 10))
	case "write":
		if len(args) != 2 {
			return p.fail("write: want a file and a text")
		}
		if err := p.write(args[0], args[1]); err != nil {
			return p.fail("write: %v", err)
		}
		return hangar.ExecResult{}, nil
	default:
		return hangar.ExecResult{}, fmt.Errorf("%s: %w", name, driver.ErrCommandNotFound)
	}
}

func (p *process) print(w io.Writer, text string) (hangar.ExecResult, error) {
	_, err := io.WriteString(w, text+"\n")
	return written(err), nil
}

// written is the result of a command that wrote to a stream. A closed pipe is a failure of the
// command, not of the driver.
func written(err error) hangar.ExecResult {
	if err != nil {
		return hangar.ExecResult{ExitCode: 1}
	}
	return hangar.ExecResult{}
}

func (p *process) fail(format string, args ...any) (hangar.ExecResult, error) {
	result, err := p.print(p.err, fmt.Sprintf(format, args...))
	result.ExitCode = 2
	return result, err
}

// shell runs commands that semicolons separate, until one ends the shell.
func (p *process) shell(ctx context.Context, args []string) (hangar.ExecResult, error) {
	if len(args) != 2 || args[0] != "-c" {
		return p.fail("sh: want -c and a script")
	}
	var last hangar.ExecResult
	for _, words := range script(append([]string{"sh"}, args...)) {
		result, err := p.run(ctx, words)
		if errors.Is(err, driver.ErrCommandNotFound) {
			result, err = p.print(p.err, words[0]+": not found")
			result.ExitCode = 127
		}
		if err != nil || words[0] == "exit" {
			return result, err
		}
		last = result
	}
	return last, nil
}

// cat copies its input, or prints a file. With a terminal it also reports new sizes.
func (p *process) cat(ctx context.Context, args []string) (hangar.ExecResult, error) {
	if len(args) > 0 {
		b, err := p.read(args[0])
		if err != nil {
			return p.fail("cat: %v", err)
		}
		_, err = p.out.Write(b)
		return written(err), nil
	}
	// A read cannot be interrupted; the goroutine ends with the stream.
	chunks, quit := make(chan []byte), make(chan struct{})
	defer close(quit)
	go func() {
		defer close(chunks)
		r := bufio.NewReader(p.in)
		for {
			b := make([]byte, 32<<10)
			n, err := r.Read(b)
			if n > 0 {
				select {
				case chunks <- b[:n]:
				case <-quit:
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	resize := p.resize
	for {
		select {
		case b, ok := <-chunks:
			if !ok {
				return hangar.ExecResult{}, nil
			}
			if _, err := p.out.Write(b); err != nil {
				return written(err), nil
			}
		case size, ok := <-resize:
			if !ok {
				resize = nil
				continue
			}
			p.size = size
			if _, err := p.print(p.out, fmt.Sprintf("%dx%d", size.Rows, size.Cols)); err != nil {
				return hangar.ExecResult{}, err
			}
		case <-ctx.Done():
			return hangar.ExecResult{}, ctx.Err()
		}
	}
}

func (p *process) sizes(ctx context.Context, args []string) (hangar.ExecResult, error) {
	n, err := strconv.Atoi(strings.Join(args, ""))
	if err != nil {
		return p.fail("sizes: want a number")
	}
	for range n {
		select {
		case p.size = <-p.resize:
		case <-ctx.Done():
			return hangar.ExecResult{}, ctx.Err()
		}
		if _, err := p.print(p.out, fmt.Sprintf("%dx%d", p.size.Rows, p.size.Cols)); err != nil {
			return hangar.ExecResult{}, err
		}
	}
	return hangar.ExecResult{}, nil
}

// mounted returns the mount that contains name, and the rest of the path.
func (p *process) mounted(name string) (m driver.Mount, rest string, ok bool) {
	for _, m := range slices.Backward(p.sandbox.Spec.Mounts) {
		if rest, ok := strings.CutPrefix(filepath.Clean("/"+name), filepath.Clean(m.Target)); ok && strings.HasPrefix(rest, "/") {
			return m, rest, true
		}
	}
	return driver.Mount{}, "", false
}

// read looks for a file in the mounts, in the writable layer and then in the layers, highest first.
func (p *process) read(name string) ([]byte, error) {
	if m, rest, ok := p.mounted(name); ok {
		return readIn(m.Source, rest)
	}
	root := p.sandbox.Spec.Root
	dirs := []string{root.Writable}
	for _, layer := range slices.Backward(root.Layers) {
		dirs = append(dirs, layer)
	}
	for _, dir := range dirs {
		if dir == "" {
			continue
		}
		b, err := readIn(dir, name)
		if !errors.Is(err, os.ErrNotExist) {
			return b, err
		}
	}
	return nil, fmt.Errorf("%s: %w", name, os.ErrNotExist)
}

func readIn(dir, name string) ([]byte, error) {
	r, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }() // only read from
	return r.ReadFile(inRoot(name))
}

func (p *process) write(name, text string) error {
	dir := p.sandbox.Spec.Root.Writable
	if m, rest, ok := p.mounted(name); ok {
		if m.ReadOnly {
			return os.ErrPermission
		}
		dir, name = m.Source, rest
	}
	if dir == "" {
		return os.ErrPermission
	}
	r, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	name = inRoot(name)
	if dir := filepath.Dir(name); dir != "." {
		if err := r.MkdirAll(dir, 0o700); err != nil {
			return errors.Join(err, r.Close())
		}
	}
	return errors.Join(r.WriteFile(name, []byte(text), 0o600), r.Close())
}

// inRoot turns a path inside the Machine into one relative to a layer.
func inRoot(name string) string {
	return strings.TrimPrefix(filepath.Clean("/"+name), "/")
}
