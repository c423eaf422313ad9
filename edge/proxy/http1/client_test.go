package http1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// answering is a server that reads a request and sends bytes, then nothing more.
func answering(tb testing.TB, answer string) string {
	tb.Helper()
	return accept(tb, func(c net.Conn) {
		defer c.Close()
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		io.Copy(io.Discard, r.Body)
		io.WriteString(c, answer)
		c.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, c)
	})
}

// once sends a request and returns status and body.
func once(tb testing.TB, c *Conn, method string) (string, error) {
	tb.Helper()
	r, err := http.NewRequest(method, "http://a.example/", nil)
	if err != nil {
		tb.Fatal(err)
	}
	resp, err := c.RoundTrip(context.Background(), r, RoundTripOptions{})
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return fmt.Sprintf("%d %s", resp.StatusCode, b), err
}

// countingConn counts writes.
type countingConn struct {
	net.Conn
	writes int
}

func (c *countingConn) Write(p []byte) (int, error) {
	c.writes++
	return c.Conn.Write(p)
}

func newRequest(tb testing.TB, method string, body io.Reader) *http.Request {
	tb.Helper()
	r, err := http.NewRequest(method, "http://a.example/", body)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// TestSmallBodiesGoWithTheirHeader: one write for a request, and for its proxied copy.
func TestSmallBodiesGoWithTheirHeader(t *testing.T) {
	addr := listen(t, quick(func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) }))
	cc := &countingConn{Conn: dial(t, addr)}
	c := NewConn(cc)
	var atHand int
	proxied := listen(t, quick(func(w http.ResponseWriter, r *http.Request) {
		atHand = r.Body.(AtHand).AtHand()
		resp, err := c.RoundTrip(r.Context(), r, RoundTripOptions{})
		if err != nil {
			t.Error(err)
			return
		}
		io.Copy(w, resp.Body)
	}))
	_, bodies, _ := ask(t, proxied, post("Content-Length: 5\r\n", "hello"))
	if len(bodies) != 1 || bodies[0] != "hello" || cc.writes != 1 || atHand != 5 {
		t.Errorf("%q with %d writes and %d bytes at hand", bodies, cc.writes, atHand)
	}
	r := newRequest(t, "POST", strings.NewReader("hello"))
	if resp, err := c.RoundTrip(context.Background(), r, RoundTripOptions{}); err != nil || resp.ContentLength != 5 || cc.writes != 2 {
		t.Errorf("%v %v with %d writes", resp, err, cc.writes)
	}
}

// TestBothWaysAtOnce: an answer is read while its request is sent, part by part.
func TestBothWaysAtOnce(t *testing.T) {
	addr := listen(t, quick(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		buf := make([]byte, 100)
		for {
			n, err := r.Body.Read(buf)
			w.Write(bytes.ToUpper(buf[:n]))
			w.(http.Flusher).Flush()
			if err != nil {
				return
			}
		}
	}))
	proxied := listen(t, quick(newPool(t, addr).ServeHTTP))
	for _, to := range []string{addr, proxied} {
		c := NewConn(dial(t, to))
		body, send := io.Pipe()
		resp, err := c.RoundTrip(context.Background(), newRequest(t, "POST", body), RoundTripOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 3)
		for range 100 {
			io.WriteString(send, "abc")
			if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != "ABC" {
				t.Fatalf("%q %v", got, err)
			}
		}
		send.Close()
		if n, err := resp.Body.Read(got); n != 0 || err != io.EOF || !c.Reusable() {
			t.Errorf("%d %v, reusable %t", n, err, c.Reusable())
		}
	}
}

// TestAnswerBeforeTheRequestIsSent: the rest is not sent, and the connection is not reused.
func TestAnswerBeforeTheRequestIsSent(t *testing.T) {
	addr := listen(t, quick(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		io.WriteString(w, "no")
	}))
	proxied := listen(t, quick(newPool(t, addr).ServeHTTP))
	for _, to := range []string{addr, proxied} {
		for _, length := range []int64{-1, 1 << 40} {
			c := NewConn(dial(t, to))
			body, send := io.Pipe()
			r := newRequest(t, "POST", body)
			r.ContentLength = length
			sent := make(chan error, 1)
			go func() {
				buf := make([]byte, 1<<20)
				for {
					if _, err := send.Write(buf); err != nil {
						sent <- err
						return
					}
				}
			}()
			resp, err := c.RoundTrip(context.Background(), r, RoundTripOptions{})
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			if resp.StatusCode != http.StatusRequestEntityTooLarge || string(b) != "no" || err != nil {
				t.Errorf("%d %q %v", resp.StatusCode, b, err)
			}
			if err := <-sent; !errors.Is(err, io.ErrClosedPipe) || c.Reusable() {
				t.Errorf("sending ended with %v, reusable %t", err, c.Reusable())
			}
		}
	}
}

