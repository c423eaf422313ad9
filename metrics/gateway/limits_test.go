package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/metricstest"
)

// pretended is a store with a function that answers the requests.
type pretended func(*http.Request) (*http.Response, error)

func (p pretended) RoundTrip(r *http.Request) (*http.Response, error) { return p(r) }
func (p pretended) Client() *http.Client                              { return &http.Client{Transport: p} }

func (p pretended) QueryURL(metrics.Tenant) string { return "http://store/prometheus" }
func (p pretended) WriteURL(metrics.Tenant) string { return "" }
func (p pretended) SharedWriteURL() string         { return "" }

// answering returns a store that answers each request with a status and a body.
func answering(status int, body string) pretended {
	return func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(struct{ io.Reader }{strings.NewReader(body)})}, nil
	}
}

var ask = url.Values{"query": {"up"}}

// TestRefusals: requests that are refused without a request to the store.
func TestRefusals(t *testing.T) {
	g := newGateway(t, pretended(func(r *http.Request) (*http.Response, error) {
		t.Errorf("the store was asked: %s", r.URL)
		return nil, errors.New("unexpected")
	}), generous)
	const day = 24 * 60 * 60
	long := fmt.Sprint(401 * day)
	for _, c := range []struct {
		path string
		form string
		want int
	}{
		{"", "", 404},
		{"/", "", 404},
		{"/api/v1/query/", "query=up", 404},
		{"//api/v1/query", "query=up", 404},
		{"/api/v1/../v1/query", "query=up", 404},
		{"/api/v1/query\x00", "query=up", 404},
		{"/api/v1/query?query=up", "query=up", 404},
		{"/API/V1/QUERY", "query=up", 404},
		{"/api/v1/read", "", 404},
		{"/api/v1/write", "", 404},
		{"/api/v1/export", "match[]=up", 404},
		{"/api/v1/import/prometheus", "", 404},
		{"/api/v1/series/count", "", 404},
		{"/api/v1/metadata", "", 404},
		{"/api/v1/status/top_queries", "", 404},
		{"/api/v1/status/active_queries", "", 404},
		{"/api/v1/admin/tsdb/delete_series", "match[]=up", 404},
		{"/federate/x", "match[]=up", 404},
		{"/metrics", "", 404},
		{"/prometheus/api/v1/query", "query=up", 404},
		{"/api/v1/label/a/b/values", "", 404},
		{"/api/v1/label//values", "", 400},
		{"/api/v1/label/../values", "", 400},
		{"/api/v1/label/a%2Fb/values", "", 400},
		{"/api/v1/label/U___5f_org___/values", "", 400},
		{"/api/v1/label/é/values", "", 400},
		{"/api/v1/query", "", 400},
		{"/api/v1/query", "query=", 400},
		{"/api/v1/query", "query=up&time=yesterday", 400},
		{"/api/v1/query", "query=up&timeout=-1", 400},
		{"/api/v1/query", "query=up&step=0", 400},
		{"/api/v1/query", "query=up&round_digits=x", 400},
		{"/api/v1/query", "query=up&max_lookback=" + long, 400},
		{"/api/v1/query", "query=up%", 400},
		{"/api/v1/query", "query=rate(up[401d])", 400},
		{"/api/v1/query", "query=rate(up[1y36d])", 400},
		{"/api/v1/query", "query=up+offset+2y", 400},
		{"/api/v1/query", "query=" + strings.Repeat("(", 1000), 400},
		{"/api/v1/query", "query=" + strings.Repeat("x", 70_000), 413},
		{"/api/v1/query_range", "query=up&start=0&end=" + long + "&step=1d", 400},
		{"/api/v1/query_range", "query=up&start=2&end=1", 400},
		{"/api/v1/query_range", "query=up&start=0&end=11000&step=1", 400},
		{"/api/v1/query_range", "query=up&start=0&end=11000&step=1ms", 400},
		{"/api/v1/query_range", "query=up&start=NaN&end=1", 400},
		{"/api/v1/series", "", 400},
		{"/api/v1/series", "match[]=up&start=0&end=" + long, 400},
		{"/api/v1/series", "match[]=up&limit=x", 400},
		{"/api/v1/labels", "start=0&end=" + long, 400},
		{"/federate", "", 400},
		{"/federate", "match[]=" + url.QueryEscape("up{"), 400},
		{"/api/v1/status/tsdb", "topN=x", 400},
		{"/api/v1/status/tsdb", "date=0", 400},
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			w := send(t, g, own, Scope{}, method, c.path, c.form)
			if w.Code != c.want {
				t.Errorf("%s %q?%.80s answers %d, want %d: %s", method, c.path, c.form, w.Code, c.want, w.Body.String())
			}
			failed(t, w)
		}
	}
	for _, method := range []string{http.MethodPut, http.MethodDelete, http.MethodHead, http.MethodOptions} {
		if w := send(t, g, own, Scope{}, method, "/api/v1/query", "query=up"); w.Code != http.StatusMethodNotAllowed {
			t.Errorf("%s answers %d", method, w.Code)
		}
	}
	for _, media := range []string{"application/json", "multipart/form-data; boundary=x", ";;"} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader("query=up"))
		r.Header.Set("Content-Type", media)
		w := httptest.NewRecorder()
		if g.Serve(w, r, own, Scope{}, "/api/v1/query"); w.Code != http.StatusUnsupportedMediaType {
			t.Errorf("a body of type %s answers %d", media, w.Code)
		}
	}
}

