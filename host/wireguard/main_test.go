package wireguard_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// inOwnHost marks the child process that TestMain starts with namespaces of its own:
// what the tests do to "the host" is done to those, and ends with them.
const inOwnHost = "HANGAR_WIREGUARD_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(inOwnHost) != "" {
		must(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		must(unix.Mount("sysfs", "/sys", "sysfs", 0, ""))
		lo, err := netlink.LinkByName("lo")
		must(err)
		must(netlink.LinkSetUp(lo))
		// Package net looks once whether there is IPv6, and must not do so where a
		// namespace has no loopback yet.
		probe, err := net.Listen("tcp", "[::1]:0")
		must(err)
		must(probe.Close())
		goleak.VerifyTestMain(m)
		return
	}
	if os.Geteuid() != 0 {
		fmt.Println("skipped: network namespaces need root")
		return
	}
	child := exec.Command("/proc/self/exe", os.Args[1:]...)
	child.Env = append(os.Environ(), inOwnHost+"=1")
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	child.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := child.Run(); err != nil {
		os.Exit(1)
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
