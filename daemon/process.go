package daemon

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/pidfd"
)

// Process is the running daemon of a data directory. Its pidfd stays with this process even if the pid
// is reused.
type Process struct {
	pid   int
	pidfd *os.File
}

// Find returns the process that holds the lock of a data directory. It does
// not trust the pid in the file: a process counts only if it has that file open.
func Find(dir string) (*Process, error) {
	path := filepath.Join(dir, lockFile)
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 1 {
		return nil, fmt.Errorf("%s names no process", path)
	}
	process, err := pidfd.Open(pid)
	if err != nil {
		return nil, fmt.Errorf("find the daemon, process %d: %w", pid, err)
	}
	if !hasOpen(pid, path) {
		_ = process.Close()
		return nil, fmt.Errorf("%s names process %d, which does not hold it", path, pid)
	}
	return &Process{pid: pid, pidfd: process}, nil
}

// hasOpen reports whether a process has the very file at path open.
func hasOpen(pid int, path string) bool {
	want, err := os.Stat(path)
	if err != nil {
		return false
	}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return false
	}
	return slices.ContainsFunc(fds, func(fd string) bool {
		got, err := os.Stat(fd)
		return err == nil && os.SameFile(want, got)
	})
}

// Close releases the pidfd. The process keeps running.
func (p *Process) Close() { _ = p.pidfd.Close() }

// managed reports whether systemd runs the daemon as a service that notifies it.
func (p *Process) managed() bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.pid))
	return err == nil && strings.Contains("\x00"+string(b), "\x00NOTIFY_SOCKET=")
}

// Stop asks the daemon to end and waits until it has. When patience runs out, it kills the daemon,
// which is safe at any moment.
func (p *Process) Stop(ctx context.Context, patience time.Duration) error {
	if err := pidfd.Signal(p.pidfd, unix.SIGTERM); err != nil {
		return err
	}
	ended, err := p.Ended(ctx, patience)
	if err != nil || ended {
		return err
	}
	if err := pidfd.Signal(p.pidfd, unix.SIGKILL); err != nil {
		return err
	}
	if ended, err = p.Ended(ctx, patience); err == nil && !ended {
		err = fmt.Errorf("process %d does not end", p.pid)
	}
	return err
}

// Ended waits at most patience for the daemon to end, and reports whether it has.
func (p *Process) Ended(ctx context.Context, patience time.Duration) (bool, error) {
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := pidfd.AwaitContext(bounded, p.pidfd)
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		return false, nil
	}
	return err == nil, err
}

// Signal sends the daemon a signal.
func (p *Process) Signal(s unix.Signal) error { return pidfd.Signal(p.pidfd, s) }
