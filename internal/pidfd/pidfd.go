// Package pidfd identifies processes by descriptors, which are safe against reuse of a process id:
// see pidfd_open(2).
package pidfd

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrGone: the process has ended and was reaped.
var ErrGone = errors.New("process is gone")

// Open returns a descriptor of the process that has the id pid now, or ErrGone. The caller must then
// check that it is the right process, which cannot change afterwards.
func Open(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) { // EINVAL: not a number of a process
		return nil, ErrGone
	}
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// Signal sends a signal. An ended process is not an error.
func Signal(process *os.File, sig unix.Signal) error {
	conn, err := process.SyscallConn() // not Fd, which would make it blocking
	if err != nil {
		return err
	}
	controlErr := conn.Control(func(fd uintptr) { err = unix.PidfdSendSignal(int(fd), sig, nil, 0) })
	if errors.Is(err, unix.ESRCH) {
		err = nil
	}
	return errors.Join(controlErr, os.NewSyscallError("pidfd_send_signal", err))
}

// Await returns nil when the process has ended. It returns an error, which says nothing about the
// process, when the descriptor was closed, its read deadline has passed, or poll(2) failed.
func Await(process *os.File) error {
	conn, err := process.SyscallConn()
	if err != nil {
		return err
	}
	var n int
	var pollErr error
	readErr := conn.Read(func(fd uintptr) bool {
		for {
			n, pollErr = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			if !errors.Is(pollErr, unix.EINTR) {
				return n > 0 || pollErr != nil
			}
		}
	})
	return errors.Join(readErr, os.NewSyscallError("poll", pollErr))
}

// AwaitContext is Await until ctx ends; it then returns the cause of ctx. Only one call at a time may
// wait on a descriptor.
func AwaitContext(ctx context.Context, process *os.File) error {
	if err := process.SetReadDeadline(time.Time{}); err != nil { // an earlier call's
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = process.SetReadDeadline(time.Unix(1, 0)) })()
	err := Await(process)
	if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
