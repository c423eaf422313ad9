package compress

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNegotiate(t *testing.T) {
	for _, test := range []struct {
		accept  string
		want    encoding
		refused bool
	}{
		{"", noEncoding, false},
		{"gzip", gzipCoding, false},
		{"gzip, deflate, br, zstd", zstandard, false},
		{"gzip, deflate, br", brotliCoding, false},
		{"X-GZIP", gzipCoding, false},
		{"br;q=0.5, gzip;q=0.8", gzipCoding, false},
		{"br;q=0, gzip;q=0", noEncoding, false},
		{"zstd;q=0, *", brotliCoding, false},
		{"*", zstandard, false},
		{"*;q=0", noEncoding, true},
		{"identity;q=0", noEncoding, true},
		{"gzip, identity;q=0", gzipCoding, true},
		{"gzip, *;q=0", gzipCoding, true},
		{"identity, gzip;q=0.5", noEncoding, false},
		{"identity;q=0.5, gzip;q=0.5", gzipCoding, false},
		{"gzip;q=NaN", noEncoding, false},
		{"gzip;q=2", noEncoding, false},
		{"gzip;q=x", noEncoding, false},
		{"gzip ; Q=0.001", gzipCoding, false},
		{"deflate, compress", noEncoding, false},
	} {
		got, refused := negotiate([]string{test.accept})
		if got != test.want || refused != test.refused {
			t.Errorf("%q: %s, %v, want %s, %v", test.accept, got, refused, test.want, test.refused)
		}
	}
	if got, _ := negotiate([]string{"gzip;q=0.1", "br"}); got != brotliCoding {
		t.Errorf("of two lines: %s", got)
	}
}

// compressed serves a handler with its answers compressed.
func compressed(handle http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, end := Writer(w, r)
		handle(c, r)
		_ = end()
	})
}

// decode is the body of an answer without its encoding.
func decode(tb testing.TB, of string, body io.Reader) []byte {
	tb.Helper()
	var r io.Reader
	switch of {
	case "":
		r = body
	case "gzip":
		z, err := gzip.NewReader(body)
		if err != nil {
			tb.Fatal(err)
		}
		r = z
	case "br":
		r = brotli.NewReader(body)
	case "zstd":
		// RFC 9659 obliges clients to support 8 MiB.
		z, err := zstd.NewReader(body, zstd.WithDecoderMaxWindow(8<<20), zstd.WithDecoderConcurrency(1))
		if err != nil {
			tb.Fatal(err)
		}
		defer z.Close()
		r = z
	default:
		tb.Fatalf("an encoding %q", of)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		tb.Fatalf("%s: %v", of, err)
	}
	return b
}

var long = strings.Repeat("a text that shrinks, ", 200)

