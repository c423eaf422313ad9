package listen

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// patient is how a client connects to a server that may be slow.
func patient() *quic.Config {
	return &quic.Config{HandshakeIdleTimeout: patience, MaxIdleTimeout: patience}
}

// deaf is the socket of a client that forges its source address: replies go to that address.
type deaf struct {
	net.PacketConn
	answered func()
}

func (d *deaf) ReadFrom(p []byte) (int, net.Addr, error) {
	for {
		if _, _, err := d.PacketConn.ReadFrom(p); err != nil {
			return 0, nil, err
		}
		d.answered()
	}
}

// TestForgedAddressesOverHTTP3: packets from an unproven address cost that address nothing, and
// no name anything.
func TestForgedAddressesOverHTTP3(t *testing.T) {
	const victim = "127.66.6.6"
	w := newWorld()
	w.app("shop", []string{"shared_v4 127.0.0.1"}, service("tcp", 1, 443, "tls", "http"))
	r := newRig(t, w, func(o *Options) {
		o.HTTP3, o.Limits.ClientRate, o.Limits.NameRate, o.Limits.ClientConns = true, 1, 2, 3
	})
	_, https := r.Addrs()
	config := &tls.Config{RootCAs: w.roots, ServerName: "shop.apps.test", NextProtos: []string{http3.NextProtoH3}}
	to := net.UDPAddrFromAddrPort(https)
	var flood sync.WaitGroup
	for range 4 * burst {
		flood.Go(func() {
			inner, err := net.ListenPacket("udp4", at(victim, 0))
			must(err)
			defer inner.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			transport := &quic.Transport{Conn: &deaf{inner, cancel}}
			defer transport.Close()
			if c, err := transport.Dial(ctx, to, config, nil); err == nil {
				t.Error("who hears nothing is connected")
				_ = c.CloseWithError(0, "")
			}
		})
	}
	flood.Wait()
	inner, err := net.ListenPacket("udp4", at(victim, 0))
	must(err)
	defer inner.Close()
	transport := &quic.Transport{Conn: inner}
	defer transport.Close()
	for range 2 {
		c, err := transport.Dial(t.Context(), to, config, patient())
		if err != nil {
			t.Fatal(err)
		}
		must(c.CloseWithError(0, ""))
	}
	secure, err := from(victim, https.String())
	must(err)
	defer secure.Close()
	if err := tls.Client(secure, &tls.Config{RootCAs: w.roots, ServerName: "shop.apps.test"}).Handshake(); err != nil {
		t.Error(err)
	}
}

// TestHeadersOverHTTP3 are bounded as those over HTTP/1 are.
func TestHeadersOverHTTP3(t *testing.T) {
	w := newWorld()
	w.app("shop", []string{"shared_v4 127.0.0.1"}, service("tcp", 1, 443, "tls", "http"))
	var served atomic.Int32
	r := newRig(t, w, func(o *Options) {
		o.HTTP3, o.MaxHeaderBytes = true, 20_000
		inner := o.ServeRequest
		o.ServeRequest = func(w http.ResponseWriter, r *http.Request, e Entry) {
			served.Add(1)
			inner(w, r, e)
		}
	})
	_, https := r.Addrs()
	transport := &http3.Transport{TLSClientConfig: &tls.Config{RootCAs: w.roots, ServerName: "shop.apps.test"}, QUICConfig: patient()}
	defer transport.Close()
	for size, status := range map[int]int{10_000: http.StatusOK, 30_000: http.StatusRequestHeaderFieldsTooLarge} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+https.String()+"/", nil)
		must(err)
		request.Header.Set("X-Large", strings.Repeat("#", size)) // which takes the code of HPACK a byte and more
		answer, err := transport.RoundTrip(request)
		if err != nil {
			t.Errorf("%d bytes: %v", size, err)
			continue
		}
		must(answer.Body.Close())
		if answer.StatusCode != status {
			t.Errorf("%d bytes are answered with %d", size, answer.StatusCode)
		}
	}
	if n := served.Load(); n != 1 {
		t.Errorf("%d requests were served", n)
	}
}
