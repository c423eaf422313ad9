package proxy_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/listen"
	"github.com/hangar-platform/hangar/edge/proxy"
)

// own is a handler of the platform. It answers with its name, and records what it sees.
type own struct {
	name string
	mu   sync.Mutex
	seen []string
}

func (o *own) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, "the body cannot be read", http.StatusBadRequest)
		return
	}
	o.mu.Lock()
	o.seen = append(o.seen, fmt.Sprintf("%s %s HTTP/1.1 %s %q", r.Method, r.URL.RequestURI(), r.Host, body))
	o.mu.Unlock()
	w.Header().Set("Remote", r.RemoteAddr)
	_, _ = io.WriteString(w, o.name)
}

// reset returns what was seen since the last call.
func (o *own) reset() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	seen := o.seen
	o.seen = nil
	return seen
}

// newPlatform is a world in which the platform has two names, and App "app" a Machine.
func newPlatform(t *testing.T, change func(*proxy.Options)) (w *world, api, registry *own) {
	t.Helper()
	api, registry = &own{name: "the api"}, &own{name: "the registry"}
	w = newWorld(t, func(o *proxy.Options) {
		o.Platform = map[hangar.Hostname]http.Handler{"api.apps.test": api, "registry.apps.test": registry}
		if change != nil {
			change(o)
		}
	})
	w.machine("a1", "app", w.backend(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "the app") }), nil)
	return w, api, registry
}