// TestErrorsOfTheStore: the gateway tells a client in its own words what to do.
func TestErrorsOfTheStore(t *testing.T) {
	const secrets = ` http://10.0.0.1:8481 {__org__="` + ownID + `"} see -search.flag`
	for _, c := range []struct {
		status     int
		body       string
		want       int
		kind, text string
	}{
		{422, `{"error":"the number of matching timeseries exceeds 300000; -search.maxUniqueTimeseries` + secrets, 422, "execution", "too many series"},
		{422, "duplicate time series on the right side" + secrets, 422, "execution", "matched"},
		{503, "-search.maxQueryDuration timeout exceeded" + secrets, 503, "timeout", "too long"},
		{422, "not enough memory for processing" + secrets, 422, "execution", "memory"},
		{422, "an unknown error" + secrets, 422, "execution", "not valid"},
		{429, "couldn't start executing" + secrets, 503, "unavailable", "busy"},
		{400, `{"status":"error","errorType":"bad_data","error":"the query cannot be parsed: x"}`, 400, "bad_data", "cannot be parsed: x"},
		{400, `{"status":"error","errorType":"400","error":"` + secrets, 422, "execution", "not valid"},
		{500, "panic" + secrets, 503, "unavailable", "not available"},
		{302, "moved" + secrets, 503, "unavailable", "not available"},
	} {
		w := call(t, newGateway(t, answering(c.status, c.body), generous), own, Scope{}, http.MethodGet, "/api/v1/query", ask)
		kind, text := failed(t, w)
		if w.Code != c.want || kind != c.kind || !strings.Contains(text, c.text) {
			t.Errorf("%d %s becomes %d %s %q", c.status, c.body, w.Code, kind, text)
		}
		if strings.Contains(text, "10.0.0.1") || strings.Contains(text, "org") || strings.Contains(text, "search.") {
			t.Errorf("%s shows %q", c.body, text)
		}
		if (w.Code == http.StatusServiceUnavailable && kind == "unavailable") != (w.Header().Get("Retry-After") != "") {
			t.Errorf("%d %s has Retry-After %q", w.Code, kind, w.Header().Get("Retry-After"))
		}
	}
	away := pretended(func(*http.Request) (*http.Response, error) {
		return nil, &hangar.Error{Code: hangar.CodeUnavailable, Message: "m", Err: errors.New("dial /run/secret.sock")}
	})
	w := call(t, newGateway(t, away, generous), own, Scope{}, http.MethodGet, "/api/v1/query", ask)
	if _, text := failed(t, w); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || strings.Contains(text, "secret") {
		t.Errorf("a store that is away answers %d %q", w.Code, text)
	}
}

// TestTooLargeAnswers: an answer that is known to be too large before it begins is an error;
// otherwise it ends in the middle.
func TestTooLargeAnswers(t *testing.T) {
	small, large := generous, generous
	small.Bytes, large.Bytes = 1000, 2<<20
	body := `{"data":["` + strings.Repeat("x", 3<<20) + `"]}`
	w := call(t, newGateway(t, answering(200, body), small), own, Scope{}, http.MethodGet, "/api/v1/query", ask)
	if _, text := failed(t, w); w.Code != http.StatusUnprocessableEntity || !strings.Contains(text, "too large") {
		t.Errorf("answers %d %q", w.Code, text)
	}
	for name, s := range map[string]pretended{
		"too large": answering(200, body),
		"cut short": answering(200, body[:1200<<10]),
	} {
		g := newGateway(t, s, large)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			g.Serve(w, r, own, Scope{}, "/api/v1/query")
		}))
		resp, err := server.Client().Get(server.URL + "?query=up")
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, resp.Body); err == nil {
			t.Errorf("%s: the client takes %d bytes for the whole answer", name, n)
		}
		resp.Body.Close()
		server.Close()
	}
	// The same in the lists that are decoded.
	w = call(t, newGateway(t, answering(200, body), small), own, Scope{}, http.MethodGet, "/api/v1/labels", nil)
	if w.Code != http.StatusUnprocessableEntity {
		t.Errorf("labels answer %d", w.Code)
	}
}

