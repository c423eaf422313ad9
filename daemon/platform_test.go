package daemon

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// certificateFor makes a certificate that signs itself, in PEM.
func certificateFor(t *testing.T, name string) (chain, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{name}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

// TestAPIFilesAreReloaded: a certificate that is renewed takes effect at once, and one that is
// half written, or missing, leaves the one before.
func TestAPIFilesAreReloaded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := Config{TLSCert: filepath.Join(dir, "cert.pem"), TLSKey: filepath.Join(dir, "key.pem")}
	if _, err := c.apiTLS(nil, slog.New(slog.DiscardHandler)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without files: %v", err)
	}
	version := time.Now().Add(-time.Hour)
	write := func(path string, content []byte) {
		t.Helper()
		version = version.Add(time.Second)
		if err := errors.Join(os.WriteFile(path, content, 0o600), os.Chtimes(path, version, version)); err != nil {
			t.Fatal(err)
		}
	}
	firstCert, firstKey := certificateFor(t, "first.example")
	write(c.TLSCert, firstCert)
	write(c.TLSKey, []byte("no key"))
	if _, err := c.apiTLS(nil, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("what is no key is taken")
	}
	write(c.TLSKey, firstKey)
	config, err := c.apiTLS(nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	expect := func(when, name string) {
		t.Helper()
		pair, err := config.GetCertificate(&tls.ClientHelloInfo{ServerName: "whatever"})
		if err != nil || pair.Leaf.DNSNames[0] != name {
			t.Errorf("%s: %v, %v", when, pair, err)
		}
	}
	expect("at first", "first.example")
	secondCert, secondKey := certificateFor(t, "second.example")
	write(c.TLSCert, secondCert)
	expect("with the key before", "first.example")
	write(c.TLSKey, secondKey)
	expect("renewed", "second.example")
	if err := os.Remove(c.TLSCert); err != nil {
		t.Fatal(err)
	}
	expect("without the file", "second.example")
	write(c.TLSCert, firstCert[:len(firstCert)/2])
	expect("with half of it", "second.example")
	write(c.TLSCert, firstCert)
	write(c.TLSKey, firstKey)
	expect("put back", "first.example")
}

// TestTLSBeyondThisServer: commands on the server reach the API as ever, and what comes from
// elsewhere has to speak TLS.
func TestTLSBeyondThisServer(t *testing.T) {
	t.Parallel()
	pair := func(local, remote string) net.Conn {
		return addressed{local: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(local)), remote: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(remote))}
	}
	for _, c := range []struct {
		local, remote string
		plain         bool
	}{
		{"127.0.0.1:4280", "127.0.0.1:5000", true},
		{"127.0.0.1:4280", "127.0.0.2:5000", true},
		{"[::1]:4280", "[::1]:5000", true},
		{"10.0.0.5:4280", "10.0.0.5:5000", true},
		{"[::ffff:10.0.0.5]:4280", "10.0.0.5:5000", true},
		{"10.0.0.5:4280", "10.0.0.6:5000", false},
		{"[fdaa::3]:4280", "[fdaa:0:1::2]:5000", false},
		{"127.0.0.1:4280", "10.0.0.5:5000", false},
	} {
		got, err := tlsBeyond{one{pair(c.local, c.remote)}, &tls.Config{}}.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if _, secure := got.(*tls.Conn); secure == c.plain {
			t.Errorf("from %s to %s: TLS is %t", c.remote, c.local, secure)
		}
	}
}

// addressed is a connection of which only the addresses matter.
type addressed struct {
	net.Conn
	local, remote net.Addr
}

func (a addressed) LocalAddr() net.Addr { return a.local }

func (a addressed) RemoteAddr() net.Addr { return a.remote }

// one is a listener with one connection.
type one struct{ conn net.Conn }

func (o one) Accept() (net.Conn, error) { return o.conn, nil }
func (one) Close() error                { return nil }
func (one) Addr() net.Addr              { return &net.TCPAddr{} }

