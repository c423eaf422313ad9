package gvisor

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

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/host/driver/gvisor/bundle"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/pidfd"
)

// process is one process of the host. Its start time distinguishes it from a later one with the same
// id.
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

// isGone reports whether err, from a process's files in /proc, means that the process is gone. Other
// errors, such as too many open files, mean nothing about the process.
func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

func startTime(pid int) (uint64, error) {
	_, start, err := status(pid)
	return start, err
}

// status returns the parent of a process and its start time.
func status(pid int) (parent int, start uint64, err error) {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if isGone(err) {
		return 0, 0, errGone
	}
	if err != nil {
		return 0, 0, err
	}
	// The name, in parentheses, may contain anything. The values are the 2nd and the 20th field after
	// it.
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	const parentField, startField = 1, 19
	if len(fields) <= startField {
		return 0, 0, fmt.Errorf("unexpected content of /proc/%d/stat", pid)
	}
	if parent, err = strconv.Atoi(fields[parentField]); err != nil {
		return 0, 0, err
	}
	start, err = strconv.ParseUint(fields[startField], 10, 64)
	return parent, start, err
}

// descendants returns all descendants of a process, parents first, including ended ones that were not
// reaped yet.
func descendants(pid int) []process {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1) // as many as could be read
	children := make(map[int][]process)
	for _, name := range names {
		if child, err := strconv.Atoi(name); err == nil {
			if parent, start, err := status(child); err == nil {
				children[parent] = append(children[parent], process{PID: child, Start: start})
			}
		}
	}
	all := slices.Clone(children[pid])
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i].PID]...)
	}
	return all
}

// open returns a descriptor of the process, or errGone.
func (p process) open() (*os.File, error) {
	if p.PID <= 1 {
		return nil, errGone
	}
	f, err := pidfd.Open(p.PID)
	if errors.Is(err, pidfd.ErrGone) {
		return nil, errGone
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", p.PID, err)
	}
	// Checked after opening, because from here on the id cannot belong to another process.
	start, err := startTime(p.PID)
	if err == nil && start != p.Start {
		err = errGone
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func kill(process *os.File) { _ = pidfd.Signal(process, unix.SIGKILL) }

// reap collects an ended child. ok is false if the process is not a child.
func reap(pid int) (ws unix.WaitStatus, ok bool) {
	for {
		got, err := unix.Wait4(pid, &ws, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return ws, err == nil && got == pid
	}
}

// killAll kills the processes, waits until they have ended, and reaps those that are children or
// become so when an earlier one ends.
func killAll(ctx finish.Context, procs []process) error {
	var open []*os.File
	defer func() {
		for _, f := range open {
			_ = f.Close()
		}
	}()
	pids := make([]int, 0, len(procs))
	for _, p := range procs {
		f, err := p.open()
		if errors.Is(err, errGone) {
			continue
		}
		if err != nil {
			return err
		}
		open = append(open, f)
		pids = append(pids, p.PID)
		kill(f)
	}
	for i, f := range open {
		if err := pidfd.AwaitContext(ctx, f); err != nil {
			return err
		}
		reap(pids[i])
	}
	return nil
}

// processesOf returns the processes that were started for the Machine in dir: those with an argument
// that is dir or ends in "=" and dir, and engines with a command for dir.
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
		if err != nil && !isGone(err) {
			return nil, err
		}
		if !hasArgument(raw, dir) && !worksIn(name, raw, dir) {
			continue
		}
		switch p, err := find(pid); {
		case err == nil:
			out = append(out, p)
		case !errors.Is(err, errGone):
			return nil, err
		}
	}
	return out, nil
}

// hasArgument reports whether an argument of a command line is value, or ends in "=" and value.
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

// worksIn reports whether a process is an engine that waited for its command and received one for
// dir; see bundle.AwaitArg.
func worksIn(pid string, cmdline []byte, dir string) bool {
	if string(cmdline) != engineName+"\x00"+bundle.AwaitArg+"\x00" {
		return false
	}
	at, err := os.Readlink(filepath.Join("/proc", pid, "cwd"))
	return err == nil && at == dir
}

// bootID identifies the host's boot.
func bootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(raw)), err
}
