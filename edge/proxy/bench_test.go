package proxy_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"

	"github.com/hangar-platform/hangar"
)

// lean answers every read with the same answer: it costs next to nothing itself.
func lean(_ int, c net.Conn) {
	buf := make([]byte, 4096)
	for {
		if _, err := c.Read(buf); err != nil {
			return
		}
		if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nContent-Length: 13\r\n\r\nHello, world!"); err != nil {
			return
		}
	}
}

// load asks over some connections, with as little effort as can be.
func load(b *testing.B, addr string) {
	b.Helper()
	const conns = 8
	b.ReportAllocs()
	b.ResetTimer()
	var all sync.WaitGroup
	for i := range conns {
		all.Go(func() {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				b.Error(err)
				return
			}
			defer c.Close()
			buf := make([]byte, 4096)
			for range b.N/conns + min(1, b.N%conns/(i+1)) {
				if _, err := io.WriteString(c, "GET /hello HTTP/1.1\r\nHost: app.apps.test\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n"); err != nil {
					b.Error(err)
					return
				}
				if _, err := c.Read(buf); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

func BenchmarkKeepAlive(b *testing.B) {
	b.Run("edge", func(b *testing.B) {
		w := newWorld(b)
		w.machine("a1", "app", w.scripted(lean), nil)
		load(b, w.addr)
	})
	b.Run("ReverseProxy", func(b *testing.B) {
		w := newWorld(b)
		to := w.scripted(lean)
		tr := &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}
		b.Cleanup(tr.CloseIdleConnections)
		l := w.listen()
		s := &http.Server{Handler: &httputil.ReverseProxy{Transport: tr, Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: to})
			r.Out.Host = r.In.Host
			r.SetXForwarded()
			h := r.Out.Header
			for _, p := range []hangar.NamePair{hangar.HeaderClientIP, hangar.HeaderRegion, hangar.HeaderRequestID, hangar.HeaderForwardedProto} {
				h.Set(p.Neutral, "value")
				h.Set(p.Original, "value")
			}
		}}}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = s.Serve(l)
		}()
		b.Cleanup(func() { _ = s.Close(); <-done })
		load(b, l.Addr().String())
	})
	b.Run("direct", func(b *testing.B) {
		w := newWorld(b)
		load(b, w.scripted(lean))
	})
}
