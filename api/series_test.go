package api_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api"
)

// scopes are organizations, each with what a caller may query.
type scopes map[hangar.OrgSlug]hangar.MetricsScope

func (s scopes) MetricsScope(ctx context.Context, slug hangar.OrgSlug) (hangar.MetricsScope, error) {
	if _, err := hangar.PrincipalFrom(ctx); err != nil {
		return hangar.MetricsScope{}, err
	}
	scope, ok := s[slug]
	if !ok {
		return scope, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonOrgNotFound, "Could not find Organization %q", slug)
	}
	return scope, nil
}

// echo answers what it is asked.
type echo struct{}

func (echo) QuerySeries(w http.ResponseWriter, r *http.Request, scope hangar.MetricsScope, path string) {
	_ = r.ParseForm()
	fmt.Fprintf(w, "%s %d %v %s %s", scope.Org, scope.Number, scope.Apps, path, r.Form.Encode())
}

// TestSeriesRoutes: the documented paths reach the queries of the named organization, and no others.
func TestSeriesRoutes(t *testing.T) {
	t.Parallel()
	handler := newAPI(func(c *api.Config) {
		c.MetricsScopes = scopes{"acme": {Org: "org1", Number: 7, Apps: []hangar.AppName{"web"}}}
		c.Series = echo{}
	})
	for _, c := range []struct {
		method, target, body string
		status               int
		want                 string // what is asked
	}{
		{http.MethodGet, "/prometheus/acme/api/v1/query?query=up", "", http.StatusOK, "org1 7 [web] /api/v1/query query=up"},
		{http.MethodPost, "/prometheus/acme/api/v1/query_range", "query=up&step=15s", http.StatusOK, "org1 7 [web] /api/v1/query_range query=up&step=15s"},
		{http.MethodGet, "/prometheus/acme/api/v1/series", "", http.StatusOK, "org1 7 [web] /api/v1/series "},
		{http.MethodGet, "/prometheus/acme/api/v1/labels", "", http.StatusOK, "org1 7 [web] /api/v1/labels "},
		{http.MethodGet, "/prometheus/acme/api/v1/label/app/values", "", http.StatusOK, "org1 7 [web] /api/v1/label/app/values "},
		{http.MethodGet, "/prometheus/acme/api/v1/label/a%2Fb/values", "", http.StatusOK, "org1 7 [web] /api/v1/label/a/b/values "},
		{http.MethodGet, "/prometheus/acme/api/v1/status/tsdb", "", http.StatusOK, "org1 7 [web] /api/v1/status/tsdb "},
		{http.MethodGet, "/prometheus/acme/federate", "", http.StatusOK, "org1 7 [web] /federate "},
		{http.MethodGet, "/prometheus/other/api/v1/query", "", http.StatusNotFound, ""},
		{http.MethodGet, "/prometheus/acme/api/v1/read", "", http.StatusNotFound, ""},
		{http.MethodGet, "/prometheus/acme/api/v1/admin/tsdb/delete_series", "", http.StatusNotFound, ""},
		{http.MethodPost, "/prometheus/acme/api/v1/import/prometheus", "up 1", http.StatusNotFound, ""},
		{http.MethodGet, "/prometheus/acme/../other/api/v1/query", "", http.StatusNotFound, ""},
		{http.MethodGet, "/prometheus/acme/api/v1/query/", "", http.StatusNotFound, ""},
		{http.MethodGet, "/prometheus/acme//api/v1/query", "", http.StatusNotFound, ""},
		{http.MethodGet, "/prometheus/api/v1/query", "", http.StatusNotFound, ""},
		{http.MethodDelete, "/prometheus/acme/api/v1/query", "", http.StatusMethodNotAllowed, ""},
	} {
		r := request(t, c.method, c.target, strings.NewReader(c.body))
		if c.body != "" {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != c.status || c.want != "" && w.Body.String() != c.want {
			t.Errorf("%s %s: answered %d %s, want %d %s", c.method, c.target, w.Code, w.Body, c.status, c.want)
		}
	}
	r := request(t, http.MethodGet, "/prometheus/acme/api/v1/query", nil)
	r.Header.Del("Authorization")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	if w.Code != http.StatusUnauthorized {
		t.Errorf("without a token it answers %d", w.Code)
	}
}
