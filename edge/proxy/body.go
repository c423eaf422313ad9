package proxy

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/proxy/http1"
)

var (
	errBodyGone   = errors.New("the body is no longer at hand")
	errBodyEnded  = errors.New("the attempt that read the body has ended")
	errBodyTooBig = errors.New("the body is larger than the edge passes on")
)

// body is the body of a client's request. It buffers the bytes read so far, up to a limit, so that
// they can be sent again. Beyond the limit it drops the whole buffer.
//
// One attempt reads at a time. When the next attempt begins, an earlier one gets no more bytes; the
// bytes of a read in progress are buffered for the next.
type body struct {
	src       io.ReadCloser
	of        *http.Request // has the trailers once src has ended
	announced http.Header   // the trailers of the requests to Machines
	org       hangar.OrgID  // whose room it takes
	limits    bodyLimits
	max       int64 // bytes that the client may send; 0: any number

	mu     sync.Mutex // held while src is read
	memory []byte     // the first bytes
	spool  *os.File   // the bytes after memory; nil: none
	read   int64      // bytes of src so far
	err    error      // how src ended; nil: it has not
	lost   bool       // it was larger than the buffer may be
	noRoom bool       // lost only because there was no room left
	taken  bodyBytes  // of the room
	reader atomic.Pointer[attemptBody]
}

// bodyLimits bound the kept bytes of bodies.
type bodyLimits struct {
	memory int64     // bytes of one body in memory
	spool  int64     // bytes of one body altogether, if more than memory: in a file
	dir    string    // where such files are; empty: where temporary files are
	room   *bodyRoom // for all bodies
}

// bodyless reports whether a request has no body. Over HTTP/3 only reading tells if there is no Content-Length,
// and for methods that rarely have a body it waits for that.
func bodyless(r *http.Request) bool {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return true
	}
	if r.ProtoMajor != 3 || r.ContentLength > 0 || len(r.Trailer) > 0 {
		return false
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodDelete:
	default:
		return false
	}
	var first [1]byte
	n, err := io.ReadFull(r.Body, first[:])
	if err == io.EOF {
		r.ContentLength = 0
		return true
	}
	r.Body = struct { // an error comes again
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(first[:n]), r.Body), r.Body}
	return false
}

// attempt returns a reader of the whole body, or false if it is not fully buffered.
func (b *body) attempt() (*attemptBody, bool) {
	a := &attemptBody{b: b}
	b.reader.Store(a)
	return a, b.repeatable()
}

// repeatable reports whether the whole body can be read again from its beginning. It waits for a
// read from the client in progress.
func (b *body) repeatable() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.lost
}

// full reports whether the body was dropped for lack of room.
func (b *body) full() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.noRoom
}

// failure is the error of reading the client's body; nil if there was none so far, or the body is
// being read.
func (b *body) failure() error {
	if !b.mu.TryLock() {
		return nil
	}
	defer b.mu.Unlock()
	if b.err == io.EOF { //nolint:errorlint // io.Reader says so
		return nil
	}
	return b.err
}

// close drops the buffer. No attempt gets more bytes.
func (b *body) close() {
	b.reader.Store(nil)
	if b.mu.TryLock() {
		b.forget()
		b.mu.Unlock()
		return
	}
	go func() { // the server ends a read in progress with the request
		b.mu.Lock()
		defer b.mu.Unlock()
		b.forget()
	}()
}

// forget frees the memory of the body. b.mu is held.
func (b *body) forget() {
	b.lost = b.lost || b.read > 0
	b.memory = nil
	if b.spool != nil {
		_ = b.spool.Close()
		b.spool = nil
	}
	b.limits.room.give(b.org, b.taken)
	b.taken = bodyBytes{}
}

// lose drops a body that can no longer be buffered. b.mu is held.
func (b *body) lose(noRoom bool) {
	b.forget()
	b.lost, b.noRoom = true, noRoom
}

// take accounts for more bytes of the body. b.mu is held.
func (b *body) take(more bodyBytes) bool {
	if !b.limits.room.take(b.org, more) {
		return false
	}
	b.taken = b.taken.plus(more)
	return true
}

// keep appends bytes to the buffer. b.mu is held.
func (b *body) keep(p []byte) {
	if b.lost || len(p) == 0 {
		return
	}
	if b.spool == nil && int64(len(b.memory)+len(p)) <= b.limits.memory {
		before := cap(b.memory)
		b.memory = append(b.memory, p...)
		if !b.take(bodyBytes{memory: int64(cap(b.memory) - before)}) {
			b.lose(true)
		}
		return
	}
	if b.read+int64(len(p)) > b.limits.spool {
		b.lose(false)
		return
	}
	if !b.take(bodyBytes{spool: int64(len(p))}) {
		b.lose(true)
		return
	}
	if b.spool == nil {
		f, err := os.CreateTemp(b.limits.dir, "hangar-body-")
		if err == nil {
			err = os.Remove(f.Name()) // the file ends when it is closed
			b.spool = f
		}
		if err != nil {
			b.lose(true)
			return
		}
	}
	if _, err := b.spool.WriteAt(p, b.read-int64(len(b.memory))); err != nil {
		b.lose(true) // the disk is full
	}
}

// readAt reads from an offset, up to the end of the bytes read so far.
func (b *body) readAt(a *attemptBody, p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.reader.Load() != a:
		return 0, errBodyEnded
	case a.off < b.read && b.lost:
		return 0, errBodyGone
	case a.off < int64(len(b.memory)):
		return copy(p, b.memory[a.off:]), nil
	case a.off < b.read:
		n := min(int64(len(p)), b.read-a.off)
		return b.spool.ReadAt(p[:n], a.off-int64(len(b.memory)))
	case b.err != nil:
		return 0, b.err
	}
	n, err := b.src.Read(p)
	if b.max > 0 && b.read+int64(n) > b.max {
		n, err = 0, errBodyTooBig
	}
	b.keep(p[:n])
	b.read += int64(n)
	if b.err = err; err == io.EOF {
		dropForged(b.of.Trailer)
		for name := range b.announced { // over HTTP/3 they come in another map
			b.announced[name] = b.of.Trailer[name]
		}
	}
	if b.reader.Load() != a {
		return 0, errBodyEnded // the next attempt reads these bytes from the buffer
	}
	return n, err
}

// attemptBody reads a body from its beginning, for one attempt.
type attemptBody struct {
	b   *body
	off int64
}

// Read implements io.Reader.
func (a *attemptBody) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := a.b.readAt(a, p)
	a.off += int64(n)
	return n, err
}

// AtHand is how many bytes Read returns without waiting for the client.
func (a *attemptBody) AtHand() int {
	b := a.b
	if !b.mu.TryLock() {
		return 0
	}
	defer b.mu.Unlock()
	n := int64(0)
	if !b.lost {
		n = b.read - a.off
	}
	if more, ok := b.src.(http1.AtHand); ok && b.err == nil {
		n += int64(more.AtHand())
	}
	return int(n)
}

// Close ends this attempt's reading, but not the body.
func (a *attemptBody) Close() error {
	a.b.reader.CompareAndSwap(a, nil)
	return nil
}
