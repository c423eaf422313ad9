// Package hostcheck finds out whether a host can run Machines, and what is missing.
//
// Where possible, a check does not compare version numbers but tries what the platform will do. Most checks work in
// namespaces that end with them, and remove the rest. Even a killed Run leaves at most an empty cgroup or temporary
// directory behind.
//
// Checks run one after the other; Run may be called from several goroutines. The package fixes nothing: a Check says
// how to.
package hostcheck

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Status is the result of a Check.
type Status string

// The results of a Check.
const (
	OK   Status = "ok"
	Warn Status = "warn" // something optional does not work, or is slow
	Fail Status = "fail" // Machines cannot run
)

// Options of Run.
type Options struct {
	Dir string // the data directory; it need not exist
}

// Check is one property of the host.
type Check struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Detail string `json:"detail"`        // what was found, and why it matters
	Fix    string `json:"fix,omitempty"` // empty if Status is OK
}

// Run examines the host. If ctx ends early, it returns the checks made so far.
func Run(ctx context.Context, o Options) []Check {
	dir := existing(o.Dir)
	var all []Check
	for _, c := range []struct {
		name  string
		check func(dir string) Check
	}{
		{"root", checkRoot},
		{"kernel", checkKernel},
		{"cgroups", checkCgroups},
		{"namespaces", checkNamespaces},
		{"overlayfs", checkOverlay},
		{"writable layers", checkLayers},
		{"nftables", checkNftables},
		{"ipv6", checkIPv6},
		{"firewall", checkFirewall},
		{"tun", checkTun},
		{"disk", checkDisk},
		{"limits", checkLimits},
		{"time", checkTime},
		{"local names", func(string) Check { return checkLocalNames(ctx) }},
		{"kvm", checkKVM},
		{"volumes", checkVolumes},
		{"volume tools", checkVolumeTools},
		{"loop devices", checkLoop},
		{"device mapper", checkMapper},
		{"fuse", checkFuse},
		{"qemu-storage-daemon", checkStorageDaemon},
		{"volume growth", checkGrowth},
	} {
		if ctx.Err() != nil {
			break
		}
		result := c.check(dir)
		result.Name = c.name
		all = append(all, result)
	}
	return all
}

func ok(format string, args ...any) Check {
	return Check{Status: OK, Detail: fmt.Sprintf(format, args...)}
}

func warn(fix, format string, args ...any) Check {
	return Check{Status: Warn, Detail: fmt.Sprintf(format, args...), Fix: fix}
}

func fail(fix, format string, args ...any) Check {
	return Check{Status: Fail, Detail: fmt.Sprintf(format, args...), Fix: fix}
}

// existing returns dir, or its nearest ancestor that exists.
func existing(dir string) string {
	dir, err := filepath.Abs(dir)
	for err == nil && dir != "/" {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			break
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

// apart runs f on a thread with new namespaces, which end with it.
func apart(flags int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		err := unix.Unshare(flags)
		if err == nil && flags&unix.CLONE_NEWNS != 0 {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}
