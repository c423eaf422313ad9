package certs_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/edge/certs"
	"github.com/hangar-platform/hangar/internal/acmetest"
	"github.com/hangar-platform/hangar/internal/freeport"
)

// authority is a real ACME server, behind a proxy that can be made to refuse. Names below
// "nowhere.example.com" do not exist; all others lead to this computer.
type authority struct {
	url     string // of its directory
	roots   *x509.CertPool
	refuse  atomic.Pointer[http.HandlerFunc] // answers requests for new orders, if there is one
	orders  atomic.Int64                     // that were made or refused
	http    string                           // where it validates over HTTP
	https   string                           // and over TLS
	stopped atomic.Bool                      // the proxy closes connections
}

// startAuthority starts an ACME server for one test, whose certificates last for life.
func startAuthority(t *testing.T, life time.Duration) *authority {
	t.Helper()
	var ports [2]int
	for i := range ports {
		var err error
		if ports[i], err = freeport.Port(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	server := acmetest.Start(t, acmetest.Options{HTTPPort: ports[0], TLSPort: ports[1], Life: life, Resolve: func(name string) netip.Addr {
		if strings.HasSuffix(name, "nowhere.example.com") {
			return netip.Addr{}
		}
		return netip.MustParseAddr("127.0.0.1")
	}})
	a := &authority{roots: x509.NewCertPool(), http: fmt.Sprintf("127.0.0.1:%d", ports[0]), https: fmt.Sprintf("127.0.0.1:%d", ports[1])}
	a.proxy(t, server)
	return a
}

// proxy stands before the server, so that it can be away and refuse.
func (a *authority) proxy(t *testing.T, to *acmetest.Server) {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: to.Own}, DisableKeepAlives: true}
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "https", Host: to.Address})
			r.Out.Host = r.In.Host
		},
		Transport: transport,
		ModifyResponse: func(r *http.Response) error {
			if r.Request.URL.Path == "/order-plz" && r.StatusCode == http.StatusCreated { // some nonces are refused
				a.orders.Add(1)
			}
			return nil
		},
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.stopped.Load() {
			panic(http.ErrAbortHandler)
		}
		if r.URL.Path == "/order-plz" {
			if refuse := a.refuse.Load(); refuse != nil {
				a.orders.Add(1)
				(*refuse)(w, r)
				return
			}
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	t.Cleanup(transport.CloseIdleConnections)
	a.roots.AddCert(server.Certificate())
	a.url = server.URL + "/dir"
}

// selfSigned makes a certificate for a name, and its key, in PEM.
func selfSigned(tb testing.TB, name string) (chain, key []byte) {
	tb.Helper()
	return acmetest.SelfSigned(tb, name, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
}

// edge listens where the authority validates, as the edge does.
func (a *authority) edge(t *testing.T, c *certs.Certs) {
	t.Helper()
	plain := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !c.Challenge(w, r) {
			http.NotFound(w, r)
		}
	}))
	secure, err := net.Listen("tcp", a.https)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", a.http)
	if err != nil {
		t.Fatal(err)
	}
	plain.Listener.Close()
	plain.Listener = l
	plain.Start()
	handshakes := tls.NewListener(secure, &tls.Config{
		NextProtos:     []string{"http/1.1", "acme-tls/1"},
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) { return c.Get(hello, false) },
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := handshakes.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).HandshakeContext(t.Context())
			conn.Close()
		}
	}()
	t.Cleanup(func() {
		plain.Close()
		secure.Close()
		<-ended
	})
}
