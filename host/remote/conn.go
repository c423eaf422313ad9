package remote

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hangar-platform/hangar"
)

const (
	// farewell bounds how long an end of a connection waits to say that it is closed.
	farewell = time.Second
	// linger bounds how long the other end may take to close after that.
	linger = 10 * time.Second
)

// conn is one end of a connection whose bytes, or datagrams, are frames. Its two directions end one
// by one, as those of TCP do. A write deadline that passes during a Write ends the connection, since
// half a frame cannot be taken back; a read deadline does no harm.
//
// A goroutine of the owner runs pump, which ends when the peer has closed the connection or the
// exchange ends.
type conn struct {
	in  io.Reader
	out *frameWriter
	// entries handles what lets requests in and out over the connection, and reports whether the
	// data that follows is dropped. It gets kindClose when the peer has closed its end, and at the
	// end of pump. nil: no requests enter.
	entries   func(k kind, payload []byte) (dropped bool)
	over      <-chan struct{} // closed when the exchange has ended
	finish    func()          // ends our direction of the exchange, after what was written
	end       func()          // ends the exchange, dropping what is on its way
	remote    addr
	datagrams bool

	pieces chan []byte // closed when the peer's direction has ended
	rest   []byte      // of the piece that is being read
	reads  *deadline
	writes *deadline

	closed  chan struct{} // closed by Close and Abort
	failed  chan struct{} // closed when the connection fails
	closing sync.Once

	mu       sync.Mutex // guards what follows
	cause    error      // why the connection has failed
	ended    bool       // our direction has ended
	peerGone bool       // the peer has closed its end: it reads nothing any more
	writing  bool
	ahead    []byte // frames that go with the next data
}

func newConn(in io.Reader, out *frameWriter, remote string, datagrams bool, over <-chan struct{}, finish, end func()) *conn {
	c := &conn{
		in: in, out: out, remote: addr(remote), datagrams: datagrams, over: over, finish: finish, end: end,
		pieces: make(chan []byte), closed: make(chan struct{}), failed: make(chan struct{}),
	}
	c.reads = newDeadline(func() {})
	c.writes = newDeadline(c.writeExpired)
	return c
}

// pump handles the peer's frames. It returns at the end of them.
func (c *conn) pump() {
	if c.entries == nil {
		c.entries = func(kind, []byte) bool { return false }
	}
	defer c.entries(kindClose, nil)
	defer c.fail(net.ErrClosed)
	ended, dropped := false, false
	endRead := func() {
		if !ended {
			ended = true
			close(c.pieces)
		}
	}
	for {
		k, payload, err := readFrame(c.in, maxPiece)
		switch {
		case errors.Is(err, io.EOF):
			if !ended {
				c.fail(io.ErrUnexpectedEOF)
			}
			return
		case err != nil:
			c.fail(&net.OpError{Op: "read", Net: c.remote.Network(), Addr: c.remote, Err: syscall.ECONNRESET})
			return
		}
		switch k {
		case kindData:
			if ended || dropped {
				continue
			}
			select {
			case c.pieces <- payload:
			case <-c.closed: // it is not read any more
			case <-c.over: // whether it is read or not
			}
		case kindEnter, kindEntered, kindRefused, kindLeave:
			dropped = c.entries(k, payload)
		case kindEnd:
			endRead()
		case kindClose:
			endRead()
			c.entries(k, nil)
			c.left()
		case kindError:
			c.fail(rebuilt(payload))
			return
		default: // of a later version
		}
	}
}

// left records that the peer has closed its end. It waits a while for ours.
func (c *conn) left() {
	c.mu.Lock()
	c.peerGone = true
	c.mu.Unlock()
	time.AfterFunc(linger, func() { c.fail(syscall.ECONNRESET) })
}

// fail ends all calls with an error, unless the connection has failed before.
func (c *conn) fail(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause == nil {
		c.cause = cause
		close(c.failed)
	}
}

