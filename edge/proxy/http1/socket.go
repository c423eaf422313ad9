package http1

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// maxTransfer bounds the bytes of one transfer, so that the thread is not in the kernel for long.
const maxTransfer = 64 << 10

// A transfer is one direction of a plain TCP connection. It does what Read or Write of the
// connection does, without telling the scheduler about the system call. These calls do not block,
// but writing to a socket of the same server takes longer than the 20 us after which the runtime
// assumes that a call blocks, because the kernel runs the receiver's side in it. Then the runtime
// wakes another thread for each, and a thread of its own polls every 20 us for the next. That was a
// fifth of the processor time of a proxied request. One goroutine at a time uses a transfer.
type transfer struct {
	conn *net.TCPConn
	raw  syscall.RawConn
	call func(fd uintptr) bool // receive or send, made once
	p    []byte
	n    int // bytes of p that are done
	err  error
}

// receiver makes the transfer for reading; nil: the connection has none.
func receiver(conn *net.TCPConn) *transfer {
	t := newTransfer(conn)
	if t != nil {
		t.call = t.receive
	}
	return t
}

// sender makes the transfer for writing; nil: the connection has none.
func sender(conn *net.TCPConn) *transfer {
	t := newTransfer(conn)
	if t != nil {
		t.call = t.send
	}
	return t
}

func newTransfer(conn *net.TCPConn) *transfer {
	if conn == nil {
		return nil
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil
	}
	return &transfer{conn: conn, raw: raw}
}

// readFrom is conn.Read, through a transfer if there is one.
func readFrom(conn net.Conn, t *transfer, p []byte) (int, error) {
	if t == nil || len(p) == 0 || len(p) > maxTransfer {
		return conn.Read(p)
	}
	t.p, t.n, t.err = p, 0, nil
	err := t.raw.Read(t.call)
	return t.result("read", err)
}

// writeTo is conn.Write, through a transfer if there is one.
func writeTo(conn net.Conn, t *transfer, p []byte) (int, error) {
	if t == nil || len(p) == 0 || len(p) > maxTransfer {
		return conn.Write(p)
	}
	t.p, t.n, t.err = p, 0, nil
	err := t.raw.Write(t.call)
	return t.result("write", err)
}

// result is the result of the connection's Read and Write.
func (t *transfer) result(op string, err error) (int, error) {
	t.p = nil
	switch {
	case err != nil: // a deadline, or the connection is closed
		if wrapped, ok := errors.AsType[*net.OpError](err); ok {
			err = wrapped.Err
		}
	case t.err == nil:
		return t.n, nil
	case t.err == io.EOF: //nolint:errorlint // io.Reader says so
		return 0, io.EOF
	default:
		err = os.NewSyscallError(op, t.err)
	}
	return t.n, &net.OpError{Op: op, Net: t.conn.LocalAddr().Network(), Source: t.conn.LocalAddr(), Addr: t.conn.RemoteAddr(), Err: err}
}

// receive reads once; false: no data yet.
func (t *transfer) receive(fd uintptr) bool {
	for {
		n, errno := receive(fd, t.p)
		switch {
		case errno == syscall.EINTR:
			continue
		case errno == syscall.EAGAIN:
			return false
		case errno != 0:
			t.err = errno
		case n == 0:
			t.err = io.EOF
		default:
			t.n = n
		}
		return true
	}
}

// send writes the rest; false: not all was accepted yet.
func (t *transfer) send(fd uintptr) bool {
	for t.n < len(t.p) {
		n, errno := send(fd, t.p[t.n:])
		switch errno {
		case 0:
			t.n += n
		case syscall.EINTR:
		case syscall.EAGAIN:
			return false
		default:
			t.err = errno
			return true
		}
	}
	return true
}
