package gvisor

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/driver"
	guestinit "github.com/hangar-platform/hangar/host/guest/init"
	"github.com/hangar-platform/hangar/internal/finish"
)

// killWait limits two waits for a command whose context has ended: until it has started, so that it
// can be killed, and until it has ended.
const killWait = 5 * time.Second

// Exec implements driver.Driver. The caller ends the reading of streams.Stdin. The guest's init makes
// the terminal inside the sandbox, so the command has a real one, with job control and a name.
func (d *Driver) Exec(ctx context.Context, h driver.Handle, cmd driver.Command, streams hangar.ExecStreams) (hangar.ExecResult, error) {
	s, err := d.running(h)
	if err != nil {
		return hangar.ExecResult{}, err
	}
	if len(cmd.Args) == 0 {
		return hangar.ExecResult{}, fmt.Errorf("%w: no command", driver.ErrCommandNotFound)
	}
	result, err := s.exec(ctx, cmd, streams)
	if err != nil {
		return hangar.ExecResult{}, fmt.Errorf("execute in machine %s: %w", s.ID, err)
	}
	return result, nil
}

func (s *sandbox) exec(ctx context.Context, cmd driver.Command, streams hangar.ExecStreams) (hangar.ExecResult, error) {
	p, err := newPipes(cmd, streams)
	if err != nil {
		return hangar.ExecResult{}, err
	}
	defer p.closeOurs()
	args := execRequest(string(s.ID), cmd)
	args.Files = p.guest
	for i := range p.guest {
		args.GuestFDs = append(args.GuestFDs, i)
	}
	var pid int32
	err = s.begin(ctx, args, &pid)
	p.closeGuest()
	if err != nil {
		if text, ok := errors.AsType[refusal](err); ok && (strings.Contains(string(text), "error finding executable") ||
			strings.Contains(string(text), "no such file") || strings.Contains(string(text), "permission denied")) {
			err = fmt.Errorf("%w: %w", driver.ErrCommandNotFound, err)
		}
		return hangar.ExecResult{}, err
	}
	running, end := context.WithCancelCause(ctx)
	defer end(nil)
	p.start(cmd, streams, end)
	ws, err := s.waitPID(running, pid)
	p.finish()
	if err != nil && ctx.Err() == nil {
		err = cmp.Or(context.Cause(running), err)
	}
	if err != nil {
		return hangar.ExecResult{}, err
	}
	if ws.Signaled() {
		return hangar.ExecResult{ExitCode: 128 + int(ws.Signal()), ExitSignal: int(ws.Signal())}, nil
	}
	return hangar.ExecResult{ExitCode: ws.ExitStatus()}, nil
}

// begin starts a command. It waits for the command's process id even if ctx ends meanwhile: without
// the id the command could not be killed.
func (s *sandbox) begin(ctx context.Context, args *execArgs, pid *int32) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	starting, cancel := finish.Lifetime(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(killWait, cancel) })()
	return s.call(starting, methodExec, args, pid)
}

// execRequest returns the arguments that execute cmd.
func execRequest(id string, cmd driver.Command) *execArgs {
	const all = 1<<41 - 1
	args := &execArgs{
		Argv: cmd.Args, Envv: cmd.Env, WorkingDirectory: cmd.Dir,
		KUID: cmd.UID, KGID: cmd.GID, ExtraKGIDs: cmd.Groups,
		Capabilities: &taskCapabilities{BoundingCaps: all},
		ContainerID:  id,
	}
	if args.WorkingDirectory == "" {
		args.WorkingDirectory = "/"
	}
	if cmd.TTY { // the init switches to the user and the directory
		args.Argv = guestinit.Args(initPath, true, cmd.UID, cmd.GID, cmd.Groups, args.WorkingDirectory, cmd.Args)
		args.KUID, args.KGID, args.ExtraKGIDs, args.WorkingDirectory = 0, 0, nil, "/"
	}
	if args.KUID == 0 {
		args.Capabilities.PermittedCaps, args.Capabilities.EffectiveCaps = all, all
	}
	return args
}

// waitPID returns how the process ended. If ctx ends, it kills the process and its group, and returns
// the context's error.
func (s *sandbox) waitPID(ctx context.Context, pid int32) (unix.WaitStatus, error) {
	waiting, cancel := finish.Lifetime(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		for _, mode := range []int{toProcessGroup, toProcess} {
			args := signalArgs{CID: string(s.ID), Signo: int32(unix.SIGKILL), PID: pid, Mode: mode}
			_ = s.call(waiting, methodSignal, &args, nil)
		}
		time.AfterFunc(killWait, cancel)
	})
	defer stop()
	var ws uint32
	err := s.call(waiting, methodWaitPID, &waitPIDArgs{PID: pid, CID: string(s.ID)}, &ws)
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	return unix.WaitStatus(ws), err
}

