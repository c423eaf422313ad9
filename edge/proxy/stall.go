package proxy

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// past is a deadline that interrupts reads and writes at once.
var past = time.Unix(1, 0)

// stallTimer bounds how long a client may stall a stream over HTTP/2 or HTTP/3. Package http1 has
// its own, for a connection.
type stallTimer struct {
	timeout time.Duration
	expire  func() // interrupts reading or writing the stream

	mu    sync.Mutex
	timer *time.Timer // nil: no read or write has begun
	until time.Time   // zero: no read or write is in progress
}

// begin starts the timer for a read or a write.
func (p *stallTimer) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until = time.Now().Add(p.timeout)
	if p.timer == nil {
		p.timer = time.AfterFunc(p.timeout, p.check)
	} else {
		p.timer.Reset(p.timeout)
	}
}

// end stops the timer. From then on it does not call expire.
func (p *stallTimer) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until = time.Time{}
	p.timer.Stop()
}

func (p *stallTimer) check() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.until.IsZero() && !time.Now().Before(p.until) {
		p.expire()
	}
}

// timedBody is the body of a request with a stall timeout.
type timedBody struct {
	io.ReadCloser
	stall stallTimer
}

func (b *timedBody) Read(p []byte) (int, error) {
	b.stall.begin()
	defer b.stall.end()
	return b.ReadCloser.Read(p)
}

// timedWriter writes an answer with a stall timeout.
type timedWriter struct {
	http.ResponseWriter
	stall stallTimer
}

// Unwrap lets http.ResponseController through.
func (w *timedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *timedWriter) Write(p []byte) (int, error) {
	w.stall.begin()
	defer w.stall.end()
	return w.ResponseWriter.Write(p)
}

func (w *timedWriter) Flush() {
	if f, ok := w.ResponseWriter.(http.Flusher); ok {
		w.stall.begin()
		defer w.stall.end()
		f.Flush()
	}
}

// withStallTimeouts adds stall timeouts to a request over HTTP/2 or HTTP/3.
func (p *Proxy) withStallTimeouts(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
	if r.ProtoMajor < 2 {
		return w
	}
	control := http.NewResponseController(w)
	if r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0 {
		r.Body = &timedBody{r.Body, stallTimer{timeout: p.limits.BodyTimeout, expire: func() { _ = control.SetReadDeadline(past) }}}
	}
	return &timedWriter{w, stallTimer{timeout: p.limits.BodyTimeout, expire: func() { _ = control.SetWriteDeadline(past) }}}
}
