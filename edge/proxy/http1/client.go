package http1

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// noTime is no deadline.
var noTime time.Time

// patience is how long to wait for an answer before watching the client of a proxied request: most
// answers come sooner, and a watch costs a goroutine (ADR 21).
const patience = 250 * time.Millisecond

// continueWait is how long a body is held back for 100 Continue.
const continueWait = time.Second

// maxInformational bounds the answers 1xx before the final one.
const maxInformational = 32

// A Conn is the client side of one connection. One request at a time goes through it; its
// methods may be called by one goroutine at a time, but Close by any at any time. The body of
// an answer belongs to it: it must be read to its end or closed before the next request.
type Conn struct {
	// MaxAnswerBytes bounds the header of an answer; 0: DefaultMaxAnswerBytes. It must not change
	// after the first RoundTrip.
	MaxAnswerBytes int

	conn   net.Conn
	tcp    *net.TCPConn
	rx, tx *transfer // of tcp, if it is
	in     window
	closed atomic.Bool
	busy   bool // an answer is being read
	spent  bool // no other request can be sent
	idle   time.Duration
	readBy time.Time

	// Used by look, made once.
	raw    syscall.RawConn
	peek   func(fd uintptr)
	peeked [1]byte
	quiet  bool // there is nothing to read, not even an end
	bytes  bool // there are bytes to read

	// Of the request in flight:
	ctx      context.Context
	watch    func() bool   // stops the watch of ctx; nil: there is none
	lazy     bool          // ctx is not watched yet
	headBy   time.Time     // deadline for the answer's header; zero: none
	headWait time.Duration // the same, relative to the end of sending
	upload   *upload
	read     bool // a byte of the answer was read
}

// NewConn makes a Conn of a connection, which it then owns.
func NewConn(c net.Conn) *Conn {
	tcp, _ := c.(*net.TCPConn)
	return &Conn{conn: c, tcp: tcp, rx: receiver(tcp), tx: sender(tcp)}
}

// NetConn returns the connection.
func (c *Conn) NetConn() net.Conn { return c.conn }

// Close closes the connection, and so ends a request in flight.
func (c *Conn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	return c.conn.Close()
}

// Reusable reports whether another request can be sent.
func (c *Conn) Reusable() bool { return !c.busy && !c.spent && !c.closed.Load() }

// Alive reports whether the peer has neither closed an idle connection nor sent anything on it.
// It does not wait. Of connections that are not TCP it knows what Reusable knows.
func (c *Conn) Alive() bool {
	if !c.Reusable() {
		return false
	}
	quiet, _, known := c.look()
	return quiet || !known
}

// look reports whether a read would block or return bytes, if that can be known.
func (c *Conn) look() (quiet, bytes, known bool) {
	if c.raw == nil {
		sc, ok := c.conn.(syscall.Conn)
		if !ok {
			return false, false, false
		}
		raw, err := sc.SyscallConn()
		if err != nil {
			return false, false, true
		}
		c.raw, c.peek = raw, func(fd uintptr) {
			n, errno := peek(fd, c.peeked[:])
			c.quiet, c.bytes = errno == syscall.EAGAIN, errno == 0 && n > 0
		}
	}
	if c.raw.Control(c.peek) != nil {
		return false, false, true
	}
	return c.quiet, c.bytes, true
}

// Detach takes the connection out after an answer 101, with the bytes that were read ahead.
func (c *Conn) Detach() (net.Conn, []byte) {
	held := append([]byte(nil), c.in.held()...)
	c.in.release()
	c.endRequest()
	c.busy, c.spent = false, true
	c.closed.Store(true) // the caller owns it now
	return c.conn, held
}

func (c *Conn) maxAnswerBytes() int {
	if c.MaxAnswerBytes > 0 {
		return c.MaxAnswerBytes
	}
	return DefaultMaxAnswerBytes
}

