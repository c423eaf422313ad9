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
	"strings"
	"testing"
)

// listenTLS is listen with TLS, and a certificate that nobody knows.
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

// TestTLS: what is not TCP is served in the same way.
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

// BenchmarkIdleTLS measures what a connection with TLS costs, its client included.
func BenchmarkIdleTLS(b *testing.B) {
	addr := listenTLS(b, benchServer(http.HandlerFunc(hello)))
	const conns = 500
	open := make([]net.Conn, 0, conns)
	before := inUse()
	for range conns {
		c := dialTLS(b, addr)
		open = append(open, c)
		io.WriteString(c, benchRequest)
		var buf [1 << 10]byte
		if _, err := c.Read(buf[:]); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(inUse()-before)/conns, "B/conn-and-client")
	b.ReportMetric(0, "ns/op")
	for _, c := range open {
		c.Close()
	}
}
