package splice

import (
	"errors"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// pipeSize is the requested size of a pipe. A smaller one works, too.
const pipeSize = 512 << 10

// pipe carries bytes from one connection to another without a copy. It is empty while not in use.
type pipe struct{ read, write int }

// pipes is a pool of empty pipes. A finalizer closes one that the pool drops.
var pipes sync.Pool

func takePipe() (*pipe, error) {
	if p, ok := pipes.Get().(*pipe); ok {
		return p, nil
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		return nil, errors.Join(errCannot, err)
	}
	_, _ = unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, pipeSize)
	p := &pipe{fds[0], fds[1]}
	runtime.SetFinalizer(p, (*pipe).close)
	return p, nil
}

func (p *pipe) close() {
	runtime.SetFinalizer(p, nil)
	_ = unix.Close(p.read)
	_ = unix.Close(p.write)
}

// errCannot means that the kernel cannot splice the connections, or that there is no descriptor for a
// pipe. Everything that was read until then was passed on.
var errCannot = errors.New("these connections cannot be spliced")

const spliceFlags = unix.SPLICE_F_MOVE | unix.SPLICE_F_NONBLOCK

// passKernel copies one direction to its end within the kernel. It holds a pipe only while there
// are bytes to copy.
func passKernel(from, to *net.TCPConn) error {
	in, err := from.SyscallConn()
	if err != nil {
		return err
	}
	out, err := to.SyscallConn()
	if err != nil {
		return err
	}
	for passed := false; ; passed = true {
		p, n, err := fill(in)
		if errors.Is(err, syscall.EINVAL) && !passed {
			return errCannot
		}
		if err != nil || n == 0 {
			return err
		}
		if err := p.empty(out, n); err != nil {
			p.close()
			return err
		}
		pipes.Put(p)
	}
}

// fill waits for bytes and moves them into a pipe. At the end of the direction it returns no pipe.
func fill(in syscall.RawConn) (p *pipe, n int, err error) {
	waitErr := in.Read(func(fd uintptr) bool {
		if p, err = takePipe(); err != nil {
			return true
		}
		var moved int64
		for {
			moved, err = unix.Splice(int(fd), nil, p.write, nil, pipeSize, spliceFlags)
			if !errors.Is(err, syscall.EINTR) {
				break
			}
		}
		if n = int(moved); n > 0 && err == nil {
			return true
		}
		pipes.Put(p)
		p, n = nil, 0
		return !errors.Is(err, syscall.EAGAIN)
	})
	if waitErr != nil {
		return nil, 0, waitErr
	}
	return p, n, os.NewSyscallError("splice", err)
}

// empty moves all n bytes in the pipe to a connection.
func (p *pipe) empty(out syscall.RawConn, n int) error {
	for n > 0 {
		var moved int64
		var err error
		waitErr := out.Write(func(fd uintptr) bool {
			for {
				moved, err = unix.Splice(p.read, nil, int(fd), nil, n, spliceFlags)
				if !errors.Is(err, syscall.EINTR) {
					return !errors.Is(err, syscall.EAGAIN)
				}
			}
		})
		if waitErr != nil {
			return waitErr
		}
		if err != nil {
			return os.NewSyscallError("splice", err)
		}
		n -= int(moved)
	}
	return nil
}
