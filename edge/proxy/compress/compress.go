// Package compress wraps the writer of an answer and compresses its body where that helps and
// harms no client.
//
// A body is left as it is when it has a Content-Encoding or a digest, when it is a part (206),
// when the answer says no-transform, when its type is of no kind that shrinks, when it is short,
// and when the client accepts no encoding that is known here. An App opts out with
// Content-Encoding: none, which is removed. A compressed body is another representation: its ETag
// becomes weak, its length goes, and Vary says what it depends on.
//
// Bytes are passed on when the handler flushes and else when the encoder has enough of them.
// Headers of 1xx, trailers and hijacked connections pass through.
//
// A writer belongs to one request and one goroutine at a time, as with net/http.
package compress

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
)

// MinSize is how long a body has to be, in bytes, to be compressed.
const MinSize = 1024

// Writer returns a writer that compresses what is written to w as the request accepts, and a
// function that ends the body. A handler that could not complete its answer must not call it, so
// that the client does not take a partial body for a whole one.
func Writer(w http.ResponseWriter, r *http.Request) (http.ResponseWriter, func() error) {
	c := &writer{ResponseWriter: w, head: r.Method == http.MethodHead}
	c.encoding, c.refused = negotiate(r.Header["Accept-Encoding"])
	return c, c.close
}

// phase is how far the header of an answer has been decided.
type phase int

const (
	undecided phase = iota // its header has not been written
	held                   // the header is held back until the body proves long enough
	plain                  // the body passes unchanged
	encoded
)

type writer struct {
	http.ResponseWriter
	encoding encoding // the one to use, noEncoding: none
	refused  bool     // the client does not accept an uncompressed body
	head     bool

	phase  phase
	status int    // while held
	buffer []byte // while held
	enc    encoder
}

// Unwrap lets http.ResponseController reach the deadlines of the connection.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *writer) WriteHeader(status int) {
	switch {
	case w.phase != undecided:
		return // as in net/http, but without a log line
	case status >= 100 && status < 200 && status != http.StatusSwitchingProtocols:
		w.ResponseWriter.WriteHeader(status)
	case !w.suits(status):
		w.phase = plain
		w.ResponseWriter.WriteHeader(status)
	case w.refused || w.length() >= MinSize:
		w.begin(status)
	case w.length() >= 0:
		w.phase = plain
		w.ResponseWriter.WriteHeader(status)
	default:
		w.phase, w.status = held, status
	}
}

// suits reports whether the answer may be compressed, regardless of its length. If so, its Vary
// header depends on what the client accepts.
func (w *writer) suits(status int) bool {
	h := w.Header()
	if of := h["Content-Encoding"]; len(of) > 0 {
		if len(of) == 1 && (strings.EqualFold(of[0], "none") || strings.EqualFold(of[0], "identity")) {
			delete(h, "Content-Encoding")
		}
		return false
	}
	if status < 200 || status == http.StatusNoContent || status == http.StatusResetContent || status == http.StatusPartialContent ||
		status == http.StatusNotModified || !compressible(h.Get("Content-Type")) || keeps(h) {
		return false
	}
	vary(h)
	return !w.head && w.encoding != noEncoding
}

// keeps reports whether the headers forbid another encoding, or describe the exact bytes.
func keeps(h http.Header) bool {
	for _, line := range h["Cache-Control"] {
		if strings.Contains(strings.ToLower(line), "no-transform") {
			return true
		}
	}
	for _, name := range [...]string{"Content-Range", "Content-Md5", "Content-Digest", "Repr-Digest", "Digest"} {
		if len(h[name]) > 0 {
			return true
		}
	}
	return false
}

// vary adds the headers that the answer depends on.
func vary(h http.Header) {
	for _, line := range h["Vary"] {
		for name := range strings.SplitSeq(line, ",") {
			if name = strings.TrimSpace(name); name == "*" || strings.EqualFold(name, "Accept-Encoding") {
				return
			}
		}
	}
	h.Add("Vary", "Accept-Encoding")
}