// pipes connect a caller's streams with a process in the sandbox.
type pipes struct {
	guest  []*os.File // its standard files, and the sizes of its terminal
	stdin  *os.File   // the driver's ends; nil: none
	stdout *os.File
	stderr *os.File
	sizes  *os.File

	copies sync.WaitGroup
	done   chan struct{} // closed by finish
}

func newPipes(cmd driver.Command, streams hangar.ExecStreams) (_ *pipes, err error) {
	p := &pipes{done: make(chan struct{})}
	defer func() {
		if err != nil {
			p.closeGuest()
			p.closeOurs()
		}
	}()
	toGuest := func() (*os.File, error) {
		r, w, err := os.Pipe()
		if err == nil {
			p.guest = append(p.guest, r)
		}
		return w, err
	}
	fromGuest := func(w io.Writer) (*os.File, error) {
		if w == nil {
			null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
			if err == nil {
				p.guest = append(p.guest, null)
			}
			return nil, err
		}
		r, end, err := os.Pipe()
		if err == nil {
			p.guest = append(p.guest, end)
		}
		return r, err
	}
	if p.stdin, err = toGuest(); err != nil {
		return nil, err
	}
	if p.stdout, err = fromGuest(streams.Stdout); err != nil {
		return nil, err
	}
	stderr := streams.Stderr
	if cmd.TTY && stderr == nil {
		stderr = streams.Stdout // messages of the init itself
	}
	if p.stderr, err = fromGuest(stderr); err != nil {
		return nil, err
	}
	if cmd.TTY {
		if p.sizes, err = toGuest(); err != nil {
			return nil, err
		}
		p.resize(cmd.Size)
	}
	return p, nil
}

// resize sends a size to the guest's init, unless it is zero.
func (p *pipes) resize(size hangar.TerminalSize) {
	if size.Rows == 0 || size.Cols == 0 {
		return
	}
	b := binary.LittleEndian.AppendUint16(nil, size.Rows)
	_, _ = p.sizes.Write(binary.LittleEndian.AppendUint16(b, size.Cols))
}

// start starts to copy the streams. It calls broken if the input fails, which the command must not take for its end.
func (p *pipes) start(cmd driver.Command, streams hangar.ExecStreams, broken func(error)) {
	// Not waited for: it ends when the caller's reader does.
	go func() {
		if err := streams.CopyStdin(p.stdin); err != nil {
			broken(err)
			return
		}
		_ = p.stdin.Close()
	}()
	out := func(r *os.File, w io.Writer) {
		if r != nil && w != nil {
			p.copies.Go(func() { copyOut(w, r) })
		}
	}
	out(p.stdout, streams.Stdout)
	stderr := streams.Stderr
	if cmd.TTY && stderr == nil {
		stderr = streams.Stdout
	}
	out(p.stderr, stderr)
	if cmd.TTY && streams.Resize != nil {
		p.copies.Go(func() {
			for {
				select {
				case size, ok := <-streams.Resize:
					if !ok {
						return
					}
					p.resize(size)
				case <-p.done:
					return
				}
			}
		})
	}
}

// drainWait is how long finish waits for the output of an ended command while a process that it left
// behind keeps it open.
const drainWait = 200 * time.Millisecond

// finish waits until everything that the ended command wrote is copied.
func (p *pipes) finish() {
	close(p.done)
	_ = p.stdin.Close()
	for _, f := range []*os.File{p.stdout, p.stderr} {
		if f != nil {
			_ = f.SetReadDeadline(time.Now().Add(drainWait))
		}
	}
	if p.sizes != nil {
		_ = p.sizes.Close() // a guest that does not read them holds up their writer
	}
	p.copies.Wait()
}

// copyOut copies until the end of r. When r's deadline has passed, it copies what is available, and
// returns.
func copyOut(w io.Writer, r *os.File) {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				_, _ = io.Copy(io.Discard, r) // the command does not notice
				return
			}
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			drain(w, r, buf)
			return
		}
		if err != nil {
			return
		}
	}
}

// drain copies what it can read without waiting.
func drain(w io.Writer, r *os.File, buf []byte) {
	_ = r.SetReadDeadline(time.Time{})
	conn, err := r.SyscallConn()
	if err != nil {
		return
	}
	for {
		var n int
		err := conn.Read(func(fd uintptr) bool {
			n, _ = unix.Read(int(fd), buf)
			return true
		})
		if err != nil || n <= 0 {
			return
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (p *pipes) closeGuest() {
	for _, f := range p.guest {
		_ = f.Close()
	}
}

func (p *pipes) closeOurs() {
	for _, f := range []*os.File{p.stdin, p.stdout, p.stderr, p.sizes} {
		if f != nil {
			_ = f.Close()
		}
	}
}
