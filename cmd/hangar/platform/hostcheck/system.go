package hostcheck

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/cgroup"
)

func checkRoot(string) Check {
	if uid := os.Geteuid(); uid != 0 {
		return fail("run as root, e.g. with sudo", "running as user %d; namespaces, mounts and networks need root", uid)
	}
	missing, err := lacks(map[int]string{
		unix.CAP_SYS_ADMIN: "CAP_SYS_ADMIN", unix.CAP_NET_ADMIN: "CAP_NET_ADMIN",
		unix.CAP_SYS_PTRACE: "CAP_SYS_PTRACE", unix.CAP_MKNOD: "CAP_MKNOD",
	})
	switch {
	case err != nil:
		return fail("mount /proc", "capabilities are unknown: %v", err)
	case len(missing) > 0:
		return fail("run on the host itself or in a privileged container", "root lacks %s", strings.Join(missing, ", "))
	}
	return ok("running as root with the capabilities that Machines need")
}

// lacks returns those of the capabilities that this process lacks.
func lacks(wanted map[int]string) ([]string, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(status)) {
		text, found := strings.CutPrefix(line, "CapEff:")
		if !found {
			continue
		}
		caps, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
		if err != nil {
			return nil, err
		}
		var missing []string
		for bit, name := range wanted {
			if caps&(1<<bit) == 0 {
				missing = append(missing, name)
			}
		}
		slices.Sort(missing)
		return missing, nil
	}
	return nil, errors.New("line CapEff is missing")
}

func checkKernel(string) Check {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fail("run on Linux", "kernel version is unknown: %v", err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return warn("use Linux 5.15 or newer", "the version of Linux %s is unknown", release)
	}
	if major < 5 || major == 5 && minor < 15 {
		return warn("upgrade to Linux 5.15 or newer", "Linux %s is older than the tested versions", release)
	}
	return ok("Linux %s", release)
}

const cgroupFix = "mount cgroup2 at /sys/fs/cgroup with the controllers cpu, memory and pids enabled, as systemd does; in a container, delegate them"

// checkCgroups creates a cgroup and sets the limits that a Machine has.
func checkCgroups(string) Check {
	unified, err := cgroup.Unified()
	if err != nil {
		return fail(cgroupFix, "no cgroups: %v; Machines need them for their memory and CPU limits", err)
	}
	if unified {
		controllers, err := os.ReadFile(filepath.Join(cgroup.Root, "cgroup.controllers"))
		if err != nil {
			return fail(cgroupFix, "cgroup v2 cannot be read: %v", err)
		}
		for _, want := range []string{"cpu", "memory"} {
			if !slices.Contains(strings.Fields(string(controllers)), want) {
				return fail(cgroupFix, "cgroup v2 has no controller %s; Machines need it for their limits", want)
			}
		}
		if err := tryCgroup(cgroup.Root, "cgroup.procs"); err != nil {
			return fail(cgroupFix, "cgroup v2 cannot be used: %v", err)
		}
		return ok("v2, with the limits of memory and CPU that Machines need")
	}
	for controller, file := range map[string]string{"memory": "memory.limit_in_bytes", "cpu": "cpu.cfs_quota_us"} {
		if err := tryCgroup(filepath.Join(cgroup.Root, controller), file); err != nil {
			return fail(cgroupFix, "cgroup v1 controller %s cannot be used: %v; Machines need it for their limits", controller, err)
		}
	}
	return ok("v1, with the limits of memory and CPU that Machines need")
}

// tryCgroup creates a cgroup under root and looks for a file in it.
func tryCgroup(root, file string) (err error) {
	dir, err := os.MkdirTemp(root, "hangar-doctor-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Rmdir(dir)) }() // removes its files, too
	_, err = os.ReadFile(filepath.Join(dir, file))
	return err
}

// checkNamespaces starts a process in each kind of namespace. The program does not exist: the error that says so
// proves that the namespace was created.
func checkNamespaces(string) Check {
	var broken []string
	for _, ns := range []struct {
		name string
		flag uintptr
	}{
		{"mnt", unix.CLONE_NEWNS},
		{"pid", unix.CLONE_NEWPID},
		{"net", unix.CLONE_NEWNET},
		{"ipc", unix.CLONE_NEWIPC},
		{"uts", unix.CLONE_NEWUTS},
		{"user", unix.CLONE_NEWUSER},
	} {
		process, err := os.StartProcess("/proc/self/no-such-program", []string{"none"},
			&os.ProcAttr{Sys: &syscall.SysProcAttr{Cloneflags: ns.flag}})
		if err == nil {
			_, err = process.Wait()
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			broken = append(broken, fmt.Sprintf("%s (%v)", ns.name, err))
		}
	}
	if len(broken) > 0 {
		return fail("run on a kernel with all namespaces; check /proc/sys/user/max_*_namespaces and kernel.unprivileged_userns_clone",
			"namespaces cannot be created: %s; every Machine needs its own", strings.Join(broken, ", "))
	}
	return ok("mnt, pid, net, ipc, uts and user, which isolate Machines")
}

func checkLimits(string) Check {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return warn("run on the host itself", "limits are unknown: %v", err)
	}
	return verdictLimits(files.Max, number("/proc/sys/fs/inotify/max_user_instances"), number("/proc/sys/kernel/pid_max"))
}

func verdictLimits(files, inotify, pids uint64) Check {
	switch {
	case files < 65536:
		return warn("set LimitNOFILE=1048576 in the unit, or ulimit -Hn 1048576",
			"%d open files at most; hundreds of Machines with their connections need 65536", files)
	case inotify < 128:
		return warn("sysctl fs.inotify.max_user_instances=1024",
			"%d inotify instances at most; many Machines need 128", inotify)
	case pids < 32768:
		return warn("sysctl kernel.pid_max=4194304",
			"%d processes and threads at most; a Machine takes about 20", pids)
	}
	return ok("%d open files, %d inotify instances, %d processes", files, inotify, pids)
}

// number reads a file of /proc that holds a number, or returns 0.
func number(path string) uint64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func checkTime(string) Check {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return warn("run on the host itself", "clock state is unknown: %v", err)
	}
	return verdictTime(state, t.Status)
}

func verdictTime(state int, status int32) Check {
	if state == unix.TIME_ERROR || status&unix.STA_UNSYNC != 0 {
		return warn("install a time service: apt-get install systemd-timesyncd (or chrony)",
			"the clock is not synchronized; tokens and certificates expire by it, and hosts of a cluster must agree")
	}
	return ok("the clock is synchronized")
}
