package api_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hangar-platform/hangar/api"
	"github.com/hangar-platform/hangar/api/openapi/openapitest"
)

// Administrators can read the counters, others cannot. A server without counters has no such route.
func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "hangar_things_total", Help: "Things."})
	registry.MustRegister(counter)
	counter.Add(3)
	counted := newAPI(func(c *api.Config) { c.Metrics = registry })
	for name, tt := range map[string]struct {
		handler http.Handler
		token   string
		status  int
		text    string
	}{
		"administrator": {counted, token, http.StatusOK, "# TYPE hangar_things_total counter\nhangar_things_total 3\n"},
		"user":          {counted, "guest", http.StatusForbidden, "Only an administrator of the platform may read the counters of the server"},
		"nobody":        {counted, "", http.StatusUnauthorized, "token validation error"},
		"no counters":   {newAPI(), token, http.StatusNotFound, ""},
	} {
		t.Run(name, func(t *testing.T) {
			handler := openapitest.Of(t, tt.handler, "/v1/openapi.json", "/v2/").Handler(t, tt.handler)
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
			if tt.token != "" {
				r.Header.Set("Authorization", "Bearer "+tt.token)
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.text) {
				t.Fatalf("%d %s, want %d with %q", w.Code, w.Body, tt.status, tt.text)
			}
		})
	}
}