// TestABodyThatFailsIsNotTakenForWhole: the peer sees the connection end.
func TestABodyThatFailsIsNotTakenForWhole(t *testing.T) {
	got := make(chan error, 1)
	addr := listen(t, quick(func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		got <- err
	}))
	for _, length := range []int64{-1, 10} {
		c := NewConn(dial(t, addr))
		body, send := io.Pipe()
		r := newRequest(t, "POST", body)
		r.ContentLength = length
		go func() {
			io.WriteString(send, "abc")
			send.CloseWithError(errors.New("a mistake"))
		}()
		_, err := c.RoundTrip(context.Background(), r, RoundTripOptions{})
		var rt *RoundTripError
		if !errors.As(err, &rt) || !rt.Wrote || rt.Read || !strings.Contains(err.Error(), "a mistake") {
			t.Error(err)
		}
		if err := <-got; !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("the server read %v", err)
		}
	}
}

func TestContextEndsARoundTrip(t *testing.T) {
	out := make(chan struct{})
	defer close(out)
	addr := accept(t, func(c net.Conn) {
		defer c.Close()
		br := bufio.NewReader(c)
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		if r.Method == http.MethodPut {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab")
		}
		br.ReadByte()
	})
	for _, method := range []string{"GET", "PUT"} {
		c := NewConn(dial(t, addr))
		ctx, cancel := context.WithCancelCause(context.Background())
		defer cancel(nil)
		mistake := errors.New("enough")
		if method == "GET" {
			time.AfterFunc(20*time.Millisecond, func() { cancel(mistake) })
		}
		resp, err := c.RoundTrip(ctx, newRequest(t, method, nil), RoundTripOptions{})
		if method == "PUT" {
			if err != nil {
				t.Fatal(err)
			}
			cancel(mistake)
			_, err = io.ReadAll(resp.Body)
		}
		if !errors.Is(err, mistake) || c.Reusable() {
			t.Errorf("%s: %v", method, err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	c := NewConn(dial(t, addr))
	if _, err := c.RoundTrip(ctx, newRequest(t, "GET", nil), RoundTripOptions{}); !errors.Is(err, context.Canceled) || !c.Reusable() {
		t.Errorf("a context that has ended: %v", err)
	}
}

// TestClientOfAProxyGoesAway: the request to the Machine ends soon, although Done was not called
// before.
func TestClientOfAProxyGoesAway(t *testing.T) {
	ended := make(chan struct{})
	addr := listen(t, quick(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/later" {
			io.WriteString(w, "first")
			w.(http.Flusher).Flush()
		}
		<-r.Context().Done()
		ended <- struct{}{}
	}))
	proxied := listen(t, quick(newPool(t, addr).ServeHTTP))
	for _, path := range []string{"/", "/later"} {
		c := dial(t, proxied)
		io.WriteString(c, "GET "+path+" HTTP/1.1\r\n"+h11+"\r\n")
		if path == "/later" {
			if _, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil {
				t.Fatal(err)
			}
		}
		c.Close()
		<-ended
	}
}

func TestTimeouts(t *testing.T) {
	addr := answering(t, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab")
	never := accept(t, func(c net.Conn) { io.Copy(io.Discard, c) })
	for name, k := range map[string]struct {
		addr string
		opts RoundTripOptions
		want error
	}{
		"header":    {never, RoundTripOptions{HeaderTimeout: 30 * time.Millisecond}, os.ErrDeadlineExceeded},
		"idle":      {never, RoundTripOptions{IdleTimeout: 30 * time.Millisecond}, os.ErrDeadlineExceeded},
		"truncated": {addr, RoundTripOptions{IdleTimeout: 20 * time.Second}, io.ErrUnexpectedEOF},
	} {
		c := NewConn(dial(t, k.addr))
		resp, err := c.RoundTrip(context.Background(), newRequest(t, "GET", nil), k.opts)
		if err == nil {
			_, err = io.ReadAll(resp.Body)
		}
		if !errors.Is(err, k.want) {
			t.Errorf("%s: %v", name, err)
		}
		c.Close()
	}
}

// TestSlowIsNotIdle: neither a slow answer nor a slow upload counts as an idle connection.
func TestSlowIsNotIdle(t *testing.T) {
	slow := func(w io.Writer) {
		for range 60 {
			io.WriteString(w, "x")
			if f, ok := w.(http.Flusher); ok {
				f.Flush()
			}
			time.Sleep(10 * time.Second)
		}
	}
	opts := RoundTripOptions{IdleTimeout: 15 * time.Second}
	t.Run("answer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := NewConn(piped(t, quick(func(w http.ResponseWriter, _ *http.Request) { slow(w) })))
			resp, err := c.RoundTrip(context.Background(), newRequest(t, "GET", nil), opts)
			if err != nil {
				t.Fatal(err)
			}
			if b, err := io.ReadAll(resp.Body); len(b) != 60 || err != nil {
				t.Errorf("%q %v", b, err)
			}
		})
	})
	t.Run("upload", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := NewConn(piped(t, quick(func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) })))
			body, send := io.Pipe()
			defer body.Close()
			go func() {
				slow(send)
				send.Close()
			}()
			if _, err := c.RoundTrip(context.Background(), newRequest(t, "POST", body), opts); err != nil {
				t.Error(err)
			}
		})
	})
}

