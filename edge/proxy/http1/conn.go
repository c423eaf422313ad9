package http1

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"
)

// States of a connection, for Drain.
const (
	connActive int32 = iota
	connNew          // waits for its first request
	connIdle
	connClosing
)

// lingering is how long the rest of a client's bytes is read after an answer that it may not have
// expected, so that a reset does not destroy the answer in flight.
const lingering = time.Second

// longAgo is a deadline that interrupts reads and writes.
var longAgo = time.Unix(1, 0)

// serverConn is one connection of a Server. The goroutine of ServeConn owns it and also runs the
// handlers. Other goroutines of a handler may read the body and write the answer.
type serverConn struct {
	srv     *Server
	ctx     context.Context
	conn    net.Conn
	tcp     *net.TCPConn // conn, if it is one
	raw     syscall.RawConn
	attempt func(fd uintptr) bool // tryRead, made once
	rx, tx  *transfer             // of tcp, if it is
	tls     *tls.ConnectionState
	remote  string
	state   atomic.Int32
	first   bool // no request has come yet
	inHead  bool // the deadline is that of the header

	timeouts *Timeouts // of this connection; nil: only the Server's

	hijacked bool // or taken over by HTTP/2

	in       window
	triedN   int
	triedErr error

	out    []byte // pending output, from outAt on
	outAt  int
	outBuf *[windowSize]byte
	iov    [2][]byte
	wErr   error

	readBy, writeBy time.Time   // the current deadlines
	ownRead         atomic.Bool // the handler has set a deadline itself
	ownWrite        atomic.Bool
	kicked          atomic.Bool // a read of the body is being interrupted

	watched chan struct{} // closed when the watch of the client has ended; nil: none
	ending  atomic.Bool   // the watch is being ended
	stash   [1]byte       // byte that the watch has read
	stashed bool
	gone    bool
}

// readConn reads for the body of a request.
func (c *serverConn) readConn(p []byte) (int, error) {
	if !c.ownRead.Load() {
		c.readWithin(c.srv.BodyTimeout)
	}
	if c.kicked.Load() { // seen here, or the deadline is moved after it
		return 0, http.ErrBodyReadAfterClose
	}
	return readFrom(c.conn, c.rx, p)
}

// slack is how much later than requested a deadline may be, so that it need not move with every
// byte.
func slack(d time.Duration) time.Duration { return d / 8 }

// readWithin makes reads fail after d, or a little later.
func (c *serverConn) readWithin(d time.Duration) {
	if d <= 0 {
		if !c.readBy.IsZero() {
			c.readBy = time.Time{}
			c.setReadDeadline(time.Time{})
		}
		return
	}
	now := time.Now()
	if left := c.readBy.Sub(now); left >= d && left <= d+slack(d) {
		return
	}
	c.readBy = now.Add(d + slack(d))
	c.setReadDeadline(c.readBy)
}

// A failure to set a deadline is an error of the connection, which the next read returns.
func (c *serverConn) setReadDeadline(t time.Time) { _ = c.conn.SetReadDeadline(t) }

// writeWithin makes writes fail when the client accepts nothing for BodyTimeout.
func (c *serverConn) writeWithin() {
	d := c.srv.BodyTimeout
	if d <= 0 || c.ownWrite.Load() {
		return
	}
	now := time.Now()
	if left := c.writeBy.Sub(now); left >= d && left <= d+slack(d) {
		return
	}
	c.writeBy = now.Add(d + slack(d))
	_ = c.conn.SetWriteDeadline(c.writeBy) // the write fails, too
}

// mayWrite reports whether the deadline of writes, if there is one, is known and has not passed.
func (c *serverConn) mayWrite() bool {
	return !c.ownWrite.Load() && (c.srv.BodyTimeout <= 0 || time.Now().Before(c.writeBy))
}

// tryRead is a read that releases its buffer if there is nothing to read.
func (c *serverConn) tryRead(fd uintptr) bool {
	room := c.in.room(windowSize)
	for {
		n, errno := receive(fd, room)
		switch {
		case errno == syscall.EINTR:
			continue
		case errno == syscall.EAGAIN:
			c.in.release()
			return false
		case errno != 0:
			c.triedN, c.triedErr = 0, errno
		case n == 0:
			c.triedN, c.triedErr = 0, io.EOF
		default:
			c.triedN, c.triedErr = n, nil
		}
		return true
	}
}

// sever resets the connection, because a TLS close would wait for a client that reads nothing.
func (c *serverConn) sever() {
	conn := c.conn
	if secure, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secure.NetConn()
	}
	_ = conn.Close()
}

func (c *serverConn) headerTimeout() time.Duration {
	if c.timeouts != nil && c.timeouts.Header > 0 {
		return c.timeouts.Header
	}
	return c.srv.HeaderTimeout
}

func (c *serverConn) idleTimeout() time.Duration {
	if c.timeouts != nil && c.timeouts.Idle > 0 {
		return c.timeouts.Idle
	}
	return c.srv.IdleTimeout
}

// await waits for the first byte of a request.
func (c *serverConn) await() error {
	if c.in.size() > 0 {
		return nil
	}
	wait := c.idleTimeout()
	if header := c.headerTimeout(); c.first && header > 0 {
		wait = header
	}
	c.readWithin(wait)
	waiting := connIdle
	if c.first {
		waiting = connNew
	}
	c.state.Store(waiting)
	if c.srv.draining.Load() && !c.first {
		return net.ErrClosed
	}
	err := c.firstBytes()
	if !c.state.CompareAndSwap(waiting, connActive) {
		return net.ErrClosed
	}
	if c.first && c.srv.draining.Load() { // which has moved the deadline
		c.readBy = time.Time{}
		c.setReadDeadline(c.readBy)
	}
	c.first = false
	return err
}

