package listen

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	proxyproto "github.com/pires/go-proxyproto"
	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
)

func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) != "" {
		play(os.Getenv(roleEnv))
		return
	}
	goleak.VerifyTestMain(m)
}

// Addresses of Apps in these tests. All of 127.0.0.0/8 is the host's.
const (
	dedicated  = "127.77.1.1"
	dedicated2 = "127.77.1.2"
)

func at(ip string, port int) string { return net.JoinHostPort(ip, fmt.Sprint(port)) }

// tlsTo begins TLS.
func (r *rig) tlsTo(t *testing.T, address, name string, alpn ...string) *tls.Conn {
	t.Helper()
	c := tls.Client(dial(t, "tcp", address), &tls.Config{RootCAs: r.world.roots, ServerName: name, NextProtos: alpn})
	if err := c.HandshakeContext(t.Context()); err != nil {
		t.Fatalf("TLS for %s: %v", name, err)
	}
	return c
}

func TestHandlersOfADedicatedAddress(t *testing.T) {
	w := newWorld()
	plain, secure, web, secureWeb, told1, told2 := freePort(t), freePort(t), freePort(t), freePort(t), freePort(t), freePort(t)
	v2 := service("tcp", 2, told2, "proxy_proto", "tls")
	v2.Ports[0].ProxyProto = &hangar.ProxyProtoOptions{Version: "v2"}
	w.echo(t, 1, "hello ")
	w.listen(t, 2, func(conn net.Conn) { // says what a PROXY header said
		c := proxyproto.NewConn(conn)
		b, _ := io.ReadAll(c)
		h := c.ProxyHeader()
		_, _ = fmt.Fprintf(conn, "v%d %s %s %s", h.Version, h.SourceAddr.(*net.TCPAddr).IP, h.DestinationAddr, b)
	})
	w.app("shop", []string{"v4 " + dedicated, "v6 ::1"},
		service("tcp", 1, plain), service("tcp", 1, secure, "tls"), service("tcp", 1, web, "http"),
		service("tcp", 1, secureWeb, "tls", "http"), service("tcp", 2, told1, "proxy_proto"), v2)
	r := newRig(t, w, nil)

	for _, ip := range []string{dedicated, "::1"} {
		if got := exchange(t, dial(t, "tcp", at(ip, plain)), "world"); got != "hello world" {
			t.Errorf("plain: %q", got)
		}
		if got := exchange(t, r.tlsTo(t, at(ip, secure), "shop.apps.test"), "world"); got != "hello world" {
			t.Errorf("tls: %q", got)
		}
		want := seen{App: "shop", Port: web, Local: netip.MustParseAddrPort(at(ip, web)), Host: "any"}
		if got := ask(t, dial(t, "tcp", at(ip, web)), "any"); got != want {
			t.Errorf("http: %+v", got)
		}
		want = seen{App: "shop", Port: secureWeb, Local: netip.MustParseAddrPort(at(ip, secureWeb)), Host: "any", TLS: true, ALPN: "http/1.1", Name: "shop.apps.test"}
		if got := ask(t, r.tlsTo(t, at(ip, secureWeb), "shop.apps.test", "http/1.1"), "any"); got != want {
			t.Errorf("tls and http: %+v", got)
		}
		if got := r.tlsTo(t, at(ip, secureWeb), "shop.apps.test", "h2", "http/1.1").ConnectionState().NegotiatedProtocol; got != "h2" {
			t.Errorf("negotiated %q", got)
		}
	}
	if got, want := exchange(t, dial(t, "tcp", at(dedicated, told1)), "text"), fmt.Sprintf("v1 127.0.0.1 %s text", at(dedicated, told1)); got != want {
		t.Errorf("proxy_proto: %q, want %q", got, want)
	}
	if got, want := exchange(t, r.tlsTo(t, at("::1", told2), "shop.apps.test"), "text"), fmt.Sprintf("v2 ::1 %s text", at("::1", told2)); got != want {
		t.Errorf("proxy_proto v2: %q, want %q", got, want)
	}
}

func TestSharedAddress(t *testing.T) {
	w := newWorld()
	more := freePort(t)
	w.echo(t, 1, "hello ")
	w.app("shop", []string{"shared_v4 127.0.0.1"}, service("tcp", 1, 80, "http"), service("tcp", 1, 443, "tls", "http"), service("tcp", 1, more, "tls"))
	w.app("raw", []string{"shared_v4 127.0.0.1"}, service("tcp", 1, 443))
	w.app("closed", nil, service("tcp", 1, 443, "tls", "http"))
	r := newRig(t, w, nil)
	plain, https := r.Addrs()
	if got, want := ask(t, dial(t, "tcp", plain.String()), "shop.apps.test"), (seen{Port: 80, Local: plain, Host: "shop.apps.test"}); got != want {
		t.Errorf("http: %+v", got)
	}
	want := seen{Port: 443, TLS: true, Name: "shop.apps.test", Local: https, Host: "shop.apps.test"}
	if got := ask(t, r.tlsTo(t, https.String(), "shop.apps.test"), "shop.apps.test"); got != want {
		t.Errorf("https: %+v", got)
	}
	if got := exchange(t, r.tlsTo(t, at("127.0.0.1", more), "shop.apps.test"), "world"); got != "hello world" {
		t.Errorf("another port: %q", got)
	}
	for _, name := range []string{"raw.apps.test", "closed.apps.test", "nobody.test", ""} {
		c := tls.Client(dial(t, "tcp", https.String()), &tls.Config{ServerName: name, InsecureSkipVerify: true})
		if err := c.HandshakeContext(t.Context()); err == nil {
			t.Errorf("TLS for %q succeeds", name)
		} else if unknown := name != "raw.apps.test"; unknown != strings.Contains(err.Error(), "unrecognized name") {
			t.Errorf("TLS for %q ends with %v", name, err)
		}
	}
	w.logged(t, "raw error [PR01]")
}

