package proxy_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/replica/proxy"
)

// fakeNode is a node whose position and role the test sets.
type fakeNode struct {
	mu      sync.Mutex
	changed chan struct{}
	primary bool
	known   string // hostname of the primary that it follows
	epoch   uint64
	txid    ltx.TXID
	unseen  error // what Committed returns
	acked   map[ltx.TXID]int
	lost    error // what acknowledged returns
	lag     time.Duration
	waiting chan struct{} // gets a value when a request waits
}

func newFakeNode() *fakeNode {
	return &fakeNode{epoch: 0x2a, changed: make(chan struct{}), acked: map[ltx.TXID]int{}, waiting: make(chan struct{}, 100)}
}

func (f *fakeNode) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeNode) until(ctx context.Context, ok func() bool) error {
	for {
		f.mu.Lock()
		done, changed := ok(), f.changed
		f.mu.Unlock()
		if done {
			return nil
		}
		select {
		case f.waiting <- struct{}{}:
		default:
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fakeNode) PrimaryEpoch() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.primary {
		return 0
	}
	return f.epoch
}

func (f *fakeNode) WaitPrimary(ctx context.Context) (string, error) {
	var hostname string
	err := f.until(ctx, func() bool {
		hostname = f.known
		return f.primary || f.known != ""
	})
	return hostname, err
}

func (f *fakeNode) Committed(_ context.Context, db string) (uint64, ltx.TXID, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if db != "app.db" {
		return 0, 0, nil
	}
	return f.epoch, f.txid, f.unseen
}

func (f *fakeNode) WaitMark(ctx context.Context, _ string, epoch uint64, id ltx.TXID) error {
	return f.until(ctx, func() bool { return f.epoch > epoch && epoch != 0 || f.epoch >= epoch && f.txid >= id })
}

// acknowledged requires two replicas.
func (f *fakeNode) acknowledged(ctx context.Context, _ string, id ltx.TXID) error {
	return errors.Join(f.until(ctx, func() bool { return f.acked[id] >= 2 || f.lost != nil }), f.lost)
}

func (f *fakeNode) Lag() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lag
}

// testApp is the App behind the proxy: its answers repeat the request.
type testApp struct {
	mu     sync.Mutex
	asked  []string
	answer http.HandlerFunc
}

func (a *testApp) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.asked = append(a.asked, r.Method+" "+r.URL.RequestURI())
	a.mu.Unlock()
	if a.answer != nil {
		a.answer(w, r)
		return
	}
	w.Write([]byte("app"))
}

func (a *testApp) requests() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.asked)
}

type testProxy struct {
	node *fakeNode
	app  *testApp
	url  string
}

func start(t *testing.T, change func(*proxy.Options)) *testProxy {
	t.Helper()
	p := &testProxy{node: newFakeNode(), app: &testApp{}}
	app := httptest.NewServer(p.app)
	t.Cleanup(app.Close)
	o := options(p.node)
	o.Target = strings.TrimPrefix(app.URL, "http://")
	if change != nil {
		change(&o)
	}
	h := proxy.New(o)
	t.Cleanup(h.Close)
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	p.url = server.URL
	return p
}

func options(n proxy.Node) proxy.Options {
	return proxy.Options{
		Target: "127.0.0.1:1", DB: "app.db", MaxLag: 10 * time.Second, RedirectTimeout: 5 * time.Second,
		Node: n, Log: slog.New(slog.DiscardHandler),
	}
}

