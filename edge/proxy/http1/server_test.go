package http1

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestAnswers compares the output byte for byte, except for the date.
func TestAnswers(t *testing.T) {
	for _, k := range []struct {
		name, request string
		h             http.HandlerFunc
		want          string
	}{
		{"nothing", get(""), func(http.ResponseWriter, *http.Request) {}, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
		{
			"small", get(""), func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hi") },
			"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 2\r\n\r\nhi",
		},
		{
			"small in parts", get(""), func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("<p>")); io.WriteString(w, "hi") },
			"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: 5\r\n\r\n<p>hi",
		},
		{"no type wanted", get(""), func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			io.WriteString(w, "hi")
		}, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"},
		{"no type of what is encoded", get(""), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "br")
			io.WriteString(w, "hi")
		}, "HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 2\r\n\r\nhi"},
		{
			"no date wanted", get(""), func(w http.ResponseWriter, _ *http.Request) { w.Header()["Date"] = nil },
			"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
		},
		{"flushed", get(""), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "a/b")
			w.(http.Flusher).Flush()
			io.WriteString(w, "hi")
		}, "HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"},
		{"flushed later", get(""), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "a/b")
			io.WriteString(w, "hi")
			w.(http.Flusher).Flush()
			io.WriteString(w, "ho")
		}, "HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n2\r\nho\r\n0\r\n\r\n"},
		{"header changed too late", get(""), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", "1")
			w.WriteHeader(http.StatusCreated)
			w.Header().Set("X", "2")
			w.WriteHeader(http.StatusInternalServerError)
		}, "HTTP/1.1 201 Created\r\nX: 1\r\nContent-Length: 0\r\n\r\n"},
		{"no content", get(""), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "5")
			w.WriteHeader(http.StatusNoContent)
			if _, err := io.WriteString(w, "hello"); !errors.Is(err, http.ErrBodyNotAllowed) {
				panic(err)
			}
		}, "HTTP/1.1 204 No Content\r\n\r\n"},
		{"not modified", get(""), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Etag", "x")
			w.Header().Set("Content-Type", "a/b")
			w.WriteHeader(http.StatusNotModified)
		}, "HTTP/1.1 304 Not Modified\r\nEtag: x\r\n\r\n"},
		{"length", get(""), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "2")
			w.Header().Set("Content-Type", "a/b")
			io.WriteString(w, "hi")
			if _, err := io.WriteString(w, "ho"); !errors.Is(err, http.ErrContentLength) {
				panic(err)
			}
		}, "HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 2\r\n\r\nhi"},
		{"length that is none", get(""), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "2x")
			w.Header().Set("Content-Type", "a/b")
			io.WriteString(w, "hi!")
		}, "HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 3\r\n\r\nhi!"},
		{"too few bytes close", get("") + next, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "5")
			w.Header().Set("Content-Type", "a/b")
			io.WriteString(w, "hi")
		}, "HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 5\r\n\r\nhi"},
		{"HEAD", strings.Replace(get(""), "GET", "HEAD", 1), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "a/b")
			io.WriteString(w, "hi")
		}, "HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 2\r\n\r\n"},
		{"HEAD with a length", strings.Replace(get(""), "GET", "HEAD", 1), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "77")
		}, "HTTP/1.1 200 OK\r\nContent-Length: 77\r\n\r\n"},
		{
			"close", get("Connection: close\r\n"), func(http.ResponseWriter, *http.Request) {},
			"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
		},
		{
			"close by the handler", get("") + next, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Connection", "close") },
			"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
		},
		{"HTTP/1.0", "GET / HTTP/1.0\r\n\r\n", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "a/b")
			w.(http.Flusher).Flush()
			io.WriteString(w, "hi")
		}, "HTTP/1.0 200 OK\r\nContent-Type: a/b\r\n\r\nhi"},
		{
			"HTTP/1.0 that stays", "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", func(http.ResponseWriter, *http.Request) {},
			"HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n",
		},
		{"values with line ends", get(""), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", "a\r\nY: b\x00c")
			w.Header()["Bad Name"] = []string{"x"}
			w.Header()["Bad\r\nName"] = []string{"x"}
		}, "HTTP/1.1 200 OK\r\nX: a  Y: b c\r\nContent-Length: 0\r\n\r\n"},
		{"coding by the handler is ignored", get(""), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Transfer-Encoding", "gzip")
			w.Header().Set("Content-Length", "2")
			io.WriteString(w, "hi")
			w.(http.Flusher).Flush()
		}, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"},
		{"trailers", get(""), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "a/b")
			w.Header().Set("Trailer", "X-Sum, Content-Length")
			io.WriteString(w, "hi")
			w.Header().Set("X-Sum", "1")
			w.Header().Set(http.TrailerPrefix+"X-Late", "2")
		}, "HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nTrailer: X-Sum, Content-Length\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Sum: 1\r\nX-Late: 2\r\n\r\n"},
		{"trailers after a flush", get(""), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "a/b")
			io.WriteString(w, "hi")
			w.(http.Flusher).Flush()
			w.Header().Set(http.TrailerPrefix+"X-Late", "2")
		}, "HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Late: 2\r\n\r\n"},
		{"trailers of a short answer", get(""), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "a/b")
			io.WriteString(w, "hi")
			w.Header().Set(http.TrailerPrefix+"X-Late", "2")
		}, "HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Late: 2\r\n\r\n"},
		{"early hints", get(""), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "x")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Del("Link")
			w.WriteHeader(http.StatusOK)
		}, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
		{
			"status without a name", get(""), func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(599) },
			"HTTP/1.1 599 status code 599\r\nContent-Length: 0\r\n\r\n",
		},
		{
			"expected body is not read", post("Expect: 100-continue\r\nContent-Length: 3\r\n", "abc"), func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
			"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
		},
		{
			"expected body is read", post("Expect: 100-Continue\r\nContent-Length: 3\r\n", "abc"), func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) },
			"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 3\r\n\r\nabc",
		},
		{
			"unread body, then a request", post("Content-Length: 3\r\n", "abc") + get("Connection: close\r\n"), func(http.ResponseWriter, *http.Request) {},
			"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
		},
		{"panic", get("") + next, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, ""},
	} {
		t.Run(k.name, func(t *testing.T) {
			c := dial(t, listen(t, quick(k.h)))
			io.WriteString(c, k.request)
			c.CloseWrite()
			b, err := io.ReadAll(c)
			if err != nil && k.want != "" {
				t.Fatal(err)
			}
			got := string(b)
			for {
				before, after, ok := strings.Cut(got, "Date: ")
				if !ok {
					break
				}
				_, after, _ = strings.Cut(after, "\r\n")
				got = before + after
			}
			if got != k.want {
				t.Errorf("got\n%q, want\n%q", got, k.want)
			}
		})
	}
}

