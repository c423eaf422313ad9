package proxy_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/listen"
	"github.com/hangar-platform/hangar/edge/proxy"
)

// kinds are the ways to a Machine and back.
func kinds(t *testing.T, test func(t *testing.T, w *world, c *http.Client, change func(*hangar.ServicePort))) {
	t.Helper()
	for _, h2 := range []bool{false, true} {
		for _, backend := range []bool{false, true} {
			t.Run(fmt.Sprintf("client h2=%t, Machine h2=%t", h2, backend), func(t *testing.T) {
				w := newWorld(t)
				change := func(*hangar.ServicePort) {}
				if backend {
					change = h2Backend
				}
				test(t, w, w.clientOf(h2), change)
			})
		}
	}
}

func TestStreamBothWays(t *testing.T) {
	kinds(t, func(t *testing.T, w *world, c *http.Client, change func(*hangar.ServicePort)) {
		addr := w.backend(func(rw http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(rw).EnableFullDuplex()
			rw.WriteHeader(http.StatusOK)
			rw.(http.Flusher).Flush()
			buf := make([]byte, 100)
			for {
				n, err := r.Body.Read(buf)
				if n > 0 {
					_, _ = rw.Write(buf[:n])
					rw.(http.Flusher).Flush()
				}
				if err != nil {
					return
				}
			}
		})
		w.machine("a1", "app", addr, change)
		pr, pw := io.Pipe()
		res, err := c.Do(w.request("POST", "https://app.apps.test/", pr))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		for i := range 20 {
			sent := fmt.Sprintf("message %d", i)
			if _, err := io.WriteString(pw, sent); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(sent))
			if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != sent {
				t.Fatalf("got %q: %v", got, err)
			}
		}
		_ = pw.Close()
		if rest, err := io.ReadAll(res.Body); len(rest) > 0 || err != nil {
			t.Errorf("it ended with %q, %v", rest, err)
		}
	})
}

func TestTrailers(t *testing.T) {
	kinds(t, func(t *testing.T, w *world, c *http.Client, change func(*hangar.ServicePort)) {
		addr := w.backend(func(rw http.ResponseWriter, r *http.Request) {
			sum := http.TrailerPrefix + "X-Sum"
			if r.URL.Path == "/announced" {
				sum = "X-Sum"
				rw.Header().Set("Trailer", sum)
			}
			body, _ := io.ReadAll(r.Body)
			fmt.Fprintf(rw, "%s %s", body, r.Trailer.Get("X-Client"))
			rw.(http.Flusher).Flush()
			rw.Header().Set(sum, "42")
			rw.Header().Set(http.TrailerPrefix+"X-More", "unannounced")
		})
		w.machine("a1", "app", addr, change)
		for _, path := range []string{"/announced", "/"} {
			r := w.request("POST", "https://app.apps.test"+path, io.MultiReader(strings.NewReader("hello")))
			r.Trailer = http.Header{"X-Client": {"trailer"}}
			got := w.do(c, r)
			if got.body != "hello trailer" || got.Trailer.Get("X-Sum") != "42" || got.Trailer.Get("X-More") != "unannounced" {
				t.Errorf("%s: got %q %v", path, got.body, got.Trailer)
			}
		}
	})
}

func TestInformational(t *testing.T) {
	kinds(t, func(t *testing.T, w *world, c *http.Client, change func(*hangar.ServicePort)) {
		addr := w.backend(func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Link", "</a.css>; rel=preload")
			rw.WriteHeader(http.StatusEarlyHints)
			rw.Header().Del("Link")
			rw.Header().Set("X-Final", "1")
			io.WriteString(rw, "ok")
		})
		w.machine("a1", "app", addr, change)
		var hints []string
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			hints = append(hints, fmt.Sprint(code, h.Get("Link")))
			return nil
		}})
		got := w.do(c, w.request("GET", "https://app.apps.test/", nil).WithContext(ctx))
		if got.body != "ok" || got.Header.Get("Link") != "" || len(hints) != 1 || hints[0] != "103</a.css>; rel=preload" {
			t.Errorf("got %q %v after %q", got.body, got.Header, hints)
		}
	})
}

