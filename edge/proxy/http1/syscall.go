//go:build !race

package http1

import (
	"syscall"
	"unsafe"
)

// receive reads from a socket without blocking, even if the socket blocks. p must not be empty.
func receive(fd uintptr, p []byte) (int, syscall.Errno) { return receiveAs(fd, p, 0) }

// peek is receive, but leaves the bytes in the socket.
func peek(fd uintptr, p []byte) (int, syscall.Errno) { return receiveAs(fd, p, syscall.MSG_PEEK) }

func receiveAs(fd uintptr, p []byte, flags uintptr) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), flags|syscall.MSG_DONTWAIT, 0, 0) //nolint:gosec // G103: package syscall has no such call that the scheduler is not told of
	return int(n), errno
}

// send writes to a socket without blocking, even if the socket blocks. p must not be empty.
func send(fd uintptr, p []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall6(syscall.SYS_SENDTO, fd, uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL, 0, 0) //nolint:gosec // G103: package syscall has no such call that the scheduler is not told of
	return int(n), errno
}
