package http1

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// inlineBody is the size up to which a body at hand is sent with its header.
const inlineBody = copySize

// appendRequest writes the head of a request and returns the length of its body; -1: it is
// chunked.
func appendRequest(b []byte, r *http.Request) ([]byte, int64, error) {
	method := r.Method
	if method == "" {
		method = http.MethodGet
	}
	if !isToken(method) {
		return nil, 0, errors.New("http1: the method is not one")
	}
	host := r.Host
	if host == "" {
		host = r.URL.Host
	}
	if !isHost(host) {
		return nil, 0, errors.New("http1: the host is not a name or an address")
	}
	b = append(b, method...)
	b = append(b, ' ')
	start := len(b)
	if method == http.MethodConnect {
		b = append(b, host...)
	} else {
		b = appendTarget(b, r.URL)
	}
	if !all(b[start:], inTarget) {
		return nil, 0, errors.New("http1: the target has a character that is not allowed")
	}
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, host...)
	b = append(b, "\r\n"...)
	b, err := appendRequestFields(b, r)
	if err != nil {
		return nil, 0, err
	}
	b, length, err := appendFraming(b, r, method)
	if err != nil {
		return nil, 0, err
	}
	return append(b, "\r\n"...), length, nil
}

func appendTarget(b []byte, u *url.URL) []byte {
	if u.Path == "*" {
		return append(b, '*')
	}
	path := u.EscapedPath()
	if path == "" || path[0] != '/' {
		b = append(b, '/')
	}
	b = append(b, path...)
	if u.ForceQuery || u.RawQuery != "" {
		b = append(b, '?')
		b = append(b, u.RawQuery...)
	}
	return b
}

// appendFraming writes the fields that say where the body of a request ends, and returns its length.
func appendFraming(b []byte, r *http.Request, method string) ([]byte, int64, error) {
	switch {
	case r.Body == nil || r.Body == http.NoBody:
		if method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch {
			b = append(b, "Content-Length: 0\r\n"...)
		}
		return b, 0, nil
	case r.ContentLength > 0:
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, r.ContentLength, 10)
		return append(b, "\r\n"...), r.ContentLength, nil
	}
	// As in net/http, 0 with a body means an unknown length.
	b = append(b, "Transfer-Encoding: chunked\r\n"...)
	if len(r.Trailer) == 0 {
		return b, -1, nil
	}
	b = append(b, "Trailer: "...)
	var room [8]string
	for i, name := range sortedNames(r.Trailer, room[:]) {
		if c, ok := canonical(name); !ok || notInTrailers(c) {
			return nil, 0, errors.New("http1: a trailer field cannot be one")
		}
		if i > 0 {
			b = append(b, ", "...)
		}
		b = append(b, name...)
	}
	return append(b, "\r\n"...), -1, nil
}

func appendRequestFields(b []byte, r *http.Request) ([]byte, error) {
	var room [48]string
	closes := r.Close
	for _, name := range sortedNames(r.Header, room[:]) {
		switch name {
		case "Host", "Content-Length", "Transfer-Encoding", "Trailer":
			continue
		}
		if !isToken(name) {
			return nil, errors.New("http1: the name of a header field has a character that is not allowed")
		}
		for _, v := range r.Header[name] {
			if !all(v, inValue) {
				return nil, errors.New("http1: a header field has a control character")
			}
			b = appendField(b, name, v)
		}
		if closes && name == "Connection" {
			closes = len(r.Header[name]) == 0
		}
	}
	if closes {
		b = append(b, "Connection: close\r\n"...)
	}
	return b, nil
}

// send writes a request: as a whole, or its head while a goroutine writes its body.
func (c *Conn) send(b []byte, r *http.Request, length int64) (wrote bool, err error) {
	if r.Body == nil || r.Body == http.NoBody {
		return c.write(b)
	}
	expects := hasWord(r.Header.Get("Expect"), "100-continue")
	if length > 0 && length <= inlineBody && !expects && isAtHand(r, length) {
		defer r.Body.Close()
		if int64(cap(b)-len(b)) < length {
			b = append(make([]byte, 0, int64(len(b))+length), b...)
		}
		n, err := io.ReadFull(r.Body, b[len(b):int64(len(b))+length])
		if err != nil {
			return false, &bodyError{noEOF(err)}
		}
		return c.write(b[:len(b)+n])
	}
	if wrote, err := c.write(b); err != nil {
		_ = r.Body.Close()
		return wrote, err
	}
	u := &upload{c: c, r: r, length: length, done: make(chan struct{})}
	u.moved.Store(time.Now().UnixNano())
	if expects {
		u.proceed = make(chan struct{})
	}
	c.upload = u
	go u.run()
	return true, nil
}

func (c *Conn) write(b []byte) (wrote bool, err error) {
	n, err := writeTo(c.conn, c.tx, b)
	return n > 0, err
}

