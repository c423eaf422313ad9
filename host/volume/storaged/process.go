package storaged

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// find returns the process that serves a directory and its pidfd, or fs.ErrNotExist. The
// number is looked up first and then among all processes, because whoever started it may
// have been killed before there was a file; that it is ours, its arguments tell.
func find(dir string) (int, *os.File, error) {
	if raw, err := os.ReadFile(filepath.Join(dir, pidFile)); err == nil {
		if pid, err := strconv.Atoi(strings.TrimSpace(string(raw))); err == nil {
			if proc, err := open(pid, dir); !errors.Is(err, fs.ErrNotExist) {
				return pid, proc, err
			}
		}
	}
	all, err := processes()
	if err != nil {
		return 0, nil, err
	}
	for pid := range all {
		if proc, err := open(pid, dir); !errors.Is(err, fs.ErrNotExist) {
			return pid, proc, err
		}
	}
	return 0, nil, fmt.Errorf("storage daemon of %s: %w", dir, fs.ErrNotExist)
}

// open returns the pidfd of a process that serves a directory, or fs.ErrNotExist.
func open(pid int, dir string) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, fs.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	proc := os.NewFile(uintptr(fd), "pidfd")
	// Looked at now, the process is the one of the pidfd.
	if served, ok := serves(pid); !ok || served != dir {
		return nil, errors.Join(fs.ErrNotExist, proc.Close())
	}
	return proc, nil
}

// serves returns the directory that a process serves, false if it is no storage daemon.
func serves(pid int) (string, bool) {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return "", false
	}
	argv := strings.Split(string(bytes.TrimRight(raw, "\x00")), "\x00")
	at := slices.Index(argv, "--pidfile")
	if filepath.Base(argv[0]) != Program || at < 0 || at+1 == len(argv) {
		return "", false
	}
	return filepath.Dir(argv[at+1]), true
}

// processes returns the storage daemons of the host and the directories they serve.
func processes() (map[int]string, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	found := map[int]string{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if dir, ok := serves(pid); ok {
			found[pid] = dir
		}
	}
	return found, nil
}

// List returns the directories beneath run that a daemon serves, or of which one left a
// mount.
func List(run string) ([]string, error) {
	all, err := processes()
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, dir := range all {
		if filepath.Dir(dir) == run {
			dirs = append(dirs, dir)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		const mountPoint = 4
		fields := strings.Fields(line)
		if len(fields) > mountPoint && filepath.Base(fields[mountPoint]) == exportFile {
			if dir := filepath.Dir(fields[mountPoint]); filepath.Dir(dir) == run {
				dirs = append(dirs, dir)
			}
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs), nil
}

// Kill ends the daemon of a directory at once, and all that is left of one. It may be
// repeated.
func Kill(dir string) error {
	for {
		_, proc, err := find(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return clean(dir)
		}
		if err != nil {
			return err
		}
		err = signal(proc, unix.SIGKILL)
		if err == nil || errors.Is(err, unix.ESRCH) {
			_ = proc.SetReadDeadline(time.Now().Add(patience))
			err = awaitEnd(proc)
		}
		if err = errors.Join(err, proc.Close()); err != nil {
			return fmt.Errorf("kill the storage daemon of %s: %w", dir, err)
		}
	}
}

func signal(proc *os.File, sig unix.Signal) error {
	raw, err := proc.SyscallConn() // not Fd, which would make it blocking
	if err != nil {
		return err
	}
	controlErr := raw.Control(func(fd uintptr) { err = unix.PidfdSendSignal(int(fd), sig, nil, 0) })
	return errors.Join(controlErr, err)
}

// awaitEnd waits until the process of a pidfd has ended, or the file is closed.
func awaitEnd(proc *os.File) error {
	raw, err := proc.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
}