// A connection that the App has no service for, or whose Machine fails, does not end as if all
// was well.
func TestFailuresAreResets(t *testing.T) {
	w := newWorld()
	dead, dies := freePort(t), freePort(t)
	w.mu.Lock()
	w.backends[1] = "127.0.0.1:1"
	w.mu.Unlock()
	w.listen(t, 2, func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1))
		_ = conn.(*net.TCPConn).SetLinger(0)
	})
	w.app("shop", []string{"v4 " + dedicated}, service("tcp", 1, dead), service("tcp", 2, dies))
	newRig(t, w, nil)
	for _, port := range []int{dead, dies} {
		c := dial(t, "tcp", at(dedicated, port))
		_, err := c.Write([]byte("x"))
		if err == nil { // it may be reset by now
			_, err = io.ReadAll(c)
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("port %d ends with %v", port, err)
		}
	}
	w.logged(t, "shop error [PC01] nothing listens on port 1 of machine")
	w.emptied(t, 0)
}

// Sockets come and go with Apps, and connections stay.
func TestSocketsFollowApps(t *testing.T) {
	w := newWorld()
	one, two := freePort(t), freePort(t)
	w.echo(t, 1, "")
	w.app("shop", []string{"v4 " + dedicated}, service("tcp", 1, one), service("tcp", 1, two))
	taken, err := net.Listen("tcp", at("127.77.1.2", two))
	must(err)
	newRig(t, w, nil)
	c := dial(t, "tcp", at(dedicated, one))
	_, err = c.Write([]byte("x"))
	must(err)
	_, err = c.Read(make([]byte, 1))
	must(err)
	w.app("shop", []string{"v4 127.77.1.2"})
	dial(t, "tcp", at("127.77.1.2", one))
	w.logged(t, "shop error [PP01] cannot listen on tcp "+at("127.77.1.2", two))
	refuses(t, at(dedicated, one))
	if got := exchange(t, c, "still there"); got != "still there" {
		t.Errorf("the connection says %q", got)
	}
	must(taken.Close())
	w.app("other", nil)
	dial(t, "tcp", at("127.77.1.2", two))
}

func TestTLSOptions(t *testing.T) {
	w := newWorld()
	yes := true
	old, pinned, self := service("tcp", 1, 1, "tls"), service("tcp", 1, 1, "tls"), service("tcp", 1, 1, "tls")
	old.Ports[0] = hangar.ServicePort{Port: freePort(t), Handlers: []string{"tls"}, TLS: &hangar.TLSOptions{Versions: []string{"TLSv1.2"}}}
	pinned.Ports[0] = hangar.ServicePort{Port: freePort(t), Handlers: []string{"tls"}, TLS: &hangar.TLSOptions{Versions: []string{"TLSv1.3"}, ALPN: []string{"mine"}}}
	self.Ports[0] = hangar.ServicePort{Port: freePort(t), Handlers: []string{"tls"}, TLS: &hangar.TLSOptions{DefaultSelfSigned: &yes}}
	w.echo(t, 1, "")
	w.app("shop", []string{"v4 " + dedicated}, old, pinned, self)
	r := newRig(t, w, nil)
	if got := r.tlsTo(t, at(dedicated, old.Ports[0].Port), "shop.apps.test").ConnectionState().Version; got != tls.VersionTLS12 {
		t.Errorf("version %x", got)
	}
	state := r.tlsTo(t, at(dedicated, pinned.Ports[0].Port), "shop.apps.test", "other", "mine").ConnectionState()
	if state.Version != tls.VersionTLS13 || state.NegotiatedProtocol != "mine" {
		t.Errorf("version %x, protocol %q", state.Version, state.NegotiatedProtocol)
	}
	for port, want := range map[int]bool{self.Ports[0].Port: true, pinned.Ports[0].Port: false} {
		c := tls.Client(dial(t, "tcp", at(dedicated, port)), &tls.Config{ServerName: "example.org", InsecureSkipVerify: true})
		if err := c.HandshakeContext(t.Context()); (err == nil) != want {
			t.Errorf("port %d for an unknown name: %v", port, err)
		}
	}
	w.logged(t, "shop error [PT05] there is no certificate for example.org: unknown name")
	w.app("other", []string{"shared_v4 127.0.0.1"})
	for _, ok := r.o.Routes.ByHostname("other.apps.test"); !ok; _, ok = r.o.Routes.ByHostname("other.apps.test") {
		time.Sleep(time.Millisecond)
	}
	theirs := tls.Client(dial(t, "tcp", at(dedicated, self.Ports[0].Port)), &tls.Config{RootCAs: w.roots, ServerName: "other.apps.test"})
	if theirs.HandshakeContext(t.Context()) == nil {
		t.Error("an app is served with the certificate of another")
	}
	c := dial(t, "tcp", at(dedicated, pinned.Ports[0].Port))
	_, err := io.WriteString(c, "GET / HTTP/1.1\r\n\r\n")
	must(err)
	w.logged(t, "shop error [PT03]")
}