// TestSlowClientIsNotIdle: an answer that the kernel moves is not idle while the client takes it, however slowly.
func TestSlowClientIsNotIdle(t *testing.T) {
	t.Parallel()
	const size = 16 << 20
	addr := accept(t, func(c net.Conn) {
		defer c.Close()
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: %d\r\n\r\n", size)
			c.Write(make([]byte, size))
		}
	})
	conn := dial(t, addr)
	conn.SetReadBuffer(16 << 10) // several reads for what is moved at once
	out := newRequest(t, "GET", nil)
	proxied := listen(t, quick(func(w http.ResponseWriter, r *http.Request) {
		c := NewConn(conn)
		defer c.Close()
		resp, err := c.RoundTrip(r.Context(), out, RoundTripOptions{IdleTimeout: time.Second})
		if err != nil {
			t.Error(err)
			return
		}
		w.Header()["Content-Type"], w.Header()["Content-Length"] = resp.Header["Content-Type"], resp.Header["Content-Length"]
		if _, err := w.(io.ReaderFrom).ReadFrom(resp.Body); err != nil {
			t.Error(err)
		}
	}))
	c := dial(t, proxied)
	io.WriteString(c, get(""))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		time.Sleep(1300 * time.Millisecond)
		io.CopyN(io.Discard, resp.Body, 2<<20)
	}
	if n, err := io.Copy(io.Discard, resp.Body); n != size-4<<20 || err != nil {
		t.Errorf("the last %d bytes came: %v", n, err)
	}
}

