package listen

import (
	"errors"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// datagramReader reads datagrams with a buffer that it has only while there are some, so that a
// thousand silent clients cost little.
type datagramReader struct {
	conn net.Conn
	raw  syscall.RawConn // nil: conn is not the kernel's own
}

// datagramBuffers are shared by all readers.
var datagramBuffers = sync.Pool{New: func() any { return new([maxDatagram]byte) }}

// awaitDatagram returns when there is something to read, so that no buffer is needed before. It
// fails only when the socket is closed.
func awaitDatagram(raw syscall.RawConn) error {
	return raw.Read(func(fd uintptr) bool {
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			if !errors.Is(err, unix.EINTR) {
				return n > 0 || err != nil
			}
		}
	})
}

func newDatagramReader(conn net.Conn) (*datagramReader, error) {
	r := &datagramReader{conn: conn}
	c, ok := conn.(syscall.Conn)
	if !ok {
		return r, nil
	}
	var err error
	r.raw, err = c.SyscallConn()
	return r, err
}

// next waits for a datagram and calls use with it.
func (r *datagramReader) next(use func(b []byte)) error {
	if r.raw == nil {
		b := datagramBuffers.Get().(*[maxDatagram]byte) //nolint:forcetypeassert // the pool's own
		defer datagramBuffers.Put(b)
		n, err := r.conn.Read(b[:])
		if err == nil {
			use(b[:n])
		}
		return err
	}
	var readErr error
	err := r.raw.Read(func(fd uintptr) bool {
		b := datagramBuffers.Get().(*[maxDatagram]byte) //nolint:forcetypeassert // the pool's own
		defer datagramBuffers.Put(b)
		var n int
		for {
			n, readErr = unix.Read(int(fd), b[:])
			if !errors.Is(readErr, unix.EINTR) {
				break
			}
		}
		if errors.Is(readErr, unix.EAGAIN) {
			return false
		}
		if readErr == nil {
			use(b[:n])
		}
		return true
	})
	return errors.Join(err, readErr)
}