// isAtHand reports whether a body can be read without waiting.
func isAtHand(r *http.Request, length int64) bool {
	if a, ok := r.Body.(AtHand); ok {
		return int64(a.AtHand()) >= length
	}
	return r.GetBody != nil // net/http made the body from memory
}

// A bodyError is an error of the body of a request, not of the connection.
type bodyError struct{ err error }

func (e *bodyError) Error() string { return "http1: reading the body of the request: " + e.err.Error() }
func (e *bodyError) Unwrap() error { return e.err }

// upload sends a body that is not at hand.
type upload struct {
	c       *Conn
	r       *http.Request
	length  int64         // -1: chunked
	proceed chan struct{} // closed when the peer wants the body; nil: it was not asked
	once    sync.Once     // for proceed
	done    chan struct{} // closed when sending has ended
	moved   atomic.Int64  // time of the last progress, in nanoseconds
	stopped atomic.Bool
	atEnd   atomic.Bool // the last bytes are being written
	whole   bool        // all was sent; valid after done
	err     error
	failed  atomic.Pointer[bodyError]
}

func (u *upload) run() {
	defer close(u.done)
	defer u.r.Body.Close()
	if u.proceed != nil {
		t := time.NewTimer(continueWait)
		select {
		case <-u.proceed:
		case <-t.C:
		}
		t.Stop()
	}
	if u.stopped.Load() {
		return
	}
	if u.err = u.copy(); u.err == nil {
		u.whole = true
		return
	}
	var b *bodyError
	if errors.As(u.err, &b) && !u.stopped.Load() { // the peer must not take it for complete
		u.failed.Store(b)
		_ = u.c.conn.SetDeadline(longAgo)
	}
}

// copy sends the body.
func (u *upload) copy() error {
	buf := copies.Get().(*[copySize]byte)
	defer copies.Put(buf)
	left := u.length
	for left != 0 && !u.stopped.Load() {
		part := buf[chunkFront : copySize-len("\r\n")]
		if left > 0 && int64(len(part)) > left {
			part = part[:left]
		}
		n, err := u.r.Body.Read(part)
		if n > 0 {
			if werr := u.put(buf, n, left == int64(n)); werr != nil {
				return werr
			}
			u.moved.Store(time.Now().UnixNano())
			if left > 0 {
				left -= int64(n)
			}
		}
		if err == io.EOF && u.length < 0 {
			return u.last()
		}
		if err != nil && left != 0 {
			return &bodyError{noEOF(err)}
		}
	}
	if left != 0 {
		return errors.New("http1: the answer has ended")
	}
	return nil
}

// chunkFront is room for the size line of a chunk.
const chunkFront = 10

// put sends n bytes of the buffer that follow the room for the size of a chunk.
func (u *upload) put(buf *[copySize]byte, n int, last bool) error {
	u.atEnd.Store(last)
	if u.length >= 0 {
		_, err := u.c.conn.Write(buf[chunkFront : chunkFront+n])
		return err
	}
	var size [chunkFront]byte
	head := append(appendHex(size[:0], n), "\r\n"...)
	start := chunkFront - len(head)
	copy(buf[start:], head)
	copy(buf[chunkFront+n:], "\r\n")
	_, err := u.c.conn.Write(buf[start : chunkFront+n+2])
	return err
}

// last sends the last chunk and the trailer section.
func (u *upload) last() error {
	b := make([]byte, 0, 64)
	b = append(b, "0\r\n"...)
	var room [8]string
	for _, name := range sortedNames(u.r.Trailer, room[:]) {
		c, ok := canonical(name)
		if !ok || notInTrailers(c) {
			continue
		}
		for _, v := range u.r.Trailer[name] {
			b = appendField(b, c, v)
		}
	}
	u.atEnd.Store(true)
	_, err := u.c.conn.Write(append(b, "\r\n"...))
	return err
}

// goOn reports that the peer wants the body, or never will.
func (u *upload) goOn() {
	if u.proceed != nil {
		u.once.Do(func() { close(u.proceed) })
	}
}

// failure is the error of the body that made the request fail.
func (u *upload) failure() error {
	if b := u.failed.Load(); b != nil {
		return b
	}
	return nil
}

// over reports whether sending has ended.
func (u *upload) over() bool {
	select {
	case <-u.done:
		return true
	default:
		return false
	}
}

// since is the time without progress.
func (u *upload) since(now time.Time) time.Duration {
	return now.Sub(time.Unix(0, u.moved.Load()))
}

// finish ends the sending and reports whether everything was sent. It does not wait for a body
// whose Read does not end when it is closed.
func (u *upload) finish() bool {
	if u.over() {
		return u.whole
	}
	if u.atEnd.Load() { // the peer answers before the goroutine can report its end
		_ = u.c.conn.SetWriteDeadline(longAgo)
		<-u.done
		return u.whole && u.c.conn.SetWriteDeadline(noTime) == nil
	}
	u.stopped.Store(true)
	u.goOn()
	_ = u.c.conn.SetWriteDeadline(longAgo)
	_ = u.r.Body.Close()
	return false
}