// blocking is a store whose queries run until they are released.
type blocking struct {
	pretended
	begun chan string // the organization of each query
	done  chan struct{}
	most  map[string]int
}

func newBlocking() *blocking {
	b := &blocking{begun: make(chan string, 1000), done: make(chan struct{}), most: map[string]int{}}
	var mu sync.Mutex
	now := map[string]int{}
	b.pretended = func(r *http.Request) (*http.Response, error) {
		org := r.URL.Query().Get("extra_label")
		mu.Lock()
		now[org]++
		b.most[org] = max(b.most[org], now[org])
		mu.Unlock()
		defer func() {
			mu.Lock()
			now[org]--
			mu.Unlock()
		}()
		b.begun <- org
		select {
		case <-b.done:
			return answering(200, emptyList)(r)
		case <-r.Context().Done():
			return nil, context.Cause(r.Context())
		}
	}
	return b
}

// TestOneOrganizationAbuses: one organization keeps sending slow queries. It never runs more than
// its share, further ones are refused, and another organization gets answers immediately.
func TestOneOrganizationAbuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newBlocking()
		g := newGateway(t, s, Limits{Concurrent: 3, Waiting: 5, Total: 4, Rate: 1000, Burst: 1000, Wait: 10 * time.Second, Time: time.Hour})
		statuses := make(chan int, 100)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { statuses <- call(t, g, other, Scope{}, http.MethodGet, "/api/v1/query", ask).Code })
		}
		synctest.Wait()
		if running, refused := len(s.begun), len(statuses); running != 3 || refused != 20-3-5 {
			t.Errorf("%d queries run, %d are refused", running, refused)
		}
		for len(s.begun) > 0 {
			<-s.begun
		}
		wg.Go(func() { // it finds a slot at once
			if w := call(t, g, own, Scope{}, http.MethodGet, "/api/v1/query", ask); w.Code != http.StatusOK {
				t.Errorf("the other organization is answered %d", w.Code)
			}
		})
		synctest.Wait()
		if len(s.begun) != 1 || !strings.Contains(<-s.begun, ownID) {
			t.Error("the other organization's query does not run")
		}
		time.Sleep(11 * time.Second) // until the waiters have timed out
		synctest.Wait()
		if len(statuses) != 20-3 {
			t.Errorf("%d queries are refused after the wait", len(statuses))
		}
		close(s.done)
		wg.Wait()
		close(statuses)
		count := map[int]int{}
		for status := range statuses {
			count[status]++
		}
		if count[http.StatusOK] != 3 || count[http.StatusTooManyRequests] != 17 {
			t.Errorf("the statuses are %v", count)
		}
		for org, n := range s.most {
			if n > 3 {
				t.Errorf("%s ran %d queries at the same time", org, n)
			}
		}
	})
}

// TestManyOrganizationsShareSlots: when all slots are taken, organizations with and without running
// queries ask for one.
func TestManyOrganizationsShareSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newBlocking()
		g := newGateway(t, s, Limits{Concurrent: 4, Total: 2, Wait: time.Second, Rate: 1000, Burst: 1000, Time: time.Hour})
		var wg sync.WaitGroup
		ok, busyAnswers := atomic.Int32{}, atomic.Int32{}
		run := func(tenant metrics.Tenant) {
			wg.Go(func() {
				switch w := call(t, g, tenant, Scope{}, http.MethodGet, "/api/v1/query", ask); {
				case w.Code == http.StatusOK:
					ok.Add(1)
				case w.Code == http.StatusServiceUnavailable && w.Header().Get("Retry-After") != "":
					busyAnswers.Add(1)
				default:
					t.Errorf("answered %d %s", w.Code, w.Body.String())
				}
			})
			synctest.Wait()
		}
		run(other)
		run(other) // has no second slot while there are two
		run(own)
		if first, second := <-s.begun, <-s.begun; first == second || len(s.begun) != 0 {
			t.Errorf("%s and %s have the slots", first, second)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		close(s.done)
		wg.Wait()
		if ok.Load() != 2 || busyAnswers.Load() != 1 {
			t.Errorf("%d were answered, %d were refused because the store is busy", ok.Load(), busyAnswers.Load())
		}
	})
}

