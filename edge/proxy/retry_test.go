package proxy_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/proxy"
)

// reset closes a connection so that the other end gets an RST.
func reset(c net.Conn) {
	_ = c.(interface{ SetLinger(sec int) error }).SetLinger(0)
	_ = c.Close()
}

// readRequest reads one request with its body.
func readRequest(br *bufio.Reader) *http.Request {
	r, err := http.ReadRequest(br)
	if err != nil {
		return nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil
	}
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	return r
}

const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// deaths are what a dying Machine does with a connection.
var deaths = []struct {
	name   string
	do     func(c net.Conn)
	passed bool // part of an answer gets through
}{
	{"closes at once", func(net.Conn) {}, false},
	{"resets at once", func(c net.Conn) { reset(c) }, false},
	{"closes after the request", func(c net.Conn) { readRequest(bufio.NewReader(c)) }, false},
	{"resets after the request", func(c net.Conn) { readRequest(bufio.NewReader(c)); reset(c) }, false},
	{"closes in the status line", func(c net.Conn) {
		readRequest(bufio.NewReader(c))
		_, _ = io.WriteString(c, "HTTP/1.1 2")
	}, false},
	{"closes in the header", func(c net.Conn) {
		readRequest(bufio.NewReader(c))
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-")
	}, false},
	{"closes in the body", func(c net.Conn) {
		readRequest(bufio.NewReader(c))
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
	}, true},
	{"closes in a chunk", func(c net.Conn) {
		readRequest(bufio.NewReader(c))
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
	}, true},
	{"resets in a chunk", func(c net.Conn) {
		readRequest(bufio.NewReader(c))
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
		<-c.(dying).begun // or the kernel might drop what has not been read
		reset(c)
	}, true},
}

// dying is the connection of a Machine that dies.
type dying struct {
	*net.TCPConn
	begun <-chan struct{} // closed once the client has the beginning of an answer, or none comes
}

func TestRetry(t *testing.T) {
	for _, death := range deaths {
		for _, method := range []string{"GET", "PUT", "POST"} {
			t.Run(death.name+"/"+method, func(t *testing.T) {
				w := newWorld(t)
				var first, second atomic.Int32
				begun := make(chan struct{})
				bad := w.scripted(func(_ int, c net.Conn) { first.Add(1); death.do(dying{c.(*net.TCPConn), begun}) })
				good := w.backend(func(rw http.ResponseWriter, r *http.Request) {
					second.Add(1)
					body, _ := io.ReadAll(r.Body)
					fmt.Fprintf(rw, "%s %s", r.Method, body)
				})
				bads := w.machine("a1", "app", bad, nil)
				w.machine("a2", "app", good, nil)
				var body io.Reader
				sent := ""
				if method != "GET" {
					sent = "the body"
					body = strings.NewReader(sent)
				}
				// The Machine that dies is the first.
				r := w.request(method, "http://app.apps.test/", body, "fly-prefer-instance-id", string(bads))
				res, err := w.client().Do(r)
				close(begun)
				if err != nil {
					t.Fatal(err)
				}
				got, bodyErr := io.ReadAll(res.Body)
				_ = res.Body.Close()
				switch {
				case first.Load() == 0:
					t.Fatal("the Machine that dies was not asked")
				case death.passed:
					if bodyErr == nil || second.Load() != 0 {
						t.Errorf("got %d %q, and the other Machine was asked %d times", res.StatusCode, got, second.Load())
					}
				case method == "POST" && second.Load() == 0:
					if res.StatusCode != http.StatusBadGateway {
						t.Errorf("got %d %q", res.StatusCode, got)
					}
				case method == "POST" && strings.Contains(death.name, "request"):
					t.Error("a request that may have been answered was repeated")
				default:
					if want := method + " " + sent; res.StatusCode != http.StatusOK || string(got) != want || second.Load() != 1 {
						t.Errorf("got %d %q, want %q, and the other Machine was asked %d times", res.StatusCode, got, want, second.Load())
					}
				}
			})
		}
	}
}

