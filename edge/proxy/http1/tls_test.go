package http1

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
)

// listenTLS is listen with TLS, and a certificate that no client trusts.
func listenTLS(tb testing.TB, s *Server) string {
	tb.Helper()
	ts := httptest.NewUnstartedServer(nil)
	ts.StartTLS()
	config := &tls.Config{Certificates: ts.TLS.Certificates}
	ts.Close()
	return accept(tb, func(c net.Conn) {
		tc := tls.Server(c, config)
		if err := tc.HandshakeContext(tb.Context()); err != nil {
			c.Close()
			return
		}
		s.ServeConn(context.Background(), tc)
	})
}

func dialTLS(tb testing.TB, addr string) *tls.Conn {
	tb.Helper()
	return tls.Client(dial(tb, addr), &tls.Config{InsecureSkipVerify: true})
}

// TestTLS: a connection that is not TCP is served in the same way.
func TestTLS(t *testing.T) {
	gone := make(chan struct{})
	addr := listenTLS(t, quick(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || !r.TLS.HandshakeComplete {
			t.Error("the request does not know of TLS")
		}
		if r.URL.Path == "/wait" {
			<-r.Context().Done()
			close(gone)
			return
		}
		r.Context().Done()
		io.Copy(w, r.Body)
		fmt.Fprint(w, r.URL.Path)
	}))
	c := NewConn(dialTLS(t, addr))
	for _, size := range []int{0, 1, 5000, 1 << 20} {
		for range 3 {
			body := bytes.Repeat([]byte("x"), size)
			r := newRequest(t, "POST", bytes.NewReader(body))
			resp, err := c.RoundTrip(context.Background(), r, RoundTripOptions{})
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			if err != nil || string(b) != string(body)+"/" || !c.Reusable() {
				t.Errorf("%d bytes came back as %d, %v", size, len(b), err)
			}
		}
	}

	pipelined := dialTLS(t, addr)
	io.WriteString(pipelined, strings.Repeat(get(""), 50)+get("X : y\r\n"))
	br := bufio.NewReader(pipelined)
	for i := range 51 {
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		if refused := resp.StatusCode == http.StatusBadRequest; refused != (i == 50) {
			t.Errorf("answer %d is %s", i, resp.Status)
		}
	}
	if _, err := br.ReadByte(); err != io.EOF {
		t.Error(err)
	}

	waits := dialTLS(t, addr)
	io.WriteString(waits, "GET /wait HTTP/1.1\r\n"+h11+"\r\n")
	waits.Close()
	<-gone
}

// BenchmarkIdleTLS measures the memory of a connection with TLS in a proxy, after a request: live
// memory, and that of the process before and after a collection of garbage, most of which is from
// handshakes. The client's half is its socket.
func BenchmarkIdleTLS(b *testing.B) {
	addr := listenTLS(b, benchServer(newPool(b, rawMachine(b))))
	const conns = 1000
	open := make([]net.Conn, 0, conns)
	inUse()
	var none, fresh, rested runtime.MemStats
	runtime.ReadMemStats(&none)
	for range conns {
		c := dial(b, addr)
		open = append(open, c)
		secure := tls.Client(c, &tls.Config{InsecureSkipVerify: true})
		io.WriteString(secure, benchRequest)
		var buf [1 << 10]byte
		if _, err := secure.Read(buf[:]); err != nil {
			b.Fatal(err)
		}
	}
	runtime.ReadMemStats(&fresh)
	inUse()
	runtime.ReadMemStats(&rested)
	b.ReportMetric(float64(rested.HeapAlloc-none.HeapAlloc)/conns, "heap-B/conn")
	b.ReportMetric(float64(rested.StackInuse-none.StackInuse)/conns, "stack-B/conn")
	b.ReportMetric(float64(fresh.HeapInuse+fresh.StackInuse-none.HeapInuse-none.StackInuse)/conns, "fresh-B/conn")
	b.ReportMetric(float64(rested.HeapInuse+rested.StackInuse-none.HeapInuse-none.StackInuse)/conns, "B/conn")
	b.ReportMetric(0, "ns/op")
	for _, c := range open {
		c.Close()
	}
}