func (p *testProxy) do(t *testing.T, method, path string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, p.url+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	if host := req.Header.Get("Host"); host != "" {
		req.Host = host
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

// Outcomes of a request.
const (
	served = "served"      // by the App
	marked = "with cookie" // by the App, and the client gets its position
	sent   = "to primary"
)

func TestWhereRequestsGo(t *testing.T) {
	for _, c := range []struct{ method, path, primary, replica string }{
		{"GET", "/", served, served},
		{"HEAD", "/page", served, served},
		{"POST", "/", marked, sent},
		{"PUT", "/x?a=1", marked, sent},
		{"PATCH", "/x", marked, sent},
		{"DELETE", "/x", marked, sent},
		{"OPTIONS", "/x", marked, sent},
		{"GET", "/admin/x", marked, sent},
		{"HEAD", "/admin/", marked, sent},
		{"GET", "/old/admin/", served, served},
		{"POST", "/static/a.css", served, served},
		{"POST", "/static/b.css", marked, sent},
		{"GET", "/static/a.css", served, served},
		{"POST", "/hooks/in", served, served},
		{"POST", "/hooks", marked, sent},
	} {
		for role, want := range map[string]string{"primary": c.primary, "replica": c.replica} {
			t.Run(c.method+" "+c.path+" "+role, func(t *testing.T) {
				p := start(t, func(o *proxy.Options) {
					o.Passthrough = []string{"*/a.css", "/hooks/*"}
					o.AlwaysForward = []string{"/admin/*"}
				})
				p.node.set(func() {
					p.node.txid = 0x1f
					if p.node.primary = role == "primary"; !p.node.primary {
						p.node.known = "e784079b449483"
					}
				})
				resp, body := p.do(t, c.method, c.path)
				got := served
				marks := map[string]string{"__txid": "000000000000001f", "__txepoch": "000000000000002a"}
				for _, cookie := range resp.Cookies() {
					got = marked
					if age := time.Until(cookie.Expires); cookie.Value != marks[cookie.Name] || cookie.Value == "" ||
						cookie.Path != "/" || !cookie.HttpOnly || age > 5*time.Minute || age < 4*time.Minute {
						t.Errorf("cookie %+v", cookie)
					}
				}
				if n := len(resp.Cookies()); n != 0 && n != len(marks) {
					t.Errorf("%d cookies", n)
				}
				to := resp.Header.Get("Fly-Replay")
				if to != "" {
					got = sent
				}
				if got != want {
					t.Errorf("%s, want %s", got, want)
				}
				asked := p.app.requests()
				if want == sent && (to != "instance=e784079b449483" || resp.Header.Get("Platform-Replay") != to || body != "" || len(asked) != 0) {
					t.Errorf("replay: %v, %q, the App was asked %v", resp.Header, body, asked)
				}
				if want != sent && !slices.Equal(asked, []string{c.method + " " + c.path}) {
					t.Errorf("the App was asked %v", asked)
				}
			})
		}
	}
}

// TestReadYourWrites: a replica delays a read until it has the client's last write.
func TestReadYourWrites(t *testing.T) {
	p := start(t, nil)
	p.node.set(func() { p.node.known, p.node.txid = "one", 4 })
	done := make(chan string)
	go func() {
		_, body := p.do(t, "GET", "/", "Cookie", "__txid=0000000000000006")
		done <- body
	}()
	<-p.node.waiting
	p.node.set(func() { p.node.txid = 5 })
	<-p.node.waiting
	if asked := p.app.requests(); len(asked) != 0 {
		t.Errorf("the App was asked %v too early", asked)
	}
	p.node.set(func() { p.node.txid = 6 })
	if body := <-done; body != "app" {
		t.Error(body)
	}
	for len(p.node.waiting) > 0 {
		<-p.node.waiting
	}
	// The same ID in another epoch is another transaction: one of an earlier epoch is not the
	// client's.
	go func() {
		_, body := p.do(t, "GET", "/", "Cookie", "__txid=0000000000000006; __txepoch=000000000000002b")
		done <- body
	}()
	<-p.node.waiting
	p.node.set(func() { p.node.txid = 9 })
	<-p.node.waiting
	if asked := p.app.requests(); len(asked) != 1 {
		t.Errorf("the App was asked %v too early", asked)
	}
	p.node.set(func() { p.node.epoch, p.node.txid = 0x2b, 7 })
	if body := <-done; body != "app" {
		t.Error(body)
	}
	// A transaction that was lost with its primary never arrives, once a later one has written.
	if _, body := p.do(t, "GET", "/", "Cookie", "__txid=0000000000000009; __txepoch=000000000000002a"); body != "app" {
		t.Error(body)
	}
	// Invalid cookies cause no wait, nor does the primary.
	for _, cookie := range []string{"", "__txid=", "__txid=zz", "__txid=7", "__txid=0000000000000000", "other=0000000000000009"} {
		if resp, body := p.do(t, "GET", "/", "Cookie", cookie); body != "app" {
			t.Errorf("%q: %s", cookie, resp.Status)
		}
	}
	p.node.set(func() { p.node.known, p.node.primary = "", true })
	if resp, body := p.do(t, "GET", "/", "Cookie", "__txid=00000000000000ff"); body != "app" || len(resp.Cookies()) != 0 {
		t.Error(resp.Status, body)
	}
}

// TestTimeLimits: a replica never gets what it waits for.
func TestTimeLimits(t *testing.T) {
	for name, c := range map[string]struct {
		method, cookie string
		after          time.Duration
		status         int
		text           string
	}{
		"a read of what does not come": {"GET", "__txid=0000000000000009", 5 * time.Second, 504, "does not have what this client wrote"},
		"a write without a primary":    {"POST", "", 7 * time.Second, 503, "no primary available"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := options(newFakeNode())
				o.RedirectTimeout = 7 * time.Second
				p := proxy.New(o)
				defer p.Close()
				w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), c.method, "/", nil)
				r.Header.Set("Cookie", c.cookie)
				began := time.Now()
				p.ServeHTTP(w, r)
				if took := time.Since(began); w.Code != c.status || !strings.Contains(w.Body.String(), c.text) || took != c.after {
					t.Errorf("after %s: %d %s", took, w.Code, w.Body)
				}
				if w.Header().Get("Cache-Control") != "no-store" {
					t.Errorf("headers %v", w.Header())
				}
				// A client that disconnects ends the wait.
				ctx, cancel := context.WithCancel(t.Context())
				r = r.WithContext(ctx)
				w = httptest.NewRecorder()
				go func() {
					synctest.Wait()
					cancel()
				}()
				began = time.Now()
				if p.ServeHTTP(w, r); time.Since(began) != 0 || w.Body.Len() != 0 {
					t.Errorf("a client that has gone: %d %s", w.Code, w.Body)
				}
			})
		})
	}
}