func TestWhatIsCompressed(t *testing.T) {
	for _, test := range []struct {
		name    string
		accept  string // empty: gzip
		method  string // empty: GET
		status  int    // 0: 200
		headers [][2]string
		body    string
		want    string // the encoding
		vary    bool
	}{
		{name: "text", headers: [][2]string{{"Content-Type", "text/html; charset=utf-8"}}, body: long, want: "gzip", vary: true},
		{name: "text of unknown type", body: long, want: "gzip", vary: true},
		{name: "json", headers: [][2]string{{"Content-Type", "application/problem+json"}}, body: long, want: "gzip", vary: true},
		{name: "an error page", status: 404, headers: [][2]string{{"Content-Type", "text/html"}}, body: long, want: "gzip", vary: true},
		{name: "known length", headers: [][2]string{{"Content-Type", "text/css"}, {"Content-Length", fmt.Sprint(len(long))}}, body: long, want: "gzip", vary: true},
		{name: "short", headers: [][2]string{{"Content-Type", "text/css"}}, body: "short", vary: true},
		{name: "short of known length", headers: [][2]string{{"Content-Type", "text/css"}, {"Content-Length", "5"}}, body: "short", vary: true},
		{name: "short, but refused as it is", accept: "gzip, identity;q=0", headers: [][2]string{{"Content-Type", "text/css"}}, body: "short", want: "gzip", vary: true},
		{name: "nothing accepted", accept: "identity", headers: [][2]string{{"Content-Type", "text/css"}}, body: long, vary: true},
		{name: "an image", headers: [][2]string{{"Content-Type", "image/png"}}, body: long},
		{name: "gRPC", headers: [][2]string{{"Content-Type", "application/grpc"}}, body: long},
		{name: "no type that is one", headers: [][2]string{{"Content-Type", "x;;y"}}, body: long},
		{name: "compressed before", headers: [][2]string{{"Content-Type", "text/css"}, {"Content-Encoding", "br"}}, body: long, want: "as sent: br"},
		{name: "not to be", headers: [][2]string{{"Content-Type", "text/css"}, {"Content-Encoding", "none"}}, body: long},
		{name: "no-transform", headers: [][2]string{{"Content-Type", "text/css"}, {"Cache-Control", "public, No-Transform"}}, body: long},
		{name: "with a digest", headers: [][2]string{{"Content-Type", "text/css"}, {"Repr-Digest", "sha-256=:x:"}}, body: long},
		{name: "a part", status: 206, headers: [][2]string{{"Content-Type", "text/css"}, {"Content-Range", "bytes 0-1/2"}}, body: long},
		{name: "HEAD", method: http.MethodHead, headers: [][2]string{{"Content-Type", "text/css"}, {"Content-Length", "99999"}, {"Etag", `"x"`}}, vary: true},
		{name: "no content", status: 204},
		{name: "not modified", status: 304, headers: [][2]string{{"Etag", `"x"`}}},
		{name: "nothing", headers: [][2]string{{"Content-Type", "text/css"}}, vary: true},
		{name: "vary already", headers: [][2]string{{"Content-Type", "text/css"}, {"Vary", "Origin, accept-encoding"}}, body: long, want: "gzip", vary: true},
		{name: "vary of everything", headers: [][2]string{{"Content-Type", "text/css"}, {"Vary", "*"}}, body: long, want: "gzip"},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(compressed(func(w http.ResponseWriter, _ *http.Request) {
				for _, h := range test.headers {
					w.Header().Add(h[0], h[1])
				}
				if test.status != 0 {
					w.WriteHeader(test.status)
				}
				if test.body != "" {
					_, _ = io.WriteString(w, test.body)
				}
			}))
			defer server.Close()
			if test.accept == "" {
				test.accept = "gzip"
			}
			res := get(t, server, test.method, "Accept-Encoding", test.accept)
			defer res.Body.Close()
			of := res.Header.Get("Content-Encoding")
			if sent, ok := strings.CutPrefix(test.want, "as sent: "); ok {
				if of != sent {
					t.Errorf("encoding %q", of)
				}
				of = ""
			} else if of != test.want {
				t.Errorf("encoding %q, want %q", of, test.want)
			}
			if got := decode(t, of, res.Body); string(got) != test.body {
				t.Errorf("%d bytes arrive, want %d", len(got), len(test.body))
			}
			if varies := strings.Contains(strings.ToLower(strings.Join(res.Header.Values("Vary"), ",")), "accept-encoding"); varies != test.vary {
				t.Errorf("Vary is %q", res.Header.Values("Vary"))
			}
			if len(res.Header.Values("Vary")) > 1 {
				t.Errorf("Vary is %q", res.Header.Values("Vary"))
			}
			if test.method == http.MethodHead && (res.ContentLength != 99999 || res.Header.Get("Etag") != `"x"`) {
				t.Errorf("HEAD: headers %v", res.Header)
			}
		})
	}
}

// get requests from a server without a client's own handling of encodings; headers come in pairs.
func get(tb testing.TB, server *httptest.Server, method string, headers ...string) *http.Response {
	tb.Helper()
	r, err := http.NewRequestWithContext(tb.Context(), method, server.URL, http.NoBody)
	if err != nil {
		tb.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	server.Client().Transport.(*http.Transport).DisableCompression = true
	res, err := server.Client().Do(r)
	if err != nil {
		tb.Fatal(err)
	}
	return res
}

func TestHeadersOfACompressedAnswer(t *testing.T) {
	for sent, want := range map[string]string{`"x"`: `W/"x"`, `W/"x"`: `W/"x"`, "": ""} {
		server := httptest.NewServer(compressed(func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			h.Set("Content-Type", "text/plain")
			h.Set("Accept-Ranges", "bytes")
			h.Set("Content-Length", fmt.Sprint(len(long)))
			if sent != "" {
				h.Set("Etag", sent)
			}
			_, _ = io.WriteString(w, long)
		}))
		res := get(t, server, http.MethodGet, "Accept-Encoding", "br")
		if res.Header.Get("Etag") != want || res.Header.Get("Accept-Ranges") != "" || res.ContentLength == int64(len(long)) {
			t.Errorf("headers are %v", res.Header)
		}
		if got := decode(t, "br", res.Body); string(got) != long {
			t.Errorf("%d bytes", len(got))
		}
		res.Body.Close()
		server.Close()
	}
}

