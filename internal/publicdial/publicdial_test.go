package publicdial_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"
	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar/internal/freeport"
	"github.com/hangar-platform/hangar/internal/publicdial"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func allowed(t *testing.T, list ...string) []publicdial.Allowed {
	t.Helper()
	var all []publicdial.Allowed
	for _, text := range list {
		a, err := publicdial.ParseAllowed(text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, a)
	}
	return all
}

// ruleOf is the rule by which a dialer refuses an address, or "" if it would connect.
func ruleOf(t *testing.T, d *publicdial.Dialer, host string) string {
	t.Helper()
	e, ok := errors.AsType[*publicdial.Error](d.Check(host, net.JoinHostPort(host, "443")))
	if !ok {
		return ""
	}
	if strings.Contains(e.Error(), "%!") {
		t.Errorf("error %q", e)
	}
	return e.Rule
}

func TestSpecialRanges(t *testing.T) {
	t.Parallel()
	d := publicdial.New(publicdial.Options{Own: func(a netip.Addr) bool {
		return netip.MustParsePrefix("52.1.2.0/28").Contains(a) || netip.MustParsePrefix("2600:1::/64").Contains(a)
	}})
	const (
		metadata, unspecified = "a metadata service", "an unspecified address"
		loopback, private     = "a loopback address", "a private address"
		linkLocal, carrier    = "a link-local address", "an address of a carrier's NAT"
		multicast, translated = "a multicast address", "a translated address"
		reserved, own         = "a reserved address", "an address of this platform"
	)
	for host, want := range map[string]string{
		"1.1.1.1": "", "93.184.215.14": "", "9.255.255.255": "", "11.0.0.0": "", "100.63.255.255": "", "100.128.0.0": "",
		"172.15.255.255": "", "172.32.0.0": "", "192.167.255.255": "", "192.169.0.0": "", "223.255.255.255": "",
		"2606:4700::1111": "", "2a00:1450::1": "", "2001:4860:4860::8888": "",

		"0.0.0.0": unspecified, "0.1.2.3": unspecified, "::": unspecified,
		"127.0.0.1": loopback, "127.255.255.254": loopback, "::1": loopback,
		"10.0.0.1": private, "172.16.0.1": private, "172.31.255.255": private, "192.168.1.1": private,
		"fc00::1": private, "fdaa:0:1::3": private, "fdff::1": private, "fec0::1": private,
		"169.254.0.1": linkLocal, "fe80::1": linkLocal, "febf::1": linkLocal, "fe80::1%lo": linkLocal,
		"100.64.0.1": carrier, "100.127.255.255": carrier,
		"224.0.0.1": multicast, "239.255.255.255": multicast, "ff02::1": multicast,
		"169.254.169.254": metadata, "169.254.170.2": metadata, "100.100.100.200": metadata, "168.63.129.16": metadata, "192.0.0.192": metadata,
		"fd00:ec2::254": metadata, "fd20:ce::254": metadata,
		"192.0.0.8": reserved, "192.0.2.1": reserved, "198.18.0.1": reserved, "198.19.255.255": reserved, "198.51.100.7": reserved,
		"203.0.113.7": reserved, "240.0.0.1": reserved, "255.255.255.255": reserved,
		"2001:2::1": reserved, "2001:20::1": reserved, "2001:db8::1": reserved, "3fff::1": reserved, "100::1": reserved,
		"5f00::1": reserved, "4000::1": reserved, "::7f00:1": reserved, "::127.0.0.1": reserved,

		// Forms of IPv4 addresses within IPv6.
		"::ffff:127.0.0.1": loopback, "::ffff:10.0.0.1": private, "::ffff:169.254.169.254": metadata, "::ffff:1.1.1.1": "",
		"64:ff9b::127.0.0.1": loopback, "64:ff9b::10.0.0.1": private, "64:ff9b::169.254.169.254": metadata, "64:ff9b::1.1.1.1": "",
		"64:ff9b::100.64.0.1": carrier, "64:ff9b::0.0.0.0": unspecified, "64:ff9b::52.1.2.3": own, "::ffff:52.1.2.3": own,
		"64:ff9b:1::1": translated, "2002:7f00:1::": translated, "2002:a9fe:a9fe::1": translated, "2001:0:1::1": translated, "192.88.99.1": translated,

		"52.1.2.3": own, "52.1.2.15": own, "52.1.2.16": "", "2600:1::5": own, "2600:1:0:1::5": "",
	} {
		if got := ruleOf(t, d, host); got != want {
			t.Errorf("%s: %q, want %q", host, got, want)
		}
	}
}

