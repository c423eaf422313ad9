package mount

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Oldest kernel on which a mount works. Older ones do not forward locks, or do not support mmap.
const (
	oldestMajor = 5
	oldestMinor = 4
)

// ErrKernel is returned if the kernel has FUSE, but lacks features that a mount needs.
var ErrKernel = errors.New("the kernel's FUSE lacks features that databases need")

// Supported returns an error if a mount would not work: without /dev/fuse, on an old kernel, and in a gVisor
// sandbox, whose FUSE does not forward locks and cannot end a mount that is in use.
func Supported() error {
	if _, err := os.Stat("/dev/fuse"); err != nil {
		return err
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return fmt.Errorf("uname: %w", err)
	}
	return checkKernel(unix.ByteSliceToString(name.Release[:]))
}

// checkKernel reports whether a kernel release, as in uname(2), supports the mount.
func checkKernel(release string) error {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("%w: release %q", ErrKernel, release)
	}
	if strings.Contains(release, "gvisor") || major < oldestMajor || major == oldestMajor && minor < oldestMinor {
		return fmt.Errorf("%w: release %q, and Linux %d.%d is needed", ErrKernel, release, oldestMajor, oldestMinor)
	}
	return nil
}