// TestContinue: the body is not sent before the Machine wants it.
func TestContinue(t *testing.T) {
	w := newWorld(t)
	addr := w.scripted(func(_ int, c net.Conn) {
		br := bufio.NewReader(c)
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		if r.URL.Path == "/no" {
			_, _ = io.WriteString(c, "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
			return
		}
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if b, err := br.Peek(1); err == nil {
			fmt.Fprintf(c, "HTTP/1.1 500 early\r\nContent-Length: 1\r\n\r\n%s", b)
			return
		}
		_ = c.SetReadDeadline(time.Time{})
		_, _ = io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	})
	w.machine("a1", "app", addr, nil)
	if got := w.do(w.client(), w.request("PUT", "http://app.apps.test/", strings.NewReader("hello"), "Expect", "100-continue")); got.StatusCode != http.StatusOK || got.body != "hello" {
		t.Errorf("got %d %q", got.StatusCode, got.body)
	}
	got := w.raw("PUT /no HTTP/1.1\r\nHost: app.apps.test\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
	if !strings.HasPrefix(got, "HTTP/1.1 403 ") {
		t.Errorf("got %q", got)
	}
}

func TestLargeBodies(t *testing.T) {
	const size = 16 << 20
	kinds(t, func(t *testing.T, w *world, c *http.Client, change func(*hangar.ServicePort)) {
		addr := w.backend(func(rw http.ResponseWriter, r *http.Request) {
			sum := sha256.New()
			n, err := io.Copy(sum, r.Body)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			rw.Header().Set("X-Sum", fmt.Sprintf("%x", sum.Sum(nil)))
			rw.Header().Set("Content-Length", fmt.Sprint(n))
			_, _ = io.Copy(rw, io.LimitReader(&pattern{}, n))
		})
		w.machine("a1", "app", addr, change)
		r := w.request("POST", "http://app.apps.test/", io.LimitReader(&pattern{}, size))
		r.ContentLength = size
		res, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		sum := sha256.New()
		n, err := io.Copy(sum, res.Body)
		if err != nil || n != size || fmt.Sprintf("%x", sum.Sum(nil)) != res.Header.Get("X-Sum") {
			t.Errorf("%d bytes came back: %v", n, err)
		}
	})
}

// pattern is an endless body.
type pattern struct{ at int }

func (b *pattern) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(b.at >> 8 * 7)
		b.at++
	}
	return len(p), nil
}

func TestClientGone(t *testing.T) {
	kinds(t, func(t *testing.T, w *world, c *http.Client, change func(*hangar.ServicePort)) {
		asked, ended := make(chan struct{}), make(chan struct{})
		addr := w.backend(func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/begun" {
				rw.(http.Flusher).Flush()
			}
			close(asked)
			<-r.Context().Done()
			close(ended)
		})
		w.machine("a1", "app", addr, change)
		for _, path := range []string{"/waiting", "/begun"} {
			asked, ended = make(chan struct{}), make(chan struct{})
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-asked
				cancel()
			}()
			res, err := c.Do(w.request("GET", "http://app.apps.test"+path, nil).WithContext(ctx))
			if err == nil {
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
			}
			cancel()
			select {
			case <-ended:
			case <-time.After(time.Minute):
				t.Fatalf("%s: the Machine still sends", path)
			}
			if !eventually(func() bool { return w.gate.inside() == 0 && w.proxy.Stats().InFlight == 0 }) {
				t.Errorf("%s: the request still counts", path)
			}
		}
	})
}

// trickle is a body that comes slowly.
type trickle struct{ left int }

func (b *trickle) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	time.Sleep(300 * time.Millisecond)
	b.left--
	return copy(p, "x"), nil
}

