package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/internal/pidfd"
)

// lockFile is locked by the daemon as long as it lives, and holds its pid.
const lockFile = "lock"

// errLocked says that another process has the lock.
var errLocked = errors.New("the data directory is in use")

// dirLock is the exclusive right to a data directory. The kernel releases it when
// the process ends, however it ends.
type dirLock struct{ f *os.File }

// A lock that no daemon holds is waited for: a child that a daemon was starting when it was killed
// has it until it runs its own program. Attempts bound that, and not the time: a server that stood
// still has not let the child go on, either.
const (
	lockAttempts = 500
	lockPause    = 10 * time.Millisecond
)

// lockDir takes the lock of a data directory, or answers errLocked.
func lockDir(dir string) (*dirLock, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		if attempt == lockAttempts || anotherRuns(dir) {
			_ = f.Close()
			return nil, errLocked
		}
		time.Sleep(lockPause)
	}
	if err := writeOver(f, strconv.Itoa(os.Getpid())); err != nil {
		_ = f.Close()
		return nil, err
	}
	return &dirLock{f}, nil
}

// anotherRuns reports whether another process is the daemon of a data directory. This one may
// have been given the pid of one that was killed.
func anotherRuns(dir string) bool {
	holder, err := findDaemon(dir)
	if err != nil {
		return false
	}
	defer holder.close()
	return holder.pid != os.Getpid()
}

// writeOver writes a line over the content of a file. One that is emptied first may find its
// block taken on a full disk.
func writeOver(f *os.File, line string) error {
	if _, err := f.WriteAt([]byte(line+"\n"), 0); err != nil {
		return err
	}
	return f.Truncate(int64(len(line) + 1))
}

func (l *dirLock) release() { _ = l.f.Close() }

// writeAddress writes a file that says where the daemon serves. On a full disk the address goes
// over the old one, which takes no room.
func writeAddress(path, addr string) error {
	err := durable.WriteChanged(path, []byte(addr+"\n"), 0o644)
	if !errors.Is(err, unix.ENOSPC) {
		return err
	}
	f, failed := os.OpenFile(path, os.O_WRONLY, 0)
	if failed != nil {
		return err // there is no old one
	}
	return errors.Join(writeOver(f, addr), f.Close())
}

// daemonProcess is the running daemon of a data directory. Its pidfd names that
// very process, even after the pid was given to another.
type daemonProcess struct {
	pid   int
	pidfd *os.File
}

// findDaemon returns the process that holds the lock of a data directory. It does
// not trust the pid in the file: a process counts only if it has that file open.
func findDaemon(dir string) (*daemonProcess, error) {
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
	return &daemonProcess{pid: pid, pidfd: process}, nil
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
	for _, fd := range fds {
		if got, err := os.Stat(fd); err == nil && os.SameFile(want, got) {
			return true
		}
	}
	return false
}

func (p *daemonProcess) close() { _ = p.pidfd.Close() }

// managed reports whether systemd runs the daemon as a service that notifies it.
func (p *daemonProcess) managed() bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.pid))
	return err == nil && strings.Contains("\x00"+string(b), "\x00NOTIFY_SOCKET=")
}

// stop asks the daemon to end and waits until it has; when patience runs out, it
// is killed, which its design allows at any moment.
func (p *daemonProcess) stop(ctx context.Context, patience time.Duration) error {
	if err := pidfd.Signal(p.pidfd, unix.SIGTERM); err != nil {
		return err
	}
	ended, err := p.ended(ctx, patience)
	if err != nil || ended {
		return err
	}
	if err := pidfd.Signal(p.pidfd, unix.SIGKILL); err != nil {
		return err
	}
	if ended, err = p.ended(ctx, patience); err == nil && !ended {
		err = fmt.Errorf("process %d does not end", p.pid)
	}
	return err
}

// ended reports whether the daemon has ended, and waits for it as long as patience.
func (p *daemonProcess) ended(ctx context.Context, patience time.Duration) (bool, error) {
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := pidfd.AwaitContext(bounded, p.pidfd)
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		return false, nil
	}
	return err == nil, err
}

// mountsBelow lists what is mounted below a directory, deepest first.
func mountsBelow(dir string) ([]string, error) {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(m.Mountpoint, dir+"/"), false
	})
	if err != nil {
		return nil, err
	}
	var found []string
	for _, m := range slices.Backward(mounts) {
		found = append(found, m.Mountpoint)
	}
	return found, nil
}

// exists reports whether there is something at path.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
