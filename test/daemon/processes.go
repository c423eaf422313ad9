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
