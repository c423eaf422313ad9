package http1

import (
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"testing"
	"time"
)

const benchRequest = "GET /some/path?query=1 HTTP/1.1\r\nHost: app.example\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\n" +
	"Accept: text/html,application/xhtml+xml\r\nAccept-Language: en\r\nAccept-Encoding: gzip, br\r\nCookie: session=0123456789abcdef\r\n\r\n"

// rawMachine is the cheapest possible server: a fixed answer to each read.
func rawMachine(b *testing.B) string {
	b.Helper()
	answer := []byte("HTTP/1.1 200 OK\r\nServer: x\r\nDate: Sat, 21 Nov 2026 12:00:00 GMT\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\n" + fmt.Sprintf("%0100d", 1))
	return accept(b, func(c net.Conn) {
		defer c.Close()
		var buf [8 << 10]byte
		for {
			if _, err := c.Read(buf[:]); err != nil {
				return
			}
			if _, err := c.Write(answer); err != nil {
				return
			}
		}
	})
}

func hello(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain")
	io.WriteString(w, "hello, world")
}

// netHTTP serves with net/http's server.
func netHTTP(b *testing.B, h http.Handler) string {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := &http.Server{Handler: h, IdleTimeout: time.Minute, ReadHeaderTimeout: time.Minute}
	var wg sync.WaitGroup
	wg.Go(func() { s.Serve(l) })
	b.Cleanup(func() {
		s.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

func benchServer(h http.Handler) *Server {
	return &Server{Handler: h, HeaderTimeout: time.Minute, IdleTimeout: time.Minute, BodyTimeout: time.Minute}
}

// pool keeps Conns for the benchmark's proxy.
type pool struct {
	addr string
	mu   sync.Mutex
	idle []*Conn
}

func (p *pool) get() (*Conn, error) {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		c := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return c, nil
	}
	p.mu.Unlock()
	nc, err := net.Dial("tcp", p.addr)
	if err != nil {
		return nil, err
	}
	return NewConn(nc), nil
}

func (p *pool) put(c *Conn) {
	if !c.Reusable() {
		c.Close()
		return
	}
	p.mu.Lock()
	p.idle = append(p.idle, c)
	p.mu.Unlock()
}

func (p *pool) close() {
	for _, c := range p.idle {
		c.Close()
	}
}

// ServeHTTP forwards a request, as httputil.ReverseProxy would.
func (p *pool) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, err := p.get()
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer p.put(c)
	r.Header.Del("Connection")
	r.Header.Set("X-Forwarded-For", r.RemoteAddr)
	r.Close = false
	resp, err := c.RoundTrip(r.Context(), r, RoundTripOptions{IdleTimeout: time.Minute})
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	h := w.Header()
	maps.Copy(h, resp.Header)
	for name := range resp.Trailer {
		h.Add("Trailer", name)
	}
	w.WriteHeader(resp.StatusCode)
	if _, err := io.Copy(w, resp.Body); err != nil {
		resp.Body.Close()
		panic(http.ErrAbortHandler)
	}
	resp.Body.Close()
	maps.Copy(h, resp.Trailer)
}

func newPool(tb testing.TB, addr string) *pool {
	tb.Helper()
	p := &pool{addr: addr}
	tb.Cleanup(p.close)
	return p
}

func reverseProxy(b *testing.B, machine string) http.Handler {
	b.Helper()
	p := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: machine})
	tr := &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}
	p.Transport = tr
	b.Cleanup(tr.CloseIdleConnections)
	return p
}