// TestDeferredEntry: a request that can be repeated is sent over a connection that is open before the host has let it
// in, and to another Machine if the host refuses.
func TestDeferredEntry(t *testing.T) {
	w := newWorld(t)
	w.gate.remote = true
	names := func(name string) string {
		return w.backend(func(rw http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(rw, name)
		})
	}
	first := w.machine("a1", "app", names("first"), nil)
	w.machine("a2", "app", names("second"), nil)
	c := w.client()
	for i, step := range []struct {
		method, body string
		full         bool // the first
		from         string
		entered      int // over connections, up to then
	}{
		{"GET", "", false, "first", 0}, // over a new connection
		{"GET", "", false, "first", 1},
		{"POST", "", false, "first", 1},
		{"PUT", "body", false, "first", 1},
		{"HEAD", "", false, "", 2},
		{"GET", "", true, "second", 3},
		{"GET", "", true, "second", 4}, // the first is not asked again so soon
	} {
		w.gate.mu.Lock()
		w.gate.full = map[hangar.MachineID]bool{first: step.full}
		w.gate.mu.Unlock()
		var body io.Reader
		if step.body != "" {
			body = strings.NewReader(step.body)
		}
		got := w.do(c, w.request(step.method, "http://app.apps.test/", body, "fly-prefer-instance-id", string(first)))
		if got.StatusCode != http.StatusOK || got.body != step.from || w.gate.overConnections() != step.entered {
			t.Errorf("request %d: got %d %q, %d have entered over connections, want %q, %d", i, got.StatusCode, got.body, w.gate.overConnections(), step.from, step.entered)
		}
	}
}

// TestRetryStale: a kept connection may be closed while it is reused.
func TestRetryStale(t *testing.T) {
	for _, method := range []string{"GET", "POST"} {
		t.Run(method, func(t *testing.T) {
			w := newWorld(t)
			var asked atomic.Int32
			addr := w.scripted(func(n int, c net.Conn) {
				br := bufio.NewReader(c)
				for turn := 1; ; turn++ {
					r := readRequest(br)
					if r == nil {
						return
					}
					asked.Add(1)
					if n == 1 && turn == 2 {
						return // it closes as the second request arrives
					}
					_, _ = io.WriteString(c, okAnswer)
				}
			})
			w.machine("a1", "app", addr, nil)
			c := w.client()
			if got := w.do(c, w.request(method, "http://app.apps.test/", strings.NewReader("x"))); got.StatusCode != http.StatusOK {
				t.Fatalf("got %d %s", got.StatusCode, got.body)
			}
			got := w.do(c, w.request(method, "http://app.apps.test/", strings.NewReader("x")))
			if method == "POST" {
				if got.StatusCode != http.StatusBadGateway || asked.Load() != 2 {
					t.Errorf("got %d after %d requests", got.StatusCode, asked.Load())
				}
				return
			}
			if got.StatusCode != http.StatusOK || asked.Load() != 3 {
				t.Errorf("got %d %s after %d requests", got.StatusCode, got.body, asked.Load())
			}
		})
	}
	t.Run("closed before", func(t *testing.T) {
		w := newWorld(t)
		closed := make(chan struct{})
		addr := w.scripted(func(n int, c net.Conn) {
			readRequest(bufio.NewReader(c))
			_, _ = io.WriteString(c, okAnswer)
			if n == 1 {
				_ = c.Close()
				close(closed)
			}
		})
		w.machine("a1", "app", addr, nil)
		c := w.client()
		for range 2 {
			if got := w.do(c, w.request("POST", "http://app.apps.test/", strings.NewReader("x"))); got.StatusCode != http.StatusOK {
				t.Fatalf("got %d %s", got.StatusCode, got.body)
			}
			<-closed
			time.Sleep(10 * time.Millisecond)
		}
	})
}