func (c *conn) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if c.reads.passed() {
		return 0, os.ErrDeadlineExceeded
	}
	if len(c.rest) == 0 {
		select {
		case <-c.closed:
			return 0, net.ErrClosed
		default:
		}
		select {
		case piece, ok := <-c.pieces:
			if !ok {
				return 0, io.EOF
			}
			c.rest = piece
		case <-c.failed:
			select {
			case piece, ok := <-c.pieces: // before it failed
				if !ok {
					return 0, io.EOF
				}
				c.rest = piece
			default:
				return 0, c.failure()
			}
		case <-c.reads.expired():
			return 0, os.ErrDeadlineExceeded
		case <-c.closed:
			return 0, net.ErrClosed
		}
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	if c.datagrams {
		c.rest = nil // what of a datagram does not fit is lost, as with a socket
	}
	return n, nil
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	if err := c.beginWrite(); err != nil {
		return 0, err
	}
	defer c.endWrite()
	if c.datagrams {
		if len(p) > maxPiece {
			return 0, syscall.EMSGSIZE
		}
		return len(p), c.written(c.out.write(kindData, p))
	}
	frames := c.takeAhead()
	for done := 0; done < len(p); {
		piece := p[done:min(len(p), done+maxPiece)]
		frames = appendFrame(frames, kindData, piece)
		if err := c.written(c.out.raw(frames)); err != nil {
			return done, err
		}
		done += len(piece)
		frames = frames[:0]
	}
	return len(p), nil
}

// sendAhead has frames sent with the next data.
func (c *conn) sendAhead(frames []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead = append(c.ahead, frames...)
}

// flushAhead sends frames for which there was no data.
func (c *conn) flushAhead() {
	if frames := c.takeAhead(); len(frames) > 0 {
		_ = c.out.raw(frames) // the reader notices a lost connection
	}
}

func (c *conn) takeAhead() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	frames := c.ahead
	c.ahead = nil
	return frames
}

func (c *conn) beginWrite() error {
	if c.writes.passed() {
		return os.ErrDeadlineExceeded
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.unwritable(); err != nil {
		return err
	}
	c.writing = true
	return nil
}

// unwritable is why nothing can be written; nil: it can. c.mu is held.
func (c *conn) unwritable() error {
	switch {
	case c.cause != nil:
		return c.cause
	case c.ended, c.peerGone:
		return syscall.EPIPE
	default:
		return nil
	}
}

// open reports whether something can be written.
func (c *conn) open() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unwritable() == nil
}

func (c *conn) endWrite() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writing = false
}

// written is the error of a write: if the connection has failed, the reason of that.
func (c *conn) written(err error) error {
	if err == nil {
		return nil
	}
	if cause := c.failure(); cause != nil {
		return cause
	}
	return &net.OpError{Op: "write", Net: c.remote.Network(), Addr: c.remote, Err: syscall.ECONNRESET}
}

// writeExpired ends the connection if a Write is under way.
func (c *conn) writeExpired() {
	c.mu.Lock()
	writing := c.writing
	c.mu.Unlock()
	if writing {
		c.fail(os.ErrDeadlineExceeded)
		c.end()
	}
}

// CloseWrite ends our direction: the peer reads what was written, and then io.EOF.
func (c *conn) CloseWrite() error {
	if !c.endDirection() {
		return nil
	}
	return c.written(c.out.write(kindEnd, nil))
}

func (c *conn) endDirection() (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first = !c.ended && c.cause == nil
	c.ended = true
	return first
}

// Close implements net.Conn. Earlier writes arrive. It may be repeated.
func (c *conn) Close() error {
	c.closing.Do(func() {
		c.endDirection()
		close(c.closed)
		c.leave(kindClose, nil)
	})
	return nil
}