// hammer sends requests on 16 keep-alive connections and reports CPU time per request. The client
// is as cheap as possible, but its time is included: the difference between servers is larger than
// shown.
func hammer(b *testing.B, addr string) {
	b.Helper()
	const conns = 16
	var wg sync.WaitGroup
	var open []net.Conn
	for range conns {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			b.Fatal(err)
		}
		open = append(open, c)
	}
	request := []byte(benchRequest)
	b.ReportAllocs()
	b.ResetTimer()
	before := cpu()
	per := b.N/conns + 1
	for _, c := range open {
		wg.Go(func() {
			var buf [4 << 10]byte
			for range per {
				if _, err := c.Write(request); err != nil {
					b.Error(err)
					return
				}
				if _, err := c.Read(buf[:]); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(cpu()-before)/float64(per*conns), "cpu-ns/op")
	for _, c := range open {
		c.Close()
	}
}

func cpu() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkServer(b *testing.B) {
	b.Run("floor", func(b *testing.B) { hammer(b, rawMachine(b)) }) // client and an answer without a server
	b.Run("http1", func(b *testing.B) { hammer(b, listen(b, benchServer(http.HandlerFunc(hello)))) })
	b.Run("net-http", func(b *testing.B) { hammer(b, netHTTP(b, http.HandlerFunc(hello))) })
}

func BenchmarkProxy(b *testing.B) {
	b.Run("http1", func(b *testing.B) { hammer(b, listen(b, benchServer(newPool(b, rawMachine(b))))) })
	b.Run("net-http", func(b *testing.B) { hammer(b, netHTTP(b, reverseProxy(b, rawMachine(b)))) })
}

// BenchmarkIdle measures the cost of a connection that has had a request.
func BenchmarkIdle(b *testing.B) {
	for _, name := range []string{"http1", "net-http"} {
		b.Run(name, func(b *testing.B) {
			var addr string
			if machine := rawMachine(b); name == "http1" {
				addr = listen(b, benchServer(newPool(b, machine)))
			} else {
				addr = netHTTP(b, reverseProxy(b, machine))
			}
			const conns = 2000
			open := make([]net.Conn, 0, conns)
			before := inUse()
			for range conns {
				c, err := net.Dial("tcp", addr)
				if err != nil {
					b.Fatal(err)
				}
				open = append(open, c)
				io.WriteString(c, benchRequest)
				var buf [1 << 10]byte
				if _, err := c.Read(buf[:]); err != nil {
					b.Fatal(err)
				}
			}
			after := inUse()
			b.ReportMetric(float64(after-before)/conns, "B/conn") // the client's net.Conn is in it
			b.ReportMetric(0, "ns/op")
			for _, c := range open {
				c.Close()
			}
		})
	}
}

func inUse() uint64 {
	runtime.GC()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// BenchmarkDownload forwards a body of 64 MiB, which passes only through the kernel where the proxy
// has TCP on both sides.
func BenchmarkDownload(b *testing.B) {
	const size = 64 << 20
	part := make([]byte, 1<<20)
	head := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: %d\r\n\r\n", size)
	for _, name := range []string{"http1", "net-http"} {
		b.Run(name, func(b *testing.B) {
			machine := accept(b, func(c net.Conn) {
				defer c.Close()
				var buf [8 << 10]byte
				for {
					if _, err := c.Read(buf[:]); err != nil {
						return
					}
					io.WriteString(c, head)
					for range size / len(part) {
						if _, err := c.Write(part); err != nil {
							return
						}
					}
				}
			})
			var addr string
			if name == "http1" {
				addr = listen(b, benchServer(newPool(b, machine)))
			} else {
				addr = netHTTP(b, reverseProxy(b, machine))
			}
			c := NewConn(dial(b, addr))
			c.NetConn().SetDeadline(time.Now().Add(5 * time.Minute))
			buf := make([]byte, 1<<20)
			b.SetBytes(size)
			b.ReportAllocs()
			before := cpu()
			for b.Loop() {
				r, err := http.NewRequest(http.MethodGet, "http://a.example/", nil)
				if err != nil {
					b.Fatal(err)
				}
				resp, err := c.RoundTrip(b.Context(), r, RoundTripOptions{})
				if err != nil {
					b.Fatal(err)
				}
				if n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, resp.Body, buf); n != size || err != nil {
					b.Fatal(n, err)
				}
			}
			b.ReportMetric(float64(cpu()-before)/float64(b.N), "cpu-ns/op")
		})
	}
}
