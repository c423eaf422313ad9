package proxy_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/proxy"
)

// replaying answers with the content of the query's "replay", or else with its name and what it
// received.
func replaying(name string) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if to := r.Header.Get("X-Replay"); to != "" && r.Header.Get("Fly-Replay-Failed") == "" && (r.Header.Get("Fly-Replay-Src") == "" || r.Header.Get("X-Always") != "") {
			for _, line := range r.Header.Values("X-Answer") {
				k, v, _ := strings.Cut(line, "=")
				rw.Header().Set(k, v)
			}
			if strings.HasPrefix(to, "{") {
				rw.Header().Set("Content-Type", hangar.ReplayTypes.Original)
				io.WriteString(rw, to)
				return
			}
			rw.Header().Set("fly-replay", to)
			io.WriteString(rw, "not for the client")
			return
		}
		src := r.Header.Get("Platform-Replay-Src")
		if i := strings.Index(src, ";t="); i >= 0 {
			end := strings.IndexByte(src[i+1:], ';')
			if end < 0 {
				src = src[:i]
			} else {
				src = src[:i] + src[i+1+end:]
			}
		}
		failed := r.Header.Get("Fly-Replay-Failed")
		if i := strings.Index(failed, ";elapsed_ms="); i >= 0 {
			failed = failed[:i]
		}
		fmt.Fprintf(rw, "%s %s %s body=%s src=%s failed=%s cache=%s missed=%s x=%s", name, r.Method, r.URL.RequestURI(), body, src,
			failed, r.Header.Get("fly-replay-cache-status"), r.Header.Get("fly-preferred-instance-unavailable"), r.Header.Get("X-Set"))
	}
}

func TestReplay(t *testing.T) {
	w := newWorld(t, func(o *proxy.Options) { o.Limits.KeepBody = 1000 })
	a1 := w.machine("a1", "app", w.backend(replaying("a1")), nil)
	a2 := w.machine("a2", "app", w.backend(replaying("a2")), nil)
	w.machine("c1", "other", w.backend(replaying("c1")), nil)
	w.machine("f1", "foreign", w.backend(replaying("f1")), nil)
	for _, test := range []struct {
		name, instruction string
		headers           []string
		body              string
		want              string
	}{
		{"instance", "instance=" + string(a2), nil, "hello", "a2 POST /x?y=1 body=hello src=instance=a1000000000000;region=loc failed= cache=miss missed= x="},
		{"elsewhere", "elsewhere=true", nil, "", "a2 POST /x?y=1 body= src=instance=a1000000000000;region=loc failed= cache=miss missed= x="},
		{"app", "app=other", nil, "", "c1 POST /x?y=1 body= src=instance=a1000000000000;region=loc failed= cache=miss missed= x="},
		{"state", `app=other;state="a b;c"`, nil, "", `c1 POST /x?y=1 body= src=instance=a1000000000000;region=loc;state="a b;c" failed= cache=miss missed= x=`},
		{"region", "region=\"xyz,any\";app=other", nil, "", "c1 POST /x?y=1 body= src=instance=a1000000000000;region=loc failed= cache=miss missed= x="},
		{"preferred", "prefer_instance=ffffffffffffff;app=other", nil, "", "c1 POST /x?y=1 body= src=instance=a1000000000000;region=loc failed= cache=miss missed=ffffffffffffff x="},
		{"json", `{"app":"other","transform":{"path":"/new?z","set_headers":[{"name":"X-Set","value":"1"}],"delete_headers":["X-Replay"]}}`, nil, "hello", "c1 POST /new?z body=hello src=instance=a1000000000000;region=loc failed= cache=miss missed= x=1"},
		{"fallback", "instance=ffffffffffffff;fallback=force_self", nil, "hello", "a1 POST /x?y=1 body=hello src= failed=instance=ffffffffffffff;app=app;replay_source=a1000000000000;reason=no_candidate cache= missed= x="},
		{"no such app", "app=nothing", nil, "", "PA04 502"},
		{"foreign app", "app=foreign", nil, "", "PA05 502"},
		{"no such instance", "instance=ffffffffffffff", nil, "", "PR02 404"},
		{"no such region", "region=xyz", nil, "", "PR03 503"},
		{"nonsense", "where=there", nil, "", "PA03 502"},
		{"loop", "elsewhere=true", []string{"X-Always", "1"}, "", "PA02 502"},
		{"large body", "app=other", nil, strings.Repeat("x", 2000), "PA01 413"},
	} {
		t.Run(test.name, func(t *testing.T) {
			headers := append([]string{"X-Replay", test.instruction, "fly-prefer-instance-id", string(a1)}, test.headers...)
			got := w.do(w.client(), w.request(http.MethodPost, "http://app.apps.test/x?y=1", strings.NewReader(test.body), headers...))
			if code, status, ok := strings.Cut(test.want, " "); ok && len(code) == 4 {
				if fmt.Sprint(got.StatusCode) != status || got.Header.Get("Fly-Error-Code") != code {
					t.Errorf("got %d %s: %s", got.StatusCode, got.Header.Get("Fly-Error-Code"), got.body)
				}
				return
			}
			if got.body != test.want || got.Header.Get("Fly-Replay") != "" {
				t.Errorf("got %d %q\nwant %q", got.StatusCode, got.body, test.want)
			}
		})
	}
	t.Run("timeout", func(t *testing.T) {
		w.machine("b1", "second", w.backend(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), nil)
		got := w.get("http://app.apps.test/", "X-Replay", "app=second;timeout=50ms;fallback=prefer_self", "fly-prefer-instance-id", string(a1))
		if want := "a1 GET / body= src= failed=app=second;replay_source=a1000000000000;reason=timeout cache= missed= x="; got.body != want {
			t.Errorf("got %q\nwant %q", got.body, want)
		}
	})
	t.Run("cache", func(t *testing.T) {
		ask := func(extra ...string) string {
			headers := append([]string{"fly-prefer-instance-id", string(a1)}, extra...)
			return w.get("http://app.apps.test/tenant/7", headers...).body
		}
		learn := []string{"X-Replay", "app=other", "X-Answer", "fly-replay-cache=/tenant/*", "X-Answer", "fly-replay-cache-ttl-secs=60", "X-Answer", "fly-replay-cache-allow-bypass=yes"}
		for _, step := range []struct {
			headers []string
			want    string
		}{
			{nil, "a1 GET /tenant/7 body= src= failed= cache= missed= x="},
			{learn, "c1 GET /tenant/7 body= src=instance=a1000000000000;region=loc failed= cache=miss missed= x="},
			{nil, "c1 GET /tenant/7 body= src= failed= cache=hit missed= x="},
			{[]string{"fly-replay-cache-control", "skip"}, "a1 GET /tenant/7 body= src= failed= cache=bypass missed= x="},
		} {
			if got := ask(step.headers...); got != step.want {
				t.Errorf("got %q\nwant %q", got, step.want)
			}
		}
	})
}