// begin makes a connection with TLS for a name.
func (w *world) begin(name string, protocols ...string) net.Conn {
	w.t.Helper()
	c, err := tls.Dial("tcp", w.tlsAddr, &tls.Config{InsecureSkipVerify: true, ServerName: name, NextProtos: protocols})
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// TestPlatformNames sends requests with all combinations of the name in TLS and the name of the
// request. Each name is answered by its owner or not at all.
func TestPlatformNames(t *testing.T) {
	w, _, _ := newPlatform(t, nil)
	const misdirected = "421"
	for _, c := range []struct {
		tls, host, want string
	}{
		{"api.apps.test", "api.apps.test", "the api"},
		{"api.apps.test", "API.Apps.Test.", "the api"},
		{"api.apps.test", "api.apps.test:443", "the api"},
		{"registry.apps.test", "registry.apps.test", "the registry"},
		{"app.apps.test", "app.apps.test", "the app"},

		{"api.apps.test", "registry.apps.test", misdirected},
		{"api.apps.test", "app.apps.test", misdirected},
		{"api.apps.test", "unknown.apps.test", misdirected},
		{"api.apps.test", "127.0.0.1", misdirected},
		{"app.apps.test", "api.apps.test", misdirected},
		{"unknown.apps.test", "api.apps.test", misdirected},
		{"unknown.apps.test", "x.api.apps.test", "404"},
	} {
		answer := w.say(w.begin(c.tls), "GET / HTTP/1.1\r\nHost: "+c.host+"\r\nConnection: close\r\n\r\n")
		if !strings.Contains(answer, c.want) {
			t.Errorf("TLS for %s, request for %s: %q, want %s", c.tls, c.host, answer, c.want)
		}
		fields := []string{":method", "GET", ":scheme", "https", ":path", "/", ":authority", c.host}
		want := c.want
		if strings.HasPrefix(want, "the") {
			want = "200"
		}
		if answer := say2(w.begin(c.tls, "h2"), fields, "", nil); !strings.Contains(answer, want) {
			t.Errorf("HTTP/2, TLS for %s, request for %s: %q, want %s", c.tls, c.host, answer, want)
		}
	}
	if answer := w.say(w.begin("api.apps.test"), "GET / HTTP/1.0\r\n\r\n"); !strings.Contains(answer, "the api") {
		t.Errorf("without a Host: %q", answer)
	}
	if answer := w.say(w.begin("api.apps.test"), "CONNECT api.apps.test:443 HTTP/1.1\r\nHost: api.apps.test:443\r\n\r\n"); !strings.Contains(answer, " 405 ") {
		t.Errorf("CONNECT: %q", answer)
	}

	// At an address or a port of an App's own, also one in a private network.
	app, _ := w.routes.App("app")
	for what, change := range map[string]func(*listen.Entry){
		"an address of the app's": func(e *listen.Entry) { e.Route = app },
		"a private address":       func(e *listen.Entry) { e.Route, e.Private = app, true },
		"another port":            func(e *listen.Entry) { e.Port = 8443 },
	} {
		w.mu.Lock()
		w.entry = change
		w.mu.Unlock()
		for _, c := range []net.Conn{w.begin("app.apps.test"), w.begin("api.apps.test")} {
			if answer := w.say(c, "GET / HTTP/1.1\r\nHost: api.apps.test\r\n\r\n"); !strings.Contains(answer, " 421 ") {
				t.Errorf("%s: %q", what, answer)
			}
		}
		if answer := w.raw("GET / HTTP/1.1\r\nHost: api.apps.test\r\n\r\n"); !strings.Contains(answer, " 421 ") {
			t.Errorf("%s, without TLS: %q", what, answer)
		}
	}
}

// TestPlatformWithoutTLS: a harmless request is redirected, and a token is refused with an
// explanation.
func TestPlatformWithoutTLS(t *testing.T) {
	w, api, _ := newPlatform(t, func(o *proxy.Options) { o.HTTPSPort = 8443 })
	for _, client := range []*http.Client{w.client(), w.clientOf(true)} {
		got := w.do(client, w.request(http.MethodGet, "http://api.apps.test/v1/apps?x=%20", nil))
		if got.StatusCode != http.StatusMovedPermanently || got.Header.Get("Location") != "https://api.apps.test:8443/v1/apps?x=%20" {
			t.Errorf("GET: %d to %q", got.StatusCode, got.Header.Get("Location"))
		}
		got = w.do(client, w.request(http.MethodGet, "http://api.apps.test/v1/apps", nil, "Authorization", "Bearer secret"))
		wantCode(t, got, http.StatusForbidden, hangar.EdgeNeedsTLS)
		if !strings.Contains(got.body, "https") || !strings.Contains(got.body, "revoke") || strings.Contains(got.body, "secret") {
			t.Errorf("a token: %s", got.body)
		}
		got = w.do(client, w.request(http.MethodPost, "http://api.apps.test/v1/apps", strings.NewReader("{}")))
		wantCode(t, got, http.StatusForbidden, hangar.EdgeNeedsTLS)
	}
	if seen := api.reset(); seen != nil {
		t.Errorf("the platform has seen %q", seen)
	}
}

// TestPlatformSeesClients: the platform needs a client's address for its limit of sign-ins.
func TestPlatformSeesClients(t *testing.T) {
	w, _, _ := newPlatform(t, nil)
	for _, client := range []*http.Client{w.client(), w.clientOf(true)} {
		got := w.do(client, w.request(http.MethodGet, "https://api.apps.test/", nil, "X-Forwarded-For", "203.0.113.1", "Platform-Client-IP", "203.0.113.1"))
		remote, err := netip.ParseAddrPort(got.Header.Get("Remote"))
		if err != nil || remote.Addr().String() != "127.0.0.1" || remote.Port() == 0 {
			t.Errorf("%s: the client is %q", got.Proto, got.Header.Get("Remote"))
		}
	}
}

// TestPlatformRequestsAreBounded: one client cannot take the room of others, with any number of
// connections and streams.
func TestPlatformRequestsAreBounded(t *testing.T) {
	const most = 5
	enter, leave := make(chan struct{}, 100), make(chan struct{})
	w, _, _ := newPlatform(t, func(o *proxy.Options) {
		o.Limits.ClientPlatformRequests = most
		o.Platform["api.apps.test"] = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			enter <- struct{}{}
			<-leave
		})
	})
	calls := func(c netip.Addr) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.entry = func(e *listen.Entry) { e.Client = c }
	}
	greedy, other := netip.MustParseAddr("2001:db8::"), netip.MustParseAddr("2001:db8:0:1::")
	calls(greedy)
	var held sync.WaitGroup
	h1, h2 := w.client(), w.clientOf(true)
	for i := range most {
		held.Go(func() {
			client := h1
			if i%2 == 0 {
				client = h2
			}
			if got := w.do(client, w.request(http.MethodGet, "https://api.apps.test/", nil)); got.StatusCode != http.StatusOK {
				t.Errorf("request %d: %d %s", i, got.StatusCode, got.body)
			}
		})
		<-enter
	}
	for _, client := range []*http.Client{w.client(), h2} {
		got := w.do(client, w.request(http.MethodGet, "https://api.apps.test/", nil))
		wantCode(t, got, http.StatusTooManyRequests, hangar.EdgeTooMany)
		if got.Header.Get("Retry-After") == "" {
			t.Error("it is not said when to try again")
		}
	}
	if got := w.get("https://app.apps.test/"); got.body != "the app" {
		t.Errorf("an app: %d %s", got.StatusCode, got.body)
	}
	calls(other)
	held.Go(func() {
		if got := w.get("https://api.apps.test/"); got.StatusCode != http.StatusOK {
			t.Errorf("another client: %d %s", got.StatusCode, got.body)
		}
	})
	<-enter
	close(leave)
	held.Wait()
	calls(greedy)
	if got := w.get("https://api.apps.test/"); got.StatusCode != http.StatusOK {
		t.Errorf("afterwards: %d %s", got.StatusCode, got.body)
	}
}