// A session is resumed after a restart, but not with another App.
func TestSessionsAreResumed(t *testing.T) {
	w := newWorld()
	w.echo(t, 1, "")
	w.app("shop", []string{"shared_v4 127.0.0.1"}, service("tcp", 1, 443, "tls"))
	w.app("other", []string{"shared_v4 127.0.0.1"}, service("tcp", 1, 443, "tls"))
	tickets := t.TempDir() + "/tickets"
	sessions := tls.NewLRUClientSessionCache(10)
	begin := func(name, as string) bool {
		r := newRig(t, w, func(o *Options) { o.Tickets = tickets })
		defer r.stop()
		_, https := r.Addrs()
		c := tls.Client(dial(t, "tcp", https.String()), &tls.Config{
			RootCAs: w.roots, ServerName: name, ClientSessionCache: renamed{sessions, as}, InsecureSkipVerify: true,
		})
		must(c.HandshakeContext(t.Context()))
		exchange(t, c, "x") // the ticket comes with what is read
		return c.ConnectionState().DidResume
	}
	if begin("shop.apps.test", "shop") {
		t.Error("the first session is resumed")
	}
	if !begin("shop.apps.test", "shop") {
		t.Error("the session is not resumed")
	}
	if begin("other.apps.test", "shop") {
		t.Error("the session is resumed with another app")
	}
	info, err := os.Stat(tickets)
	must(err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("keys have mode %v", info.Mode())
	}
}

// renamed has all sessions under one name.
type renamed struct {
	tls.ClientSessionCache
	name string
}

func (r renamed) Get(string) (*tls.ClientSessionState, bool) {
	return r.ClientSessionCache.Get(r.name)
}

func (r renamed) Put(_ string, session *tls.ClientSessionState) {
	r.ClientSessionCache.Put(r.name, session)
}

// TestTicketKeysRotateWhileUsed: who rotates keys and who makes a configuration with them do not
// wait for each other.
func TestTicketKeysRotateWhileUsed(t *testing.T) {
	k, c := &ticketKeys{}, &configs{}
	now := time.Now()
	must(k.open(now))
	done := make(chan struct{})
	go func() {
		defer close(done)
		var making sync.WaitGroup
		for i := range 2000 {
			making.Go(func() {
				c.get(configKey{name: hangar.AppName(fmt.Sprint(i))}, func(configKey) *tls.Config {
					k.of("shop")
					return &tls.Config{}
				})
			})
			k.rotate(now.Add(time.Duration(i+1)*keyRotation), nil, c.clear)
		}
		making.Wait()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("they wait for each other")
	}
}

func TestTicketKeysRotate(t *testing.T) {
	k := &ticketKeys{path: t.TempDir() + "/keys"}
	now := time.Now()
	must(k.open(now))
	first := k.of("shop")[0]
	for day := 1; day <= 4; day++ {
		k.rotate(now.Add(time.Duration(day)*keyRotation), nil, func() {})
		again := &ticketKeys{path: k.path}
		must(again.open(now.Add(time.Duration(day) * keyRotation)))
		keys := again.of("shop")
		if want := min(day+1, keysKept); len(keys) != want || keys[0] == first {
			t.Errorf("day %d has %d keys", day, len(keys))
		}
		if still := keys[len(keys)-1] == first; still != (day < keysKept) {
			t.Errorf("day %d has the first key: %v", day, still)
		}
	}
	must(os.WriteFile(k.path, []byte(`{"broken`), 0o600))
	must(k.open(now))
	if len(k.of("shop")) != 1 {
		t.Error("a broken file is not replaced")
	}
}

func TestFlycast(t *testing.T) {
	// Bound although no interface has it; no packet can come, but a socket is there.
	w := newWorld()
	w.app("shop", []string{"private_v6 fdaa:0:1:0:1::7"}, service("tcp", 1, 80, "http"), service("udp", 1, 80))
	var port int
	r := newRig(t, w, func(o *Options) { o.HTTP = "127.0.0.1:0" })
	_ = r
	for deadline := time.Now().Add(patience); port == 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		table, err := os.Open("/proc/net/tcp6")
		must(err)
		for lines := bufio.NewScanner(table); lines.Scan(); {
			if strings.Contains(lines.Text(), "0000AAFD00000100010000000700000") || strings.Contains(lines.Text(), "0000AAFD00000100") {
				port = 80
			}
		}
		must(table.Close())
	}
	if port == 0 {
		t.Error("nothing listens on the address")
	}
}
