// Package acmetest runs a real ACME server for tests, and makes self-signed certificates.
package acmetest

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/freeport"
)

// Blocked is a domain for which a Server issues nothing.
const Blocked = "blocked.example.com"

// patience bounds how long a Server may take to start.
const patience = time.Minute

// Options of a Server.
type Options struct {
	HTTPPort int           // port of domains at which it validates over HTTP
	TLSPort  int           // port of domains at which it validates over TLS
	Life     time.Duration // of its certificates
	// Resolve returns the address of a name, which has no trailing dot. A name without a valid address
	// does not exist.
	Resolve func(name string) netip.Addr
}

// Server is an ACME server on loopback, which runs until its test ends.
type Server struct {
	Address  string         // where it listens
	CertFile string         // has the certificate of the server itself
	Own      *x509.CertPool // has that certificate
	Roots    []byte         // roots of the issued certificates, in PEM
}

// Directory returns the URL that an ACME client needs.
func (s *Server) Directory() string { return "https://" + s.Address + "/dir" }

// Start starts an ACME server and waits until it responds. It skips the test if the program is
// missing; `make test` builds it. The package of the test must be two folders below the root of the
// module.
func Start(tb testing.TB, o Options) *Server {
	tb.Helper()
	program, err := filepath.Abs("../../.tools/pebble-v2.10.1")
	must(tb, err)
	if _, err := os.Stat(program); err != nil {
		tb.Skip("there is no ACME server: run make acme-server")
	}
	dir := tb.TempDir()
	file := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		must(tb, os.WriteFile(path, data, 0o600))
		return path
	}
	address, err := freeport.Address(tb.Context())
	must(tb, err)
	management, err := freeport.Address(tb.Context())
	must(tb, err)
	chain, key := SelfSigned(tb, "127.0.0.1", time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	s := &Server{Address: address, CertFile: file("cert.pem", chain), Own: x509.NewCertPool()}
	s.Own.AppendCertsFromPEM(chain)
	config, err := json.Marshal(map[string]any{"pebble": map[string]any{
		"listenAddress": address, "managementListenAddress": management,
		"certificate": s.CertFile, "privateKey": file("key.pem", key),
		"httpPort": o.HTTPPort, "tlsPort": o.TLSPort, "domainBlocklist": []string{Blocked},
		"retryAfter": map[string]int{"authz": 1, "order": 1}, "keyAlgorithm": "ecdsa",
		"profiles": map[string]any{"default": map[string]any{"description": "default", "validityPeriod": int(o.Life.Seconds())}},
	}})
	must(tb, err)
	ctx, cancel := finish.Lifetime(tb.Context())
	cmd := exec.CommandContext(ctx, program, "-config", file("config.json", config), "-dnsserver", startDNS(tb, o.Resolve))
	cmd.Env = append(os.Environ(), "PEBBLE_VA_NOSLEEP=1", "PEBBLE_AUTHZREUSE=0", "PEBBLE_WFE_NONCEREJECT=10")
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		cancel()
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
		if tb.Failed() {
			tb.Logf("the ACME server said:\n%s", said.String())
		}
	})
	s.get(tb, s.Directory())
	s.Roots = s.get(tb, "https://"+management+"/roots/0")
	return s
}

// get repeats a request until the server listens, which it does not announce.
func (s *Server) get(tb testing.TB, url string) []byte {
	tb.Helper()
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.Own}, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, url, http.NoBody)
	must(tb, err)
	for end := time.Now().Add(patience); ; <-time.After(10 * time.Millisecond) {
		answer, err := client.Do(req)
		if err == nil {
			defer answer.Body.Close()
			body, err := io.ReadAll(answer.Body)
			must(tb, err)
			return body
		}
		if time.Now().After(end) {
			tb.Fatalf("the ACME server does not start: %v", err)
		}
	}
}

// startDNS serves A records over TCP, which the ACME server uses.
func startDNS(tb testing.TB, resolve func(name string) netip.Addr) string {
	tb.Helper()
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	must(tb, err)
	started, ended := make(chan struct{}), make(chan struct{})
	server := &dns.Server{Listener: l, NotifyStartedFunc: func() { close(started) }, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		name := q.Question[0].Name
		to := resolve(strings.TrimSuffix(name, "."))
		switch {
		case !to.IsValid():
			m.Rcode = dns.RcodeNameError
		case q.Question[0].Qtype == dns.TypeA:
			m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: to.AsSlice()})
		}
		_ = w.WriteMsg(m)
	})}
	go func() {
		defer close(ended)
		_ = server.ActivateAndServe()
	}()
	<-started
	tb.Cleanup(func() {
		_ = server.Shutdown()
		<-ended
	})
	return l.Addr().String()
}

// SelfSigned makes a certificate for a name or an address, and its key, in PEM.
func SelfSigned(tb testing.TB, name string, from, until time.Time) (chain, key []byte) {
	tb.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(tb, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: from, NotAfter: until, IsCA: true, BasicConstraintsValid: true}
	if ip := net.ParseIP(name); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{name}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	must(tb, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	must(tb, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