func TestIdleTimeout(t *testing.T) {
	one := uint32(1)
	kinds(t, func(t *testing.T, w *world, c *http.Client, change func(*hangar.ServicePort)) {
		t.Parallel()
		addr := w.backend(func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				for range 6 {
					time.Sleep(300 * time.Millisecond)
					io.WriteString(rw, "x")
					rw.(http.Flusher).Flush()
				}
				return
			}
			if r.URL.Path == "/upload" {
				_, _ = io.Copy(rw, r.Body)
				return
			}
			<-r.Context().Done()
		})
		w.machine("a1", "app", addr, func(p *hangar.ServicePort) {
			if change(p); p.HTTP == nil {
				p.HTTP = &hangar.HTTPOptions{}
			}
			p.HTTP.IdleTimeout = &one
		})
		slow := func(method, path string, sent io.Reader) (text string) {
			res, err := c.Do(w.request(method, "http://app.apps.test"+path, sent))
			if err != nil {
				return err.Error()
			}
			defer res.Body.Close()
			body, err := io.ReadAll(res.Body)
			return fmt.Sprint(string(body), err)
		}
		for path, do := range map[string]func() string{
			"/slow":   func() string { return slow("GET", "/slow", nil) },
			"/upload": func() string { return slow("POST", "/upload", &trickle{left: 6}) },
		} {
			got := do()
			for tries := 1; got != "xxxxxx<nil>" && tries < 5; tries++ {
				got = do() // a stall of the whole machine makes an exchange idle, but not each
			}
			if got != "xxxxxx<nil>" {
				t.Errorf("%s: got %q", path, got)
			}
		}
		wantCode(t, w.do(c, w.request("POST", "http://app.apps.test/", nil)), 504, hangar.EdgeIncomplete)
	})
}

func TestSlowHeader(t *testing.T) {
	w := newWorld(t, func(o *proxy.Options) { o.Limits.HeaderTimeout = time.Second })
	if got := w.raw("GET / HTTP/1.1\r\nHost: app."); !strings.HasPrefix(got, "HTTP/1.1 408 ") || !strings.Contains(got, "PH04") {
		t.Errorf("got %q", got)
	}
	if got := w.raw(""); got != "" {
		t.Errorf("got %q", got)
	}
}

// TestTimeoutsOfAService: a service's limits for the client's connection apply once the service is
// known. Without TLS, that is from the first request on an address of the App's own, otherwise from
// the second.
func TestTimeoutsOfAService(t *testing.T) {
	const seconds = 2 // for a client to begin its request, and until one is late that does not
	limit := uint32(seconds)
	w := newWorld(t)
	w.machine("a1", "app", w.backend(func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "ok") }), func(p *hangar.ServicePort) {
		p.HTTP = &hangar.HTTPOptions{IdleTimeout: &limit, HeadersReadTimeout: &limit}
	})
	const request = "GET / HTTP/1.1\r\nHost: app.apps.test\r\n\r\n"
	ends := func(t *testing.T, text, last string) {
		t.Helper()
		start := time.Now()
		c, err := net.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(start.Add(time.Minute))
		_, _ = io.WriteString(c, text)
		got, err := io.ReadAll(c)
		if took := time.Since(start); err != nil || took < (seconds-1)*time.Second || !strings.Contains(string(got), last) {
			t.Errorf("it ended with %q after %s: %v", got, took, err)
		}
	}
	t.Run("idle", func(t *testing.T) { ends(t, request, " 200 ") })
	t.Run("second header", func(t *testing.T) { ends(t, request+"GET / HT", " 408 ") })
	route, _ := w.routes.App("app")
	w.mu.Lock()
	w.entry = func(e *listen.Entry) { e.Route = route }
	w.mu.Unlock()
	t.Run("first header", func(t *testing.T) { ends(t, "GET / HT", " 408 ") })
	t.Run("nothing", func(t *testing.T) { ends(t, "", "") })
	t.Run("no host", func(t *testing.T) { ends(t, "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", " 200 ") })
}