// TestPrimaryIsFound forwards a write as soon as the primary is known.
func TestPrimaryIsFound(t *testing.T) {
	p := start(t, nil)
	done := make(chan string)
	go func() {
		resp, _ := p.do(t, "POST", "/")
		done <- resp.Header.Get("Fly-Replay")
	}()
	<-p.node.waiting
	p.node.set(func() { p.node.known = "two" })
	if to := <-done; to != "instance=two" {
		t.Error(to)
	}
	// No database, no cookie.
	p.node.set(func() { p.node.known, p.node.primary = "", true })
	if resp, _ := p.do(t, "POST", "/"); resp.StatusCode != http.StatusOK || len(resp.Cookies()) != 0 {
		t.Error(resp.Status, resp.Cookies())
	}
}

// TestAcknowledgements withholds the answer to a write until enough replicas have it.
func TestAcknowledgements(t *testing.T) {
	p := start(t, func(o *proxy.Options) { o.Acknowledged = o.Node.(*fakeNode).acknowledged })
	p.app.answer = func(w http.ResponseWriter, _ *http.Request) {
		p.node.set(func() { p.node.txid++ })
		w.Header().Set("Secret", "answer")
		w.WriteHeader(http.StatusCreated)
	}
	p.node.set(func() { p.node.primary = true })
	answers := make(chan *http.Response, 1)
	go func() {
		resp, _ := p.do(t, "POST", "/")
		answers <- resp
	}()
	<-p.node.waiting
	p.node.set(func() { p.node.acked[1] = 1 })
	<-p.node.waiting
	select {
	case resp := <-answers:
		t.Fatal("answered with one acknowledgement: ", resp.Status)
	default:
	}
	p.node.set(func() { p.node.acked[1] = 2 })
	if resp := <-answers; resp.StatusCode != http.StatusCreated || len(resp.Cookies()) != 2 {
		t.Error(resp.Status, resp.Header)
	}
	p.node.set(func() { p.node.lost = context.DeadlineExceeded })
	resp, body := p.do(t, "POST", "/")
	if resp.StatusCode != http.StatusGatewayTimeout || !strings.Contains(body, "committed, but not yet") || resp.Header.Get("Secret") != "" || len(resp.Cookies()) != 0 {
		t.Error(resp.Status, body, resp.Header)
	}
}

// TestLostTerm withholds the answer to a write if the node is not the primary, or is so again, when
// the App answers: the write may be in no chain. If no replicas are required, the answer is sent
// without a position.
func TestLostTerm(t *testing.T) {
	for name, change := range map[string]func(*fakeNode){
		"lost":         func(f *fakeNode) { f.primary = false },
		"again":        func(f *fakeNode) { f.epoch++ },
		"not captured": func(f *fakeNode) { f.unseen = context.DeadlineExceeded },
	} {
		for _, waits := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				p := start(t, func(o *proxy.Options) {
					if waits {
						o.Acknowledged = o.Node.(*fakeNode).acknowledged
					}
				})
				p.node.set(func() { p.node.primary, p.node.txid, p.node.acked[1] = true, 1, 2 })
				p.app.answer = func(w http.ResponseWriter, _ *http.Request) {
					p.node.set(func() { change(p.node) })
					w.WriteHeader(http.StatusCreated)
				}
				want := http.StatusCreated
				if waits {
					want = http.StatusGatewayTimeout
				}
				if resp, body := p.do(t, "POST", "/"); resp.StatusCode != want || len(resp.Cookies()) != 0 {
					t.Error(resp.Status, body, resp.Header)
				}
			})
		}
	}
}

