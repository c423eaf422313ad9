// Package splice joins two connections, so that their far ends are connected to each other.
//
// Each direction ends separately: the end of one connection is passed on by CloseWrite of the other.
// A failure is passed on, too: TCP is reset, and a connection with an Abort method receives the
// cause.
//
// Between two TCP connections, or wrappers with a method TCP that returns one, the kernel moves the
// bytes, and an idle join needs no buffer. Otherwise a join holds at most two buffers of BufferSize
// bytes. A slow reader slows the writer down. Join starts one goroutine for each direction and waits
// for both.
package splice

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
)

// BufferSize is the most bytes that are read at once.
const BufferSize = 32 << 10

// firstBuffer is how many bytes are read at once before a connection has more.
const firstBuffer = 2 << 10

// halfCloser is a connection whose directions end separately.
type halfCloser interface{ CloseWrite() error }

// aborter is a connection that can tell its peer the reason of a failure.
type aborter interface{ Abort(cause error) }

// ender is a connection that needs to know when reading has ended, because the kernel may have read
// for it.
type ender interface{ Ended() }

// Join copies between two connections until both directions have ended, and returns nil. If a
// connection fails or ctx ends, it closes both, by Abort where possible, and returns the cause.
// Otherwise the caller must close them.
func Join(ctx context.Context, a, b net.Conn) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	done := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		go func() {
			if err := pass(way[0], way[1]); err != nil {
				fail(err)
			}
			done <- struct{}{}
		}()
	}
	for left := 2; left > 0; left-- {
		select {
		case <-done:
			continue
		case <-ctx.Done():
		}
		// At the same time, because either may take long.
		aborted := make(chan struct{})
		go func() {
			defer close(aborted)
			Abort(a, context.Cause(ctx))
		}()
		Abort(b, context.Cause(ctx))
		<-aborted
		for ; left > 0; left-- {
			<-done
		}
		return context.Cause(ctx)
	}
	if ctx.Err() != nil { // a failure of the last direction
		Abort(a, context.Cause(ctx))
		Abort(b, context.Cause(ctx))
		return context.Cause(ctx)
	}
	return nil
}

// pass copies one direction to its end.
func pass(from, to net.Conn) error {
	if err := copyAll(from, to); err != nil {
		return err
	}
	if e, ok := from.(ender); ok {
		e.Ended()
	}
	h, ok := to.(halfCloser)
	if !ok {
		return errors.New("the connection cannot end one direction")
	}
	// A peer that has closed the connection needs no end.
	if err := h.CloseWrite(); err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, syscall.ENOTCONN) {
		return err
	}
	return nil
}

// TCP returns conn if it is a TCP connection, or the TCP connection that it wraps according to its
// method TCP, or nil.
func TCP(conn net.Conn) *net.TCPConn {
	if wrapper, ok := conn.(interface{ TCP() *net.TCPConn }); ok {
		return wrapper.TCP()
	}
	tcp, _ := conn.(*net.TCPConn)
	return tcp
}

// copyAll copies until from ends.
func copyAll(from, to net.Conn) error {
	if in, out := TCP(from), TCP(to); in != nil && out != nil {
		if err := passKernel(in, out); !errors.Is(err, errCannot) {
			return err
		}
	}
	b := make([]byte, firstBuffer)
	for {
		n, err := from.Read(b)
		if n > 0 {
			if _, err := to.Write(b[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if n == len(b) && n < BufferSize {
			b = make([]byte, BufferSize)
		}
	}
}

// Abort closes a connection so that its peer sees a failure instead of an end.
func Abort(c net.Conn, cause error) {
	switch c := c.(type) {
	case aborter:
		c.Abort(cause)
		return
	case *net.TCPConn:
		_ = c.SetLinger(0) // a reset
	}
	_ = c.Close()
}