func TestAllowed(t *testing.T) {
	t.Parallel()
	d := publicdial.New(publicdial.Options{Allow: allowed(t, "10.1.0.0/16", "10.2.0.1:5000", "[fd00::1]", "registry.corp:5000", "Hub.Corp", "::ffff:10.3.0.1")})
	for _, c := range []struct {
		host, dialled string
		ok            bool
	}{
		{"a.example", "10.1.2.3:22", true},
		{"a.example", "10.2.0.1:5000", true},
		{"a.example", "10.2.0.1:5001", false},
		{"a.example", "[::ffff:10.1.2.3]:22", true},
		{"a.example", "[64:ff9b::a01:203]:22", true},
		{"a.example", "[fd00::1]:443", true},
		{"a.example", "[fd00::1]:80", true},
		{"a.example", "[fd00::1]:22", false},
		{"a.example", "[fd00::2]:443", false},
		{"registry.corp", "127.0.0.1:5000", true},
		{"REGISTRY.corp.", "127.0.0.1:5000", true},
		{"registry.corp", "127.0.0.1:2379", false},
		{"x.registry.corp", "127.0.0.1:5000", false},
		{"hub.corp", "192.168.0.1:443", true},
		{"hub.corp", "192.168.0.1:80", true},
		{"hub.corp", "192.168.0.1:8080", false},
		{"a.example", "10.3.0.1:443", true},
	} {
		if err := d.Check(c.host, c.dialled); (err == nil) != c.ok {
			t.Errorf("%s at %s: %v", c.host, c.dialled, err)
		}
	}
	for _, bad := range []string{"", ":5000", "a b", "10.1.2.3/16", "10.1.0.0/33", "::ffff:10.0.0.0/112", "host:0", "host:70000", "host:x", "*.corp", "http://host", "a@b", "[x"} {
		if _, err := publicdial.ParseAllowed(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// zone is a name server on loopback with an answer that can be changed.
type zone struct {
	mu      sync.Mutex
	answers map[string][]string
}

func (z *zone) set(name string, addresses ...string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.answers[name+"."] = addresses
}

// newZone serves a zone and returns a resolver that asks only it.
func newZone(t *testing.T) (*zone, *net.Resolver) {
	t.Helper()
	z := &zone{answers: map[string][]string{}}
	conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{})
	server := &dns.Server{PacketConn: conn, NotifyStartedFunc: func() { close(started) }, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		z.mu.Lock()
		defer z.mu.Unlock()
		m := new(dns.Msg).SetReply(q)
		addresses, ok := z.answers[strings.ToLower(q.Question[0].Name)]
		if !ok {
			m.Rcode = dns.RcodeNameError
		}
		for _, a := range addresses {
			if q.Question[0].Qtype == dns.TypeA {
				m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.ParseIP(a)})
			}
		}
		_ = w.WriteMsg(m)
	})}
	ended := make(chan error, 1)
	go func() { ended <- server.ActivateAndServe() }()
	<-started
	t.Cleanup(func() {
		_ = server.Shutdown()
		<-ended
	})
	return z, &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// counted serves HTTP at an address of loopback and counts connections.
