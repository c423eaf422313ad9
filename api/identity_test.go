package api_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/hangar-platform/hangar/api/openapi/openapitest"
)

// TestIssuerIsCached: what third parties fetch again and again is sent once.
func TestIssuerIsCached(t *testing.T) {
	handler := newAPI()
	handler = openapitest.Of(t, handler, "/v1/openapi.json").Handler(t, handler)
	ask := func(method, path, tag string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), method, path, nil)
		if tag != "" {
			r.Header.Set("If-None-Match", tag)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w
	}
	for _, path := range []string{"/oidc/personal/.well-known/openid-configuration", "/oidc/personal/.well-known/jwks"} {
		first := ask(http.MethodGet, path, "")
		tag := first.Header().Get("ETag")
		if first.Code != http.StatusOK || len(tag) < 10 || first.Header().Get("Cache-Control") != "public, max-age=60" {
			t.Fatalf("%s: answered %d with %v", path, first.Code, first.Header())
		}
		for _, known := range []string{tag, "W/" + tag, `"other", ` + tag, "*"} {
			w := ask(http.MethodGet, path, known)
			if w.Code != http.StatusNotModified || w.Body.Len() != 0 || w.Header().Get("ETag") != tag || w.Header().Get("Cache-Control") == "" {
				t.Errorf("%s: who has %s is answered %d with %v and %d bytes", path, known, w.Code, w.Header(), w.Body.Len())
			}
		}
		if w := ask(http.MethodGet, path, `"other"`); w.Code != http.StatusOK {
			t.Errorf("%s: who has another one is answered %d", path, w.Code)
		}
		if w := ask(http.MethodHead, path, ""); w.Code != http.StatusOK || w.Header().Get("ETag") != tag {
			t.Errorf("%s: HEAD is answered %d with %v", path, w.Code, w.Header())
		}
	}
}