// TestRequestsOfOneOrganization: an organization holds as many requests as it can, for several of
// its Apps, over HTTP/1 and HTTP/2. Those of another one are served.
func TestRequestsOfOneOrganization(t *testing.T) {
	const most = 20
	enter, leave := make(chan struct{}, most), make(chan struct{})
	w := newWorld(t, func(o *proxy.Options) { o.Limits.Requests = most })
	slow := func(http.ResponseWriter, *http.Request) {
		enter <- struct{}{}
		<-leave
	}
	w.machine("a1", "app", w.backend(slow), nil)
	w.machine("s1", "second", w.backend(slow), nil)
	w.machine("f1", "foreign", w.backend(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "foreign") }), nil)
	var held sync.WaitGroup
	h1, h2 := w.client(), w.clientOf(true)
	for i := range most / 2 {
		client, app := h1, "app"
		if i%2 == 0 {
			client, app = h2, "second"
		}
		held.Go(func() {
			if got := w.do(client, w.request(http.MethodGet, "http://"+app+".apps.test/", nil)); got.StatusCode != http.StatusOK {
				t.Errorf("request %d: %d %s", i, got.StatusCode, got.body)
			}
		})
		<-enter
	}
	for range 3 {
		for _, client := range []*http.Client{h1, h2} {
			got := w.do(client, w.request(http.MethodGet, "http://app.apps.test/", nil))
			wantCode(t, got, http.StatusServiceUnavailable, hangar.EdgeOrgLimit)
			if got.Header.Get("Retry-After") == "" {
				t.Error("it is not said when to try again")
			}
			if got := w.do(client, w.request(http.MethodGet, "http://foreign.apps.test/", nil)); got.body != "foreign" {
				t.Errorf("another organization: %d %s", got.StatusCode, got.body)
			}
		}
	}
	if n := w.proxy.Stats().Refused; n != 6 {
		t.Errorf("%d were refused", n)
	}
	close(leave)
	held.Wait()
	if got := w.get("http://app.apps.test/"); got.StatusCode != http.StatusOK {
		t.Errorf("afterwards: %d %s", got.StatusCode, got.body)
	}
}

// TestHostileToThePlatform sends requests that have fooled other servers to a name of the platform:
// it sees nothing, or one request.
func TestHostileToThePlatform(t *testing.T) {
	w, api, registry := newPlatform(t, incomplete)
	renamed := func(text string) string { return strings.ReplaceAll(text, "app.apps.test", "api.apps.test") }
	check := func(t *testing.T, answer, want string) {
		t.Helper()
		seen := api.reset()
		if want == "" && (len(seen) > 0 || strings.Contains(answer, " 200 ")) || want != "" && !slices.Equal(seen, []string{renamed(want)}) {
			t.Errorf("the platform has seen %q, want %q; the client got %q", seen, renamed(want), answer)
		}
		if seen := registry.reset(); seen != nil {
			t.Errorf("another name has seen %q", seen)
		}
	}
	for _, c := range hostileHTTP1() {
		t.Run("HTTP/1/"+c.name, func(t *testing.T) { check(t, w.say(w.begin("api.apps.test"), renamed(c.text)), c.want) })
	}
	for _, c := range hostileHTTP2() {
		t.Run("HTTP/2/"+c.name, func(t *testing.T) {
			fields := make([]string, len(c.fields))
			for i, text := range c.fields {
				if fields[i] = renamed(text); text == "http" {
					fields[i] = "https"
				}
			}
			if c.name == "no host" { // the name that TLS is for will do
				c.want = `POST / HTTP/1.1  ""`
			}
			check(t, say2(w.begin("api.apps.test", "h2"), fields, c.body, c.trailers), c.want)
		})
	}
}