// TestBodiesOfEverySize: echoed bodies are the same for all lengths of writes and reads.
func TestBodiesOfEverySize(t *testing.T) {
	addr := listen(t, quick(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery != "" {
			w.Header().Set("Content-Length", r.URL.RawQuery)
		}
		w.Header().Set("Content-Type", "a/b")
		if r.URL.Path == "/file" {
			f, err := os.CreateTemp(t.TempDir(), "")
			if err != nil {
				t.Error(err)
			}
			defer f.Close()
			io.Copy(f, r.Body)
			f.Seek(0, 0)
			io.Copy(w, f)
			return
		}
		io.Copy(w, r.Body)
	}))
	proxied := listen(t, quick(newPool(t, addr).ServeHTTP))
	conns := []*Conn{NewConn(dial(t, addr)), NewConn(dial(t, proxied))}
	for _, size := range []int{0, 1, 100, 3500, 3800, 3900, 4000, 4095, 4096, 4097, 8 << 10, 32<<10 - 1, 32 << 10, 100 << 10, 1 << 20, 5<<20 + 1} {
		body := make([]byte, size)
		rand.Read(body)
		for _, path := range []string{"/", "/file", fmt.Sprintf("/?%d", size), fmt.Sprintf("/file?%d", size)} {
			for i, conn := range conns {
				for _, length := range []int64{int64(size), -1} {
					r, _ := http.NewRequest(http.MethodPost, "http://a.example"+path, struct{ io.Reader }{bytes.NewReader(body)})
					if r.ContentLength = length; size == 0 && length == 0 {
						r.Body = nil
					}
					resp, err := conn.RoundTrip(context.Background(), r, RoundTripOptions{})
					if err != nil {
						t.Fatalf("%d bytes to %s by %d, length %d: %v", size, path, i, length, err)
					}
					got, err := io.ReadAll(resp.Body)
					if err != nil || !bytes.Equal(got, body) {
						t.Fatalf("%d bytes to %s by %d, length %d: %d bytes came back, %v", size, path, i, length, len(got), err)
					}
					if conn.Reusable() {
						continue
					}
					if early := length < 0 && r.URL.RawQuery != ""; early { // the answer was whole before the last chunk was sent
						conns[i] = NewConn(dial(t, []string{addr, proxied}[i]))
						conn = conns[i]
					} else {
						t.Fatalf("%d bytes to %s by %d, length %d: the connection is spent", size, path, i, length)
					}
				}
			}
		}
	}
}