// TestReplayCacheIsInvalidatedByTheTarget: the target of cached replays can invalidate them.
func TestReplayCacheIsInvalidatedByTheTarget(t *testing.T) {
	w := newWorld(t)
	said := make(chan string, 8)
	w.machine("a1", "app", w.backend(func(rw http.ResponseWriter, r *http.Request) {
		said <- "a1 " + r.Header.Get("Fly-Replay-Cache-Status")
		if r.Header.Get("Fly-Replay-Src") != "" {
			_, _ = io.WriteString(rw, "back")
			return
		}
		rw.Header().Set("fly-replay", "instance=a2000000000000")
		rw.Header().Set("fly-replay-cache", "/x/*")
		rw.Header().Set("fly-replay-cache-ttl-secs", "60")
	}), nil)
	w.machine("a2", "app", w.backend(func(rw http.ResponseWriter, r *http.Request) {
		said <- "a2 " + r.Header.Get("Fly-Replay-Cache-Status")
		if r.URL.Query().Has("wrong") {
			rw.Header().Set("fly-replay", "instance=a1000000000000")
			rw.Header().Set("fly-replay-cache", "invalidate")
		}
	}), nil)
	first := []string{"Fly-Prefer-Instance-Id", "a1000000000000"}
	for _, test := range []struct {
		path string
		want []string
	}{
		{"/x/1", []string{"a1 ", "a2 miss"}},
		{"/x/2", []string{"a2 hit"}},
		{"/x/3?wrong", []string{"a2 hit", "a1 hit"}},
		{"/x/4", []string{"a1 ", "a2 miss"}},
	} {
		w.get("http://app.apps.test"+test.path, first...)
		for _, want := range test.want {
			if got := <-said; got != want {
				t.Fatalf("%s: %q, want %q", test.path, got, want)
			}
		}
	}
}

func TestWishes(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"a1", "a2"} {
		w.machine(name, "app", w.backend(replaying(name)), nil)
	}
	w.row("a3", "app", w.backend(replaying("a3")), func(m *hangar.Machine) {
		m.Config.Services, m.Region = service(nil), "ams"
	})
	for range 5 {
		for _, test := range []struct{ header, value, want string }{
			{"fly-force-instance-id", "a2000000000000", "a2 "},
			{"platform-prefer-instance-id", "a1000000000000", "a1 "},
			{"fly-force-region", "ams", "a3 "},
			{"platform-prefer-region", "xyz,ams", "a3 "},
			{"fly-prefer-region", "!!", "a"},
		} {
			if got := w.get("http://app.apps.test/", test.header, test.value); !strings.HasPrefix(got.body, test.want) {
				t.Errorf("%s %s: got %q", test.header, test.value, got.body)
			}
		}
	}
	wantCode(t, w.get("http://app.apps.test/", "fly-force-region", "xyz"), 503, hangar.EdgeNoCandidate)
	wantCode(t, w.get("http://app.apps.test/", "fly-force-region", "!!"), 400, hangar.EdgeBadRequest)
	wantCode(t, w.get("http://app.apps.test/", "fly-force-instance-id", "none"), 404, hangar.EdgeNoMachine)
	if got := w.get("http://app.apps.test/", "fly-prefer-instance-id", "ffffffffffffff"); !strings.Contains(got.body, "missed=ffffffffffffff") {
		t.Errorf("got %q", got.body)
	}
}