func TestCompression(t *testing.T) {
	yes := true
	w := newWorld(t)
	text := strings.Repeat("text ", 1000)
	w.machine("a1", "app", w.backend(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "text/plain")
		io.WriteString(rw, text)
	}), func(p *hangar.ServicePort) { p.HTTP = &hangar.HTTPOptions{Compress: &yes} })
	got := w.get("http://app.apps.test/", "Accept-Encoding", "gzip")
	if got.Header.Get("Content-Encoding") != "gzip" || len(got.body) > 500 || got.Header.Get("Vary") != "Accept-Encoding" {
		t.Errorf("got %v and %d bytes", got.Header, len(got.body))
	}
	if got := w.get("http://app.apps.test/"); got.body != text {
		t.Errorf("got %v and %d bytes", got.Header, len(got.body))
	}
}

func TestProxyProto(t *testing.T) {
	for _, version := range []string{"", "v2"} {
		w := newWorld(t)
		addr := w.scripted(func(_ int, c net.Conn) {
			pc := proxyproto.NewConn(c)
			br := bufio.NewReader(pc)
			if readRequest(br) == nil {
				return
			}
			h := pc.ProxyHeader()
			text := fmt.Sprintf("%d %s", h.Version, h.SourceAddr.(*net.TCPAddr).IP)
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
		})
		w.machine("a1", "app", addr, func(p *hangar.ServicePort) {
			p.Handlers = append(p.Handlers, "proxy_proto")
			p.ProxyProto = &hangar.ProxyProtoOptions{Version: version}
		})
		want := "1 127.0.0.1"
		if version == "v2" {
			want = "2 127.0.0.1"
		}
		c := w.client()
		for range 2 {
			if got := w.do(c, w.request("GET", "http://app.apps.test/", nil)); got.body != want {
				t.Errorf("got %d %q, want %q", got.StatusCode, got.body, want)
			}
		}
		if n := w.proxy.Stats().Dials; n != 2 {
			t.Errorf("%d connections were made for 2 requests", n)
		}
	}
}

func TestPipelined(t *testing.T) {
	w := newWorld(t)
	w.machine("a1", "app", w.backend(func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, r.URL.Path) }), nil)
	var text bytes.Buffer
	for i := range 9 {
		fmt.Fprintf(&text, "GET /%d HTTP/1.1\r\nHost: app.apps.test\r\n\r\n", i)
	}
	text.WriteString("GET /9 HTTP/1.1\r\nHost: app.apps.test\r\nConnection: close\r\n\r\n")
	got := w.raw(text.String())
	for i := range 10 {
		at := strings.Index(got, fmt.Sprintf("\r\n\r\n/%d", i))
		if at < 0 {
			t.Fatalf("answer %d is missing or out of order in %q", i, got)
		}
		got = got[at:]
	}
}

// TestSlowAnswer: an answer may take long, even on a connection that has served others before.
func TestSlowAnswer(t *testing.T) {
	kinds(t, func(t *testing.T, w *world, c *http.Client, change func(*hangar.ServicePort)) {
		t.Parallel()
		var asked atomic.Int32
		w.machine("a1", "app", w.backend(func(rw http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			if r.URL.Path == "/slow" {
				time.Sleep(1200 * time.Millisecond)
				io.WriteString(rw, "half")
				rw.(http.Flusher).Flush()
				time.Sleep(1200 * time.Millisecond)
			}
			io.WriteString(rw, "done")
		}), change)
		for _, path := range []string{"/", "/slow", "/slow"} {
			if got := w.do(c, w.request("GET", "http://app.apps.test"+path, nil)); !strings.HasSuffix(got.body, "done") {
				t.Errorf("got %d %q", got.StatusCode, got.body)
			}
		}
		if n := asked.Load(); n != 3 {
			t.Errorf("the Machine was asked %d times", n)
		}
	})
}
