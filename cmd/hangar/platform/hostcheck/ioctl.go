package hostcheck

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// address returns the address of a buffer, which must be mapped memory.
func address(b []byte) uint64 {
	return uint64(uintptr(unsafe.Pointer(&b[0]))) //nolint:gosec // G103: the kernel's interface
}

// ioctl calls the kernel with a buffer for its input and output.
func ioctl(fd int, request uintptr, b []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(&b[0]))) //nolint:gosec // G103: the kernel's interface
	if errno != 0 {
		return errno
	}
	return nil
}
