package daemon

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hangar-platform/hangar"
)

// Sandboxes lists the Machines of a data directory that have a gVisor sandbox, by
// the command lines of the processes on this host.
func Sandboxes(dir string) ([]hangar.MachineID, error) {
	pids, err := SandboxPIDs(dir)
	return slices.Collect(maps.Keys(pids)), err
}

// SandboxPIDs returns the process of each Machine of a data directory that has a gVisor
// sandbox.
func SandboxPIDs(dir string) (map[hangar.MachineID]int, error) {
	pids := make(map[hangar.MachineID]int)
	err := eachProcess(func(pid int, args []string) {
		if args[0] != "runsc-sandbox" {
			return
		}
		for _, arg := range args {
			if rest, ok := strings.CutPrefix(arg, "--bundle="+filepath.Join(dir, "machines")+"/"); ok {
				id, _, _ := strings.Cut(rest, "/")
				pids[hangar.MachineID(id)] = pid
			}
		}
	})
	return pids, err
}

// Image is the file of a volume in a data directory.
func Image(dir string, id hangar.VolumeID) string {
	return filepath.Join(dir, "volumes", string(id), "image")
}

// StorageDaemons returns, for the volumes of a data directory, the processes of
// qemu-storage-daemon that have the image open.
func StorageDaemons(dir string) (map[hangar.VolumeID][]int, error) {
	pids := make(map[hangar.VolumeID][]int)
	err := eachProcess(func(pid int, args []string) {
		if filepath.Base(args[0]) != "qemu-storage-daemon" {
			return
		}
		for _, arg := range args {
			_, rest, ok := strings.Cut(arg, "filename="+filepath.Join(dir, "volumes")+"/")
			id, _, _ := strings.Cut(rest, "/")
			if v := hangar.VolumeID(id); ok && !slices.Contains(pids[v], pid) {
				pids[v] = append(pids[v], pid)
			}
		}
	})
	return pids, err
}

// Process is one of the processes of this host.
type Process struct {
	PID, Parent int
	State       byte   // as in proc(5): 'Z' is one that was not reaped
	Command     string // its arguments, or its name in parentheses if it has none
}

// Family lists the processes that a daemon has on this host: those whose command line has one of
// the marks, and all that descend from them or have the process root as an ancestor, zombies
// included.
func Family(root int, marks ...string) ([]Process, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	all := make(map[int]Process)
	for _, path := range stats {
		if p, ok := readProcess(filepath.Dir(path)); ok { // a process may end while it is looked at
			all[p.PID] = p
		}
	}
	var family []Process
	for _, p := range all {
		for at, ok := p, true; ok; at, ok = all[at.Parent] {
			if at.PID == root || slices.ContainsFunc(marks, func(mark string) bool { return strings.Contains(at.Command, mark) }) {
				family = append(family, p)
				break
			}
		}
	}
	return family, nil
}

// readProcess reads the directory of a process in /proc; false: it has none any more.
func readProcess(dir string) (p Process, ok bool) {
	command, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	raw, err2 := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil || err2 != nil {
		return p, false
	}
	// "7 (name) S 1": the name may hold anything.
	stat := string(raw)
	from, to := strings.IndexByte(stat, '('), strings.LastIndexByte(stat, ')')
	fields := strings.Fields(stat[to+1:])
	if p.PID, err = strconv.Atoi(filepath.Base(dir)); err != nil || from < 0 || len(fields) < 2 {
		return p, false
	}
	p.State = fields[0][0]
	p.Parent, _ = strconv.Atoi(fields[1])
	if p.Command = strings.TrimSpace(strings.ReplaceAll(string(command), "\x00", " ")); p.Command == "" {
		p.Command = stat[from : to+1]
	}
	return p, true
}

// eachProcess calls f with every process of this host that has a command line.
func eachProcess(f func(pid int, args []string)) error {
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, path := range commands {
		b, _ := os.ReadFile(path) // a process may end while it is looked at
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil || len(b) == 0 {
			continue
		}
		f(pid, strings.Split(string(b), "\x00"))
	}
	return nil
}