func counted(t *testing.T, at string, h http.Handler) (*httptest.Server, *atomic.Int64) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	var n atomic.Int64
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: h, ConnState: func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			n.Add(1)
		}
	}}}
	s.Start()
	t.Cleanup(s.Close)
	return s, &n
}

func client(t *testing.T, d *publicdial.Dialer) *http.Client {
	t.Helper()
	tr := d.Transport()
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, CheckRedirect: publicdial.CheckRedirect}
}

func get(ctx context.Context, c *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.Body.Close()
}

// wantRefused checks that an error names the host and the rule, and that its public text contains
// no address.
func wantRefused(t *testing.T, err error, host, rule string, secret ...string) {
	t.Helper()
	e, ok := errors.AsType[*publicdial.Error](err)
	if !ok || e.Host != host || e.Rule != rule {
		t.Fatalf("got %v, want %s refused as %s", err, host, rule)
	}
	for _, s := range secret {
		if strings.Contains(e.Error(), s) || strings.Contains(publicdial.Describe(err), s) {
			t.Errorf("the error reveals %s: %v; %s", s, e, publicdial.Describe(err))
		}
	}
}

// TestRebinding: a name with an allowed address is refused once it resolves to a forbidden one, and
// that address is not called even if it is one of several.
func TestRebinding(t *testing.T) {
	t.Parallel()
	ok := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	number, err := freeport.Port(t.Context()) // at both addresses
	if err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(number)
	counted(t, "127.0.0.1:"+port, ok)
	_, inner := counted(t, "127.0.0.2:"+port, ok)
	names, resolver := newZone(t)
	d := publicdial.New(publicdial.Options{Resolver: resolver, Allow: allowed(t, "127.0.0.1:"+port)})
	names.set("rebind.example", "127.0.0.1")
	c := client(t, d)
	url := "http://rebind.example:" + port
	if err := get(t.Context(), c, url); err != nil {
		t.Fatal(err)
	}
	names.set("rebind.example", "127.0.0.2")
	c.CloseIdleConnections()
	wantRefused(t, get(t.Context(), c, url), "rebind.example", "a loopback address", "127.0.0.2")
	names.set("rebind.example", "127.0.0.2", "127.0.0.1")
	if err := get(t.Context(), c, url); err != nil {
		t.Errorf("the allowed one of two addresses: %v", err)
	}
	c.CloseIdleConnections()
	names.set("rebind.example", "127.0.0.2", "169.254.169.254")
	wantRefused(t, get(t.Context(), c, url), "rebind.example", "a loopback address", "127.0.0.2", "169.254")
	if n := inner.Load(); n != 0 {
		t.Errorf("the refused address has seen %d connections", n)
	}
	err = get(t.Context(), c, "http://void.example")
	if text := publicdial.Describe(err); text != "cannot be reached: there is no such name" {
		t.Errorf("unknown name: %v; %s", err, text)
	}
}

// TestRedirects: each hop is checked, and the error only names the first host.
func TestRedirects(t *testing.T) {
	t.Parallel()
	inner, seen := counted(t, "127.0.0.1:0", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	to := ""
	outer, _ := counted(t, "127.0.0.1:0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, to, http.StatusTemporaryRedirect)
	}))
	c := client(t, publicdial.New(publicdial.Options{Allow: allowed(t, outer.Listener.Addr().String())}))
	for target, rule := range map[string]string{
		inner.URL:                          "a loopback address",
		"http://169.254.169.254/latest":    "a metadata service",
		"http://[fdaa:0:1:a7b::2]:8080":    "a private address",
		"http://[::ffff:169.254.169.254]/": "a metadata service",
		"http://2130706433:1":              "", // not taken for 127.0.0.1, and no name either
	} {
		to = target
		err := get(t.Context(), c, outer.URL)
		if rule != "" {
			wantRefused(t, err, "127.0.0.1", rule, target, "fdaa", "169.254")
		} else if err == nil {
			t.Errorf("%s is reached", target)
		}
	}
	to = outer.URL
	if err := get(t.Context(), c, outer.URL); publicdial.Describe(err) != "redirects too often, or away from TLS" {
		t.Errorf("a circle: %v", err)
	}
	if n := seen.Load(); n != 0 {
		t.Errorf("the refused server has seen %d connections", n)
	}
}

