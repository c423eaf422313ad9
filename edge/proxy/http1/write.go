package http1

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
)

// openOut returns the pending output, with room for more.
func (c *serverConn) openOut() []byte {
	if c.out == nil {
		c.outBuf = windows.Get().(*[windowSize]byte)
		c.out = c.outBuf[:0]
		c.outAt = 0
	}
	return c.out
}

func (c *serverConn) releaseOut() {
	if c.outBuf != nil {
		windows.Put(c.outBuf)
	}
	c.out, c.outBuf, c.outAt = nil, nil, 0
}

// flushOut writes the pending output.
func (c *serverConn) flushOut() error { return c.flushWith(nil) }

// flushWith writes the pending output and then p, in one call if the connection supports it.
func (c *serverConn) flushWith(p []byte) error {
	if c.wErr != nil {
		return c.wErr
	}
	b := c.out[c.outAt:]
	if len(b) == 0 && len(p) == 0 {
		return nil
	}
	c.writeWithin()
	var err error
	switch {
	case len(p) == 0:
		_, err = writeTo(c.conn, c.tx, b)
	case len(b) == 0:
		_, err = writeTo(c.conn, c.tx, p)
	case c.tcp != nil:
		c.iov = [2][]byte{b, p}
		bufs := net.Buffers(c.iov[:])
		_, err = bufs.WriteTo(c.tcp)
		c.iov = [2][]byte{}
	default: // fill the buffer first: one TLS record less
		n := min(len(p), cap(c.out)-len(c.out))
		c.out = append(c.out, p[:n]...)
		if _, err = c.conn.Write(c.out[c.outAt:]); err == nil && n < len(p) {
			_, err = c.conn.Write(p[n:])
		}
	}
	c.wErr = err
	if cap(c.out) > 4*windowSize {
		c.out = nil // too large to be kept
	} else {
		c.out, c.outAt = c.out[:0], 0
	}
	return err
}

// spliceFrom is the size from which a body passes through the kernel only, and splicePart the size
// of one part, each with a deadline of its own.
const (
	spliceFrom = 64 << 10
	splicePart = 256 << 10
)

// ReadFrom implements io.ReaderFrom. A body of an answer that a Conn has read is flushed
// whenever more of it would have to be waited for, and goes through the kernel alone where it is
// large and both ends are TCP, as does a file.
func (x *exchange) ReadFrom(r io.Reader) (n int64, err error) {
	switch r.(type) {
	case *answerBody, *io.LimitedReader, *os.File: // the length decides
		if !x.wroteHeader && !x.c.hijacked && !x.ended.Load() {
			x.WriteHeader(http.StatusOK)
		}
	}
	if n, done, err := x.direct(r); done {
		return n, err
	}
	buf := copies.Get().(*[copySize]byte)
	defer copies.Put(buf)
	body, _ := r.(*answerBody)
	for {
		if body != nil && body.AtHand() == 0 && !body.over() && x.shouldFlush(n) {
			if err := x.FlushError(); err != nil {
				return n, err
			}
		}
		m, rerr := r.Read(buf[:])
		if m > 0 {
			w, err := x.Write(buf[:m])
			if n += int64(w); err != nil {
				return n, err
			}
		}
		switch rerr {
		case nil:
		case io.EOF:
			return n, nil
		default:
			return n, rerr
		}
	}
}

// shouldFlush reports whether to send pending output before waiting for more. The header of a short
// answer waits for its body.
func (x *exchange) shouldFlush(n int64) bool {
	return n > 0 || x.length < 0 || x.length > windowSize
}

// direct moves a body without reading it, if possible.
func (x *exchange) direct(r io.Reader) (n int64, done bool, err error) {
	c := x.c
	left := x.length - x.written
	if left < spliceFrom || !x.canBypass() {
		return 0, false, nil
	}
	if body, ok := r.(*answerBody); ok {
		return x.splice(body, left)
	}
	limited, ok := r.(*io.LimitedReader)
	if !ok {
		limited = &io.LimitedReader{R: r, N: left}
	}
	if _, file := limited.R.(*os.File); !file || limited.N > left {
		return 0, false, nil
	}
	if err := x.flush(); err != nil {
		return 0, true, err
	}
	part := &io.LimitedReader{R: limited.R}
	for limited.N > 0 {
		part.N = min(limited.N, splicePart)
		wanted := part.N
		c.writeWithin()
		m, err := c.tcp.ReadFrom(part)
		n += m
		x.written += m
		limited.N -= m
		if err != nil {
			c.wErr = err
			x.fail(err)
			return n, true, err
		}
		if m < wanted { // the file is shorter
			break
		}
	}
	return n, true, nil
}

// canBypass reports whether bytes of the body may be written directly to the connection.
func (x *exchange) canBypass() bool {
	c := x.c
	return c.tcp != nil && c.wErr == nil && !c.hijacked && !x.ended.Load() && x.hasType && x.mayHaveBody()
}

// splice moves the body of an answer from one TCP connection to the other.
func (x *exchange) splice(body *answerBody, left int64) (n int64, done bool, err error) {
	from, ok := body.direct(left)
	if !ok {
		return 0, false, nil
	}
	c := x.c
	if held := body.c.in.held(); len(held) > 0 {
		m, err := x.Write(held)
		n = int64(m)
		body.took(n)
		if err != nil {
			return n, true, err
		}
	}
	if err := x.flush(); err != nil {
		return n, true, err
	}
	part := &io.LimitedReader{R: from}
	for left = body.r.left; left > 0; left = body.r.left {
		part.N = min(left, splicePart)
		wanted := part.N
		c.writeWithin()
		body.c.readIdle()
		m, err := c.tcp.ReadFrom(part)
		n += m
		x.written += m
		body.took(m)
		if err == nil && m < wanted {
			err = body.cut()
		}
		// The time that the client took counts, too. After a late write, bytes are missing.
		if errors.Is(err, os.ErrDeadlineExceeded) && c.mayWrite() && body.c.waitOn(m > 0) {
			continue
		}
		if err != nil { // from either; neither can be reused
			_ = body.broken(err)
			c.wErr = err
			x.fail(err)
			return n, true, err
		}
	}
	return n, true, nil
}
