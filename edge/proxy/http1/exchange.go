package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// exchange is one request and its answer. It is the handler's http.ResponseWriter, and used for one
// request only, so that a handler that keeps it does no harm to the next.
type exchange struct {
	c     *serverConn
	req   *http.Request
	url   url.URL
	ctx   requestContext
	body  requestBody
	isOld bool // HTTP/1.0
	head  bool // the request is HEAD
	answer

	wantsKeepAlive bool // as a client of HTTP/1.0
	close          bool // the connection ends after the answer
	unread         bool // the client has more to send before that
	noBody         bool // the request has none
	ended          atomic.Bool
}

var blankRequest http.Request

// newExchange makes the request that a handler sees.
func (c *serverConn) newExchange(h *head) (*exchange, error) {
	x := &exchange{c: c, isOld: h.minor == 0, head: h.method == http.MethodHead, answer: answer{length: -1}}
	c.inHead = false
	uri, err := h.parseTarget(&x.url)
	if err != nil {
		return nil, err
	}
	if c.srv.MaxBody > 0 && h.length > c.srv.MaxBody {
		return nil, &ProtocolError{Status: http.StatusRequestEntityTooLarge, Reason: "the body is too large"}
	}
	x.ctx.x, x.ctx.parent = x, c.ctx
	r := blankRequest.WithContext(&x.ctx)
	x.req = r
	r.Method, r.URL, r.RequestURI, r.Host = h.method, &x.url, uri, h.authority
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.1", 1, h.minor
	if x.isOld {
		r.Proto = "HTTP/1.0"
	}
	r.Header, r.Trailer = h.header, h.trailer
	r.RemoteAddr, r.TLS = c.remote, c.tls
	r.Close = h.close || x.isOld && !h.keepAlive
	x.close = r.Close
	x.wantsKeepAlive = x.isOld && h.keepAlive && !h.close
	b := &x.body
	b.x = x
	b.r = bodyReader{from: c, in: &c.in, maxHead: c.srv.maxHeaderBytes()}
	r.Body = http.NoBody
	switch {
	case h.coding > 0:
		b.r.ending, b.r.limit = byChunks, c.srv.MaxBody
		r.ContentLength, r.TransferEncoding, r.Body = -1, chunkedCoding, b
	case h.length > 0:
		b.r.ending, b.r.left = byLength, h.length
		r.ContentLength, r.Body = h.length, b
	default:
		b.r.done, x.noBody = true, true
	}
	b.expects.Store(h.expects > 0 && h.minor > 0 && !x.noBody)
	return x, nil
}

var chunkedCoding = []string{"chunked"}

// refusal makes an exchange for the answer to an invalid request.
func (c *serverConn) refusal() *exchange {
	x := &exchange{c: c, close: true, noBody: true, answer: answer{length: -1}}
	x.ctx.x, x.ctx.parent = x, c.ctx
	x.req = blankRequest.WithContext(&x.ctx)
	x.req.Method, x.req.URL, x.req.Header, x.req.Body = http.MethodGet, &x.url, http.Header{}, http.NoBody
	x.req.Proto, x.req.ProtoMajor, x.req.ProtoMinor = "HTTP/1.1", 1, 1
	x.req.RemoteAddr, x.req.TLS = c.remote, c.tls
	x.body.x = x
	x.body.r.done = true
	return x
}

// finish ends the answer and the request, and reports whether the connection can take another.
func (x *exchange) finish() bool {
	c := x.c
	if c.hijacked {
		x.ended.Store(true)
		x.ctx.end()
		return false
	}
	x.endAnswer()
	x.ended.Store(true)
	x.ctx.end()
	c.stopWatch()
	x.body.end()
	if c.ownRead.Load() || c.ownWrite.Load() {
		c.ownRead.Store(false)
		c.ownWrite.Store(false)
		c.readBy, c.writeBy = time.Time{}, time.Time{}
		_ = c.conn.SetDeadline(time.Time{}) // the next read fails, too
	}
	if !x.body.r.done {
		x.unread = true
		if !x.close && c.wErr == nil {
			x.unread = !x.body.drain()
			x.close = x.unread
		}
	}
	return !x.close && c.wErr == nil && !c.gone
}

// abort ends the request of a handler that panicked.
func (x *exchange) abort() {
	x.ended.Store(true)
	x.ctx.end()
	if !x.c.hijacked {
		x.c.stopWatch()
		x.body.end()
	}
}

// requestBody is the body that a handler reads. Reads and Close may be called from different
// goroutines.
type requestBody struct {
	x       *exchange
	mu      sync.Mutex // held while reading
	r       bodyReader
	err     error
	closed  atomic.Bool
	broken  bool        // the connection cannot be reused; guarded by mu
	expects atomic.Bool // the client waits for 100 Continue
}

// Read reads available bytes. The first one sends 100 Continue if the client waits for it.
func (b *requestBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	if b.err != nil {
		return 0, b.err
	}
	if b.expects.Load() {
		b.x.sendContinue()
	}
	n, err := b.r.read(p)
	if err != nil {
		b.fail(err)
		err = b.err
	}
	return n, err
}