// TestAdministrator: an administrator reaches everything, and a tenant cannot use an idle
// connection of the administrator.
func TestAdministrator(t *testing.T) {
	t.Parallel()
	s, seen := counted(t, "127.0.0.1:0", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	c := client(t, publicdial.New(publicdial.Options{}))
	if err := get(publicdial.WithAdministrator(t.Context()), c, s.URL); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, get(t.Context(), c, s.URL), "127.0.0.1", "a loopback address")
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	for _, host := range []string{"localhost", "x.localhost", "localhost."} {
		wantRefused(t, get(t.Context(), c, "http://"+net.JoinHostPort(host, port)), host, "a loopback address", "127.0.0.1", "::1")
	}
	if n := seen.Load(); n != 1 {
		t.Errorf("%d connections, want one", n)
	}
}

// TestNoProxy: a proxy of the environment would dial on its own.
func TestNoProxy(t *testing.T) {
	proxy, seen := counted(t, "127.0.0.1:0", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Setenv("HTTP_PROXY", proxy.URL)
	_, resolver := newZone(t)
	c := client(t, publicdial.New(publicdial.Options{Resolver: resolver, Allow: allowed(t, "127.0.0.0/8")}))
	if err := get(t.Context(), c, "http://void.example"); err == nil || seen.Load() != 0 {
		t.Errorf("%v, and the proxy has seen %d connections", err, seen.Load())
	}
}

// TestDescribeHoldsNothingForeign: the text has no words of a server, from any layer.
func TestDescribeHoldsNothingForeign(t *testing.T) {
	t.Parallel()
	const secret = "SECRET-banner"
	raw := func(answer string) string {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Read(make([]byte, 1<<10)) // an answer ahead of the request is another error
				_, _ = io.WriteString(conn, answer)
				_ = conn.Close()
			}
		}()
		t.Cleanup(func() {
			_ = l.Close()
			<-done
		})
		return l.Addr().String()
	}
	plainServer, _ := counted(t, "127.0.0.1:0", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	withTLS := httptest.NewUnstartedServer(http.NotFoundHandler())
	withTLS.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	withTLS.StartTLS()
	t.Cleanup(withTLS.Close)
	closed := raw("")
	c := client(t, publicdial.New(publicdial.Options{Allow: allowed(t, "127.0.0.0/8")}))
	for url, want := range map[string]string{
		"http://" + raw("SSH-2.0-"+secret+"\r\n"):                                           "does not answer as HTTP wants it",
		"https://" + raw("220 "+secret+"\r\n"):                                              "does not speak TLS",
		"https://" + plainServer.Listener.Addr().String():                                   "does not speak TLS",
		"http://" + raw("HTTP/1.1 200 OK\r\n"+secret+strings.Repeat("x", 1<<20)+"\r\n\r\n"): "does not answer as HTTP wants it",
		"http://" + raw("HTTP/1.1 302 Found\r\nLocation: http://%"+secret+"\r\n\r\n"):       "does not answer as HTTP wants it",
		"http://" + raw("HTTP/1.1 302 Found\r\nLocation: gopher://"+secret+"/x\r\n\r\n"):    "does not answer as HTTP wants it",
		withTLS.URL:            "has a certificate that is not trusted",
		"http://" + closed:     "ended the connection early",
		"http://127.0.0.1:1/x": "cannot be reached: connection refused",
	} {
		err := get(t.Context(), c, url)
		if got := publicdial.Describe(err); err == nil || got != want {
			t.Errorf("%s: %q, want %q (%v)", url, got, want, err)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := get(gone, c, plainServer.URL); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}