// length is the length of the body, or -1.
func (w *writer) length() int64 {
	text := w.Header().Get("Content-Length")
	if text == "" {
		return -1
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// begin writes the header of a compressed answer.
func (w *writer) begin(status int) {
	h := w.Header()
	delete(h, "Content-Length")
	delete(h, "Accept-Ranges")
	h["Content-Encoding"] = []string{w.encoding.String()}
	if tag := h.Get("Etag"); tag != "" && !strings.HasPrefix(tag, "W/") {
		h.Set("Etag", "W/"+tag)
	}
	w.phase = encoded
	w.enc = w.encoding.take(w.ResponseWriter)
	w.ResponseWriter.WriteHeader(status)
}

func (w *writer) Write(p []byte) (int, error) {
	if w.phase == undecided {
		if w.Header()["Content-Type"] == nil && len(p) > 0 {
			w.Header().Set("Content-Type", http.DetectContentType(p))
		}
		w.WriteHeader(http.StatusOK)
	}
	switch w.phase {
	case encoded:
		return w.enc.Write(p)
	case held:
		if len(w.buffer)+len(p) < MinSize {
			w.buffer = append(w.buffer, p...)
			return len(p), nil
		}
		if err := w.release(); err != nil {
			return 0, err
		}
		return w.enc.Write(p)
	default:
		return w.ResponseWriter.Write(p)
	}
}

// release starts to compress the held bytes.
func (w *writer) release() error {
	w.begin(w.status)
	_, err := w.enc.Write(w.buffer)
	w.buffer = nil
	return err
}

// ReadFrom implements io.ReaderFrom: a body that is passed on as it is may go from socket to
// socket.
func (w *writer) ReadFrom(r io.Reader) (int64, error) {
	if w.phase == undecided && w.Header()["Content-Type"] != nil {
		w.WriteHeader(http.StatusOK)
	}
	if w.phase == plain {
		return io.Copy(w.ResponseWriter, r)
	}
	return io.Copy(onlyWriter{w}, r)
}

// onlyWriter hides ReadFrom from io.Copy.
type onlyWriter struct{ io.Writer }

// Flush implements http.Flusher.
func (w *writer) Flush() { _ = w.FlushError() }

// FlushError passes on what has been written. A body whose length is unknown by then takes its
// time, and is compressed.
func (w *writer) FlushError() error {
	if w.phase == undecided {
		w.WriteHeader(http.StatusOK)
	}
	if w.phase == held {
		if err := w.release(); err != nil {
			return err
		}
	}
	if w.phase == encoded {
		if err := w.enc.Flush(); err != nil {
			return err
		}
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Hijack implements http.Hijacker.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.phase = plain
	}
	return conn, rw, err
}

// close ends the body.
func (w *writer) close() error {
	if w.phase == undecided {
		w.WriteHeader(http.StatusOK)
	}
	switch w.phase {
	case held:
		w.phase = plain
		w.ResponseWriter.WriteHeader(w.status)
		if len(w.buffer) == 0 {
			return nil
		}
		_, err := w.ResponseWriter.Write(w.buffer)
		return err
	case encoded:
		err := w.enc.Close()
		w.encoding.give(w.enc)
		w.enc, w.phase = nil, plain
		return err
	default:
		return nil
	}
}

// compressible reports whether bodies of a type shrink.
func compressible(contentType string) bool {
	kind, _, _ := strings.Cut(contentType, ";")
	switch kind = strings.ToLower(strings.TrimSpace(kind)); kind {
	case "application/javascript", "application/x-javascript", "application/json", "application/xml", "application/wasm",
		"application/manifest+json", "application/x-ndjson", "application/graphql", "application/rtf", "application/toml", "application/yaml",
		"application/x-yaml", "application/sql", "application/vnd.ms-fontobject", "application/x-sh", "application/x-www-form-urlencoded",
		"image/svg+xml", "image/bmp", "image/x-icon", "image/vnd.microsoft.icon", "font/ttf", "font/otf", "application/x-font-ttf",
		"application/x-protobuf", "application/protobuf":
		return true
	}
	return strings.HasPrefix(kind, "text/") || strings.HasSuffix(kind, "+json") || strings.HasSuffix(kind, "+xml") ||
		strings.HasSuffix(kind, "+text") || strings.HasSuffix(kind, "+yaml")
}
