package hosts_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cluster/authority"
	"github.com/hangar-platform/hangar/cluster/listener"
	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/gateway"
	"github.com/hangar-platform/hangar/metrics/hosts"
	"github.com/hangar-platform/hangar/metrics/metricstest"
	"github.com/hangar-platform/hangar/metrics/remote"
)

const (
	first  hangar.HostID = "aaaa0001"
	second hangar.HostID = "bbbb0002"
)

var (
	acme  = metricstest.Tenant("org1", 1)
	other = metricstest.Tenant("org2", 2)
)

func TestMain(m *testing.M) { os.Exit(metricstest.Main(m)) }

// cluster has two hosts that reach each other over mutual TLS.
type cluster struct {
	t *testing.T

	mu     sync.Mutex
	holder hangar.HostID // "": none
	hosts  map[hangar.HostID]*host
}

// host is one host of the test.
type host struct {
	id       hangar.HostID
	address  string
	identity *authority.Identity
	own      metrics.Store
	gateway  *gateway.Gateway
	client   *hosts.Client
	store    *hosts.Store
	queries  *hosts.Queries
	alerts   *hosts.Alerts
}

// serve is how a host keeps metrics.
type serve struct {
	own     metrics.Store
	queries hangar.SeriesQuerier // nil: the gateway of own
}

