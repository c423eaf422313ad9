package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
)

// bytesSource returns bytes in pieces.
type bytesSource struct {
	b     []byte
	piece int
}

func (s *bytesSource) readConn(p []byte) (int, error) {
	if len(s.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), s.piece)], s.b)
	s.b = s.b[n:]
	return n, nil
}

// readWhole reads a head from pieces.
func readWhole(b []byte, piece int) (w *window, src *bytesSource, s string, lines int, err error) {
	w, src = &window{}, &bytesSource{b, piece}
	for {
		length, n, err := w.head(8 << 10)
		if err == nil {
			s := string(w.held()[:length])
			w.take(length)
			return w, src, s, n, nil
		}
		if errors.Is(err, errHeadIncomplete) {
			if err = w.fill(src, 8<<10); err == nil {
				continue
			}
		}
		w.release()
		return w, src, "", 0, err
	}
}

// FuzzRequest: the parsed request does not depend on how it arrives, and is the same for net/http
// and after it was written again.
func FuzzRequest(f *testing.F) {
	for _, h := range hostiles {
		f.Add([]byte(h.request), 7)
	}
	f.Fuzz(func(t *testing.T, b []byte, piece int) {
		piece = 1 + int(uint(piece)%5000)
		w, _, s, lines, err := readWhole(b, piece)
		w2, _, s2, lines2, err2 := readWhole(b, 1+piece%3)
		defer w.release()
		defer w2.release()
		if s != s2 || lines != lines2 || (err == nil) != (err2 == nil) {
			t.Fatalf("%q %d %v, in other pieces %q %d %v", s, lines, err, s2, lines2, err2)
		}
		if err != nil {
			return
		}
		h, err := parseRequest(s, lines)
		if err != nil {
			return
		}
		var u url.URL
		uri, err := h.parseTarget(&u)
		if err != nil {
			return
		}
		theirs, err := http.ReadRequest(bufio.NewReader(strings.NewReader(s)))
		if err != nil {
			if strings.HasPrefix(h.target, "/") { // net/http parses escapes in hosts, and in others, which we rewrite
				t.Fatalf("%q is refused by net/http: %v", s, err)
			}
			return
		}
		if theirs.Method != h.method || len(theirs.TransferEncoding) != h.coding || h.coding == 0 && theirs.ContentLength != h.length {
			t.Fatalf("%q: %v differs from %+v", s, theirs, h)
		}
		if h.method == http.MethodConnect {
			return
		}
		r := &http.Request{Method: h.method, URL: &u, Host: h.authority, Header: h.header}
		if r.Host == "" {
			r.Host = "a"
		}
		delete(h.header, "Expect") // HTTP/1.0 may have any
		again, _, err := appendRequest(nil, r)
		if err != nil {
			t.Fatalf("%q cannot be written: %v", s, err)
		}
		h2, err := parseRequest(string(again), bytes.Count(again, []byte("\n"))-1)
		if err != nil || h2.target != uri && h.target != "*" || h2.method != h.method || h2.authority != r.Host {
			t.Fatalf("%q was written as %q: %v", s, again, err)
		}
	})
}

// FuzzChunks: the parsed body does not depend on pieces, and is the same for net/http.
func FuzzChunks(f *testing.F) {
	for _, h := range hostiles {
		if _, body, ok := strings.Cut(h.request, "\r\n\r\n"); ok {
			f.Add([]byte(body), 5, 3)
		}
	}
	read := func(b []byte, piece, size int) (body []byte, rest int, err error) {
		w, src := &window{}, &bytesSource{b, piece}
		defer w.release()
		r := bodyReader{from: src, in: w, ending: byChunks, maxHead: 1 << 10}
		p := make([]byte, size)
		for {
			n, err := r.read(p)
			body = append(body, p[:n]...)
			if err != nil {
				return body, w.size() + len(src.b), err
			}
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, piece, size int) {
		piece, size = 1+int(uint(piece)%5000), 1+int(uint(size)%9000)
		one, rest, err := read(b, piece, size)
		two, rest2, err2 := read(b, 1+piece%3, 1+size%5)
		whole := errors.Is(err, io.EOF)
		if whole != errors.Is(err2, io.EOF) || whole && (!bytes.Equal(one, two) || rest != rest2) {
			t.Fatalf("%q, %d, %v; in other pieces %q, %d, %v", one, rest, err, two, rest2, err2)
		}
		if !whole {
			return
		}
		theirs, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(b)))
		if err != nil || !bytes.Equal(theirs, one) {
			t.Fatalf("%q is %q, for net/http %q, %v", b, one, theirs, err)
		}
	})
}

// FuzzAnswer: net/http parses an accepted answer in the same way.
func FuzzAnswer(f *testing.F) {
	for _, h := range hostileAnswers {
		f.Add([]byte(h.answer), 9)
	}
	f.Fuzz(func(t *testing.T, b []byte, piece int) {
		w, src, s, lines, err := readWhole(b, 1+int(uint(piece)%5000))
		defer w.release()
		if err != nil {
			return
		}
		var resp http.Response
		var fr framing
		if parseAnswer(s, lines, &resp, &fr) != nil {
			return
		}
		theirs, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(b)), nil)
		if err != nil {
			t.Fatalf("%q is refused by net/http: %v", s, err)
		}
		if theirs.StatusCode != resp.StatusCode || len(theirs.TransferEncoding) != fr.coding && bodyAllowed(resp.StatusCode) {
			t.Fatalf("%q: %v differs from %v", s, theirs, resp)
		}
		if !bodyAllowed(resp.StatusCode) || fr.coding > 0 {
			return
		}
		r := bodyReader{from: src, in: w, ending: byClose, maxHead: 1 << 10}
		if fr.lengths > 0 {
			r.ending, r.left = byLength, fr.length
		}
		ours, err := io.ReadAll(readerFunc(r.read))
		want, wantErr := io.ReadAll(theirs.Body)
		if !bytes.Equal(ours, want) || (err == nil) != (wantErr == nil) {
			t.Fatalf("%q has the body %q, %v; for net/http %q, %v", b, ours, err, want, wantErr)
		}
	})
}