// TestRate: each organization regains queries as time passes.
func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t, answering(200, emptyList), Limits{Rate: 2, Burst: 3})
		take := func(tenant metrics.Tenant, n int) (answered int) {
			for range n {
				w := call(t, g, tenant, Scope{}, http.MethodGet, "/api/v1/labels", nil)
				if w.Code == http.StatusOK {
					answered++
				} else if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" {
					t.Errorf("answered %d, Retry-After %q", w.Code, w.Header().Get("Retry-After"))
				}
			}
			return answered
		}
		if n := take(other, 10); n != 3 {
			t.Errorf("%d of a burst were answered", n)
		}
		if n := take(own, 3); n != 3 {
			t.Errorf("%d of the other organization were answered", n)
		}
		time.Sleep(time.Second)
		if n := take(other, 10); n != 2 {
			t.Errorf("%d were answered a second later", n)
		}
	})
}

// TestIdleOrganizationsAreForgotten: memory does not grow with the number of past clients.
func TestIdleOrganizationsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tenants := newTenants(Limits{Rate: 1, Burst: 1, Concurrent: 1, Waiting: 1}.withDefaults())
		for i := range 10 * minSweep {
			leave, err := tenants.enter(t.Context(), hangar.OrgID(fmt.Sprint(i)))
			if err != nil {
				t.Fatal(err)
			}
			leave()
			time.Sleep(10 * time.Millisecond)
		}
		if n := len(tenants.known); n > 2*minSweep {
			t.Errorf("%d organizations are remembered", n)
		}
	})
}

// TestClientThatHangsUp: its query keeps its slot until the store is done, so that it cannot pile
// up queries there.
func TestClientThatHangsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newBlocking()
		g := newGateway(t, s, Limits{Concurrent: 1, Waiting: 1, Wait: time.Second, Total: 2, Time: time.Hour})
		ctx, hangUp := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			defer func() {
				if err, _ := recover().(error); !errors.Is(err, http.ErrAbortHandler) {
					t.Errorf("the handler ends with %v", err)
				}
			}()
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/?query=up", http.NoBody)
			g.Serve(httptest.NewRecorder(), r, own, Scope{}, "/api/v1/query")
		})
		<-s.begun
		hangUp()
		synctest.Wait()
		if w := call(t, g, own, Scope{}, http.MethodGet, "/api/v1/query", ask); w.Code != http.StatusTooManyRequests {
			t.Errorf("a second query is answered %d", w.Code)
		}
		close(s.done)
		wg.Wait()
	})
}

// TestQueryThatTakesTooLong: the store gets a few more seconds to report that itself.
func TestQueryThatTakesTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t, newBlocking(), Limits{Time: 3 * time.Second})
		began := time.Now()
		w := call(t, g, own, Scope{}, http.MethodGet, "/api/v1/query", ask)
		if kind, _ := failed(t, w); w.Code != http.StatusServiceUnavailable || kind != "timeout" {
			t.Errorf("answered %d %s", w.Code, kind)
		}
		if took := time.Since(began); took != 3*time.Second+stoppingGrace {
			t.Errorf("took %s", took)
		}
	})
}

// slowClient takes a time for each MiB, or fails at its deadline.
type slowClient struct {
	recorder

	perMiB time.Duration
	stalls int // after so many bytes it takes nothing more; 0: never
	by     time.Time
}

func (c *slowClient) SetWriteDeadline(t time.Time) error {
	c.by = t
	return nil
}

func (c *slowClient) Write(p []byte) (int, error) {
	ready := time.Now().Add(c.perMiB * time.Duration(len(p)) >> 20)
	if c.stalls > 0 && c.body.Len() >= c.stalls {
		ready = ready.Add(24 * time.Hour)
	}
	if !c.by.IsZero() && ready.After(c.by) {
		time.Sleep(time.Until(c.by))
		return 0, os.ErrDeadlineExceeded
	}
	time.Sleep(time.Until(ready))
	return c.recorder.Write(p)
}

