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

// engineName is argv[0] of the engine's commands, which distinguishes them from the sandboxes'
// processes.
const engineName = "runsc"

// engine runs one command of the engine. If ctx ends, it kills the command and its children; Destroy
// cleans up the rest. begun is set once the engine has received the command, unless its result says
// that it has begun nothing.
func (d *Driver) engine(ctx context.Context, begun *bool, out *os.File, args ...string) (bundle.Result, error) {
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
	if waited != nil && !waited.begun() { // the spare was killed, perhaps for lack of memory; run the command again
		return d.engine(ctx, begun, out, args...)
	}
	*begun = true
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
		*begun = !r.NotBegun
		return r, fmt.Errorf("engine %s: %s", args[0], strings.TrimSpace(r.Error))
	}
	if r.Incomplete != "" {
		d.log.ErrorContext(ctx, "a sandbox runs that the next daemon may not find, or that cannot be suspended",
			"machine", args[len(args)-1], "error", r.Incomplete)
	}
	return r, nil
}

// cutOff kills a command of the engine, and returns the processes that it has started. They become
// children of this process. They include zombies and processes about to end, whose former parent is
// no longer recorded afterwards.
func cutOff(engine *os.Process) []process {
	if engine.Signal(unix.SIGSTOP) != nil {
		return nil // it has ended by itself
	}
	// A stopped engine starts no more processes.
	for errors.Is(unix.Waitid(unix.P_PID, engine.Pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
	started := descendants(engine.Pid)
	_ = engine.Kill()
	return started
}

// command gives args to the waiting spare, which it returns with its process, or else starts a new
// engine.
func (d *Driver) command(out, reply *os.File, args []string) (*exec.Cmd, *spare, error) {
	if s := d.takeSpare(); s != nil {
		if err := s.order(out, reply, args); err == nil {
			return s.cmd, s, nil
		}
		s.dismiss()
	}
	cmd := d.process(args...)
	if out != nil { // exec passes an *os.File on without a copying goroutine
		cmd.Stdout, cmd.Stderr = out, out
	}
	cmd.ExtraFiles = []*os.File{reply} // bundle.ResultFD
	return cmd, nil, cmd.Start()
}

func (d *Driver) process(args ...string) *exec.Cmd {
	cmd := exec.Command(d.opts.Engine, args...) //nolint:noctx // a spare outlives the call that starts it
	cmd.Args[0] = engineName
	cmd.Env = []string{}
	// A group of its own, so that ^C at the daemon's terminal does not end it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// spare is an engine that has started and waits for its command. It saves the Machine the time of the
// engine's start.
type spare struct {
	cmd  *exec.Cmd
	sock *os.File
}

// bootTime is how long deferrable work leaves the cores to a booting sandbox and to the first work of
// its guest.
const bootTime = 200 * time.Millisecond

// spares keeps one spare ready. The zero value has none.
type spares struct {
	mu    sync.Mutex
	next  *spare      // guarded by mu
	timer *time.Timer // starts the next spare; guarded by mu
	done  bool        // no more spares are started; guarded by mu
}

// later calls fill once the host is likely to be idle.
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

// takeSpare returns the spare, which then belongs to the caller, or nil.
func (d *Driver) takeSpare() *spare {
	d.spare.mu.Lock()
	defer d.spare.mu.Unlock()
	s := d.spare.next
	d.spare.next = nil
	return s
}

// fillSpare starts a spare unless there is one. Without a spare, the next Machine only starts a few
// milliseconds later.
func (d *Driver) fillSpare() {
	d.spare.mu.Lock()
	defer d.spare.mu.Unlock()
	if d.spare.done || d.spare.next != nil {
		return
	}
	s, err := d.startSpare()
	if err != nil {
		d.log.Warn("cannot start a spare engine for the next machine", "error", err)
		return
	}
	d.spare.next = s
}

// dismissSpare ends the spare permanently.
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

// order sends the spare its command.
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

// begun reports whether the spare, which has ended, had received its command.
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