// RoundTrip sends a request and returns its answer when the header has arrived. The body of the
// request is sent meanwhile, and while the answer is read; it is always closed. The header is
// sent as it is, with its fields in order; Host, Content-Length, Transfer-Encoding and Trailer
// come from the fields of r. Only the values and the end of the context count: after its end the
// connection cannot be used. An answer 101 has a body that is an io.ReadWriteCloser. Errors are
// *RoundTripError, and the connection is closed then.
func (c *Conn) RoundTrip(ctx context.Context, r *http.Request, opts RoundTripOptions) (*http.Response, error) {
	if c.busy || c.spent || c.closed.Load() {
		closeBody(r)
		return nil, &RoundTripError{Err: ErrBusy}
	}
	if err := ctx.Err(); err != nil {
		closeBody(r)
		return nil, &RoundTripError{Err: err}
	}
	out := windows.Get().(*[windowSize]byte)
	defer windows.Put(out)
	b, length, err := appendRequest(out[:0], r)
	if err != nil { // nothing has been written
		closeBody(r)
		return nil, &RoundTripError{Err: err}
	}
	c.begin(ctx, opts)
	wrote, err := c.send(b, r, length)
	if err != nil {
		return nil, c.failed(wrote, err)
	}
	if c.headWait = opts.HeaderTimeout; c.headWait > 0 {
		c.headBy = time.Now().Add(c.headWait)
	}
	resp, err := c.readAnswer(r, opts.Informational)
	if err != nil {
		return nil, c.failed(true, err)
	}
	return resp, nil
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// begin prepares for one request.
func (c *Conn) begin(ctx context.Context, opts RoundTripOptions) {
	c.busy, c.read = true, false
	c.ctx, c.idle, c.headBy = ctx, opts.IdleTimeout, time.Time{}
	c.lazy = unwatched(ctx)
	if !c.lazy {
		c.watchContext()
	}
}

// watchContext interrupts reads and writes when the context ends.
func (c *Conn) watchContext() {
	c.lazy = false
	if c.ctx.Done() != nil {
		c.watch = context.AfterFunc(c.ctx, func() { _ = c.conn.SetDeadline(longAgo) })
	}
}

// endRequest ends the request. The rest of its body is not sent.
func (c *Conn) endRequest() {
	c.busy = false
	if u := c.upload; u != nil {
		c.upload = nil
		if !u.finish() {
			c.spent = true
		}
	}
	if c.watch != nil {
		if !c.watch() {
			c.spent = true
		}
		c.watch = nil
	}
	c.ctx = nil
}

// failed ends a request without an answer.
func (c *Conn) failed(wrote bool, err error) error {
	err = c.cause(err)
	read := c.read
	c.spent = true
	_ = c.Close()
	c.in.release()
	c.endRequest()
	return &RoundTripError{Wrote: wrote, Read: read, Err: err}
}

// cause returns the reason for a failed operation, if it is not the connection.
func (c *Conn) cause(err error) error {
	if c.upload != nil {
		if uerr := c.upload.failure(); uerr != nil {
			return uerr
		}
	}
	if c.ctx != nil && c.watch != nil && c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	return err
}

// readConn reads from the peer, within the deadlines.
func (c *Conn) readConn(p []byte) (int, error) {
	for {
		c.setReadBy()
		n, err := readFrom(c.conn, c.rx, p)
		if n > 0 {
			c.read = true
			return n, err
		}
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) || !c.waitOn(false) {
			return n, err
		}
	}
}

// setReadBy sets the deadline of the next read: by patience, the header's timeout or the idle
// timeout.
func (c *Conn) setReadBy() {
	if !c.lazy && c.idle == 0 && c.headBy.IsZero() {
		if !c.readBy.IsZero() {
			c.readBy = time.Time{}
			c.setDeadline(c.readBy)
		}
		return
	}
	now := time.Now()
	var by, latest time.Time
	if c.idle > 0 {
		by = now.Add(c.idle)
		latest = by.Add(slack(c.idle))
	}
	if c.lazy {
		if p := now.Add(patience); by.IsZero() || p.Before(by) {
			by, latest = p, p.Add(patience)
		}
	}
	if !c.headBy.IsZero() && (by.IsZero() || c.headBy.Before(by)) {
		by, latest = c.headBy, c.headBy
	}
	if c.readBy.Before(by) || c.readBy.After(latest) {
		c.readBy = latest
		c.setDeadline(latest)
	}
}

// setDeadline must not override the deadline that the end of the context set.
func (c *Conn) setDeadline(t time.Time) {
	_ = c.conn.SetReadDeadline(t) // the read fails, too
	if c.watch != nil && c.ctx.Err() != nil {
		_ = c.conn.SetReadDeadline(longAgo)
	}
}

// waitOn reports whether to retry a read after its deadline. moved says that bytes came since it was set.
func (c *Conn) waitOn(moved bool) bool {
	now := time.Now() // readBy is unchanged, so that setReadBy moves the deadline
	switch {
	case c.watch != nil && c.ctx.Err() != nil:
		return false
	case c.upload != nil && c.upload.failure() != nil:
		return false
	case moved:
		return true
	case !c.headBy.IsZero() && !now.Before(c.headBy):
		if c.upload == nil || c.upload.over() {
			return false
		}
		c.headBy = now.Add(c.headWait)
		return true
	case c.lazy:
		c.watchContext()
		return true
	case c.idle > 0 && c.upload != nil && c.upload.since(now) < c.idle:
		return true // the other direction is not idle
	}
	return false
}

// readIdle sets the deadline of a read that bypasses readConn.
func (c *Conn) readIdle() {
	if c.lazy {
		c.watchContext()
	}
	c.setReadBy()
}

// upgraded is the body of an answer 101.
type upgraded struct{ c *Conn }

func (u *upgraded) Read(p []byte) (int, error) {
	if in := &u.c.in; in.size() > 0 {
		n := copy(p, in.held())
		if in.take(n); in.size() == 0 {
			in.release()
		}
		return n, nil
	}
	return u.c.conn.Read(p)
}

func (u *upgraded) Write(p []byte) (int, error) { return u.c.conn.Write(p) }

func (u *upgraded) Close() error { return u.c.Close() }

// CloseWrite ends one direction.
func (u *upgraded) CloseWrite() error {
	if h, ok := u.c.conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return errors.New("http1: the connection cannot end one direction")
}

var _ io.ReadWriteCloser = (*upgraded)(nil)
