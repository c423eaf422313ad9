package network

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// threadNetNS is the namespace of the calling thread.
const threadNetNS = "/proc/thread-self/ns/net"

// onThread runs f on a thread of its own, which f may move to another network namespace. The thread
// is reused only if it has returned to its own namespace.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // a goroutine that ends locked takes its thread with it
		home, err := os.Open(threadNetNS)
		if err != nil {
			done <- err
			return
		}
		err = f()
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		done <- errors.Join(err, home.Close())
	}()
	return <-done
}

// makeNetNS makes a namespace and binds it to path, which must not exist.
func makeNetNS(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444) //nolint:gosec // G304: made of the run directory and a valid id
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make network namespace: %w", err)
		}
		// These must be set before there is any device, so that eth0 never generates an address of its
		// own. A sandbox would adopt that address, and lose its connections when the next one is
		// different.
		for name, value := range map[string]string{
			"disable_ipv6": "0", "addr_gen_mode": "1", "accept_ra": "0", "accept_dad": "0",
		} {
			if err := writeSysctl("net/ipv6/conf/default/"+name, value); err != nil {
				return err
			}
		}
		if err := unix.Mount(threadNetNS, path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind network namespace: %w", err)
		}
		return nil
	})
}

// openNetNS opens the namespace bound to path. It returns fs.ErrNotExist when path is missing, or is
// a plain file to which no namespace was bound.
func openNetNS(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if st.Type != unix.NSFS_MAGIC {
		return nil, errors.Join(fmt.Errorf("%s is no namespace: %w", path, fs.ErrNotExist), f.Close())
	}
	return f, nil
}

// removeNetNS unbinds and removes path, which may be partial or missing. bound reports whether a
// namespace was bound. The kernel destroys the namespace and its devices when it is no longer in use.
func removeNetNS(path string) (bound bool, err error) {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // not, or no longer, a mount point
			break
		}
		if err != nil {
			return bound, fmt.Errorf("unbind %s: %w", path, err)
		}
		bound = true
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return bound, err
	}
	return bound, nil
}

// netlinkIn opens a netlink socket that acts in the namespace ns. The socket keeps the namespace
// alive and must be closed.
func netlinkIn(ns *os.File) (*netlink.Handle, error) {
	var nl *netlink.Handle
	err := onThread(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		var err error
		nl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	return nl, err
}

// writeSysctl sets a variable of the calling thread's network namespace. It does not write a value
// that is set already, because /proc may be read-only.
func writeSysctl(name, value string) error {
	if readSysctl(name) == value {
		return nil
	}
	path := filepath.Join("/proc/sys", name)
	if err := os.WriteFile(path, []byte(value), 0); err != nil {
		return fmt.Errorf("set %s to %s: %w", path, value, err)
	}
	return nil
}

// readSysctl returns the value, or "" when it cannot be read.
func readSysctl(name string) string {
	b, err := os.ReadFile(filepath.Join("/proc/sys", name))
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}
