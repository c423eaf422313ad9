package platform_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/api"
	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/metricstest"
	"github.com/hangar-platform/hangar/test/platform"
)

// bearer sends requests with a token.
type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

// direct writes to the store of a platform by its socket, as its daemon does.
type direct struct{ socket string }

func (d direct) Client() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", d.socket)
		},
	}}
}

func (direct) QueryURL(metrics.Tenant) string { return "http://store/prometheus" }

func (direct) WriteURL(t metrics.Tenant) string {
	return "http://store/prometheus/api/v1/write?extra_label=" + metrics.OrgLabel + "=" + string(t.Org)
}

func (direct) SharedWriteURL() string { return "" }

// prometheus is an organization as the Go client of Prometheus sees it.
type prometheus struct {
	promv1.API
	*testing.T
}

// newPrometheus returns the client with a token that may query an organization.
func newPrometheus(t *testing.T, p *platform.Platform, org hangar.OrgSlug) prometheus {
	t.Helper()
	c, err := api.NewClient(api.Config{Address: p.URL() + "/prometheus/" + string(org), RoundTripper: tokenOf(t, p, org)})
	if err != nil {
		t.Fatal(err)
	}
	return prometheus{promv1.NewAPI(c), t}
}

// vector returns the series of an instant vector by their labels.
func (p prometheus) vector(query string, at time.Time) map[string]float64 {
	p.Helper()
	value, warnings, err := p.Query(p.Context(), query, at)
	if err != nil || len(warnings) > 0 {
		p.Fatalf("%s: %v, %v", query, warnings, err)
	}
	list, ok := value.(model.Vector)
	if !ok {
		p.Fatalf("%s is a %T", query, value)
	}
	all := map[string]float64{}
	for _, s := range list {
		all[s.Metric.String()] = float64(s.Value)
		if s.Timestamp.Time().UnixMilli() != at.UnixMilli() {
			p.Errorf("%s at %s is of %s", query, at, s.Timestamp.Time())
		}
	}
	return all
}

func (p prometheus) equal(what string, got, want any) {
	p.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		p.Errorf("%s is %v, want %v", what, got, want)
	}
}