// TestSlowAndLargeToThePlatform: the limits of the edge hold for names of the platform.
func TestSlowAndLargeToThePlatform(t *testing.T) {
	const streams = 3
	enter, leave := make(chan struct{}, 100), make(chan struct{})
	w, _, _ := newPlatform(t, func(o *proxy.Options) {
		o.Limits.MaxStreams = streams
		o.Platform["registry.apps.test"] = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			enter <- struct{}{}
			<-leave
		})
	})
	const head = "Host: api.apps.test\r\nConnection: close\r\n"
	hurried, _, _ := newPlatform(t, func(o *proxy.Options) { o.Limits.HeaderTimeout = time.Second })
	if answer := hurried.say(hurried.begin("api.apps.test"), "GET / HTTP/1.1\r\nHost: api"); !strings.Contains(answer, " 408 ") {
		t.Errorf("a header that does not end: %.100q", answer)
	}
	hurried, _, _ = newPlatform(t, func(o *proxy.Options) { o.Limits.BodyTimeout = 100 * time.Millisecond })
	if answer := hurried.say(hurried.begin("api.apps.test"), "POST / HTTP/1.1\r\n"+head+"Content-Length: 5\r\n\r\nx"); !strings.Contains(answer, " 400 ") {
		t.Errorf("a body that does not come: %.100q", answer)
	}
	for _, c := range []struct{ name, text, want string }{
		{"a header that is too large", "GET / HTTP/1.1\r\n" + head + "X: " + strings.Repeat("x", proxy.DefaultMaxHeaderBytes) + "\r\n\r\n", " 431 "},
		{"a line that is too long", "GET /" + strings.Repeat("x", proxy.DefaultMaxHeaderBytes) + " HTTP/1.1\r\n" + head + "\r\n", " 414 "},
	} {
		if answer := w.say(w.begin("api.apps.test"), c.text); !strings.Contains(answer, c.want) {
			t.Errorf("%s: %.100q, want %s", c.name, answer, c.want)
		}
	}
	huge := []string{":method", "GET", ":scheme", "https", ":path", "/", ":authority", "api.apps.test", "x", strings.Repeat("x", 2*proxy.DefaultMaxHeaderBytes)}
	if answer := say2(w.begin("api.apps.test", "h2"), huge, "", nil); strings.Contains(answer, " 200 ") {
		t.Errorf("a header that is too large, over HTTP/2: %q", answer)
	}

	c := w.begin("registry.apps.test", "h2")
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	_, _ = io.WriteString(c, http2.ClientPreface)
	fr := http2.NewFramer(c, c)
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":path", "/"}, {":authority", "registry.apps.test"}} {
		_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	header := bytes.Clone(block.Bytes())
	_ = fr.WriteSettings()
	_ = fr.WriteSettingsAck()
	open := func(stream uint32) {
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: header, EndHeaders: true, EndStream: true})
	}
	for i := range streams {
		open(uint32(2*i + 1))
		<-enter
	}
	open(2*streams + 1)
	for refused := false; !refused; {
		f, err := fr.ReadFrame()
		if err != nil {
			t.Fatalf("a stream that is one too many: %v", err)
		}
		_, reset := f.(*http2.RSTStreamFrame)
		_, away := f.(*http2.GoAwayFrame)
		refused = reset || away
	}
	close(leave)
	if len(enter) > 0 {
		t.Error("a stream that is one too many is served")
	}
}