// drip returns a store whose answer is a list of n values, each of which takes it a pause.
func drip(n int, value string, pause time.Duration) pretended {
	return func(r *http.Request) (*http.Response, error) {
		next, n := `{"status":"success","data":["first"`, n
		body := readerFunc(func(p []byte) (int, error) {
			if next == "" {
				switch n--; {
				case n > 0:
					next = `,"` + value + `"`
				case n == 0:
					next = "]}"
				default:
					return 0, io.EOF
				}
				select {
				case <-time.After(pause):
				case <-r.Context().Done():
				}
			}
			if err := r.Context().Err(); err != nil {
				return 0, err
			}
			k := copy(p, next)
			next = next[k:]
			return k, nil
		})
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(body)}, nil
	}
}

// TestSlowClients: one that reads is served until the end, however little time the query has, and one
// that does not is cut.
func TestSlowClients(t *testing.T) {
	const mib = 1 << 20
	limits := Limits{Transfer: 30 * time.Second}
	for name, c := range map[string]struct {
		path   string
		client slowClient
		took   time.Duration // at most
		whole  bool
	}{
		"list that is read":     {"/api/v1/labels", slowClient{perMiB: 3 * time.Second}, 90 * time.Second, true},
		"answer that is read":   {"/api/v1/query", slowClient{perMiB: 3 * time.Second}, 90 * time.Second, true},
		"read too slowly":       {"/api/v1/labels", slowClient{perMiB: 5 * time.Second}, limits.Transfer, false},
		"not read":              {"/api/v1/query", slowClient{stalls: 1}, limits.Transfer, false},
		"not read at some time": {"/api/v1/labels", slowClient{perMiB: time.Second, stalls: 10 * mib}, 10*time.Second + limits.Transfer, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.client.header = http.Header{}
				g := newGateway(t, drip(25, strings.Repeat("x", mib), 0), limits)
				began := time.Now()
				cut := func() (cut bool) {
					defer func() { cut = recover() != nil }()
					get(t, g, &c.client, c.path, "query=up&timeout=1")
					return
				}()
				if took := time.Since(began); cut == c.whole || took > c.took {
					t.Errorf("after %s and %d bytes: the answer is cut: %t", took, c.client.body.Len(), cut)
				}
			})
		})
	}
}

// TestStoreThatDrips: the pauses of a store count together.
func TestStoreThatDrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t, drip(1000, "x", time.Second), Limits{Time: 3 * time.Second})
		began := time.Now()
		w := call(t, g, own, Scope{}, http.MethodGet, "/api/v1/labels", nil)
		if kind, _ := failed(t, w); w.Code != http.StatusServiceUnavailable || kind != "timeout" {
			t.Errorf("answered %d %s", w.Code, kind)
		}
		if took := time.Since(began); took != 3*time.Second+stoppingGrace {
			t.Errorf("took %s", took)
		}
	})
}

// TestRequestToTheStore: only parsed parameters reach the store.
func TestRequestToTheStore(t *testing.T) {
	for _, c := range []struct {
		path, form, want string
		scope            Scope
		confine          string
	}{
		{
			path: "/api/v1/query", form: "query=up&time=1.5&timeout=1h&x=y&extra_label=a=b&nocache=true&step=1m&limit=5",
			want: "nocache=1&query=up&step=60.000&time=1.500&timeout=30.000", confine: "extra_label=__org__%3D" + ownID,
		},
		{
			path: "/api/v1/query_range", form: "query=up&start=1970-01-01T00:00:10Z&end=20&step=1m30s&timeout=2s",
			want: "end=20.000&query=up&start=10.000&step=90.000&timeout=2.000", confine: "extra_label=__org__%3D" + ownID,
		},
		{
			path: "/api/v1/series", form: "match[]=a&match=b&start=-292273086-05-16T16:47:06Z&end=40000000&limit=3",
			want:  "end=40000000.000&limit=4&match%5B%5D=a&match%5B%5D=b&start=5440000.000&timeout=30.000",
			scope: apps("a.b", "c"), confine: "extra_filters%5B%5D=%7Bapp%3D~%22a%5C%5C.b%7Cc%22%7D&extra_label=__org__%3D" + ownID,
		},
		{
			path: "/api/v1/status/tsdb", form: "topN=9999&date=2026-01-02&focusLabel=__org__", want: "date=2026-01-02&timeout=30.000&topN=501",
			scope: apps(), confine: "extra_filters%5B%5D=%7B__org__%3D%22%22%7D&extra_label=__org__%3D" + ownID,
		},
		{path: "/federate", form: "match[]=a&start=1&query=x", want: "match%5B%5D=a&timeout=30.000", confine: "extra_label=__org__%3D" + ownID},
	} {
		asked := false
		g := newGateway(t, pretended(func(r *http.Request) (*http.Response, error) {
			asked = true
			body, err := io.ReadAll(r.Body)
			if err != nil || string(body) != c.want || r.URL.RawQuery != c.confine || r.URL.Path != "/prometheus"+c.path || r.Method != http.MethodPost {
				t.Errorf("%s?%s becomes %s %s with %s; want %s with %s", c.path, c.form, r.Method, r.URL, body, c.confine, c.want)
			}
			return answering(200, emptyList)(r)
		}), generous)
		if send(t, g, own, c.scope, http.MethodGet, c.path, c.form); !asked {
			t.Errorf("%s?%s is not asked", c.path, c.form)
		}
	}
}

