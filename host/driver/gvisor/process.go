package gvisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/host/driver/gvisor/bundle"
)

// process is one process of the host, told apart from a later one with the same id
// by its start time.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after the boot of the host
}

// errGone: the process has ended and was reaped.
var errGone = errors.New("process is gone")

// find returns the process that has pid now.
func find(pid int) (process, error) {
	start, err := startTime(pid)
	if err != nil {
		return process{}, err
	}
	return process{PID: pid, Start: start}, nil
}

func startTime(pid int) (uint64, error) {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, errGone
	}
	// The name, in parentheses, may hold anything; the 20th field after it counts.
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	const startField = 19
	if len(fields) <= startField {
		return 0, fmt.Errorf("unexpected content of /proc/%d/stat", pid)
	}
	return strconv.ParseUint(fields[startField], 10, 64)
}

// open returns a descriptor that stands for the process, or errGone.
func (p process) open() (*os.File, error) {
	if p.PID <= 1 {
		return nil, errGone
	}
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, errGone
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", p.PID, err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	// Checked after opening: from here on the id cannot be another's.
	if start, err := startTime(p.PID); err != nil || start != p.Start {
		_ = f.Close()
		return nil, errGone
	}
	return f, nil
}

// awaitEnd returns when the process of pidfd has ended, or an error when pidfd was
// closed.
func awaitEnd(pidfd *os.File) error {
	conn, err := pidfd.SyscallConn()
	if err != nil {
		return err
	}
	return conn.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		return err == nil && n > 0
	})
}

// kill sends SIGKILL to the process of pidfd.
func kill(pidfd *os.File) {
	conn, err := pidfd.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
}

// reap collects a child that has ended. ok is false if it is no child of ours.
func reap(pid int) (ws unix.WaitStatus, ok bool) {
	for {
		got, err := unix.Wait4(pid, &ws, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return ws, err == nil && got == pid
	}
}

// killAll kills the processes, waits until they have ended and reaps those that are
// children.
func killAll(ctx context.Context, procs []process) error {
	var open []*os.File
	defer func() {
		for _, f := range open {
			_ = f.Close()
		}
	}()
	pids := make([]int, 0, len(procs))
	for _, p := range procs {
		f, err := p.open()
		if err != nil {
			continue
		}
		open = append(open, f)
		pids = append(pids, p.PID)
		kill(f)
	}
	stop := context.AfterFunc(ctx, func() { // ends the waiting below
		for _, f := range open {
			_ = f.Close()
		}
	})
	defer stop()
	for i, f := range open {
		if err := awaitEnd(f); err != nil {
			return errors.Join(ctx.Err(), err)
		}
		reap(pids[i])
	}
	return nil
}

// processesOf returns the processes that were started for the Machine in dir: with an
// argument that is dir, or ends in "=" and dir, or with an order to work there.
func processesOf(dir string) ([]process, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	self := os.Getpid()
	var out []process
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == self {
			continue
		}
		raw, err := os.ReadFile(filepath.Join("/proc", name, "cmdline"))
		if err != nil || !hasArgument(raw, dir) && !worksIn(name, raw, dir) {
			continue
		}
		if p, err := find(pid); err == nil {
			out = append(out, p)
		}
	}
	return out, nil
}

// hasArgument reports whether value, or something that ends in "=" and value, is among the
// arguments of a command line.
func hasArgument(cmdline []byte, value string) bool {
	if !bytes.Contains(cmdline, []byte(value)) {
		return false
	}
	for arg := range bytes.SplitSeq(cmdline, []byte{0}) {
		if string(arg) == value || bytes.HasSuffix(arg, []byte("="+value)) {
			return true
		}
	}
	return false
}

// worksIn reports whether a process is an engine that waited for its command, and got
// one for dir; see bundle.AwaitArg.
func worksIn(pid string, cmdline []byte, dir string) bool {
	if string(cmdline) != engineName+"\x00"+bundle.AwaitArg+"\x00" {
		return false
	}
	at, err := os.Readlink(filepath.Join("/proc", pid, "cwd"))
	return err == nil && at == dir
}

// bootID identifies the time since the host booted.
func bootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(raw)), err
}
