package listen

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"testing"

	"github.com/quic-go/quic-go/http3"

	"github.com/hangar-platform/hangar"
)

// ownNames makes two names the platform's.
func ownNames(o *Options) {
	o.Platform = func(name hangar.Hostname) bool {
		return slices.Contains([]hangar.Hostname{"api.apps.test", "oidc.apps.test"}, name)
	}
}

// TestPlatformNames: TLS for a name of the platform is served at the platform's address, and
// never by an App, whatever the App is called.
func TestPlatformNames(t *testing.T) {
	w := newWorld()
	own, shared := freePort(t), freePort(t)
	for name, address := range map[hangar.AppName]string{"shop": "v4 " + dedicated, "api": "v4 127.77.1.2"} {
		w.app(name, []string{"shared_v4 127.0.0.1", address}, service("tcp", 1, 443, "tls", "http"), service("tcp", 1, own, "tls", "http"), service("tcp", 1, shared, "tls"))
	}
	r := newRig(t, w, func(o *Options) {
		ownNames(o)
		o.Shared = netip.MustParseAddr("127.0.0.1")
	})
	_, https := r.Addrs()
	plain, _ := r.Addrs()

	for _, name := range []string{"api.apps.test", "oidc.apps.test"} {
		got := ask(t, r.tlsTo(t, https.String(), name, "http/1.1"), name)
		want := seen{TLS: true, ALPN: "http/1.1", Name: hangar.Hostname(name), Port: 443, Local: https, Host: name}
		if got != want {
			t.Errorf("%s: %+v", name, got)
		}
		if got := r.tlsTo(t, https.String(), name, "h2", "http/1.1").ConnectionState().NegotiatedProtocol; got != "h2" {
			t.Errorf("%s negotiates %q", name, got)
		}
		for what, address := range map[string]string{
			"an address of an app's own": at(dedicated, own),
			"a port of apps":             at("127.0.0.1", shared),
			"the address for plain HTTP": plain.String(),
		} {
			c := tls.Client(dial(t, "tcp", address), &tls.Config{RootCAs: w.roots, ServerName: name})
			if err := c.HandshakeContext(t.Context()); err == nil {
				t.Errorf("%s is served at %s", name, what)
			}
		}
	}
}

// TestNameless: who sends no server name is served by the platform on the port of HTTPS at an address that Apps share,
// and by no App there; nowhere else, and not at all unless the platform wants it.
func TestNameless(t *testing.T) {
	for _, wanted := range []bool{true, false} {
		w := newWorld()
		own, shared := freePort(t), freePort(t)
		w.app("shop", []string{"shared_v4 127.0.0.1", "v4 " + dedicated}, service("tcp", 1, 443, "tls", "http"), service("tcp", 1, own, "tls", "http"), service("tcp", 1, shared, "tls"))
		r := newRig(t, w, func(o *Options) {
			ownNames(o)
			o.Nameless, o.Shared = wanted, netip.MustParseAddr("127.0.0.1")
			certificate := o.Certificate
			o.Certificate = func(hello *tls.ClientHelloInfo, selfSigned bool) (*tls.Certificate, error) {
				if hello.ServerName != "" {
					return certificate(hello, selfSigned)
				}
				if !selfSigned {
					t.Error("a certificate of an authority is asked for, without a name")
				}
				named := *hello
				named.ServerName = "api.apps.test"
				return certificate(&named, false)
			}
		})
		_, https := r.Addrs()
		handshake := func(address string) (*tls.Conn, error) {
			c := tls.Client(dial(t, "tcp", address), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
			return c, c.HandshakeContext(t.Context())
		}
		c, err := handshake(https.String())
		switch {
		case (err == nil) != wanted:
			t.Errorf("served: %v, wanted: %t", err, wanted)
		case wanted:
			want := seen{TLS: true, ALPN: "http/1.1", Port: 443, Local: https, Host: "shop.apps.test"}
			if got := ask(t, c, "shop.apps.test"); got != want {
				t.Errorf("%+v", got)
			}
		}
		if _, err := handshake(at("127.0.0.1", shared)); err == nil {
			t.Error("a port of apps is served without a name")
		}
		c, err = handshake(at(dedicated, own))
		must(err)
		if got := ask(t, c, "shop.apps.test"); got.App != "shop" {
			t.Errorf("at the address of an app: %+v", got)
		}
	}
}

// TestPlatformSessions: a session of one name is not resumed with another.
func TestPlatformSessions(t *testing.T) {
	w := newWorld()
	w.app("shop", []string{"shared_v4 127.0.0.1"}, service("tcp", 1, 443, "tls", "http"))
	r := newRig(t, w, ownNames)
	_, https := r.Addrs()
	cache := tls.NewLRUClientSessionCache(10)
	resumed := func(name string) bool {
		t.Helper()
		// One key for all names: the client offers the session of another one.
		config := &tls.Config{RootCAs: w.roots, ServerName: name, ClientSessionCache: oneSession{cache}, InsecureSkipVerify: true}
		c := tls.Client(dial(t, "tcp", https.String()), config)
		if err := c.HandshakeContext(t.Context()); err != nil {
			t.Fatalf("TLS for %s: %v", name, err)
		}
		ask(t, c, name) // reads the ticket, too
		return c.ConnectionState().DidResume
	}
	for i, c := range []struct {
		name string
		want bool
	}{{"api.apps.test", false}, {"api.apps.test", true}, {"oidc.apps.test", false}, {"shop.apps.test", false}, {"api.apps.test", false}, {"api.apps.test", true}} {
		if got := resumed(c.name); got != c.want {
			t.Errorf("connection %d, for %s: resumed is %t", i, c.name, got)
		}
	}
}

// oneSession has one session for all names.
type oneSession struct{ tls.ClientSessionCache }

func (o oneSession) Get(string) (*tls.ClientSessionState, bool) { return o.ClientSessionCache.Get("") }

func (o oneSession) Put(_ string, s *tls.ClientSessionState) { o.ClientSessionCache.Put("", s) }

// TestPlatformNamesOverHTTP3: they are not served over HTTP/3, and clients are told to use
// another protocol.
func TestPlatformNamesOverHTTP3(t *testing.T) {
	w := newWorld()
	r := newRig(t, w, func(o *Options) {
		ownNames(o)
		o.HTTP3 = true
	})
	_, https := r.Addrs()
	_, port, err := net.SplitHostPort(https.String())
	must(err)
	transport := &http3.Transport{TLSClientConfig: &tls.Config{RootCAs: w.roots, ServerName: "api.apps.test"}, QUICConfig: patient()}
	defer transport.Close()
	client := &http.Client{Transport: transport, Timeout: patience}
	answer, err := client.Get("https://127.0.0.1:" + port + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("answered %d", answer.StatusCode)
	}
}
