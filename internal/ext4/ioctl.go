package ext4

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The ioctls of freezing, _IOWR('X', 119, int) and _IOWR('X', 120, int).
const (
	ioctlFreeze = 0xc0045877
	ioctlThaw   = 0xc0045878
)

func resize(fd int, blocks *uint64) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), ioctlResize, uintptr(unsafe.Pointer(blocks))) //nolint:gosec // G103: package unix has no ioctl that takes such a pointer
	if errno != 0 {
		return errno
	}
	return nil
}

// Freeze writes everything in a mounted file system to the device, and blocks writers until Thaw.
func Freeze(dir *os.File) error {
	if err := unix.IoctlSetInt(int(dir.Fd()), ioctlFreeze, 0); err != nil {
		return fmt.Errorf("freeze %s: %w", dir.Name(), err)
	}
	return nil
}

// Thaw ends a Freeze, even another process's, and reports whether the file system was frozen. It may
// be repeated.
func Thaw(dir *os.File) (bool, error) {
	err := unix.IoctlSetInt(int(dir.Fd()), ioctlThaw, 0)
	if errors.Is(err, unix.EINVAL) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("thaw %s: %w", dir.Name(), err)
	}
	return true, nil
}