func newCluster(t *testing.T, has func(hangar.HostID) serve) *cluster {
	t.Helper()
	c := &cluster{t: t, holder: first, hosts: map[hangar.HostID]*host{}}
	root := t.TempDir()
	for _, id := range []hangar.HostID{first, second} {
		dir := t.TempDir()
		if id != first { // all certificates are of one authority
			for _, name := range []string{"authority.pem", "authority.key"} {
				b, err := os.ReadFile(filepath.Join(root, name))
				if err == nil {
					err = os.WriteFile(filepath.Join(dir, name), b, 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		} else {
			dir = root
		}
		c.hosts[id] = c.open(id, dir, has(id))
	}
	return c
}

func (c *cluster) open(id hangar.HostID, dir string, has serve) *host {
	c.t.Helper()
	log := slog.New(slog.NewTextHandler(c.t.Output(), nil))
	if err := authority.Found(dir, id, time.Now()); err != nil {
		c.t.Fatal(err)
	}
	identity, err := authority.Open(dir, id, log, time.Now)
	if err != nil {
		c.t.Fatal(err)
	}
	h := &host{id: id, identity: identity, own: has.own, gateway: gateway.New(gateway.Options{Store: has.own, Log: log})}
	if has.queries == nil {
		has.queries = asked{h.gateway}
	}
	h.client = hosts.NewClient(hosts.ClientConfig{
		Self: id, Holder: c.kept,
		Transport: func(to hangar.Host) http.RoundTripper {
			return &http.Transport{TLSClientConfig: identity.ClientConfig(to.ID), ForceAttemptHTTP2: true, DisableCompression: true}
		},
	})
	own := reports{id}
	h.store, h.queries, h.alerts = hosts.NewStore(has.own, h.client), hosts.NewQueries(has.queries, h.client, h.gateway.Refuse), hosts.NewAlerts(own, h.client)
	door := listener.New(identity, nil, log)
	door.Handle(hosts.Path, hosts.NewHandler(hosts.HandlerConfig{Client: h.client, Own: has.own, Queries: has.queries, Alerts: own, Log: log}))
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	h.address = inner.Addr().String()
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.t.Context()))
	served := make(chan error, 1)
	go func() { served <- door.Serve(ctx, inner) }()
	c.t.Cleanup(func() {
		h.client.Close()
		cancel()
		if err := <-served; err != nil {
			c.t.Error(err)
		}
	})
	return h
}

func (c *cluster) kept() (hangar.Host, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.hosts[c.holder]; h != nil {
		return hangar.Host{ID: h.id, Address: h.address}, nil
	}
	return hangar.Host{}, hangar.Errorf(hangar.CodeUnavailable, "", "no host keeps metrics")
}

func (c *cluster) move(to hangar.HostID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holder = to
}

// asked is a gateway as the API asks it.
type asked struct{ gateway *gateway.Gateway }

func (a asked) QuerySeries(w http.ResponseWriter, r *http.Request, scope hangar.MetricsScope, path string) {
	a.gateway.Serve(w, r, metrics.Tenant{Org: scope.Org, Number: uint32(scope.Number)}, gateway.Scope{Apps: scope.Apps}, path)
}

// reports is an AlertHost that names its host.
type reports struct{ host hangar.HostID }

func (r reports) CheckAlertRules(context.Context, hangar.Org, string) error { return nil }

func (r reports) AlertReport(_ context.Context, org hangar.OrgID) (hangar.AlertReport, error) {
	return hangar.AlertReport{Groups: []hangar.AlertGroup{{Name: string(r.host) + " " + string(org)}}}, nil
}

func (r reports) TestAlertRules(context.Context, hangar.Org, string) (hangar.AlertReport, error) {
	return hangar.AlertReport{Groups: []hangar.AlertGroup{{Name: "test at " + string(r.host)}}}, nil
}

// ask sends a query to the API of a host and returns the values by their label host.
func (h *host) ask(t *testing.T, scope hangar.MetricsScope, method, query string) (status int, got map[string]string) {
	t.Helper()
	params := url.Values{"query": {query}, "nocache": {"1"}}
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), method, "/prometheus/acme/api/v1/query?"+params.Encode(), http.NoBody)
	if method == http.MethodPost {
		r = httptest.NewRequestWithContext(t.Context(), method, "/prometheus/acme/api/v1/query", strings.NewReader(params.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	h.queries.QuerySeries(w, r, scope, "/api/v1/query")
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		t.Fatalf("%d %q: %v", w.Code, w.Body, err)
	}
	got = map[string]string{}
	for _, one := range answer.Data.Result {
		if one.Metric[metrics.OrgLabel] != "" {
			t.Errorf("the answer shows %v", one.Metric)
		}
		got[one.Metric["host"]] = fmt.Sprint(one.Value[1])
	}
	return w.Code, got
}

// await waits until a query returns certain values on every host.
func (c *cluster) await(scope hangar.MetricsScope, query string, want map[string]string) {
	c.t.Helper()
	for _, h := range c.hosts {
		for n := 0; ; n++ {
			method := []string{http.MethodGet, http.MethodPost}[n%2]
			// The store remembers for some seconds which series a filter selects.
			status, got := h.ask(c.t, scope, method, fmt.Sprintf(query, time.Now().UnixNano()))
			if status == http.StatusOK && maps.Equal(got, want) {
				break
			}
			if pause.For(c.t.Context(), 50*time.Millisecond) != nil {
				c.t.Fatalf("%s by %s: %d %v, want %v", query, h.id, status, got, want)
			}
		}
	}
}

func sample(h hangar.HostID, value float64) metrics.Sample {
	s := metricstest.Sample("m", value, time.Now().Add(-5*time.Second), "app", "web", "host", string(h[:4]))
	slices.SortFunc(s.Labels, func(a, b metrics.Label) int { return strings.Compare(a.Name, b.Name) })
	return s
}

// TestTwoHosts: the APIs of both hosts return the measurements of both, to clients with the right
// to read them. When another host becomes the holder, it has everything written from then on.
func TestTwoHosts(t *testing.T) {
	c := newCluster(t, func(hangar.HostID) serve { return serve{own: metricstest.Start(t)} })
	ctx, cancel := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	defer func() { cancel(); sending.Wait() }()
	writers := map[hangar.HostID]*remote.Writer{}
	for id, h := range c.hosts {
		w := remote.New(remote.Options{Store: h.store, Dir: t.TempDir(), Limits: remote.Limits{Gather: time.Millisecond}, Log: slog.New(slog.DiscardHandler)})
		if err := w.Open(); err != nil {
			t.Fatal(err)
		}
		writers[id] = w
		sending.Go(func() { w.Run(ctx) })
	}
	write := func(value float64) {
		t.Helper()
		for id, w := range writers {
			for i, tenant := range []metrics.Tenant{acme, other} {
				if err := w.Write(t.Context(), tenant, []metrics.Sample{sample(id, value+float64(i))}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	all := hangar.MetricsScope{Org: acme.Org, Number: 1}
	write(1)
	c.await(all, `m{x!="%d"}`, map[string]string{"aaaa": "1", "bbbb": "1"})
	c.await(hangar.MetricsScope{Org: other.Org, Number: 2}, `m{x!="%d"}`, map[string]string{"aaaa": "2", "bbbb": "2"})
	c.await(hangar.MetricsScope{Org: acme.Org, Number: 1, Apps: []hangar.AppName{"web"}}, `m{x!="%d"}`, map[string]string{"aaaa": "1", "bbbb": "1"})
	// Rights and refusals are the same as with one host.
	for _, apps := range [][]hangar.AppName{{}, {"api"}} {
		for id, h := range c.hosts {
			if status, got := h.ask(t, hangar.MetricsScope{Org: acme.Org, Number: 1, Apps: apps}, http.MethodGet, "m"); status != http.StatusOK || len(got) > 0 {
				t.Errorf("who may query %v is answered by %s %d %v", apps, id, status, got)
			}
		}
	}
	for id, h := range c.hosts {
		if status, _ := h.ask(t, all, http.MethodPost, "m{"); status != http.StatusBadRequest {
			t.Errorf("an expression that is none is answered by %s with %d", id, status)
		}
	}

	c.move("")
	if status, _ := c.hosts[second].ask(t, all, http.MethodGet, "m"); status != http.StatusServiceUnavailable {
		t.Errorf("while no host keeps metrics, a query is answered with %d", status)
	}
	write(5) // into the spool
	c.move(second)
	c.await(all, `m{x!="%d"}`, map[string]string{"aaaa": "5", "bbbb": "5"})
	status, err := metricstest.Post(t.Context(), stale{c.hosts[second], c.hosts[first]}, acme, []metrics.Sample{sample(second, 9)})
	if err == nil {
		t.Errorf("a host that keeps metrics no longer takes samples: %d", status)
	}
}

// stale is the store of a host that takes the wrong host for the holder.
type stale struct{ by, holder *host }

func (s stale) Client() *http.Client {
	id := s.by.identity
	client := hosts.NewClient(hosts.ClientConfig{
		Self:   "ffffffff", // that it never is the holder in process
		Holder: func() (hangar.Host, error) { return hangar.Host{ID: s.holder.id, Address: s.holder.address}, nil },
		Transport: func(to hangar.Host) http.RoundTripper {
			return &http.Transport{TLSClientConfig: id.ClientConfig(to.ID), ForceAttemptHTTP2: true, DisableKeepAlives: true}
		},
	})
	return hosts.NewStore(s.by.own, client).Client()
}
func (s stale) QueryURL(t metrics.Tenant) string { return s.by.own.QueryURL(t) }
func (s stale) WriteURL(t metrics.Tenant) string { return s.by.own.WriteURL(t) }
func (s stale) SharedWriteURL() string           { return s.by.own.SharedWriteURL() }

// TestAlertsOfAnotherHost: the host that keeps metrics has the alerts; a test of an alert runs on
// the host that gets the request.
func TestAlertsOfAnotherHost(t *testing.T) {
	c := newCluster(t, func(hangar.HostID) serve { return serve{own: &memory{}} })
	for id, h := range c.hosts {
		got, err := h.alerts.AlertReport(t.Context(), acme.Org)
		if err != nil || len(got.Groups) != 1 || got.Groups[0].Name != string(first)+" org1" {
			t.Errorf("by %s: %+v, %v", id, got, err)
		}
		if got, err := h.alerts.TestAlertRules(t.Context(), hangar.Org{}, ""); err != nil || got.Groups[0].Name != "test at "+string(id) {
			t.Errorf("test by %s: %+v, %v", id, got, err)
		}
	}
	c.move("")
	if _, err := c.hosts[first].alerts.AlertReport(t.Context(), acme.Org); hangar.CodeOf(err) != hangar.CodeUnavailable {
		t.Errorf("while no host knows: %v", err)
	}
}

// memory is a store that counts written samples.
type memory struct {
	mu      sync.Mutex
	written int
	hold    chan struct{} // nil: it takes at once
	entered chan struct{}
}

func (m *memory) Client() *http.Client             { return &http.Client{Transport: m} }
func (m *memory) QueryURL(metrics.Tenant) string   { return "http://store/prometheus" }
func (m *memory) WriteURL(t metrics.Tenant) string { return "http://store/write?" + string(t.Org) }
func (m *memory) SharedWriteURL() string           { return "http://store/tenants/write" }

func (m *memory) RoundTrip(r *http.Request) (*http.Response, error) {
	if m.hold != nil {
		m.entered <- struct{}{}
		<-m.hold
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.written++
	if r.URL.Path != "/tenants/write" {
		return nil, fmt.Errorf("a holder writes to %s", r.URL)
	}
	return &http.Response{StatusCode: http.StatusNoContent, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

// TestWhatAHostMayWrite: a holder accepts series of one tenant each that the writing host has
// measured. It refuses a request completely if one series differs.
func TestWhatAHostMayWrite(t *testing.T) {
	own := map[hangar.HostID]*memory{first: {}, second: {}}
	c := newCluster(t, func(id hangar.HostID) serve { return serve{own: own[id]} })
	good := metricstest.Sample("m", 1, time.Now(), "host", "bbbb", metrics.OrgLabel, "org1")
	labels := func(pairs ...string) []byte {
		return remote.Encode([]metrics.Sample{good, metricstest.Sample("m", 1, time.Now(), pairs...), good})
	}
	huge := strings.Repeat("x", 9<<20)
	for _, test := range []struct {
		what string
		body []byte
		want int
	}{
		{"its own", labels("host", "bbbb", metrics.OrgLabel, "org2"), http.StatusNoContent},
		{"nothing", remote.Encode(nil), http.StatusNoContent},
		{"another host's", labels("host", "aaaa", metrics.OrgLabel, "org1"), http.StatusBadRequest},
		{"no host's", labels(metrics.OrgLabel, "org1"), http.StatusBadRequest},
		{"its own and another host's", labels("host", "bbbb", "host", "aaaa", metrics.OrgLabel, "org1"), http.StatusBadRequest},
		{"its own twice", labels("host", "bbbb", "host", "bbbb", metrics.OrgLabel, "org1"), http.StatusBadRequest},
		{"without a tenant", labels("host", "bbbb"), http.StatusBadRequest},
		{"of two tenants", labels("host", "bbbb", metrics.OrgLabel, "org1", metrics.OrgLabel, "org2"), http.StatusBadRequest},
		{"a label with two values", snappy.Encode(nil, []byte("\x0a\x1c\x0a\x13\x0a\x07__org__\x12\x03org\x12\x03two\x0a\x05\x0a\x01h\x12\x00")), http.StatusBadRequest},
		{"not compressed", []byte("\x0a\x00 this is not snappy"), http.StatusBadRequest},
		{"no message", snappy.Encode(nil, []byte("\x0a\xff\xff")), http.StatusBadRequest},
		{"a group that does not end", snappy.Encode(nil, []byte{0x0b}), http.StatusBadRequest},
		{"much", labels("host", "bbbb", metrics.OrgLabel, "org1", "x", huge), http.StatusBadRequest},
		{"too much to read", []byte(huge), http.StatusBadRequest},
	} {
		before := own[first].written
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.hosts[second].store.SharedWriteURL(), strings.NewReader(string(test.body)))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.hosts[second].store.Client().Do(r)
		if err != nil {
			t.Errorf("%s: %v", test.what, err)
			continue
		}
		_ = resp.Body.Close()
		if stored := own[first].written > before; resp.StatusCode != test.want || stored != (test.want == http.StatusNoContent) {
			t.Errorf("%s: %d, stored: %t; want %d", test.what, resp.StatusCode, stored, test.want)
		}
	}
	if own[second].written > 0 {
		t.Error("a host that does not keep metrics has stored some")
	}
}

// TestAHostThatFloods: a host has a limited number of writes in progress, and the holder still
// accepts those of other hosts.
func TestAHostThatFloods(t *testing.T) {
	kept := &memory{hold: make(chan struct{}), entered: make(chan struct{})}
	c := newCluster(t, func(hangar.HostID) serve { return serve{own: kept} })
	post := func(h *host) (int, error) {
		return metricstest.PostShared(t.Context(), stale{h, c.hosts[first]}, []metrics.Sample{
			metricstest.Sample("m", 1, time.Now(), "host", string(h.id[:4]), metrics.OrgLabel, "org1"),
		})
	}
	const most = 8
	var flood sync.WaitGroup
	for range most {
		flood.Go(func() {
			if status, err := post(c.hosts[second]); err != nil || status != http.StatusNoContent {
				t.Errorf("a write of allowed series: %d, %v", status, err)
			}
		})
		<-kept.entered
	}
	if status, err := post(c.hosts[second]); err != nil || status != http.StatusTooManyRequests {
		t.Errorf("one more: %d, %v", status, err)
	}
	flood.Go(func() {
		if status, err := post(c.hosts[first]); err != nil || status != http.StatusNoContent {
			t.Errorf("a write of another host: %d, %v", status, err)
		}
	})
	<-kept.entered
	close(kept.hold)
	flood.Wait()
}

// cutting begins an answer and does not complete it.
type cutting struct{}

func (cutting) QuerySeries(w http.ResponseWriter, _ *http.Request, _ hangar.MetricsScope, _ string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"status":"success",`)
	if f, ok := w.(http.Flusher); ok {
		f.Flush()
	}
	panic(http.ErrAbortHandler)
}

// TestAnAnswerThatIsCutOff: a client of another host does not take the holder's incomplete answer
// for a complete one.
func TestAnAnswerThatIsCutOff(t *testing.T) {
	c := newCluster(t, func(hangar.HostID) serve { return serve{own: &memory{}, queries: cutting{}} })
	defer func() {
		if v, ok := recover().(error); !ok || !errors.Is(v, http.ErrAbortHandler) {
			t.Errorf("the answer ended with %v", v)
		}
	}()
	c.hosts[second].ask(t, hangar.MetricsScope{Org: acme.Org}, http.MethodGet, "m")
}

// TestStrangersAreNotServed: a client without a certificate of a host is refused.
func TestStrangersAreNotServed(t *testing.T) {
	c := newCluster(t, func(hangar.HostID) serve { return serve{own: &memory{}} })
	pinned := c.hosts[first].identity.Authority().Fingerprint()
	transport := &http.Transport{TLSClientConfig: authority.PinnedConfig(pinned, time.Now), ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	for _, path := range []string{"write", "query", "alerts"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+c.hosts[first].address+hosts.Path+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("%s is answered with %d", path, resp.StatusCode)
		}
	}
}
