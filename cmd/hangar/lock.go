package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// lockFile is locked by the daemon as long as it lives, and holds its pid.
const lockFile = "lock"

// errLocked says that another process has the lock.
var errLocked = errors.New("the data directory is in use")

// dirLock is the exclusive right to a data directory. The kernel releases it when
// the process ends, however it ends.
type dirLock struct{ f *os.File }

// lockDir takes the lock of a data directory, or answers errLocked.
func lockDir(dir string) (*dirLock, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	if err := writePID(f); err != nil {
		_ = f.Close()
		return nil, err
	}
	return &dirLock{f}, nil
}

func writePID(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

func (l *dirLock) release() { _ = l.f.Close() }

// daemonProcess is the running daemon of a data directory. Its pidfd names that
// very process, even after the pid was given to another.
type daemonProcess struct {
	pid   int
	pidfd int
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
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("find the daemon, process %d: %w", pid, err)
	}
	if !hasOpen(pid, path) {
		_ = unix.Close(pidfd)
		return nil, fmt.Errorf("%s names process %d, which does not hold it", path, pid)
	}
	return &daemonProcess{pid: pid, pidfd: pidfd}, nil
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

func (p *daemonProcess) close() { _ = unix.Close(p.pidfd) }

// managed reports whether systemd runs the daemon as a service that notifies it.
func (p *daemonProcess) managed() bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.pid))
	return err == nil && strings.Contains("\x00"+string(b), "\x00NOTIFY_SOCKET=")
}

// stop asks the daemon to end and waits until it has; when patience runs out, it
// is killed, which its design allows at any moment.
func (p *daemonProcess) stop(ctx context.Context, patience time.Duration) error {
	if err := p.signal(unix.SIGTERM); err != nil {
		return err
	}
	ended, err := p.ended(ctx, patience)
	if err != nil || ended {
		return err
	}
	if err := p.signal(unix.SIGKILL); err != nil {
		return err
	}
	if ended, err = p.ended(ctx, patience); err == nil && !ended {
		err = fmt.Errorf("process %d does not end", p.pid)
	}
	return err
}

func (p *daemonProcess) signal(sig unix.Signal) error {
	err := unix.PidfdSendSignal(p.pidfd, sig, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// pollStep bounds how late the end of ctx is noticed.
const pollStep = 100 * time.Millisecond

func (p *daemonProcess) ended(ctx context.Context, patience time.Duration) (bool, error) {
	deadline := time.Now().Add(patience)
	for {
		fds := []unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(pollStep.Milliseconds()))
		switch {
		case n > 0:
			return true, nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return false, err
		case ctx.Err() != nil:
			return false, context.Cause(ctx)
		case time.Now().After(deadline):
			return false, nil
		}
	}
}

// mountsBelow lists what is mounted below a directory, deepest first.
func mountsBelow(dir string) ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range strings.Lines(string(b)) {
		columns := strings.Fields(line)
		if len(columns) < 5 {
			continue
		}
		point := unescapeMount(columns[4])
		if strings.HasPrefix(point, dir+"/") {
			found = append([]string{point}, found...)
		}
	}
	return found, nil
}

// unescapeMount undoes the octal escapes of mountinfo.
func unescapeMount(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}

// exists reports whether there is something at path.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
