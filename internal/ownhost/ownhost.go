// Package ownhost runs the tests of a package in namespaces of their own, which they may treat as a
// host: their changes to its network end with them.
package ownhost

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/sys/mountinfo"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// inside marks the child process that Main starts.
const inside = "HANGAR_TEST_OWN_HOST"

// Main runs the tests of m in a child process with its own mounts and its own network, which has only
// a loopback device. It first calls prepare, which may be nil. It fails if a goroutine is left.
// Without root it skips the tests.
func Main(m *testing.M, prepare func() error) {
	if os.Getenv(inside) == "" {
		os.Exit(runInside())
	}
	err := setUp()
	if err == nil && prepare != nil {
		err = prepare()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "own host:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// runInside returns the exit code of the child process.
func runInside() int {
	if os.Geteuid() != 0 {
		fmt.Println("skipped: network namespaces need root")
		return 0
	}
	child := exec.Command("/proc/self/exe", os.Args[1:]...)
	child.Env = append(os.Environ(), inside+"=1")
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	child.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := child.Run(); err != nil {
		return 1
	}
	return 0
}

// unmountOthers unmounts what other tests had mounted when this process started. Otherwise their file
// systems would stay in use as long as this process lives.
func unmountOthers() error {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(m.Mountpoint, "/run/hangar") && !strings.HasPrefix(m.Mountpoint, os.TempDir()+"/"), false
	})
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(mounts) { // nested mounts first
		// A mount whose directory was removed meanwhile is gone.
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount %s: %w", m.Mountpoint, err)
		}
	}
	return nil
}

func setUp() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unmountOthers(); err != nil {
		return err
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return fmt.Errorf("mount sysfs: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set the loopback up: %w", err)
	}
	// Package net checks once whether IPv6 works, and must not do so before the namespace has a
	// loopback.
	probe, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		return fmt.Errorf("look for IPv6: %w", err)
	}
	return probe.Close()
}