func TestStatics(t *testing.T) {
	w := newWorld(t)
	w.gate.files["/srv/www/a.css"] = "body { }"
	w.row("a1", "app", w.backend(replaying("a1")), func(m *hangar.Machine) {
		m.Config.Services = service(nil)
		m.Config.Statics = []hangar.Static{{GuestPath: "/srv/www", URLPrefix: "/static"}}
	})
	got := w.get("http://app.apps.test/static/a.css")
	if got.body != "body { }" || got.Header.Get("Content-Type") != "text/css; charset=utf-8" || got.Header.Get("Fly-Request-Id") == "" || got.Header.Get("Server") != "hangar" {
		t.Errorf("got %d %q %v", got.StatusCode, got.body, got.Header)
	}
	if got := w.get("http://app.apps.test/static/a.css", "If-None-Match", got.Header.Get("Etag")); got.StatusCode != http.StatusNotModified {
		t.Errorf("got %d", got.StatusCode)
	}
	if got := w.get("http://app.apps.test/static/none"); !strings.HasPrefix(got.body, "a1 GET /static/none ") {
		t.Errorf("got %d %q", got.StatusCode, got.body)
	}
}

// TestStaticBreaksOff: a client can tell that a file was not read to its end, compressed or not.
func TestStaticBreaksOff(t *testing.T) {
	yes := true
	w := newWorld(t)
	w.gate.files["/srv/www/a.css"] = strings.Repeat("0123456789abcdef", 4<<10)
	w.row("a1", "app", w.backend(replaying("a1")), func(m *hangar.Machine) {
		m.Config.Services = service(func(p *hangar.ServicePort) { p.HTTP = &hangar.HTTPOptions{Compress: &yes} })
		m.Config.Statics = []hangar.Static{{GuestPath: "/srv/www", URLPrefix: "/static"}}
	})
	c := w.client()
	for _, end := range []error{errors.New("the host is away"), io.EOF} {
		w.gate.mu.Lock()
		w.gate.breakOff = end
		w.gate.mu.Unlock()
		for _, encoding := range []string{"gzip", "identity"} {
			res, err := c.Do(w.request("GET", "http://app.apps.test/static/a.css", nil, "Accept-Encoding", encoding))
			if err != nil {
				continue // nothing had been sent yet
			}
			if body, err := io.ReadAll(res.Body); err == nil {
				t.Errorf("%v, %s: got %d and %d bytes as if they were all", end, encoding, res.StatusCode, len(body))
			}
			_ = res.Body.Close()
		}
	}
}

func TestAccessLog(t *testing.T) {
	w := newWorld(t)
	w.machine("a1", "app", w.backend(replaying("a1")), nil)
	lines := make(chan hangar.LogEntry, 10)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e, err := range w.proxy.Access().FollowEdge(w.ctx, "app") {
			if err == nil {
				lines <- e
			}
		}
	}()
	for !w.proxy.Access().Wanted("app") {
		time.Sleep(time.Millisecond)
	}
	w.get("http://app.apps.test/x?y", "User-Agent", "me")
	e := <-lines
	if !strings.HasPrefix(e.Message, `127.0.0.1 "GET /x?y HTTP/1.1" app.apps.test 200 `) || e.Instance != "a1000000000000" || e.Provider != hangar.LogProxy {
		t.Errorf("got %+v", e)
	}
	if r := e.Edge; r == nil || r.UserAgent != "me" || r.Bytes == 0 || r.RequestID == "" {
		t.Errorf("got %+v", r)
	}
	w.stop()
	<-done
}

// TestRememberedReplayIsNotRepeated: a request that the cache sent to a Machine that may have
// executed it is not repeated at its original destination.
func TestRememberedReplayIsNotRepeated(t *testing.T) {
	w := newWorld(t)
	var posts atomic.Int32
	w.machine("a1", "app", w.backend(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			posts.Add(1)
			return
		}
		rw.Header().Set("fly-replay", "instance=a2000000000000")
		rw.Header().Set("fly-replay-cache", "/x/*")
		rw.Header().Set("fly-replay-cache-ttl-secs", "60")
	}), nil)
	w.machine("a2", "app", w.scripted(func(_ int, c net.Conn) {
		br := bufio.NewReader(c)
		for {
			r := readRequest(br)
			if r == nil {
				return
			}
			if r.Method == http.MethodPost {
				posts.Add(1)
				reset(c)
				return
			}
			_, _ = io.WriteString(c, okAnswer)
		}
	}), nil)
	first := []string{"Fly-Prefer-Instance-Id", "a1000000000000"}
	if got := w.get("http://app.apps.test/x/", first...); got.body != "ok" {
		t.Fatalf("got %q", got.body)
	}
	got := w.do(w.client(), w.request(http.MethodPost, "http://app.apps.test/x/", strings.NewReader("body"), first...))
	if got.StatusCode != http.StatusBadGateway || posts.Load() != 1 {
		t.Errorf("got %d, and it was done %d times", got.StatusCode, posts.Load())
	}
}
