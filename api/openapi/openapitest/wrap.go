package openapitest

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// Of asks a handler for its document.
func Of(tb testing.TB, h http.Handler, path string, unchecked ...string) *Document {
	tb.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(tb.Context(), http.MethodGet, path, nil))
	if w.Code != http.StatusOK {
		tb.Fatalf("%s is answered %d %s", path, w.Code, w.Body)
	}
	d, err := Read(w.Body.Bytes(), unchecked...)
	if err != nil {
		tb.Fatalf("%s: %v", path, err)
	}
	return d
}

// Handler returns next with every answer checked. A difference fails tb.
func (d *Document) Handler(tb testing.TB, next http.Handler) http.Handler {
	tb.Helper()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen := &checkedWriter{ResponseWriter: w, document: d, request: r, report: report(tb)}
		next.ServeHTTP(seen, r)
		seen.end()
	})
}

// Transport returns next with every answer checked. A difference fails tb.
func (d *Document) Transport(tb testing.TB, next http.RoundTripper) http.RoundTripper {
	tb.Helper()
	return checkedTransport{d, next, report(tb)}
}

func report(tb testing.TB) func(error) {
	tb.Helper()
	return func(err error) {
		if err != nil {
			tb.Helper()
			tb.Error(err)
		}
	}
}

// checkedWriter checks what a handler writes.
type checkedWriter struct {
	http.ResponseWriter
	document *Document
	request  *http.Request
	report   func(error)
	begun    bool
	body     collector
}

// WriteHeader implements http.ResponseWriter.
func (w *checkedWriter) WriteHeader(status int) {
	w.begin(status)
	w.ResponseWriter.WriteHeader(status)
}

func (w *checkedWriter) begin(status int) {
	if w.begun {
		return
	}
	w.begun = true
	a, err := w.document.begin(w.request, status, w.Header())
	w.report(err)
	w.body = collector{answered: a, report: w.report, skip: err != nil}
}

// Write implements http.ResponseWriter.
func (w *checkedWriter) Write(p []byte) (int, error) {
	w.begin(http.StatusOK)
	w.body.add(p)
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController find what is beneath.
func (w *checkedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *checkedWriter) end() {
	if w.begun {
		w.body.end()
	}
}

type checkedTransport struct {
	document *Document
	next     http.RoundTripper
	report   func(error)
}

// RoundTrip implements http.RoundTripper.
func (t checkedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := t.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	a, err := t.document.begin(r, res.StatusCode, res.Header)
	t.report(err)
	if res.StatusCode != http.StatusSwitchingProtocols {
		res.Body = &checkedBody{ReadCloser: res.Body, collector: collector{answered: a, report: t.report, skip: err != nil}}
	}
	return res, nil
}

// CloseIdleConnections lets an http.Client close those of next.
func (t checkedTransport) CloseIdleConnections() {
	if c, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// checkedBody checks a body when it has been read to its end, and the lines of a
// stream as they are read.
type checkedBody struct {
	io.ReadCloser
	collector collector
}

// Read implements io.Reader.
func (b *checkedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.collector.add(p[:n])
	if err == io.EOF {
		b.collector.end()
	}
	return n, err
}

// collector gathers a body.
type collector struct {
	answered
	report func(error)
	skip   bool // something was wrong already
	buf    bytes.Buffer
	ended  bool
}

func (c *collector) add(p []byte) {
	if c.skip {
		return
	}
	c.buf.Write(p)
	if c.media != mediaLines {
		return
	}
	for {
		line, err := c.buf.ReadBytes('\n')
		if err != nil {
			c.buf.Write(line) // the beginning of one
			return
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			c.report(c.body(line))
		}
	}
}

func (c *collector) end() {
	if c.skip || c.ended || c.op == nil && c.status < http.StatusBadRequest {
		return
	}
	c.ended = true
	if c.media != mediaLines {
		c.report(c.body(c.buf.Bytes()))
	}
}