func TestFlushAndTrailersAndInformation(t *testing.T) {
	read := make(chan struct{})
	server := httptest.NewServer(compressed(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Trailer", "X-Sum")
		_, _ = io.WriteString(w, "data: one\n\n")
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
		<-read
		_, _ = io.WriteString(w, "data: two\n\n")
		w.(http.Flusher).Flush()
		w.Header().Set("X-Sum", "2")
		w.Header().Set(http.TrailerPrefix+"X-Late", "3")
	}))
	defer server.Close()
	for _, of := range []string{"gzip", "br", "zstd"} {
		hints := 0
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
			hints += code
			return nil
		}})
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept-Encoding", of)
		res, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if hints != http.StatusEarlyHints || res.Header.Get("Content-Encoding") != of {
			t.Errorf("%s: hints %d, headers %v", of, hints, res.Header)
		}
		var body io.Reader
		switch of {
		case "gzip":
			if body, err = gzip.NewReader(res.Body); err != nil {
				t.Fatal(err)
			}
		case "br":
			body = brotli.NewReader(res.Body)
		case "zstd":
			z, err := zstd.NewReader(res.Body, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
			if err != nil {
				t.Fatal(err)
			}
			defer z.Close()
			body = z
		}
		lines := bufio.NewReader(body)
		if line, err := lines.ReadString('\n'); err != nil || line != "data: one\n" {
			t.Fatalf("%s: %q, %v before the end", of, line, err)
		}
		read <- struct{}{}
		rest, err := io.ReadAll(lines)
		if err != nil || string(rest) != "\ndata: two\n\n" {
			t.Errorf("%s: %q, %v", of, rest, err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		if res.Trailer.Get("X-Sum") != "2" || res.Trailer.Get("X-Late") != "3" {
			t.Errorf("%s: trailers %v", of, res.Trailer)
		}
		res.Body.Close()
	}
}

func TestHijack(t *testing.T) {
	server := httptest.NewServer(compressed(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
	}))
	defer server.Close()
	res := get(t, server, http.MethodGet, "Accept-Encoding", "gzip")
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); err != nil || string(b) != "ok" {
		t.Errorf("%q, %v", b, err)
	}
}

// fromWriter counts what it is given by ReadFrom.
type fromWriter struct {
	*httptest.ResponseRecorder
	from int64
}

func (w *fromWriter) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(w.ResponseRecorder, r)
	w.from += n
	return n, err
}

func TestReadFrom(t *testing.T) {
	for kind, want := range map[string]int64{"image/png": int64(len(long)), "text/plain": 0} {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.Header.Set("Accept-Encoding", "gzip")
		under := &fromWriter{ResponseRecorder: httptest.NewRecorder()}
		w, end := Writer(under, r)
		w.Header().Set("Content-Type", kind)
		if n, err := io.Copy(w, struct{ io.Reader }{strings.NewReader(long)}); err != nil || n != int64(len(long)) {
			t.Errorf("%s: %d, %v", kind, n, err)
		}
		if err := end(); err != nil {
			t.Error(err)
		}
		if under.from != want {
			t.Errorf("%s: %d bytes from reader to writer, want %d", kind, under.from, want)
		}
		if got := decode(t, under.Header().Get("Content-Encoding"), under.Body); string(got) != long {
			t.Errorf("%s: %d bytes arrive", kind, len(got))
		}
	}
}

// broken accepts only a few bytes.
type broken struct{ *httptest.ResponseRecorder }

var errBroken = errors.New("broken")

func (broken) Write([]byte) (int, error) { return 0, errBroken }

func TestClientIsGone(t *testing.T) {
	for _, of := range []string{"gzip", "br", "zstd"} {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.Header.Set("Accept-Encoding", of)
		w, end := Writer(broken{httptest.NewRecorder()}, r)
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, long)
		if err := end(); !errors.Is(err, errBroken) {
			t.Errorf("%s: %v", of, err)
		}
		// The encoder can be reused.
		next := httptest.NewRecorder()
		w, end = Writer(next, r)
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, long)
		if err := end(); err != nil {
			t.Error(err)
		}
		if got := decode(t, of, next.Body); string(got) != long {
			t.Errorf("%s: %d bytes arrive after a failure", of, len(got))
		}
	}
}