// TestRequestsPassUnchanged compares what the App sees with what the client sent.
func TestRequestsPassUnchanged(t *testing.T) {
	p := start(t, nil)
	var seen http.Header
	var host string
	p.app.answer = func(w http.ResponseWriter, r *http.Request) {
		seen, host = r.Header, r.Host
		w.Header().Set("Content-Encoding", "gzip")
		w.Write([]byte("not unpacked"))
	}
	resp, body := p.do(t, "GET", "/a%2Fb/?q=1;2&x=%zz", "Host", "app.example", "X-Forwarded-For", "192.0.2.7", "X-Forwarded-Proto", "https", "Accept-Encoding", "gzip")
	if got := p.app.requests(); !slices.Equal(got, []string{"GET /a%2Fb/?q=1;2&x=%zz"}) {
		t.Errorf("asked %v", got)
	}
	if host != "app.example" || seen.Get("X-Forwarded-For") != "192.0.2.7" || seen.Get("X-Forwarded-Proto") != "https" || seen.Get("Accept-Encoding") != "gzip" {
		t.Errorf("host %q, headers %v", host, seen)
	}
	if body != "not unpacked" || resp.Header.Get("Content-Encoding") != "gzip" {
		t.Errorf("%q %v", body, resp.Header)
	}
}

// TestStreams: bodies flow in both directions while neither has ended.
func TestStreams(t *testing.T) {
	p := start(t, nil)
	p.node.set(func() { p.node.primary = true })
	half, rest := make(chan string), make(chan struct{})
	p.app.answer = func(w http.ResponseWriter, r *http.Request) {
		b := make([]byte, 3)
		io.ReadFull(r.Body, b)
		half <- string(b)
		all, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Write(append(b, all...))
		http.NewResponseController(w).Flush()
		<-rest
		w.Write([]byte(" end"))
	}
	body, send := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url, body)
	if err != nil {
		t.Fatal(err)
	}
	go send.Write([]byte("one"))
	answers := make(chan *http.Response)
	go func() {
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Error(err)
		}
		answers <- resp
	}()
	if got := <-half; got != "one" {
		t.Error(got)
	}
	send.Write([]byte(" two"))
	send.Close()
	resp := <-answers
	defer resp.Body.Close()
	b := make([]byte, 7)
	if _, err := io.ReadFull(resp.Body, b); err != nil || string(b) != "one two" {
		t.Fatal(string(b), err)
	}
	close(rest)
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != " end" {
		t.Error(string(b), err)
	}
}

func TestWebSocket(t *testing.T) {
	p := start(t, nil)
	p.node.set(func() { p.node.known = "one" })
	p.app.answer = func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer c.CloseNow()
		for {
			kind, b, err := c.Read(r.Context())
			if err != nil {
				return
			}
			c.Write(r.Context(), kind, append([]byte("echo "), b...))
		}
	}
	c, _, err := websocket.Dial(t.Context(), p.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	for _, text := range []string{"a", "b"} {
		if err := c.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if _, b, err := c.Read(t.Context()); err != nil || string(b) != "echo "+text {
			t.Fatal(string(b), err)
		}
	}
	if err := c.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
}

func TestHealthAndLag(t *testing.T) {
	p := start(t, nil)
	for _, c := range []struct {
		primary bool
		lag     time.Duration
		status  int
		header  string
	}{
		{true, 0, 200, ""},
		{false, 0, 200, "0"},
		{false, 10 * time.Second, 200, "10000"},
		{false, 10*time.Second + 1, 503, "10000"},
		{false, math.MaxInt64, 503, "2147483647"},
	} {
		p.node.set(func() { p.node.primary, p.node.lag = c.primary, c.lag })
		resp, body := p.do(t, "GET", "/litefs/health")
		if resp.StatusCode != c.status || resp.Header.Get("Hangar-Db-Lag") != c.header {
			t.Errorf("%+v: %s %s %v", c, resp.Status, body, resp.Header)
		}
		if resp, _ := p.do(t, "GET", "/"); resp.Header.Get("Hangar-Db-Lag") != c.header || resp.StatusCode != http.StatusOK {
			t.Errorf("%+v: %s %v", c, resp.Status, resp.Header)
		}
	}
	if asked := p.app.requests(); slices.Contains(asked, "GET /litefs/health") {
		t.Error("the App was asked for its health")
	}
}

func TestNoApp(t *testing.T) {
	p := start(t, func(o *proxy.Options) { o.Target = "127.0.0.1:1" })
	resp, body := p.do(t, "GET", "/")
	if resp.StatusCode != http.StatusBadGateway || body != "Proxy error: the App does not answer\n" {
		t.Error(resp.Status, body)
	}
	// If the App breaks off, so does the answer.
	p = start(t, nil)
	p.app.answer = func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte("half"))
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err = http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadAll(resp.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error("the answer ends as if it were whole: ", err)
	}
}