// FuzzRequest: for any request of a client, the query is confined to its organization and Apps, and
// only uses allowed paths and parameters.
func FuzzRequest(f *testing.F) {
	f.Add("/api/v1/query", "query=up&extra_label=__org__=x", true)
	f.Add("/api/v1/label/a/values", "match[]={a=\"b\"}&extra_filters[]={}", false)
	allowed := map[string]bool{}
	for _, name := range []string{"query", "time", "start", "end", "step", "timeout", "match[]", "limit", "topN", "date", "focusLabel", "max_lookback", "round_digits", "nocache"} {
		allowed[name] = true
	}
	f.Fuzz(func(t *testing.T, path, form string, post bool) {
		if strings.ContainsAny(form, "\x00") {
			return
		}
		g := newGateway(t, pretended(func(r *http.Request) (*http.Response, error) {
			if r.URL.RawQuery != "extra_filters%5B%5D=%7Bapp%3D~%22web%22%7D&extra_label=__org__%3D"+ownID {
				t.Errorf("%q %q is confined to %s", path, form, r.URL.RawQuery)
			}
			below := strings.TrimPrefix(r.URL.Path, "/prometheus")
			if _, ok := fixedPaths[below]; !ok && !labelPath.MatchString(below) || r.URL.Host != "store" {
				t.Errorf("%q %q asks %s", path, form, r.URL)
			}
			body, _ := io.ReadAll(r.Body)
			values, err := url.ParseQuery(string(body))
			if err != nil {
				t.Error(err)
			}
			for name := range values {
				if !allowed[name] {
					t.Errorf("%q %q sends %s", path, form, body)
				}
			}
			return answering(200, emptyList)(r)
		}), generous)
		method := http.MethodGet
		if post {
			method = http.MethodPost
		}
		send(t, g, own, apps("web"), method, path, form)
	})
}

// TestRealStoreSurvives queries that would kill it or use up its memory, and the error gives the
// reason.
func TestRealStoreSurvives(t *testing.T) {
	s := metricstest.Start(t)
	at := time.Now()
	metricstest.Write(t, s, own, metricstest.Sample("up", 1, at.Add(-time.Second), "app", "web"))
	metricstest.Await(t, s, own, "up", at, 1)
	pid := s.PID()
	g := newGateway(t, s, generous)
	for query, want := range map[string]int{
		`up`:                              200,
		`up{`:                             400,
		`no_such_function(up)`:            400,
		`sum_over_time(time()[400d:1ms])`: 422,
		`WITH (a = up + up, b = a + a, c = b + b, d = c + c, e = d + d, f = e + e, g = f + f, h = g + g, i = h + h, j = i + i, k = j + j, l = k + k, m = l + l, n = m + m, o = n + n, p = o + o, q = p + p, r = q + q) r`: 400,
		strings.Repeat(`ru(1, `, 60) + "up" + strings.Repeat(")", 60):                    400,
		`up * on (app) group_left () label_set(up, "x", "1") or up == up{app=~"(a|b)*"}`: 200,
	} {
		w := call(t, g, own, Scope{}, http.MethodPost, "/api/v1/query", url.Values{"query": {query}, "time": {milliseconds(at)}})
		if w.Code != want {
			t.Errorf("%.100s answers %d, want %d: %s", query, w.Code, want, w.Body.String())
		}
	}
	if s.PID() != pid || pid == 0 {
		t.Errorf("the store was process %d and is %d", pid, s.PID())
	}
}