func (c *serverConn) firstBytes() error {
	if c.raw != nil {
		if err := c.raw.Read(c.attempt); err != nil {
			return err
		}
		c.in.end += c.triedN
		return c.triedErr
	}
	c.in.release()
	n, err := c.conn.Read(c.stash[:])
	if n == 1 {
		c.in.push(c.stash[0])
		return nil
	}
	return err
}

// serve answers requests, one after the other.
func (c *serverConn) serve() {
	defer func() {
		if !c.hijacked {
			_ = c.conn.Close()
		}
		c.in.release()
		c.releaseOut()
	}()
	for {
		if err := c.await(); err != nil {
			return
		}
		x, err := c.readRequest()
		if err != nil {
			c.refuse(err)
			return
		}
		if x == nil { // taken over by HTTP/2
			return
		}
		if !c.handle(x) {
			if x.unread && !c.hijacked {
				c.linger()
			}
			return
		}
		if c.in.size() == 0 {
			c.releaseOut()
		}
	}
}

// handle runs the handler, and reports whether the connection can take another request.
func (c *serverConn) handle(x *exchange) (again bool) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		again = false
		x.abort()
		if p != any(http.ErrAbortHandler) && c.srv.Log != nil {
			c.srv.Log.Error("handler panicked", "remote", c.remote, "panic", p, "stack", string(debug.Stack()))
		}
	}()
	c.srv.Handler.ServeHTTP(x, x.req)
	return x.finish()
}

var preface = []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")

// readRequest reads the head of a request. Without an exchange and an error, the connection has
// been taken over.
func (c *serverConn) readRequest() (*exchange, error) {
	if b := c.in.held(); b[0] == '\r' { // an empty line before a request is ignored, RFC 9112, section 2.2
		for c.in.size() < 2 {
			if err := c.fillHead(); err != nil {
				return nil, err
			}
		}
		if c.in.held()[1] == '\n' {
			c.in.take(2)
			for c.in.size() == 0 {
				if err := c.fillHead(); err != nil {
					return nil, err
				}
			}
		}
	}
	if class[c.in.held()[0]]&inToken == 0 {
		return nil, malformed("the request line does not begin with a method")
	}
	for {
		length, lines, err := c.in.head(c.srv.maxHeaderBytes())
		switch {
		case err == nil:
			if held := c.in.held(); c.srv.HTTP2 != nil && held[0] == 'P' && bytes.HasPrefix(held, preface[:18]) {
				c.handOver()
				return nil, nil
			}
			h, err := parseRequest(string(c.in.held()[:length]), lines)
			if err != nil {
				return nil, err
			}
			c.in.take(length)
			return c.newExchange(&h)
		case errors.Is(err, errHeadIncomplete):
		case errors.Is(err, errLineTooLong):
			return nil, &ProtocolError{Status: http.StatusRequestURITooLong, Reason: "the request line is too long"}
		case errors.Is(err, errHeadTooLarge):
			return nil, &ProtocolError{Status: http.StatusRequestHeaderFieldsTooLarge, Reason: "the header is too large"}
		default:
			return nil, err
		}
		if err := c.fillHead(); err != nil {
			return nil, err
		}
	}
}

// fillHead reads more of a head whose first byte has arrived.
func (c *serverConn) fillHead() error {
	if !c.inHead {
		c.inHead = true
		c.readBy = time.Time{}
		if d := c.headerTimeout(); d > 0 {
			c.readBy = time.Now().Add(d)
		}
		c.setReadDeadline(c.readBy)
	}
	err := c.in.fill(rawSource{c.conn}, c.srv.maxHeaderBytes())
	if errors.Is(err, io.EOF) {
		return malformed("the header is cut")
	}
	return err
}

// rawSource reads without changing the deadline.
type rawSource struct{ net.Conn }

func (r rawSource) readConn(p []byte) (int, error) { return r.Read(p) }

// handOver passes a connection to HTTP/2.
func (c *serverConn) handOver() {
	c.hijacked = true
	c.setReadDeadline(time.Time{})
	read := bytes.Clone(c.in.held())
	c.in.release()
	c.srv.HTTP2(c.ctx, c.conn, read)
}

// refuse answers a malformed request, if there is a reason and the client can still read.
func (c *serverConn) refuse(err error) {
	var p *ProtocolError
	var timeout net.Error
	switch {
	case errors.As(err, &p):
	case errors.As(err, &timeout) && timeout.Timeout():
		p = &ProtocolError{Status: http.StatusRequestTimeout, Reason: "the header did not come in time"}
	default:
		return
	}
	if c.srv.Log != nil {
		c.srv.Log.Debug("request refused", "remote", c.remote, "status", p.Status, "error", p)
	}
	x := c.refusal()
	if c.srv.Refuse != nil {
		c.srv.Refuse(x, p.Status, p)
	} else {
		x.Header().Set("Content-Type", "text/plain; charset=utf-8")
		x.WriteHeader(p.Status)
		_, _ = io.WriteString(x, p.Reason+"\n") // the connection ends in any case
	}
	x.finish()
	c.linger()
}

// linger continues to read for a while after the last answer.
func (c *serverConn) linger() {
	if c.wErr != nil {
		return
	}
	half, ok := c.conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	c.setReadDeadline(time.Now().Add(lingering))
	buf := windows.Get().(*[windowSize]byte)
	defer windows.Put(buf)
	for n := 0; n < MaxDrain; {
		m, err := c.conn.Read(buf[:])
		if err != nil {
			return
		}
		n += m
	}
}
