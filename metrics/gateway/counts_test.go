package gateway

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hangar-platform/hangar/metrics/metricstest"
)

// TestQueriesAreCounted: each query counts once, under its result.
func TestQueriesAreCounted(t *testing.T) {
	status := http.StatusOK
	hangUp := func() {}
	g := newGateway(t, pretended(func(r *http.Request) (*http.Response, error) {
		hangUp()
		return answering(status, `{"status":"success","data":{"resultType":"vector","result":[]}}`)(r)
	}), Limits{Rate: 1e-6, Burst: 4})
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(g)
	tenant := metricstest.Tenant("org", 1)
	want := map[string]uint64{"ok": 0, "invalid": 0, "limited": 0, "failed": 0, "gone": 0}
	expect := func(result string) {
		t.Helper()
		if result != "" {
			want[result]++
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == "hangar_metrics_waiting_queries" {
					if m.GetGauge().GetValue() != 0 {
						t.Errorf("%v queries wait", m.GetGauge().GetValue())
					}
					continue
				}
				if got := m.GetHistogram().GetSampleCount(); got != want[m.GetLabel()[0].GetValue()] {
					t.Errorf("after %q: %d are %s, want %v", result, got, m.GetLabel()[0].GetValue(), want)
				}
			}
		}
	}
	expect("")
	call(t, g, tenant, Scope{}, http.MethodGet, "/api/v1/query", ask)
	expect("ok")
	call(t, g, tenant, Scope{}, http.MethodGet, "/api/v1/query", url.Values{})
	expect("invalid")
	status = http.StatusInternalServerError
	call(t, g, tenant, Scope{}, http.MethodGet, "/api/v1/query", ask)
	expect("failed")
	status = http.StatusUnprocessableEntity
	call(t, g, tenant, Scope{}, http.MethodGet, "/api/v1/query", ask)
	expect("invalid")
	ctx, cancel := context.WithCancel(t.Context())
	hangUp = cancel
	func() {
		defer func() {
			if v := recover(); v != http.ErrAbortHandler { //nolint:errorlint // the very value
				t.Errorf("a client that has gone: %v", v)
			}
		}()
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/prometheus/acme?"+ask.Encode(), http.NoBody)
		g.Serve(httptest.NewRecorder(), r, tenant, Scope{}, "/api/v1/query")
	}()
	expect("gone")
	call(t, g, tenant, Scope{}, http.MethodGet, "/api/v1/query", ask)
	expect("limited")
}