func TestUnreadBodyThatIsLargeEndsTheConnection(t *testing.T) {
	addr := listen(t, quick(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	c := dial(t, addr)
	io.WriteString(c, post("Content-Length: 10000000\r\n", "abc"))
	b, err := io.ReadAll(c)
	if err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 403") {
		t.Errorf("%q %v", b, err)
	}
}

func TestPipeline(t *testing.T) {
	addr := listen(t, quick(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.URL.Path) }))
	var all, want strings.Builder
	for i := range 500 {
		fmt.Fprintf(&all, "GET /%d HTTP/1.1\r\n%s\r\n", i, h11)
		fmt.Fprintf(&want, "/%d", i)
	}
	_, bodies, _ := ask(t, addr, all.String())
	if got := strings.Join(bodies, ""); got != want.String() {
		t.Errorf("got %d answers: %.100s", len(bodies), got)
	}
}

// TestContextEndsWithItsClient: Done is closed when the client disconnects, and what it sends
// instead is not lost.
func TestContextEndsWithItsClient(t *testing.T) {
	ended := make(chan error, 1)
	addr := listen(t, quick(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		switch r.URL.Path {
		case "/wait":
			ctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			<-ctx.Done()
			ended <- r.Context().Err()
		case "/look":
			select {
			case <-r.Context().Done():
			case <-time.After(20 * time.Millisecond):
			}
			if err := r.Context().Err(); err != nil {
				t.Error(err)
			}
		}
	}))
	c := dial(t, addr)
	br := bufio.NewReader(c)
	for range 3 {
		io.WriteString(c, "POST /look HTTP/1.1\r\n"+h11+"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
		io.WriteString(c, "GET /look HTTP/1.1\r\n"+h11+"\r\n")
		for range 2 {
			resp, err := http.ReadResponse(br, nil)
			if err != nil || resp.StatusCode != http.StatusOK {
				t.Fatal(resp, err)
			}
		}
	}
	io.WriteString(c, "POST /wait HTTP/1.1\r\n"+h11+"Content-Length: 1\r\n\r\nx")
	c.Close()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the context did not end")
	}
}