// Abort closes the connection and has the peer's calls fail with cause.
func (c *conn) Abort(cause error) {
	c.closing.Do(func() {
		c.endDirection()
		close(c.closed)
		payload, err := json.Marshal(faultOf(peerError(cause)))
		if err != nil {
			payload = nil
		}
		c.leave(kindError, payload)
	})
}

// peerError is the error that the peer receives: one of the platform, or a reset.
func peerError(cause error) error {
	if known, ok := errors.AsType[*hangar.Error](cause); ok {
		return known
	}
	return syscall.ECONNRESET
}

// leave sends the last frame of this end, and gives the peer some time for its own.
func (c *conn) leave(k kind, payload []byte) {
	patience := time.AfterFunc(farewell, c.end)
	err := c.out.write(k, payload)
	if !patience.Stop() || err != nil {
		c.end()
		return
	}
	c.finish()
	time.AfterFunc(linger, c.end)
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return addr("") }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	c.reads.set(t)
	c.writes.set(t)
	return nil
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.reads.set(t)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.writes.set(t)
	return nil
}

// addr is the name of an end of a connection.
type addr string

// Network implements net.Addr.
func (addr) Network() string { return "host" }

// String implements net.Addr.
func (a addr) String() string { return string(a) }

// deadline is a time by which calls must have ended.
type deadline struct {
	onExpire func()

	mu    sync.Mutex // guards what follows
	timer *time.Timer
	over  chan struct{} // closed when the time has come
}

func newDeadline(onExpire func()) *deadline {
	return &deadline{onExpire: onExpire, over: make(chan struct{})}
}

// expired is closed when the time that is set now has come.
func (d *deadline) expired() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.over
}

func (d *deadline) passed() bool {
	select {
	case <-d.expired():
		return true
	default:
		return false
	}
}

// set changes the time; zero is never. A Read in progress notices an earlier time only if none has
// passed.
func (d *deadline) set(t time.Time) {
	if d.arm(t) {
		d.onExpire()
	}
}

// arm is set, and reports whether the time has passed already.
func (d *deadline) arm(t time.Time) (passed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	select {
	case <-d.over:
		d.over = make(chan struct{})
	default:
	}
	if t.IsZero() {
		return false
	}
	over := d.over
	left := time.Until(t)
	if left <= 0 {
		close(over)
		return true
	}
	var timer *time.Timer
	timer = time.AfterFunc(left, func() {
		d.mu.Lock()
		current := d.timer == timer
		if current {
			close(over)
		}
		d.mu.Unlock()
		if current {
			d.onExpire()
		}
	})
	d.timer = timer
	return false
}

// frameWriter writes frames of several goroutines, and flushes each.
type frameWriter struct {
	flush func() error

	mu     sync.Mutex // guards what follows
	w      io.Writer
	closed bool
}

func (f *frameWriter) write(k kind, payload []byte) error {
	return f.locked(func() error { return writeFrame(f.w, k, payload) })
}

// raw writes whole frames.
func (f *frameWriter) raw(frames []byte) error {
	return f.locked(func() error {
		_, err := f.w.Write(frames)
		return err
	})
}

// writeUnlessBusy writes nothing while another write is under way.
func (f *frameWriter) writeUnlessBusy(k kind, payload []byte) error {
	if !f.mu.TryLock() {
		return nil
	}
	defer f.mu.Unlock()
	return f.writing(func() error { return writeFrame(f.w, k, payload) })
}

func (f *frameWriter) locked(write func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.writing(write)
}

// writing writes and flushes. f.mu is held.
func (f *frameWriter) writing(write func() error) error {
	if f.closed {
		return net.ErrClosed
	}
	if err := write(); err != nil {
		return err
	}
	if f.flush != nil {
		return f.flush()
	}
	return nil
}

// close has later writes fail, and waits for one that is under way, which interrupt ends.
func (f *frameWriter) close(interrupt func()) {
	if !f.mu.TryLock() {
		interrupt()
		f.mu.Lock()
	}
	defer f.mu.Unlock()
	f.closed = true
}