func TestNobodyListens(t *testing.T) {
	t.Run("none", func(t *testing.T) {
		w := newWorld(t, func(o *proxy.Options) { o.Limits.RetryFor = 500 * time.Millisecond })
		w.machine("a1", "app", "", nil)
		start := time.Now()
		wantCode(t, w.get("http://app.apps.test/"), 502, hangar.EdgeRefusedPort)
		if took := time.Since(start); took < 400*time.Millisecond {
			t.Errorf("it was tried for %s", took)
		}
	})
	w := newWorld(t)
	w.machine("a1", "app", "", nil)
	t.Run("another does", func(t *testing.T) {
		w.machine("a2", "app", w.backend(func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "a2") }), nil)
		for range 10 {
			if got := w.get("http://app.apps.test/"); got.body != "a2" {
				t.Errorf("got %d %q", got.StatusCode, got.body)
			}
		}
	})
	t.Run("it listens soon", func(t *testing.T) {
		w.machine("b1", "second", "", nil)
		addr := w.backend(func(rw http.ResponseWriter, _ *http.Request) { io.WriteString(rw, "b1") })
		timer := time.AfterFunc(200*time.Millisecond, func() {
			w.gate.mu.Lock()
			defer w.gate.mu.Unlock()
			w.gate.dials["b1000000000000"] = func(ctx context.Context) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
			}
		})
		defer timer.Stop()
		if got := w.get("http://second.apps.test/"); got.body != "b1" {
			t.Errorf("got %d %q", got.StatusCode, got.body)
		}
	})
}

func TestLargeBodyIsNotRepeated(t *testing.T) {
	w := newWorld(t)
	bad := w.scripted(func(_ int, c net.Conn) {
		_, _ = io.CopyN(io.Discard, c, 3<<20)
		reset(c)
	})
	var asked atomic.Int32
	good := w.backend(func(http.ResponseWriter, *http.Request) { asked.Add(1) })
	bads := w.machine("a1", "app", bad, nil)
	w.machine("a2", "app", good, nil)
	r := w.request("PUT", "http://app.apps.test/", strings.NewReader(strings.Repeat("x", 4<<20)), "fly-prefer-instance-id", string(bads))
	res, err := w.client().Do(r)
	if err == nil {
		_ = res.Body.Close()
		if res.StatusCode != http.StatusBadGateway {
			t.Errorf("got %d", res.StatusCode)
		}
	}
	if asked.Load() != 0 {
		t.Error("a part of a body was sent for the whole")
	}
}

func TestMalformedAnswer(t *testing.T) {
	w := newWorld(t)
	for i, answer := range []string{
		"nonsense\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
		"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
	} {
		var asked atomic.Int32
		addr := w.scripted(func(_ int, c net.Conn) {
			readRequest(bufio.NewReader(c))
			asked.Add(1)
			_, _ = io.WriteString(c, answer)
		})
		id := w.machine(fmt.Sprintf("a%d", i), "app", addr, nil)
		got := w.get("http://app.apps.test/", "fly-force-instance-id", string(id))
		wantCode(t, got, 502, hangar.EdgeIncomplete)
		if asked.Load() != 1 {
			t.Errorf("%q was asked for %d times", answer, asked.Load())
		}
	}
}

// TestNoRequestLost: Machines that die and come back lose no repeatable request.
func TestNoRequestLost(t *testing.T) {
	w := newWorld(t)
	addr := w.scripted(func(n int, c net.Conn) {
		br := bufio.NewReader(c)
		for turn := 0; ; turn++ {
			if n%3 == 0 && turn == n%5 {
				reset(c)
				return
			}
			if readRequest(br) == nil {
				return
			}
			if n%4 == 0 && turn == n%3 {
				return
			}
			_, _ = io.WriteString(c, okAnswer)
		}
	})
	for i := range 3 {
		w.machine(fmt.Sprintf("a%d", i), "app", addr, nil)
	}
	c := w.client()
	failed := make(chan string, 8)
	for range cap(failed) {
		go func() {
			for range 100 {
				r, _ := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://app.apps.test/", strings.NewReader("hello"))
				res, err := c.Do(r)
				if err != nil {
					failed <- err.Error()
					return
				}
				body, _ := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if res.StatusCode != http.StatusOK || string(body) != "ok" {
					failed <- res.Status + " " + string(body)
					return
				}
			}
			failed <- ""
		}()
	}
	for range cap(failed) {
		if why := <-failed; why != "" {
			t.Error(why)
		}
	}
}