func TestHijack(t *testing.T) {
	addr := listen(t, quick(func(w http.ResponseWriter, r *http.Request) {
		r.Context().Done() // the client is watched
		nc, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer nc.Close()
		if _, err := io.WriteString(w, "x"); !errors.Is(err, http.ErrHijacked) {
			t.Error(err)
		}
		io.WriteString(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		rw.Flush()
		io.Copy(nc, rw)
	}))
	pool := newPool(t, addr)
	proxied := listen(t, quick(func(w http.ResponseWriter, r *http.Request) {
		c, err := pool.get()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		resp, err := c.RoundTrip(r.Context(), r, RoundTripOptions{})
		if err != nil {
			t.Error(err)
			return
		}
		back := resp.Body.(io.ReadWriteCloser)
		nc, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer nc.Close()
		resp.Body = nil
		resp.Write(rw)
		rw.Flush()
		var wg sync.WaitGroup
		wg.Go(func() { io.Copy(back, rw); back.(interface{ CloseWrite() error }).CloseWrite() })
		io.Copy(nc, back)
		nc.(*net.TCPConn).CloseWrite()
		wg.Wait()
	}))
	for _, to := range []string{addr, proxied} {
		c := dial(t, to)
		io.WriteString(c, get("Connection: Upgrade\r\nUpgrade: echo\r\n")+"early")
		br := bufio.NewReader(c)
		resp, err := http.ReadResponse(br, nil)
		if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
			t.Fatal(resp, err)
		}
		io.WriteString(c, " late")
		c.CloseWrite()
		if b, err := io.ReadAll(br); err != nil || string(b) != "early late" {
			t.Errorf("%q %v", b, err)
		}
	}
}

// TestHijackEndsTheBody: after a hijack, a body is not read any further into a buffer that no
// longer belongs to the connection.
func TestHijackEndsTheBody(t *testing.T) {
	reading, result := make(chan struct{}), make(chan error, 1)
	addr := listen(t, quick(func(w http.ResponseWriter, r *http.Request) {
		go func() {
			b := make([]byte, 3)
			_, _ = io.ReadFull(r.Body, b)
			close(reading)
			_, err := r.Body.Read(b)
			result <- err
		}()
		<-reading
		time.Sleep(10 * time.Millisecond) // until it waits
		nc, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer nc.Close()
		select {
		case err := <-result:
			if err == nil {
				t.Error("the body was read on")
			}
		case <-time.After(time.Minute):
			t.Error("the body is still being read")
		}
		io.WriteString(nc, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
		io.Copy(nc, rw)
	}))
	c := dial(t, addr)
	io.WriteString(c, "POST / HTTP/1.1\r\n"+h11+"Transfer-Encoding: chunked\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n3\r\nabc\r\n")
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(resp, err)
	}
	io.WriteString(c, "and so on")
	c.CloseWrite()
	if b, err := io.ReadAll(br); err != nil || string(b) != "and so on" {
		t.Errorf("%q %v", b, err)
	}
}

// TestSlow: a client that sends nothing, or a byte from time to time, is disconnected.
func TestSlow(t *testing.T) {
	read := make(chan error, 1)
	s := &Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		read <- err
	}), HeaderTimeout: 100 * time.Millisecond, IdleTimeout: 100 * time.Millisecond, BodyTimeout: 100 * time.Millisecond}
	addr := listen(t, s)
	t.Run("nothing", func(t *testing.T) {
		if b, err := io.ReadAll(dial(t, addr)); err != nil || len(b) > 0 {
			t.Errorf("%q %v", b, err)
		}
	})
	bubble := func(name string, f func(t *testing.T, c net.Conn)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				read = make(chan error, 1)
				f(t, piped(t, s))
			})
		})
	}
	bubble("header", func(t *testing.T, c net.Conn) {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		done := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for _, b := range []byte(get("X: " + strings.Repeat("a", 10000))) {
				select {
				case <-tick.C:
				case <-done:
					return
				}
				c.Write([]byte{b})
			}
		})
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		close(done)
		c.Close()
		wg.Wait()
		if err != nil || resp.StatusCode != http.StatusRequestTimeout {
			t.Error(resp, err)
		}
	})
	bubble("body", func(t *testing.T, c net.Conn) {
		io.WriteString(c, post("Content-Length: 10\r\n", "abc"))
		var timeout net.Error
		if err := <-read; !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Error(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Error(resp, err)
		}
	})
	bubble("between requests", func(t *testing.T, c net.Conn) {
		br := bufio.NewReader(c)
		for range 3 {
			io.WriteString(c, get(""))
			if _, err := http.ReadResponse(br, nil); err != nil {
				t.Fatal(err)
			}
			<-read
		}
		if _, err := br.ReadByte(); err != io.EOF {
			t.Error(err)
		}
	})
	t.Run("taking the answer", func(t *testing.T) {
		failed := make(chan error, 1)
		s := quick(func(w http.ResponseWriter, r *http.Request) {
			var err error
			for buf := make([]byte, 1<<20); err == nil; {
				_, err = w.Write(buf)
			}
			failed <- err
		})
		s.BodyTimeout = 100 * time.Millisecond
		c := dial(t, listen(t, s))
		io.WriteString(c, get(""))
		if err := <-failed; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
	})
}

