package certs_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hangar-platform/hangar/edge/certs"
)

// authority is a real ACME server, behind a proxy that can be told to refuse. Names below
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

// freePort returns a port that nobody listens at.
func freePort(tb testing.TB) int {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// startAuthority starts an ACME server for one test, whose certificates last for life.
// `make test` builds it.
func startAuthority(t *testing.T, life time.Duration) *authority {
	t.Helper()
	program, err := filepath.Abs("../../.tools/pebble-v2.10.1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		t.Skip("there is no ACME server: run make acme-server")
	}
	dir := t.TempDir()
	chain, key := selfSigned(t, "127.0.0.1")
	for name, data := range map[string][]byte{"cert.pem": chain, "key.pem": key} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a := &authority{roots: x509.NewCertPool()}
	httpPort, httpsPort, port, management := freePort(t), freePort(t), freePort(t), freePort(t)
	local := func(port int) string { return net.JoinHostPort("127.0.0.1", big.NewInt(int64(port)).String()) }
	a.http, a.https = local(httpPort), local(httpsPort)
	config, err := json.Marshal(map[string]any{"pebble": map[string]any{
		"listenAddress": local(port), "managementListenAddress": local(management),
		"certificate": filepath.Join(dir, "cert.pem"), "privateKey": filepath.Join(dir, "key.pem"),
		"httpPort": httpPort, "tlsPort": httpsPort, "domainBlocklist": []string{"blocked.example.com"},
		"retryAfter": map[string]int{"authz": 1, "order": 1}, "keyAlgorithm": "ecdsa",
		"profiles": map[string]any{"default": map[string]any{"description": "default", "validityPeriod": int(life.Seconds())}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, program, "-config", filepath.Join(dir, "config.json"), "-dnsserver", startDNS(t))
	cmd.Env = append(os.Environ(), "PEBBLE_VA_NOSLEEP=1", "PEBBLE_AUTHZREUSE=0", "PEBBLE_WFE_NONCEREJECT=10")
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the ACME server said:\n%s", said.String())
		}
	})
	for end := time.Now().Add(10 * time.Second); ; {
		conn, err := net.Dial("tcp", local(port))
		if err == nil {
			conn.Close()
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the ACME server does not start: %v", err)
		}
		time.Sleep(10 * time.Millisecond) // it tells nobody when it listens
	}
	a.proxy(t, local(port), chain)
	return a
}

// proxy stands before the server, so that it can be away and refuse.
func (a *authority) proxy(t *testing.T, to string, chain []byte) {
	t.Helper()
	own := x509.NewCertPool()
	own.AppendCertsFromPEM(chain)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: own}, DisableKeepAlives: true}
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "https", Host: to})
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

// startDNS serves A records for all names but some, over TCP as the ACME server asks.
func startDNS(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{Listener: l, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg)
		m.SetReply(q)
		name := q.Question[0].Name
		switch {
		case strings.HasSuffix(name, "nowhere.example.com."):
			m.Rcode = dns.RcodeNameError
		case q.Question[0].Qtype == dns.TypeA:
			m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.IPv4(127, 0, 0, 1)})
		}
		_ = w.WriteMsg(m)
	})}
	started := make(chan struct{})
	server.NotifyStartedFunc = func() { close(started) }
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.ActivateAndServe()
	}()
	<-started
	t.Cleanup(func() {
		_ = server.Shutdown()
		<-ended
	})
	return l.Addr().String()
}

// selfSigned makes a certificate for a name or an address, and its key, in PEM.
func selfSigned(tb testing.TB, name string) (chain, key []byte) {
	tb.Helper()
	return signed(tb, name, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
}

func signed(tb testing.TB, name string, from, until time.Time) (chain, key []byte) {
	tb.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: from, NotAfter: until, IsCA: true, BasicConstraintsValid: true}
	if ip := net.ParseIP(name); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{name}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		tb.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		tb.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
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