func TestContinue(t *testing.T) {
	addr := listen(t, quick(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/no" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		io.Copy(w, r.Body)
	}))
	for path, want := range map[string]int{"/": 200, "/no": 403} {
		c := NewConn(dial(t, addr))
		read := 0
		r := newRequest(t, "POST", readerFunc(func(p []byte) (int, error) { read++; return copy(p, "abc"), io.EOF }))
		r.URL.Path, r.ContentLength = path, 3
		r.Header.Set("Expect", "100-continue")
		resp, err := c.RoundTrip(context.Background(), r, RoundTripOptions{Informational: func(code int, _ http.Header) { t.Error(code) }})
		if err != nil || resp.StatusCode != want {
			t.Fatal(resp, err)
		}
		b, _ := io.ReadAll(resp.Body)
		if want == 200 && (string(b) != "abc" || read != 1 || !c.Reusable()) || want == 403 && (read != 0 || c.Reusable()) {
			t.Errorf("%s: %q after %d reads, reusable %t", path, b, read, c.Reusable())
		}
	}
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestInformational(t *testing.T) {
	c := NewConn(dial(t, answering(t, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")))
	var got []string
	_, err := c.RoundTrip(context.Background(), newRequest(t, "GET", nil), RoundTripOptions{
		Informational: func(code int, h http.Header) { got = append(got, fmt.Sprint(code, h.Get("Link"))) },
	})
	if err != nil || strings.Join(got, " ") != "103 x 102 " && strings.Join(got, " ") != "103x 102" {
		t.Errorf("%q %v", got, err)
	}
}

func TestAlive(t *testing.T) {
	say := make(chan string)
	addr := accept(t, func(c net.Conn) {
		defer c.Close()
		io.WriteString(c, <-say)
	})
	for _, what := range []string{"", "HTTP/1.1 408 Request Timeout\r\n\r\n"} {
		nc := dial(t, addr)
		c := NewConn(nc)
		if !c.Alive() {
			t.Error("a new connection is not alive")
		}
		say <- what
		for i := 0; c.Alive(); i++ {
			if i == 20_000 {
				t.Fatalf("alive after %q", what)
			}
			<-time.After(time.Millisecond)
		}
	}
}

// TestReady: a body that says so has bytes at hand, so that earlier bytes need not be passed on
// first.
func TestReady(t *testing.T) {
	step, stepped := make(chan string), make(chan bool)
	addr := accept(t, func(nc net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(nc)); err != nil {
			return
		}
		for s := range step {
			io.WriteString(nc, s)
			stepped <- true
		}
	})
	c := NewConn(dial(t, addr))
	defer c.Close()
	defer close(step)
	go func() {
		step <- "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + "2000\r\n" + strings.Repeat("x", 0x1fff)
	}()
	go func() { <-stepped }()
	resp, err := c.RoundTrip(t.Context(), httptest.NewRequest(http.MethodGet, "http://a/", nil), RoundTripOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	ready := resp.Body.(interface{ Ready() bool }).Ready
	buf := make([]byte, 64<<10)
	for n := 0; n < 0x1fff; {
		m, err := resp.Body.Read(buf)
		if n += m; err != nil {
			t.Fatal(err)
		}
	}
	if ready() {
		t.Error("it is ready, and nothing has come")
	}
	send := func(s string) { step <- s; <-stepped; time.Sleep(20 * time.Millisecond) }
	send("x")
	for i := 0; !ready(); i++ {
		if i == 2000 {
			t.Fatal("it is not ready, and a byte has come")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := resp.Body.Read(buf); err != nil {
		t.Fatal(err)
	}
	if send("\r\n"); ready() {
		t.Error("it is ready, and the next chunk has not begun")
	}
	if send("0\r\n\r\n"); ready() {
		t.Error("it is said to be ready between chunks")
	}
	if _, err := resp.Body.Read(buf); err != io.EOF || ready() {
		t.Errorf("it ended with %v", err)
	}
}

// TestBadRequestsAreNotSent: a handler's request is checked before it is written.
func TestBadRequestsAreNotSent(t *testing.T) {
	for name, change := range map[string]func(r *http.Request){
		"method":           func(r *http.Request) { r.Method = "GE T" },
		"method, line end": func(r *http.Request) { r.Method = "GET / HTTP/1.1\r\nX:" },
		"host":             func(r *http.Request) { r.Host = "a b" },
		"host, line end":   func(r *http.Request) { r.Host = "a\r\nX: y" },
		"query, space":     func(r *http.Request) { r.URL.RawQuery = "a b" },
		"query, line end":  func(r *http.Request) { r.URL.RawQuery = "a\r\nX: y" },
		"name":             func(r *http.Request) { r.Header["X Y"] = []string{"z"} },
		"name, line end":   func(r *http.Request) { r.Header["X\r\nY"] = []string{"z"} },
		"value, line end":  func(r *http.Request) { r.Header["X"] = []string{"z\r\nY: 1"} },
		"value, NUL":       func(r *http.Request) { r.Header["X"] = []string{"\x00"} },
		"trailer of length": func(r *http.Request) {
			r.Body, r.Trailer = io.NopCloser(strings.NewReader("x")), http.Header{"Content-Length": nil}
		},
	} {
		cc := &countingConn{Conn: dial(t, answering(t, ""))}
		c := NewConn(cc)
		r := newRequest(t, "GET", nil)
		change(r)
		_, err := c.RoundTrip(context.Background(), r, RoundTripOptions{})
		var rt *RoundTripError
		if !errors.As(err, &rt) || rt.Wrote || cc.writes > 0 || !c.Reusable() {
			t.Errorf("%s: %v, %d writes", name, err, cc.writes)
		}
	}
	c := &countingConn{Conn: dial(t, answering(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))}
	r := newRequest(t, "GET", nil)
	r.URL.Path, r.Header = "/a b\r\nX: y", http.Header{"Content-Length": {"5"}, "Transfer-Encoding": {"chunked"}, "Host": {"b"}}
	b, _, err := appendRequest(nil, r)
	if want := "GET /a%20b%0D%0AX:%20y HTTP/1.1\r\nHost: a.example\r\n\r\n"; err != nil || string(b) != want {
		t.Errorf("%q %v", b, err)
	}
	c.Close()
}

// TestReverseProxy runs net/http's proxy with both sides of the engine.
func TestReverseProxy(t *testing.T) {
	addr := listen(t, quick(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		w.WriteHeader(http.StatusEarlyHints)
		io.Copy(w, r.Body)
		w.Header().Set("X-Sum", "1")
	}))
	p := newPool(t, addr)
	rp := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: addr}) },
		Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			c, err := p.get()
			if err != nil {
				return nil, err
			}
			return c.RoundTrip(r.Context(), r, RoundTripOptions{})
		}),
		FlushInterval: -1,
	}
	proxied := listen(t, quick(rp.ServeHTTP))
	c := NewConn(dial(t, proxied))
	for _, length := range []int64{3, -1} {
		r := newRequest(t, "POST", io.NopCloser(strings.NewReader("abc")))
		r.ContentLength = length
		hints := 0
		resp, err := c.RoundTrip(context.Background(), r, RoundTripOptions{Informational: func(int, http.Header) { hints++ }})
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		if err != nil || string(b) != "abc" || resp.Trailer.Get("X-Sum") != "1" {
			t.Errorf("%v %q %v", resp, b, err)
		}
	}
}

type roundTripper func(r *http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