func TestDrain(t *testing.T) {
	in, out := make(chan struct{}), make(chan struct{})
	s := quick(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			in <- struct{}{}
			<-out
		}
	})
	addr := listen(t, s)
	idle, busy := dial(t, addr), dial(t, addr)
	br := bufio.NewReader(idle)
	io.WriteString(idle, get(""))
	if _, err := http.ReadResponse(br, nil); err != nil {
		t.Fatal(err)
	}
	io.WriteString(busy, "GET /wait HTTP/1.1\r\n"+h11+"\r\n")
	<-in
	done := make(chan struct{})
	go func() {
		s.Drain(context.Background())
		close(done)
	}()
	if _, err := br.ReadByte(); err != io.EOF {
		t.Errorf("the idle connection: %v", err)
	}
	close(out)
	resp, err := http.ReadResponse(bufio.NewReader(busy), nil)
	if err != nil || !resp.Close {
		t.Errorf("the busy connection: %v %v", resp, err)
	}
	<-done
	late := dial(t, addr)
	if b, _ := io.ReadAll(late); len(b) > 0 {
		t.Errorf("a connection after the end was answered %q", b)
	}
}

// TestDrainAnswersWhoHasJustCome: a new connection may still send its request.
func TestDrainAnswersWhoHasJustCome(t *testing.T) {
	taken := make(chan struct{})
	s := quick(func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	addr := accept(t, func(c net.Conn) {
		close(taken)
		s.ServeConn(context.Background(), c)
	})
	c := dial(t, addr)
	<-taken
	for open := 0; open == 0; {
		s.mu.Lock()
		open = len(s.conns)
		s.mu.Unlock()
	}
	done := make(chan struct{})
	go func() {
		s.Drain(context.Background())
		close(done)
	}()
	for !s.draining.Load() {
		<-time.After(time.Millisecond)
	}
	io.WriteString(c, post("Content-Length: 3\r\n", "abc"))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || !resp.Close || resp.ContentLength != 3 {
		t.Error(resp, err)
	}
	<-done
}

func TestDrainIsBounded(t *testing.T) {
	in, out := make(chan struct{}), make(chan struct{})
	s := quick(func(w http.ResponseWriter, r *http.Request) {
		close(in)
		<-r.Context().Done()
		close(out)
	})
	c := dial(t, listen(t, s))
	io.WriteString(c, get(""))
	<-in
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	s.Drain(ctx)
	<-out
}

// slowClose is a connection whose Close waits for a client that reads nothing, as TLS may do.
type slowClose struct {
	net.Conn
	once   sync.Once
	closed chan struct{} // with the connection below
	over   <-chan struct{}
}

func (c *slowClose) Close() error {
	select {
	case <-c.closed:
		return nil
	case <-c.over:
		return c.Conn.Close()
	}
}

func (c *slowClose) NetConn() net.Conn { return severed{c.Conn, c} }

type severed struct {
	net.Conn
	of *slowClose
}

func (s severed) Close() error {
	s.of.once.Do(func() { close(s.of.closed) })
	return s.Conn.Close()
}

// TestDrainDoesNotWaitForClose: connections that cannot be closed in an orderly way delay neither
// the end of a server nor each other.
func TestDrainDoesNotWaitForClose(t *testing.T) {
	entered, ctx := make(chan struct{}, 2), t.Context()
	s := quick(func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		if r.URL.Path == "/wait" {
			_, _ = io.ReadAll(r.Body)
		}
	})
	addr := accept(t, func(c net.Conn) {
		s.ServeConn(context.Background(), &slowClose{Conn: c, closed: make(chan struct{}), over: t.Context().Done()})
	})
	idle, active := dial(t, addr), dial(t, addr)
	_, _ = io.WriteString(idle, get(""))
	if _, err := http.ReadResponse(bufio.NewReader(idle), nil); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(active, "POST /wait HTTP/1.1\r\n"+h11+"Content-Length: 5\r\n\r\n")
	<-entered
	<-entered
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		s.Drain(ctx)
	}()
	select {
	case <-drained:
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
	}
}