// TestPlatformHandlers: each name serves its part, and nothing else.
func TestPlatformHandlers(t *testing.T) {
	t.Parallel()
	var path, token string
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, token = r.URL.RequestURI(), r.Header.Get("Authorization")
		if r.RequestURI != path {
			t.Errorf("the target is %q, and the URL %q", r.RequestURI, path)
		}
		_, _ = io.WriteString(w, "ok")
	})
	handlers := platformHandlers(t.Context(), "example.com", api)
	if len(handlers) != 3 {
		t.Errorf("there are %d names", len(handlers))
	}
	for _, c := range []struct {
		host, target string
		want         string // what the API is asked; empty: nothing
	}{
		{"api.example.com", "/v1/apps?x=1", "/v1/apps?x=1"},
		{"api.example.com", "/v2/", "/v2/"},
		{"api.example.com", "/oidc/acme/.well-known/jwks", "/oidc/acme/.well-known/jwks"},
		{"registry.example.com", "/v2", "/v2"},
		{"registry.example.com", "/v2/acme/app/manifests/v1", "/v2/acme/app/manifests/v1"},
		{"registry.example.com", "/v2x", ""},
		{"registry.example.com", "/v1/apps", ""},
		{"registry.example.com", "/", ""},
		{"oidc.example.com", "/acme/.well-known/openid-configuration", "/oidc/acme/.well-known/openid-configuration"},
		{"oidc.example.com", "/acme/.well-known/jwks?x=1", "/oidc/acme/.well-known/jwks?x=1"},
		{"oidc.example.com", "/oidc/acme/.well-known/jwks", ""},
		{"oidc.example.com", "/acme/.well-known/other", ""},
		{"oidc.example.com", "/..%2fv1/.well-known/jwks", ""},
		{"oidc.example.com", "/../v1/.well-known/jwks", ""},
		{"oidc.example.com", "/v1/apps", ""},
	} {
		path, token = "", ""
		r := httptest.NewRequest(http.MethodGet, "https://"+c.host+c.target, nil)
		r.RequestURI = c.target
		r.Header.Set("Authorization", "Bearer secret")
		w := httptest.NewRecorder()
		for name, handler := range handlers {
			if string(name) == c.host {
				handler.ServeHTTP(w, r)
			}
		}
		if path != c.want || (w.Code == http.StatusOK) != (c.want != "") {
			t.Errorf("%s%s: the API is asked for %q, want %q; answered %d", c.host, c.target, path, c.want, w.Code)
		}
		if c.host == "oidc.example.com" && token != "" {
			t.Errorf("%s%s: the token goes on", c.host, c.target)
		}
	}
}

// TestPlatformRequestsEnd: what would never end by itself ends with the daemon, and what is
// being answered gets its time.
func TestPlatformRequestsEnd(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	entered := make(chan struct{})
	ended := make(chan error, 1)
	handler := endingWith(ctx, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-ctx.Done()
		if r.Context().Err() != nil {
			t.Error("a request gets no time")
		}
		<-r.Context().Done()
		ended <- context.Cause(r.Context())
	}))
	go handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	<-entered
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ends with %v", err)
	}
}

func TestPlatformURL(t *testing.T) {
	t.Parallel()
	c := Config{Domain: "example.com"}
	for port, want := range map[uint16]string{443: "https://oidc.example.com", 8443: "https://oidc.example.com:8443"} {
		at := netip.AddrPortFrom(netip.IPv4Unspecified(), port)
		if got := c.oidcURL(at); got != want {
			t.Errorf("port %d: %s", port, got)
		}
		if got, want := c.platformHost(hangar.PlatformRegistry, at), strings.Replace(want, "https://oidc", "registry", 1); got != want {
			t.Errorf("port %d: images begin with %s, want %s", port, got, want)
		}
	}
	c.OIDC = "https://id.example.com/x/"
	if got := c.oidcURL(netip.AddrPort{}); got != "https://id.example.com/x" {
		t.Errorf("the one that was given: %s", got)
	}
}
