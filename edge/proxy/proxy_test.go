package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/listen"
	"github.com/hangar-platform/hangar/edge/proxy"
)

func TestForward(t *testing.T) {
	w := newWorld(t)
	addr := w.backend(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(rw, "%s %s %s %s", r.Method, r.Host, r.URL.RequestURI(), body)
	})
	w.machine("a1", "app", addr, nil)
	for _, c := range []*http.Client{w.client(), w.clientOf(true)} {
		for _, scheme := range []string{"http", "https"} {
			got := w.do(c, w.request(http.MethodPost, scheme+"://app.apps.test/a%2Fb//c?x=%20y", strings.NewReader("hello")))
			if want := "POST app.apps.test /a%2Fb//c?x=%20y hello"; got.StatusCode != http.StatusOK || got.body != want {
				t.Errorf("%s over %s: %d %q, want %q", scheme, got.Proto, got.StatusCode, got.body, want)
			}
			if !eventually(func() bool { return w.proxy.Stats().InFlight == 0 }) { // its connection can be used again
				t.Fatal("a request does not end")
			}
		}
	}
	if s := w.proxy.Stats(); s.Requests != 4 || s.Dials > 2 {
		t.Errorf("stats are %+v", s)
	}
}

// seen are the headers that a Machine gets, with what changes from run to run replaced.
func seen(r *http.Request) string {
	var lines []string
	for name, values := range r.Header {
		for _, v := range values {
			lower := strings.ToLower(name)
			switch {
			case strings.HasSuffix(lower, "-request-id"):
				if len(v) != 30 || !strings.HasSuffix(v, "-loc") {
					v = "BAD " + v
				} else {
					v = "ID"
				}
			case lower == "x-request-start":
				v = "t=" + strings.Repeat("N", len(v)-2)
			case strings.HasSuffix(lower, "-traceparent"):
				if parts := strings.Split(v, "-"); len(parts) == 4 && parts[1] != "4bf92f3577b34da6a3ce929d0e0e4736" {
					parts[1] = "TRACE"
					v = strings.Join(parts, "-")
				}
				if parts := strings.Split(v, "-"); len(parts) == 4 {
					parts[2] = "SPAN"
					v = strings.Join(parts, "-")
				}
			}
			lines = append(lines, lower+": "+v)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestHeadersToMachine(t *testing.T) {
	w := newWorld(t)
	addr := w.backend(func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, seen(r)) })
	w.machine("a1", "app", addr, nil)
	plain := []string{
		"accept: */*",
		"fly-client-ip: 127.0.0.1", "fly-forwarded-port: 80", "fly-forwarded-proto: http", "fly-forwarded-ssl: off", "fly-region: loc",
		"fly-request-id: ID", "fly-traceparent: 00-TRACE-SPAN-00",
		"platform-client-ip: 127.0.0.1", "platform-forwarded-port: 80", "platform-forwarded-proto: http", "platform-forwarded-ssl: off",
		"platform-region: loc", "platform-request-id: ID", "platform-traceparent: 00-TRACE-SPAN-00",
		"via: 1.1 hangar", "x-forwarded-for: 127.0.0.1, 127.0.0.1", "x-forwarded-port: 80", "x-forwarded-proto: http", "x-forwarded-ssl: off",
		"x-request-start: t=NNNNNNNNNNNNNNNN",
	}
	change := func(remove []string, add ...string) []string {
		out := slices.DeleteFunc(slices.Clone(plain), func(line string) bool {
			name, _, _ := strings.Cut(line, ":")
			return slices.Contains(remove, name)
		})
		out = append(out, add...)
		slices.Sort(out)
		return out
	}
	for _, test := range []struct {
		name, send string
		want       []string
	}{
		{"plain", "", plain},
		{
			"spoofed", "Fly-Client-IP: 6.6.6.6\r\nplatform-client-ip: 6.6.6.6\r\nFly-Region: xyz\r\nFly-Request-Id: mine\r\nX-Forwarded-Proto: https\r\n" +
				"X-Forwarded-Ssl: on\r\nFly-Forwarded-Port: 1\r\nX-Request-Start: t=1\r\nFly-Replay-Src: instance=x\r\nplatform-replay-failed: x\r\n" +
				"fly-replay-cache-status: hit\r\nfly-preferred-instance-unavailable: x\r\nFly_Client_IP: 6.6.6.6\r\nX_Forwarded_For: 6.6.6.6\r\nFly-Dispatch-Start: x\r\nfly-tracestate: a=b\r\n" +
				"Fly-Src: app=x\r\nplatform-src-signature: x\r\nForwarded: for=6.6.6.6\r\nX-Real-IP: 6.6.6.6\r\nX_Real_IP: 6.6.6.6\r\n" +
				"X-Forwarded-Host: evil.example\r\nTrue-Client-IP: 6.6.6.6\r\n",
			plain,
		},
		{
			"hop by hop", "Connection: close, X-Secret\r\nX-Secret: 1\r\nKeep-Alive: timeout=5\r\nProxy-Authorization: Basic eA==\r\nProxy-Connection: close\r\nProxy: http://evil\r\n" +
				"TE: gzip\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n",
			plain,
		},
		{"te trailers", "TE: trailers, gzip\r\n", change(nil, "te: trailers")},
		{"forwarded", "X-Forwarded-For: 1.1.1.1\r\nX-Forwarded-For: 2.2.2.2\r\n", change([]string{"x-forwarded-for"}, "x-forwarded-for: 1.1.1.1, 2.2.2.2, 127.0.0.1, 127.0.0.1")},
		{"port", "X-Forwarded-Port: 8443\r\n", change([]string{"x-forwarded-port"}, "x-forwarded-port: 8443")},
		{"bad port", "X-Forwarded-Port: 99999\r\n", plain},
		{"via", "Via: 1.0 fred\r\n", change([]string{"via"}, "via: 1.0 fred", "via: 1.1 hangar")},
		{
			"trace", "Traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\nTracestate: a=b\r\n",
			change([]string{"fly-traceparent", "platform-traceparent"},
				"fly-traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-SPAN-01", "platform-traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-SPAN-01",
				"fly-tracestate: a=b", "platform-tracestate: a=b",
				"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate: a=b"),
		},
		{"bad trace", "Traceparent: 00-00000000000000000000000000000000-00f067aa0ba902b7-01\r\n", change(nil, "traceparent: 00-00000000000000000000000000000000-00f067aa0ba902b7-01")},
		{"own", "fly-machine-lease-nonce: x\r\nplatform-force-region: loc\r\n", change(nil, "fly-machine-lease-nonce: x", "platform-force-region: loc")},
	} {
		t.Run(test.name, func(t *testing.T) {
			answer := w.raw("GET / HTTP/1.1\r\nHost: app.apps.test\r\nAccept: */*\r\n" + test.send + "\r\n")
			_, got, _ := strings.Cut(answer, "\r\n\r\n")
			if want := strings.Join(test.want, "\n"); got != want {
				t.Errorf("the Machine got\n%s\nwant\n%s", got, want)
			}
		})
	}
	t.Run("tls and h2", func(t *testing.T) {
		got := w.do(w.clientOf(true), w.request(http.MethodGet, "https://app.apps.test/", nil, "User-Agent", "", "Accept", "*/*")).body
		for _, want := range []string{"x-forwarded-proto: https", "fly-forwarded-ssl: on", "platform-forwarded-port: 443", "via: 2 hangar"} {
			if !strings.Contains(got, want) {
				t.Errorf("%q is missing in\n%s", want, got)
			}
		}
	})
}

func TestHeadersToClient(t *testing.T) {
	yes := true
	w := newWorld(t, func(o *proxy.Options) { o.AltSvc = `h3=":443"` })
	addr := w.backend(func(rw http.ResponseWriter, r *http.Request) {
		h := rw.Header()
		h.Set("Server", "nginx")
		h.Set("X-Powered-By", "PHP")
		h.Set("Date", "Thu, 01 Jan 1970 00:00:00 GMT")
		h.Set("Connection", "X-Hop")
		h.Set("X-Hop", "1")
		h.Set("Fly-Replay-Cache", "invalidate")
		h.Set("Via", "1.1 varnish")
		h.Set("Fly-Cache-Status", "HIT")
		h["Content-Type"] = nil
		io.WriteString(rw, "ok")
	})
	w.machine("a1", "app", addr, nil)
	w.machine("b1", "second", addr, func(p *hangar.ServicePort) {
		p.HTTP = &hangar.HTTPOptions{Response: &hangar.HTTPResponseOptions{Pristine: &yes, Headers: map[string]any{
			"x-powered-by": false, "X-Frame-Options": "DENY", "Set-Cookie": []any{"a=1", "b=2"}, "Content-Length": "999", "X-Bad": "a\r\nb",
		}}}
	})
	show := func(h http.Header) string {
		if id := h.Get("Fly-Request-Id"); id != "" && id == h.Get("Platform-Request-Id") {
			h.Set("Fly-Request-Id", "ID")
			h.Set("Platform-Request-Id", "ID")
		}
		var b strings.Builder
		_ = h.Write(&b)
		return strings.ReplaceAll(b.String(), "\r\n", "\n")
	}
	const usual = "Content-Length: 2\nDate: Thu, 01 Jan 1970 00:00:00 GMT\nFly-Cache-Status: MISS\nFly-Request-Id: ID\nPlatform-Cache-Status: MISS\nPlatform-Request-Id: ID\nServer: hangar\nVia: 1.1 varnish\nVia: 1.1 hangar\nX-Powered-By: PHP\n"
	if got := show(w.get("http://app.apps.test/").Header); got != usual {
		t.Errorf("got\n%s\nwant\n%s", got, usual)
	}
	if got, want := show(w.get("https://app.apps.test/").Header), "Alt-Svc: h3=\":443\"\n"+usual; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	const pristine = "Content-Length: 2\nDate: Thu, 01 Jan 1970 00:00:00 GMT\nFly-Cache-Status: HIT\nServer: nginx\nSet-Cookie: a=1\nSet-Cookie: b=2\nVia: 1.1 varnish\nX-Frame-Options: DENY\n"
	if got := show(w.get("http://second.apps.test/").Header); got != pristine {
		t.Errorf("got\n%s\nwant\n%s", got, pristine)
	}
}

func TestAdmission(t *testing.T) {
	w := newWorld(t, func(o *proxy.Options) {
		o.Limits.MaxBody = 1000
		o.Challenge = func(rw http.ResponseWriter, r *http.Request) bool {
			if strings.HasSuffix(r.URL.Path, "/token") {
				io.WriteString(rw, "proof")
				return true
			}
			return false
		}
	})
	addr := w.backend(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		io.WriteString(rw, "the app")
	})
	w.machine("a1", "app", addr, nil)
	w.machine("b1", "second", addr, func(p *hangar.ServicePort) { p.ForceHTTPS = p.Port == 80 })
	t.Run("unknown name", func(t *testing.T) {
		wantCode(t, w.get("http://nobody.apps.test/"), 404, hangar.EdgeNoApp)
		wantCode(t, w.get("http://127.0.0.1/"), 404, hangar.EdgeNoApp)
	})
	t.Run("closed app", func(t *testing.T) { wantCode(t, w.get("http://other.apps.test/"), 404, hangar.EdgeNoApp) })
	t.Run("no service", func(t *testing.T) { wantCode(t, w.get("http://foreign.apps.test/"), 404, hangar.EdgeNoApp) })
	t.Run("misdirected", func(t *testing.T) {
		wantCode(t, w.get("https://app.apps.test/", "Host", "second.apps.test"), 421, hangar.EdgeMisdirected)
		wantCode(t, w.get("https://app.apps.test/", "Host", "nobody.apps.test"), 421, hangar.EdgeMisdirected)
	})
	t.Run("connect", func(t *testing.T) {
		got := w.raw("CONNECT app.apps.test:80 HTTP/1.1\r\nHost: app.apps.test:80\r\n\r\n")
		if !strings.HasPrefix(got, "HTTP/1.1 405 ") || !strings.Contains(got, "PH05") {
			t.Errorf("got %q", got)
		}
	})
	t.Run("too large", func(t *testing.T) {
		big := strings.Repeat("x", 2000)
		wantCode(t, w.do(w.client(), w.request(http.MethodPost, "http://app.apps.test/", strings.NewReader(big))), 413, hangar.EdgeTooLarge)
		wantCode(t, w.do(w.client(), w.request(http.MethodPost, "http://app.apps.test/", io.MultiReader(strings.NewReader(big)))), 413, hangar.EdgeTooLarge)
		wantCode(t, w.do(w.clientOf(true), w.request(http.MethodPost, "http://app.apps.test/", io.MultiReader(strings.NewReader(big)))), 413, hangar.EdgeTooLarge)
	})
	t.Run("malformed", func(t *testing.T) {
		for _, text := range []string{
			"GET / HTTP/1.1\r\nHost: app.apps.test\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
			"GET / HTTP/1.1\r\n\r\n",
		} {
			if got := w.raw(text); !strings.HasPrefix(got, "HTTP/1.1 400 ") || !strings.Contains(got, "PU04") {
				t.Errorf("%q: got %q", text, got)
			}
		}
	})
	t.Run("large header", func(t *testing.T) {
		got := w.raw("GET / HTTP/1.1\r\nHost: app.apps.test\r\nX: " + strings.Repeat("x", 100<<10) + "\r\n\r\n")
		if !strings.HasPrefix(got, "HTTP/1.1 431 ") || !strings.Contains(got, "PH03") {
			t.Errorf("got %.300q", got)
		}
	})
	t.Run("force https", func(t *testing.T) {
		got := w.get("http://second.apps.test:8080/a%2Fb?x=1&y", "Host", "second.apps.test:8080")
		if want := "https://second.apps.test/a%2Fb?x=1&y"; got.StatusCode != http.StatusMovedPermanently || got.Header.Get("Location") != want {
			t.Errorf("got %d %q, want %q", got.StatusCode, got.Header.Get("Location"), want)
		}
		if got := w.get("https://second.apps.test/"); got.body != "the app" {
			t.Errorf("got %d %q", got.StatusCode, got.body)
		}
	})
	t.Run("challenge", func(t *testing.T) {
		if got := w.get("http://nobody.apps.test/.well-known/acme-challenge/token"); got.body != "proof" {
			t.Errorf("got %q", got.body)
		}
		if got := w.get("http://app.apps.test/.well-known/acme-challenge/mine"); got.body != "the app" {
			t.Errorf("got %q", got.body)
		}
	})
	t.Run("dedicated address", func(t *testing.T) {
		route, _ := w.routes.App("other")
		w.machine("c1", "other", addr, nil)
		w.mu.Lock()
		w.entry = func(e *listen.Entry) { e.Route, e.Local = route, netip.MustParseAddrPort("127.9.9.9:80") }
		w.mu.Unlock()
		defer func() { w.mu.Lock(); w.entry = nil; w.mu.Unlock() }()
		if got := w.get("http://unclaimed.example/"); got.body != "the app" {
			t.Errorf("got %d %q", got.StatusCode, got.body)
		}
	})
	t.Run("log", func(t *testing.T) {
		found := slices.ContainsFunc(w.gate.lines(), func(l string) bool { return strings.Contains(l, "[PH03] ") && strings.HasPrefix(l, "warn app ") })
		if !found {
			t.Errorf("the App's log has %q", w.gate.lines())
		}
	})
}
