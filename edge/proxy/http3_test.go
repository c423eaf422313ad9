package proxy_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/listen"
)

// http3 returns a client that speaks HTTP/3.
func (w *world) http3() *http.Client {
	w.t.Helper()
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	at := socket.LocalAddr().(*net.UDPAddr).AddrPort()
	server := &http3.Server{TLSConfig: http3.ConfigureTLSConfig(serverTLS(w.t)), Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.proxy.ServeRequest(rw, r, listen.Entry{Local: at, Remote: at, Port: 443, TLS: r.TLS, ServerName: hangar.Canonical(r.TLS.ServerName)})
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(socket)
	}()
	transport := &http3.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableCompression: true,
		Dial: func(ctx context.Context, _ string, config *tls.Config, q *quic.Config) (*quic.Conn, error) {
			return quic.DialAddrEarly(ctx, at.String(), config, q)
		},
	}
	w.t.Cleanup(func() {
		_ = transport.Close()
		_ = server.Close()
		_ = socket.Close()
		<-done
	})
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

// TestBodiesOverHTTP3: a request whose client sends no body has none for the Machine either, although HTTP/3
// tells only at its end.
func TestBodiesOverHTTP3(t *testing.T) {
	w := newWorld(t)
	w.machine("a1", "app", w.backend(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		fmt.Fprintf(rw, "%v %d %q %q %v", r.TransferEncoding, r.ContentLength, body, r.Trailer.Get("X-Client"), err)
	}), nil)
	c := w.http3()
	for _, test := range []struct {
		method, body string
		length       int64
		want         string
	}{
		{"GET", "", 0, `[] 0 "" "" <nil>`},
		{"DELETE", "", 0, `[] 0 "" "" <nil>`},
		{"GET", "hello", -1, `[chunked] -1 "hello" "" <nil>`},
		{"GET", "hello", 5, `[] 5 "hello" "" <nil>`},
		{"POST", "hello", -1, `[chunked] -1 "hello" "" <nil>`},
	} {
		r := w.request(test.method, "https://app.apps.test/", nil)
		if test.body != "" {
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(test.body)), test.length
		}
		if got := w.do(c, r); got.body != test.want {
			t.Errorf("%s of %q, length %d: got %s, want %s", test.method, test.body, test.length, got.body, test.want)
		}
	}
	r := w.request("POST", "https://app.apps.test/", io.MultiReader(strings.NewReader("hello")))
	r.Trailer = http.Header{"X-Client": {"trailer"}}
	if got, want := w.do(c, r).body, `[chunked] -1 "hello" "trailer" <nil>`; got != want {
		t.Errorf("with a trailer: got %s, want %s", got, want)
	}
}

// TestHeadOverHTTP3: the edge does not tell a length that the Machine did not.
func TestHeadOverHTTP3(t *testing.T) {
	w := newWorld(t)
	w.machine("a1", "app", w.backend(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/known" {
			rw.Header().Set("Content-Length", "7")
		}
		rw.(http.Flusher).Flush()
	}), nil)
	c := w.http3()
	for path, want := range map[string]string{"/": "[]", "/known": "[7]"} {
		if got := w.do(c, w.request("HEAD", "https://app.apps.test"+path, nil)); fmt.Sprint(got.Header["Content-Length"]) != want {
			t.Errorf("%s: got %v", path, got.Header)
		}
	}
}