func TestPanicEndsTheConnectionAlone(t *testing.T) {
	var log bytes.Buffer
	s := quick(func(w http.ResponseWriter, r *http.Request) {
		r.Context().Done()
		io.WriteString(w, "half")
		panic("a mistake")
	})
	s.Log = slog.New(slog.NewTextHandler(&log, nil))
	addr := listen(t, s)
	for range 2 {
		c := dial(t, addr)
		io.WriteString(c, post("Content-Length: 5\r\n", "abc"))
		if b, _ := io.ReadAll(c); len(b) > 0 {
			t.Errorf("%q was sent", b)
		}
	}
	s.Drain(context.Background())
	if !strings.Contains(log.String(), "a mistake") {
		t.Errorf("the log says %q", log.String())
	}
}

func TestHTTP2IsHandedOver(t *testing.T) {
	s := quick(nil)
	s.HTTP2 = func(_ context.Context, c net.Conn, read []byte) {
		defer c.Close()
		rest := make([]byte, 24-len(read))
		io.ReadFull(c, rest)
		fmt.Fprintf(c, "%s%s", read, rest)
	}
	c := dial(t, listen(t, s))
	c.Write(preface)
	if b, err := io.ReadAll(c); err != nil || !bytes.Equal(b, preface) {
		t.Errorf("%q %v", b, err)
	}
}

func TestRefuse(t *testing.T) {
	s := quick(nil)
	s.Refuse = func(w http.ResponseWriter, status int, err error) {
		w.Header().Set("X-Code", "bad")
		w.WriteHeader(status)
		fmt.Fprint(w, err)
	}
	answers, bodies, _ := ask(t, listen(t, s), get("X : y\r\n"))
	if len(answers) != 1 || answers[0].Header.Get("X-Code") != "bad" || !strings.Contains(bodies[0], "name of a header field") || !answers[0].Close {
		t.Errorf("%v %q", answers, bodies)
	}
}

func TestServeContent(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f.txt")
	content := bytes.Repeat([]byte("0123456789"), 50000)
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	addr := listen(t, quick(func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, name) }))
	_, bodies, err := ask(t, addr, get("Range: bytes=100-200000\r\n")+get(""))
	if !errors.Is(err, io.EOF) || len(bodies) != 2 || bodies[0] != string(content[100:200001]) || bodies[1] != string(content) {
		t.Errorf("%d answers, %v", len(bodies), err)
	}
}

// TestDeadlineOfTheBody: a handler's deadline for the body ends with the body, so that a client
// that disconnects long after is detected.
func TestDeadlineOfTheBody(t *testing.T) {
	const soon = 20 * time.Millisecond
	read, gone := make(chan struct{}), make(chan struct{})
	addr := listen(t, quick(func(w http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadAll(r.Body); err != nil {
			t.Error(err)
		}
		// It has passed by now, if it still holds: the kernel is asked with the next read.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(soon))
		r.Context().Done()
		close(read)
		<-r.Context().Done()
		close(gone)
	}))
	c := dial(t, addr)
	if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"); err != nil {
		t.Fatal(err)
	}
	<-read
	timer := time.NewTimer(5 * soon)
	select {
	case <-timer.C:
	case <-gone:
		t.Fatal("the client is taken for gone")
	}
	_ = c.Close()
	select {
	case <-gone:
	case <-time.After(time.Minute):
		t.Fatal("a client that has hung up is not noticed")
	}
}