// TestFatalRequest: a request that crashes the program of a Machine while it is alone there is sent
// to no other, and one that may be the cause is sent at most once more.
func TestFatalRequest(t *testing.T) {
	tests := []struct {
		name    string
		method  string
		kept    bool          // it uses a kept connection
		h2      bool          // to a Machine that supports HTTP/2
		beside  int           // other requests in the Machine
		crashes bool          // the program crashes; otherwise only the connection breaks
		word    time.Duration // after which the edge learns of it
		asked   int           // Machines that get it
		status  int
	}{
		{name: "alone", method: "GET", crashes: true, asked: 1, status: 502},
		{name: "over HTTP/2", method: "GET", h2: true, crashes: true, asked: 1, status: 502},
		{name: "over a kept connection", method: "GET", kept: true, crashes: true, asked: 1, status: 502},
		{name: "with a late word", method: "PUT", crashes: true, word: 50 * time.Millisecond, asked: 1, status: 502},
		{name: "beside others", method: "GET", beside: 2, crashes: true, asked: 2, status: 502},
		{name: "by a connection alone", method: "GET", asked: 3, status: 200},
		{name: "a POST", method: "POST", crashes: true, asked: 1, status: 502},
		{name: "a POST over HTTP/2", method: "POST", h2: true, crashes: true, asked: 1, status: 502},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, func(o *proxy.Options) {
				if test.crashes {
					o.Limits.CrashWait = time.Minute
				}
			})
			var asked atomic.Int32
			waiting, dies, release := make(chan struct{}), make(chan hangar.MachineID), make(chan struct{})
			change := func(p *hangar.ServicePort) {
				if test.h2 {
					h2Backend(p)
				}
			}
			var ids []hangar.MachineID
			for i := range 3 {
				ids = append(ids, w.machine(fmt.Sprintf("a%d", i), "app", w.backend(func(_ http.ResponseWriter, r *http.Request) {
					switch r.URL.Path {
					case "/wait":
						select {
						case waiting <- struct{}{}:
							<-release
						case <-release:
						}
					case "/break":
						if n := asked.Add(1); test.crashes {
							dies <- ids[i]
						} else if n > 2 {
							return
						}
						panic(http.ErrAbortHandler)
					}
				}), change))
			}
			c := w.client()
			var others sync.WaitGroup
			defer others.Wait()
			defer close(release)
			for _, id := range ids {
				if test.kept {
					w.do(c, w.request("GET", "http://app.apps.test/", nil, "fly-force-instance-id", string(id)))
				}
				for range test.beside {
					r := w.request("GET", "http://app.apps.test/wait", nil, "fly-force-instance-id", string(id))
					others.Go(func() {
						if res, err := w.client().Do(r); err == nil {
							_ = res.Body.Close()
						}
					})
					<-waiting
				}
			}
			status := make(chan int, 1)
			r := w.request(test.method, "http://app.apps.test/break", nil)
			others.Go(func() {
				res, err := c.Do(r)
				if err != nil {
					status <- 0
					return
				}
				_ = res.Body.Close()
				status <- res.StatusCode
			})
			for {
				select {
				case id := <-dies:
					time.Sleep(test.word)
					w.crash(id)
					continue
				case got := <-status:
					if n := int(asked.Load()); got != test.status || n != test.asked {
						t.Errorf("got %d from %d machines, want %d from %d", got, n, test.status, test.asked)
					}
				}
				break
			}
		})
	}
}
