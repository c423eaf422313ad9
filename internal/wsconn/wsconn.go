// Package wsconn makes a connection with half-closes, as TCP has, of a WebSocket.
//
// A binary message carries bytes of the stream; its boundaries have no meaning. An empty one ends its
// direction, and the other direction continues. A text message is a sign of life. It is not a ping,
// because a ping must be answered in time, while a sign of life waits behind the data as long as the
// peer does not read.
//
// When both directions have ended, the side that opened the connection closes it, and the other side
// waits for that: an earlier close could destroy data that the peer has not read yet. A close before
// that is a failure, with a status and a reason; see Abort.
//
// There are no buffers beyond those of the kernel and a message of MaxPiece bytes, so a slow reader
// slows the writer down.
//
// Read and Write may be called from one goroutine each, everything else from any. A deadline that
// passes during a Read or Write ends the connection, because a partial message cannot be continued.
// When the peer's direction has ended, the package starts a goroutine, which Close and Abort wait
// for.
package wsconn

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"

	"github.com/hangar-platform/hangar"
)

// MaxPiece is the most bytes of one message.
const MaxPiece = 32 << 10

const (
	// statusReset is the status of a connection that was reset beyond the peer.
	statusReset = websocket.StatusBadGateway
	// statusDenied is the status of a connection that the peer is no longer allowed to have.
	statusDenied = websocket.StatusPolicyViolation
	// farewell limits how long Close tries to send the end of the stream.
	farewell = time.Second
	// maxReason is the longest reason in a close frame, in bytes.
	maxReason = 123
)

// Conn is one end of a connection.
type Conn struct {
	ws     *websocket.Conn
	remote addr

	ctx        context.Context //nolint:containedctx // of the connection, which outlives every call
	cancel     context.CancelFunc
	read, sent deadline

	reader io.Reader // of the current message; nil: none
	fresh  bool      // nothing of it has been read
	eof    bool      // the peer's direction has ended

	writing sync.Mutex // held by the writer; guards ended
	ended   bool       // our direction has ended

	mu    sync.Mutex // guards what follows
	cause error      // why the connection failed, according to the peer
	gone  context.Context
}

// New takes ownership of ws. remote is the name of the other end, for RemoteAddr.
func New(ws *websocket.Conn, remote string) *Conn {
	ws.SetReadLimit(-1) // messages are not held in memory
	c := &Conn{ws: ws, remote: addr(remote)}
	c.ctx, c.cancel = context.WithCancel(context.Background()) //nolint:forbidigo // ends with Close
	c.read.cancel, c.sent.cancel = c.cancel, c.cancel
	return c
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := c.read.begin(); err != nil {
		return 0, err
	}
	defer c.read.end()
	for !c.eof {
		if c.reader == nil {
			kind, r, err := c.ws.Reader(c.ctx)
			if err == nil && kind == websocket.MessageText {
				_, err = io.Copy(io.Discard, r)
				r = nil
			}
			if err != nil {
				return 0, c.failed(&c.read, err)
			}
			c.reader, c.fresh = r, true
			continue
		}
		n, err := c.reader.Read(p)
		c.fresh = c.fresh && n == 0
		switch {
		case errors.Is(err, io.EOF):
			c.reader = nil
			if c.fresh {
				c.peerEnded()
			}
		case err != nil:
			return n, c.failed(&c.read, err)
		}
		if n > 0 {
			return n, nil
		}
	}
	return 0, io.EOF
}

// peerEnded watches for the end of the connection, because there is no reader any more.
func (c *Conn) peerEnded() {
	c.eof = true
	gone := c.ws.CloseRead(c.ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = gone
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	if err := c.sent.begin(); err != nil {
		return 0, err
	}
	defer c.sent.end()
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.ended {
		return 0, syscall.EPIPE
	}
	for done := 0; done < len(p); {
		piece := p[done:min(len(p), done+MaxPiece)]
		if err := c.ws.Write(c.ctx, websocket.MessageBinary, piece); err != nil {
			return done, c.failed(&c.sent, err)
		}
		done += len(piece)
	}
	return len(p), nil
}

// CloseWrite ends our direction: the peer reads what was written, and then io.EOF.
func (c *Conn) CloseWrite() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.endWrite(c.ctx)
}

