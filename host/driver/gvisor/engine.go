package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/host/driver"
	"github.com/hangar-platform/hangar/host/driver/gvisor/bundle"
	"github.com/hangar-platform/hangar/internal/finish"
)

// engineName is argv[0] of the engine's commands, as opposed to the sandboxes'
// processes.
const engineName = "runsc"

// engine runs one command of the engine. If ctx ends it kills the command and its children;
// Destroy cleans up the rest.
func (d *Driver) engine(ctx context.Context, out *os.File, args ...string) (bundle.Result, error) {
	if err := ctx.Err(); err != nil {
		return bundle.Result{}, err
	}
	reply, replyEnd, err := os.Pipe()
	if err != nil {
		return bundle.Result{}, err
	}
	defer reply.Close()
	defer replyEnd.Close()
	cmd, waited, err := d.command(out, replyEnd, append(d.engineFlags(), args...))
	if err != nil {
		return bundle.Result{}, fmt.Errorf("start engine: %w", err)
	}
	_ = replyEnd.Close()
	orphans := make(chan []process, 1)
	stop := context.AfterFunc(ctx, func() { orphans <- cutOff(cmd.Process) })
	raw, readErr := io.ReadAll(reply)
	waitErr := cmd.Wait()
	var started []process
	if !stop() {
		started = <-orphans
	}
	if waited != nil && !waited.begun() { // it was killed: the host may be short of memory
		return d.engine(ctx, out, args...)
	}
	d.spare.later(d.fillSpare)
	if len(started) > 0 {
		err := finish.Do(ctx, undoPatience, func(ctx finish.Context) error { return killAll(ctx, started) })
		return bundle.Result{}, errors.Join(fmt.Errorf("engine %s was cut off", args[0]), ctx.Err(), err)
	}
	var r bundle.Result
	if err := json.Unmarshal(raw, &r); err != nil {
		return bundle.Result{}, errors.Join(fmt.Errorf("engine %s ended without a result", args[0]), ctx.Err(), waitErr, readErr)
	}
	switch {
	case r.Unusable:
		return r, fmt.Errorf("%w: %s", driver.ErrSnapshotUnusable, r.Error)
	case r.Error != "":
		return r, fmt.Errorf("engine %s: %s", args[0], strings.TrimSpace(r.Error))
	}
	return r, nil
}

// cutOff kills a command of the engine, and returns the processes that it has started. They
// become children of this one, including zombies and those about to end, whose former parent is
// no longer recorded.
func cutOff(engine *os.Process) []process {
	if engine.Signal(unix.SIGSTOP) != nil {
		return nil // it has ended by itself
	}
	// Stopped, it starts nothing more.
	for errors.Is(unix.Waitid(unix.P_PID, engine.Pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
	started := descendants(engine.Pid)
	_ = engine.Kill()
	return started
}

// command has an engine work on a command: the one that waits for it, which is returned
// with its process, or else a new one.
func (d *Driver) command(out, reply *os.File, args []string) (*exec.Cmd, *spare, error) {
	if s := d.takeSpare(); s != nil {
		if err := s.order(out, reply, args); err == nil {
			return s.cmd, s, nil
		}
		s.dismiss()
	}
	cmd := d.process(args...)
	if out != nil { // an *os.File is handed on as it is, without a copying goroutine
		cmd.Stdout, cmd.Stderr = out, out
	}
	cmd.ExtraFiles = []*os.File{reply} // bundle.ResultFD
	return cmd, nil, cmd.Start()
}

func (d *Driver) process(args ...string) *exec.Cmd {
	cmd := exec.Command(d.opts.Engine, args...) //nolint:noctx // outlives its first caller
	cmd.Args[0] = engineName
	cmd.Env = []string{}
	// Its own group: a ^C at the daemon's terminal is not for it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// spare is an engine that has started and waits for its command, which takes the time
// of its start off that of a Machine.
type spare struct {
	cmd  *exec.Cmd
	sock *os.File
}

// bootTime is how long work that can wait leaves the cores to a sandbox that boots, and
// to the first work of its guest.
const bootTime = 200 * time.Millisecond

// spares keeps one spare at hand. The zero value has none.
type spares struct {
	mu    sync.Mutex
	next  *spare      // guarded by mu
	timer *time.Timer // until next is made; guarded by mu
	done  bool        // no more are made; guarded by mu
}

// later calls fill once the host is likely to be at rest.
func (s *spares) later(fill func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.done:
	case s.timer == nil:
		s.timer = time.AfterFunc(bootTime, fill)
	default:
		s.timer.Reset(bootTime)
	}
}

// takeSpare returns the spare, which is then the caller's, or nil.
func (d *Driver) takeSpare() *spare {
	d.spare.mu.Lock()
	defer d.spare.mu.Unlock()
	s := d.spare.next
	d.spare.next = nil
	return s
}

// fillSpare starts a spare unless there is one. That one cannot be started costs the
// next Machine a few milliseconds, and nothing else.
func (d *Driver) fillSpare() {
	d.spare.mu.Lock()
	defer d.spare.mu.Unlock()
	if d.spare.done || d.spare.next != nil {
		return
	}
	s, err := d.startSpare()
	if err != nil {
		d.log.Warn("no engine waits for the next machine", "err", err)
		return
	}
	d.spare.next = s
}

// dismissSpare ends the spare for good.
func (d *Driver) dismissSpare() {
	d.spare.mu.Lock()
	d.spare.done = true
	if d.spare.timer != nil {
		d.spare.timer.Stop()
	}
	d.spare.mu.Unlock()
	if s := d.takeSpare(); s != nil {
		s.dismiss()
	}
}

func (d *Driver) startSpare() (*spare, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "engine"), os.NewFile(uintptr(fds[1]), "engine")
	defer theirs.Close()
	cmd := d.process(bundle.AwaitArg)
	cmd.ExtraFiles = []*os.File{theirs} // bundle.AwaitFD
	if err := cmd.Start(); err != nil {
		_ = ours.Close()
		return nil, err
	}
	return &spare{cmd: cmd, sock: ours}, nil
}

// order hands the spare its command.
func (s *spare) order(out, reply *os.File, args []string) error {
	text := strings.Join(args, "\x00")
	if len(text) > bundle.MaxCommand {
		return fmt.Errorf("command of %d bytes", len(text))
	}
	files := []int{int(reply.Fd())}
	if out != nil {
		files = append(files, int(out.Fd()))
	}
	return unix.Sendmsg(int(s.sock.Fd()), []byte(text), unix.UnixRights(files...), nil, unix.MSG_NOSIGNAL)
}

// begun reports whether the spare, which has ended, had taken its command.
func (s *spare) begun() bool {
	defer s.sock.Close()
	n, _, err := unix.Recvfrom(int(s.sock.Fd()), make([]byte, 1), unix.MSG_DONTWAIT)
	return err == nil && n == 1
}

// dismiss ends a spare that has no command.
func (s *spare) dismiss() {
	_ = s.sock.Close()
	_ = s.cmd.Wait()
}
