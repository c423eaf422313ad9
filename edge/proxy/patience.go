package proxy

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// past is a deadline that ends what waits.
var past = time.Unix(1, 0)

// patience is for how long a client over HTTP/2 or HTTP/3 may send none of what is waited for,
// or take none of what it is sent. Package http1 has its own, for a connection.
type patience struct {
	of     time.Duration
	expire func() // ends the reading or the writing of a stream

	mu    sync.Mutex
	timer *time.Timer // nil: nothing was waited for yet
	until time.Time   // zero: nothing is waited for
}

// begin says that the client is waited for.
func (p *patience) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until = time.Now().Add(p.of)
	if p.timer == nil {
		p.timer = time.AfterFunc(p.of, p.look)
	} else {
		p.timer.Reset(p.of)
	}
}

// end says that it is not any more. From then on expire is not called.
func (p *patience) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until = time.Time{}
	p.timer.Stop()
}

func (p *patience) look() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.until.IsZero() && !time.Now().Before(p.until) {
		p.expire()
	}
}

// patientBody is the body of a request.
type patientBody struct {
	io.ReadCloser
	patience patience
}

func (b *patientBody) Read(p []byte) (int, error) {
	b.patience.begin()
	defer b.patience.end()
	return b.ReadCloser.Read(p)
}

// patientWriter takes an answer.
type patientWriter struct {
	http.ResponseWriter
	patience patience
}

// Unwrap lets http.ResponseController through.
func (w *patientWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *patientWriter) Write(p []byte) (int, error) {
	w.patience.begin()
	defer w.patience.end()
	return w.ResponseWriter.Write(p)
}

func (w *patientWriter) Flush() {
	if f, ok := w.ResponseWriter.(http.Flusher); ok {
		w.patience.begin()
		defer w.patience.end()
		f.Flush()
	}
}

// patiently bounds for how long a stream may wait for its client. What http1 serves, it bounds.
func (p *Proxy) patiently(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
	if r.ProtoMajor < 2 {
		return w
	}
	control := http.NewResponseController(w)
	if r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0 {
		r.Body = &patientBody{r.Body, patience{of: p.limits.BodyTimeout, expire: func() { _ = control.SetReadDeadline(past) }}}
	}
	return &patientWriter{w, patience{of: p.limits.BodyTimeout, expire: func() { _ = control.SetWriteDeadline(past) }}}
}
