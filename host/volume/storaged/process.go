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

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/pidfd"
)

// find returns the process that serves a directory and its pidfd, or ErrNotRunning. It reads the
// PID file first and then searches all processes, because the process may have been killed before
// it wrote the file. The arguments identify a process as ours.
func find(dir string) (int, *os.File, error) {
	if raw, err := os.ReadFile(filepath.Join(dir, pidFile)); err == nil {
		if pid, err := strconv.Atoi(strings.TrimSpace(string(raw))); err == nil {
			if proc, err := open(pid, dir); !errors.Is(err, ErrNotRunning) {
				return pid, proc, err
			}
		}
	}
	all, err := processes()
	if err != nil {
		return 0, nil, err
	}
	for pid, served := range all {
		if served != dir {
			continue
		}
		if proc, err := open(pid, dir); !errors.Is(err, ErrNotRunning) {
			return pid, proc, err
		}
	}
	return 0, nil, fmt.Errorf("%s: %w", dir, ErrNotRunning)
}

// open returns the pidfd of a process that serves a directory, or ErrNotRunning.
func open(pid int, dir string) (*os.File, error) {
	proc, err := pidfd.Open(pid)
	if errors.Is(err, pidfd.ErrGone) {
		return nil, ErrNotRunning
	}
	if err != nil {
		return nil, err
	}
	// Checked after the pidfd is open, so that both refer to the same process.
	served, err := serves(pid)
	if err == nil && served != dir {
		err = ErrNotRunning
	}
	if err != nil {
		return nil, errors.Join(err, proc.Close())
	}
	return proc, nil
}

// serves returns the directory that a process serves, or "" if it is not a storage daemon or has
// ended.
func serves(pid int) (string, error) {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	argv := strings.Split(string(bytes.TrimRight(raw, "\x00")), "\x00")
	at := slices.Index(argv, "--pidfile")
	if filepath.Base(argv[0]) != Program || at < 0 || at+1 == len(argv) {
		return "", nil
	}
	return filepath.Dir(argv[at+1]), nil
}

// processes returns the storage daemons of the host with their directories.
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
		dir, err := serves(pid)
		if err != nil {
			return nil, err
		}
		if dir != "" {
			found[pid] = dir
		}
	}
	return found, nil
}

// List returns the directories below run that a daemon serves, or in which a daemon has left a mount.
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
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		if dir := filepath.Dir(m.Mountpoint); filepath.Base(m.Mountpoint) == exportFile && filepath.Dir(dir) == run {
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs), nil
}

// Kill ends the daemon of a directory at once, and cleans up. It may be repeated.
func Kill(dir string) error {
	for {
		_, proc, err := find(dir)
		if errors.Is(err, ErrNotRunning) {
			return clean(dir)
		}
		if err != nil {
			return err
		}
		err = pidfd.Signal(proc, unix.SIGKILL)
		if err == nil {
			_ = proc.SetReadDeadline(time.Now().Add(patience))
			err = awaitEnd(proc)
		}
		if err = errors.Join(err, proc.Close()); err != nil {
			return fmt.Errorf("kill the storage daemon of %s: %w", dir, err)
		}
	}
}

// awaitEnd is pidfd.Await, and reaps the process if it is a child: in a subreaper (see prctl(2)),
// daemons become children.
func awaitEnd(proc *os.File) error {
	if err := pidfd.Await(proc); err != nil {
		return err
	}
	conn, err := proc.SyscallConn()
	if err != nil {
		return err
	}
	return conn.Control(func(fd uintptr) {
		for errors.Is(unix.Waitid(unix.P_PIDFD, int(fd), nil, unix.WEXITED|unix.WNOHANG, nil), unix.EINTR) {
		}
	})
}

// reapStarter reaps the process that forked the daemon of a directory, if this process is a
// subreaper. With --daemonize, the program forks a session leader, which forks the daemon and exits.
func reapStarter(dir string) error {
	pid, proc, err := find(dir)
	if err != nil { // it has already ended
		return errors.Join(err, reapFailed(dir))
	}
	defer proc.Close()
	leader, err := unix.Getsid(pid)
	if err != nil {
		return errors.Join(err, reapFailed(dir))
	}
	if leader == pid {
		return nil
	}
	// The PID is not reused while its session has a member.
	for {
		if _, err := unix.Wait4(leader, nil, 0, nil); !errors.Is(err, unix.EINTR) {
			return nil // an error means that it is not our child
		}
	}
}

// reapFailed ends the remains of a daemon that failed to start, and reaps it and its starter. It does
// not know the starter's PID, so it reaps all children that have ended, with the program's name and a
// session of their own. Reaping another daemon in this way is harmless: see awaitEnd.
func reapFailed(dir string) error {
	if err := Kill(dir); err != nil {
		return err
	}
	for deadline := time.Now().Add(patience); ; <-time.After(time.Millisecond) {
		exiting, err := reapOrphans()
		if err != nil || !exiting || time.Now().After(deadline) {
			return err
		}
	}
}

// reapOrphans reaps the orphans that have ended. It reports whether others are about to end: they have no command line
// any more, and may even be zombies, of which a thread is still ending.
func reapOrphans() (exiting bool, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return false, err
	}
	own, err := unix.Getsid(0)
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || !isOrphan(pid, own) {
			continue
		}
		if reaped, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); reaped != 0 || err != nil {
			continue // an error means that it is already reaped
		}
		argv, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		exiting = exiting || err == nil && len(argv) == 0
	}
	return exiting, nil
}

// maxName is how many bytes of a program's name the kernel keeps.
const maxName = 15

// isOrphan reports whether a process is a storage daemon or its starter, and a child of this
// process. own is the session of this process, which also contains the programs that it runs and
// waits for.
func isOrphan(pid, own int) bool {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return false
	}
	// "7 (name) Z parent group session"; the name may contain anything.
	from, to := bytes.IndexByte(raw, '('), bytes.LastIndexByte(raw, ')')
	if from < 0 || to < from || string(raw[from+1:to]) != Program[:maxName] {
		return false
	}
	const parent, session = 1, 3
	fields := strings.Fields(string(raw[to+1:]))
	return len(fields) > session && fields[parent] == strconv.Itoa(os.Getpid()) && fields[session] != strconv.Itoa(own)
}