// TestDifferential: any content, written in any pieces with flushes between, arrives.
func TestDifferential(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		of := rapid.SampledFrom([]string{"gzip", "br", "zstd", ""}).Draw(rt, "encoding")
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.Header.Set("Accept-Encoding", of)
		recorder := httptest.NewRecorder()
		w, end := Writer(recorder, r)
		w.Header().Set("Content-Type", "text/plain")
		var want bytes.Buffer
		for range rapid.IntRange(0, 8).Draw(rt, "pieces") {
			piece := rapid.SliceOfN(rapid.Byte(), 0, 700).Draw(rt, "piece")
			piece = bytes.Repeat(piece, rapid.SampledFrom([]int{1, 1, 3, 500}).Draw(rt, "times"))
			want.Write(piece)
			if rapid.Bool().Draw(rt, "copy") {
				if n, err := io.Copy(w, struct{ io.Reader }{bytes.NewReader(piece)}); err != nil || n != int64(len(piece)) {
					rt.Fatal(n, err)
				}
			} else if n, err := w.Write(piece); err != nil || n != len(piece) {
				rt.Fatal(n, err)
			}
			if rapid.IntRange(0, 3).Draw(rt, "flush") == 0 {
				w.(http.Flusher).Flush()
			}
		}
		if err := end(); err != nil {
			rt.Fatal(err)
		}
		if got := decode(t, recorder.Header().Get("Content-Encoding"), recorder.Body); !bytes.Equal(got, want.Bytes()) {
			rt.Fatalf("%s: %d bytes arrive, want %d", of, len(got), want.Len())
		}
	})
}

// nowhere is a writer that discards.
type nowhere struct{ h http.Header }

func (n nowhere) Header() http.Header         { return n.h }
func (n nowhere) WriteHeader(int)             {}
func (n nowhere) Write(p []byte) (int, error) { return len(p), nil }

func BenchmarkAnswer(b *testing.B) {
	page := sample()
	for _, size := range []int{2 << 10, 32 << 10, len(page)} {
		for _, of := range []string{"identity", "gzip", "br", "zstd"} {
			b.Run(fmt.Sprintf("%s/%dKiB", of, size>>10), func(b *testing.B) {
				r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
				r.Header.Set("Accept-Encoding", of)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					w, end := Writer(nowhere{http.Header{"Content-Type": {"text/html"}}}, r)
					_, _ = w.Write(page[:size])
					_ = end()
				}
			})
		}
	}
}

// sample is HTML as programs write it: 256 KiB.
func sample() []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < 256<<10; i++ {
		fmt.Fprintf(&b, "<tr class=\"row\"><td><a href=\"/machines/%014x\">%d</a></td><td>%s</td><td data-x=\"%x\">%d ms</td></tr>\n",
			uint64(i)*0x9e3779b97f4a7c15>>8, i, []string{"started", "stopped", "suspended"}[i*7%3], uint32(i)*2654435761, i*i%977)
	}
	return b.Bytes()[:256<<10]
}

// BenchmarkLevels is the basis of the chosen levels.
func BenchmarkLevels(b *testing.B) {
	page := sample()
	type level struct {
		name string
		make func(w io.Writer) encoder
	}
	var levels []level
	for n := 1; n <= 6; n++ {
		levels = append(levels,
			level{fmt.Sprint("gzip/", n), func(w io.Writer) encoder { z, _ := gzip.NewWriterLevel(w, n); return z }},
			level{fmt.Sprint("br/", n-1), func(w io.Writer) encoder { return brotli.NewWriterLevel(w, n-1) }})
	}
	for _, n := range []zstd.EncoderLevel{zstd.SpeedFastest, zstd.SpeedDefault, zstd.SpeedBetterCompression} {
		levels = append(levels, level{"zstd/" + n.String(), func(w io.Writer) encoder {
			z, _ := zstd.NewWriter(w, zstd.WithEncoderLevel(n), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(zstdWindow), zstd.WithLowerEncoderMem(true))
			return z
		}})
	}
	for _, l := range levels {
		b.Run(l.name, func(b *testing.B) {
			var out bytes.Buffer
			enc := l.make(&out)
			b.SetBytes(int64(len(page)))
			for b.Loop() {
				out.Reset()
				enc.Reset(&out)
				_, _ = enc.Write(page)
				_ = enc.Close()
			}
			b.ReportMetric(float64(len(page))/float64(out.Len()), "ratio")
		})
	}
}

func FuzzNegotiate(f *testing.F) {
	for _, seed := range []string{"gzip, br;q=0.5", "*;q=0", "identity;q=0, zstd", ";;,q=1;=", "gzip;q=1e-9"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, accept string) {
		got, _ := negotiate([]string{accept})
		named := strings.ToLower(accept)
		if got != noEncoding && !strings.Contains(named, got.String()) && !strings.Contains(named, "*") {
			t.Fatalf("%q gets %s", accept, got)
		}
		if again, _ := negotiate([]string{accept, got.String() + ";q=0, *;q=0"}); again == got && got != noEncoding {
			t.Fatalf("%q gets %s when it is refused", accept, got)
		}
	})
}