// TestClientOfPrometheus: the Go client of Prometheus, with a bearer token, gets of each method what
// was measured of the organization, and nothing of another one.
func TestClientOfPrometheus(t *testing.T) {
	p := platform.Start(t, platform.Options{MetricsProgram: metricstest.Program(t)})
	kept := direct{filepath.Join(p.Dir(), "metrics", "metrics.sock")}
	const steps, step = 8, 15 * time.Second
	// A whole second, so that the times of samples and of questions are the same.
	end := time.Now().Add(-time.Minute).Truncate(time.Second)
	start := end.Add(-(steps - 1) * step)
	clients := map[hangar.OrgSlug]prometheus{}
	for i, slug := range []hangar.OrgSlug{"acme", "other"} {
		org, err := p.Client().CreateOrg(t.Context(), hangar.OrgCreate{Slug: slug})
		if err != nil {
			t.Fatal(err)
		}
		clients[slug] = newPrometheus(t, p, slug)
		clients[slug].vector("up", end) // the store begins with the first query
		var samples []metrics.Sample
		for n := range steps {
			at, scale := start.Add(time.Duration(n)*step), float64(1+99*i)
			samples = append(samples,
				metricstest.Sample("requests_total", scale*float64(10*n), at, "app", "web", "code", "200"),
				metricstest.Sample("requests_total", scale*float64(n), at, "app", "web", "code", "500"),
				metricstest.Sample("temperature_celsius", scale*(20+float64(n)/2), at, "app", string(slug)+"-db", "secret_of", string(slug)))
		}
		metricstest.Write(t, kept, metrics.Tenant{Org: org.ID, Number: uint32(org.NumericID)}, samples...)
	}
	acme := clients["acme"]
	for _, c := range clients { // what is written is found a moment later
		for len(c.vector("count(temperature_celsius) and count(requests_total)", end)) == 0 {
			if err := pause.For(t.Context(), 50*time.Millisecond); err != nil {
				t.Fatal(err)
			}
		}
	}

	acme.equal("Query", acme.vector("requests_total", end), map[string]float64{
		`requests_total{app="web", code="200"}`: 70, `requests_total{app="web", code="500"}`: 7,
	})
	acme.equal("Query in the past", acme.vector("temperature_celsius", start.Add(3*step)), map[string]float64{
		`temperature_celsius{app="acme-db", secret_of="acme"}`: 21.5,
	})
	acme.equal("Query of the other", clients["other"].vector("sum(requests_total)", end), map[string]float64{"{}": 7700})

	value, warnings, err := acme.QueryRange(t.Context(), "sum(requests_total) by (code)", promv1.Range{Start: start, End: end, Step: step})
	matrix, ok := value.(model.Matrix)
	if err != nil || !ok || len(warnings) > 0 || len(matrix) != 2 {
		t.Fatalf("QueryRange is %v, %v, %v", value, warnings, err)
	}
	for _, series := range matrix {
		factor := map[model.LabelValue]int{"200": 10, "500": 1}[series.Metric["code"]]
		var want []model.SamplePair
		for n := range steps {
			want = append(want, model.SamplePair{Timestamp: model.TimeFromUnixNano(start.Add(time.Duration(n) * step).UnixNano()), Value: model.SampleValue(factor * n)})
		}
		acme.equal("QueryRange of "+series.Metric.String(), series.Values, want)
	}

	found, _, err := acme.Series(t.Context(), []string{"requests_total", `temperature_celsius{app=~".+-db"}`}, start, end)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, labels := range found {
		names = append(names, labels.String())
	}
	slices.Sort(names)
	acme.equal("Series", strings.Join(names, "\n"), strings.Join([]string{
		`{__name__="requests_total", app="web", code="200"}`, `{__name__="requests_total", app="web", code="500"}`,
		`{__name__="temperature_celsius", app="acme-db", secret_of="acme"}`,
	}, "\n"))

	labels, _, err := acme.LabelNames(t.Context(), nil, start, end)
	if err != nil {
		t.Fatal(err)
	}
	acme.equal("LabelNames", labels, []string{"__name__", "app", "code", "secret_of"})
	labels, _, err = acme.LabelNames(t.Context(), []string{"requests_total"}, start, end)
	if err != nil {
		t.Fatal(err)
	}
	acme.equal("LabelNames of a series", labels, []string{"__name__", "app", "code"})

	for name, want := range map[string]model.LabelValues{
		"app": {"acme-db", "web"}, "code": {"200", "500"}, "__name__": {"requests_total", "temperature_celsius"}, "secret_of": {"acme"}, "none": {},
	} {
		values, _, err := acme.LabelValues(t.Context(), name, nil, start, end)
		if err != nil {
			t.Fatal(err)
		}
		acme.equal("LabelValues of "+name, values, want)
	}

	status, err := acme.TSDB(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]uint64{}
	for _, s := range status.SeriesCountByMetricName {
		byName[s.Name] = s.Value
	}
	acme.equal("TSDB", byName, map[string]uint64{"requests_total": 2, "temperature_celsius": 1})
	for _, list := range [][]promv1.Stat{status.LabelValueCountByLabelName, status.SeriesCountByLabelValuePair} {
		for _, s := range list {
			if strings.Contains(s.Name, metrics.OrgLabel) || strings.Contains(s.Name, "other") {
				t.Errorf("TSDB shows %s", s.Name)
			}
		}
	}

	// Errors are those that the client knows.
	_, _, err = acme.Query(t.Context(), "sum(", end)
	failure, ok := err.(*promv1.Error) //nolint:errorlint // it is not wrapped
	if !ok || failure.Type != promv1.ErrBadData || failure.Msg == "" {
		t.Errorf("a query that does not parse is answered with %#v", err)
	}
	foreign, err := api.NewClient(api.Config{Address: p.URL() + "/prometheus/other", RoundTripper: tokenOf(t, p, "acme")})
	if err != nil {
		t.Fatal(err)
	}
	if value, _, err := promv1.NewAPI(foreign).Query(t.Context(), "up", end); err == nil {
		t.Errorf("the token of an organization queries another one: %v", value)
	}
}

// tokenOf sends requests with a new token that may query an organization.
func tokenOf(t *testing.T, p *platform.Platform, org hangar.OrgSlug) http.RoundTripper {
	t.Helper()
	token, err := p.Client().CreateToken(t.Context(), hangar.TokenCreate{Kind: hangar.TokenMetrics, Org: org})
	if err != nil {
		t.Fatal(err)
	}
	return bearer{token.Text, p.Transport()}
}