// fail records how the body ended.
func (b *requestBody) fail(err error) {
	if b.err = err; errors.Is(err, io.EOF) {
		b.mergeTrailer()
		b.x.ctx.bodyRead()
		return
	}
	if b.x.c.kicked.Load() {
		b.err = http.ErrBodyReadAfterClose
		return
	}
	b.broken = true
	var p *ProtocolError
	var tooLarge *http.MaxBytesError
	if !errors.As(err, &p) && !errors.As(err, &tooLarge) {
		b.x.ctx.cancelled()
	}
}

func (b *requestBody) mergeTrailer() {
	if len(b.r.trailer) == 0 {
		return
	}
	if b.x.req.Trailer == nil {
		b.x.req.Trailer = b.r.trailer
		return
	}
	maps.Copy(b.x.req.Trailer, b.r.trailer)
}

// Close ends reading, including a read in progress.
func (b *requestBody) Close() error {
	if b.closed.Swap(true) {
		return nil
	}
	b.interrupt()
	return nil
}

// interrupt ends a blocked Read.
func (b *requestBody) interrupt() {
	if b.mu.TryLock() {
		b.mu.Unlock()
		return
	}
	b.x.c.kicked.Store(true)
	b.x.c.setReadDeadline(longAgo)
}

// AtHand implements AtHand.
func (b *requestBody) AtHand() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed.Load() || b.err != nil {
		return 0
	}
	return b.r.atHand()
}

// end makes sure that the body is no longer read.
func (b *requestBody) end() {
	if b.x.noBody {
		return
	}
	if !b.closed.Swap(true) {
		b.interrupt()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.x.close = b.x.close || b.broken
	if b.x.c.kicked.CompareAndSwap(true, false) {
		b.x.c.readBy = time.Time{}
		b.x.c.setReadDeadline(time.Time{})
	}
}

// drain reads the rest that a handler has left, if it is short, and reports whether it reached the
// end.
func (b *requestBody) drain() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil && !errors.Is(b.err, io.EOF) && !errors.Is(b.err, http.ErrBodyReadAfterClose) || b.expects.Load() {
		return false
	}
	if b.r.ending == byLength && b.r.left > MaxDrain {
		return false
	}
	if b.x.c.srv.BodyTimeout <= 0 { // bounded even if the server sets no limit
		b.x.c.readWithin(lingering)
		b.x.c.ownRead.Store(true)
		defer func() { b.x.c.ownRead.Store(false) }()
	}
	buf := copies.Get().(*[copySize]byte)
	defer copies.Put(buf)
	for n := int64(0); n+b.r.extra <= MaxDrain; {
		m, err := b.r.read(buf[:])
		if n += int64(m); err != nil {
			return errors.Is(err, io.EOF)
		}
	}
	return false
}

// Hijack implements http.Hijacker. The reader also has the bytes that were read ahead, including
// an unread body, which can no longer be read as a body.
func (x *exchange) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c := x.c
	if c.hijacked {
		return nil, nil, http.ErrHijacked
	}
	if x.ended.Load() {
		return nil, nil, errors.New("http1: Hijack after the handler has returned")
	}
	if x.wroteHeader {
		if err := x.flush(); err != nil {
			return nil, nil, err
		}
	}
	x.ctx.mu.Lock() // no watch starts from here on
	c.hijacked = true
	x.ctx.mu.Unlock()
	c.stopWatch()
	x.body.end() // otherwise a late read would use a released buffer
	c.readBy, c.writeBy = time.Time{}, time.Time{}
	if err := c.conn.SetDeadline(time.Time{}); err != nil {
		return nil, nil, err
	}
	held := bytes.Clone(c.in.held())
	c.in.release()
	c.releaseOut()
	r := bufio.NewReader(c.conn)
	if len(held) > 0 {
		r = bufio.NewReaderSize(io.MultiReader(bytes.NewReader(held), c.conn), max(len(held), windowSize))
		if _, err := r.Peek(len(held)); err != nil { // Buffered tells how many there are
			return nil, nil, err
		}
	}
	return c.conn, bufio.NewReadWriter(r, bufio.NewWriter(c.conn)), nil
}

// SetReadDeadline serves http.ResponseController. From now on the BodyTimeout does not hold for
// this request. The deadline ends with the body: then the client is watched.
func (x *exchange) SetReadDeadline(t time.Time) error {
	x.c.ownRead.Store(true)
	return x.c.conn.SetReadDeadline(t)
}

// SetWriteDeadline serves http.ResponseController. From now on the BodyTimeout does not hold for
// the answer.
func (x *exchange) SetWriteDeadline(t time.Time) error {
	x.c.ownWrite.Store(true)
	return x.c.conn.SetWriteDeadline(t)
}

// EnableFullDuplex serves http.ResponseController: it is always on.
func (*exchange) EnableFullDuplex() error { return nil }