// endWrite sends the end of our direction, once. The caller holds writing.
func (c *Conn) endWrite(ctx context.Context) error {
	if c.ended {
		return nil
	}
	c.ended = true
	return c.ws.Write(ctx, websocket.MessageBinary, nil)
}

// KeepAlive sends a sign of life at intervals, until our direction has ended. It returns an error
// when the connection is lost, and the error of ctx when ctx ends.
func (c *Conn) KeepAlive(ctx context.Context, every time.Duration) error {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
		if ended, err := c.signOfLife(); ended || err != nil {
			return err
		}
	}
}

func (c *Conn) signOfLife() (ended bool, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.ended {
		return true, nil
	}
	return false, c.ws.Write(c.ctx, websocket.MessageText, nil)
}

// Gone returns a channel that closes when the peer has closed the connection. The peer's direction
// must have ended: Read has returned io.EOF.
func (c *Conn) Gone() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone == nil {
		return c.ctx.Done()
	}
	return c.gone.Done()
}

// Close ends both directions and closes the connection. It waits up to some seconds until the peer
// has read what was written. It may be repeated.
func (c *Conn) Close() error {
	defer c.cancel()
	if !c.writing.TryLock() { // a Write in progress is aborted, and its bytes are lost
		c.cancel()
		return quiet(c.ws.CloseNow())
	}
	ctx, cancel := context.WithTimeout(c.ctx, farewell)
	err := c.endWrite(ctx)
	cancel()
	c.writing.Unlock()
	if err != nil {
		return quiet(c.ws.CloseNow())
	}
	return quiet(c.ws.Close(websocket.StatusNormalClosure, ""))
}

// Abort closes the connection and makes the peer's calls fail: as reset if that is the cause, or else
// with the message of cause. It may take some seconds, in which the peer reads what was written
// before.
func (c *Conn) Abort(cause error) {
	defer c.cancel()
	status, reason := websocket.StatusGoingAway, "the connection was ended"
	if known, ok := errors.AsType[*hangar.Error](cause); ok {
		reason = known.Message
		if known.Code == hangar.CodeUnauthenticated {
			status = statusDenied
		}
	} else if errors.Is(cause, syscall.ECONNRESET) || errors.Is(cause, syscall.EPIPE) {
		status, reason = statusReset, "connection reset"
	}
	for len(reason) > maxReason {
		_, size := utf8.DecodeLastRuneInString(reason[:maxReason+1])
		reason = reason[:maxReason+1-size]
	}
	_ = c.ws.Close(status, reason) // there is no reader left
}

// failed turns an error of the WebSocket into an error of the connection.
func (c *Conn) failed(d *deadline, err error) error {
	if d.passed() {
		return os.ErrDeadlineExceeded
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if closed, ok := errors.AsType[websocket.CloseError](err); ok && c.cause == nil {
		switch closed.Code {
		case websocket.StatusGoingAway:
			c.cause = hangar.Errorf(hangar.CodeUnavailable, "", "%s", closed.Reason)
		case statusDenied:
			c.cause = hangar.Errorf(hangar.CodeUnauthenticated, "", "%s", closed.Reason)
		default:
			c.cause = &net.OpError{Op: "read", Net: c.remote.Network(), Addr: c.remote, Err: syscall.ECONNRESET}
		}
	}
	switch {
	case c.cause != nil:
		return c.cause
	case c.ctx.Err() != nil || errors.Is(err, net.ErrClosed):
		return net.ErrClosed
	case errors.Is(err, io.EOF): // the peer has not ended its direction
		return io.ErrUnexpectedEOF
	default:
		return err
	}
}

// quiet drops the errors of closing a connection that is closed already.
func quiet(err error) error {
	for _, known := range []error{net.ErrClosed, io.EOF, syscall.EPIPE, syscall.ECONNRESET} {
		if errors.Is(err, known) {
			return nil
		}
	}
	if websocket.CloseStatus(err) != -1 {
		return nil
	}
	return err
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return addr("websocket") }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	c.read.set(t)
	c.sent.set(t)
	return nil
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.read.set(t)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.sent.set(t)
	return nil
}

type addr string

func (addr) Network() string  { return "websocket" }
func (a addr) String() string { return string(a) }
