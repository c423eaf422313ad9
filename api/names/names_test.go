package names

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/hangar-platform/hangar/api/signon"
)

// TestHandlers: each name serves its part, and nothing else.
func TestHandlers(t *testing.T) {
	t.Parallel()
	var path, token string
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, token = r.URL.RequestURI(), r.Header.Get("Authorization")
		if r.RequestURI != path {
			t.Errorf("the target is %q, and the URL %q", r.RequestURI, path)
		}
		_, _ = io.WriteString(w, "ok")
	})
	gateway := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { path = "gateway of " + r.Host })
	handlers, nameless := Handlers(t.Context(), "example.com", api, gateway)
	if len(handlers) != 5 {
		t.Errorf("there are %d names", len(handlers))
	}
	for _, c := range []struct {
		host, target string
		want         string // what the API is asked; empty: nothing
	}{
		{"api.example.com", "/v1/apps?x=1", "/v1/apps?x=1"},
		{"api.example.com", "/v2/", "/v2/"},
		{"api.example.com", "/oidc/acme/.well-known/jwks", "/oidc/acme/.well-known/jwks"},
		{"registry.example.com", "/v2", "/v2"},
		{"registry.example.com", "/v2/acme/app/manifests/v1", "/v2/acme/app/manifests/v1"},
		{"registry.example.com", "/v2x", ""},
		{"registry.example.com", "/v1/apps", ""},
		{"registry.example.com", "/", ""},
		{"oidc.example.com", "/acme/.well-known/openid-configuration", "/oidc/acme/.well-known/openid-configuration"},
		{"oidc.example.com", "/acme/.well-known/jwks?x=1", "/oidc/acme/.well-known/jwks?x=1"},
		{"oidc.example.com", "/oidc/acme/.well-known/jwks", ""},
		{"oidc.example.com", "/acme/.well-known/other", ""},
		{"oidc.example.com", "/..%2fv1/.well-known/jwks", ""},
		{"oidc.example.com", "/../v1/.well-known/jwks", ""},
		{"oidc.example.com", "/v1/apps", ""},
		{"metrics.example.com", "/prometheus/acme/api/v1/query?query=up", "/prometheus/acme/api/v1/query?query=up"},
		{"metrics.example.com", "/prometheus", ""},
		{"metrics.example.com", "/v1/apps", ""},
		{"metrics.example.com", "/metrics", ""},
		{"auth.example.com", "/oauth/authorize?client_id=x", "/oauth/authorize?client_id=x"},
		{"auth.example.com", "/oauth/token/info", "/oauth/token/info"},
		{"auth.example.com", "/sign-in", "/sign-in"},
		{"auth.example.com", "/sign-out", "/sign-out"},
		{"auth.example.com", "/.well-known/oauth-authorization-server", "/.well-known/oauth-authorization-server"},
		{"auth.example.com", "/.well-known/openid-configuration", ""},
		{"auth.example.com", "/sign-in/openid", "/sign-in/openid"},
		{"auth.example.com", "/sign-in/openid/callback?code=x&state=y", "/sign-in/openid/callback?code=x&state=y"},
		{"auth.example.com", "/sign-in/x", "/sign-in/x"}, // answered by the pages
		{"auth.example.com", "/sign-inx", ""},
		{"auth.example.com", "/oauth/../v1/apps", ""},
		{"auth.example.com", "/v1/sign-in", ""},
		{"auth.example.com", "/", ""},
	} {
		path, token = "", ""
		r := httptest.NewRequest(http.MethodGet, "https://"+c.host+c.target, nil)
		r.RequestURI = c.target
		r.Header.Set("Authorization", "Bearer secret")
		w := httptest.NewRecorder()
		for name, handler := range handlers {
			if string(name) == c.host {
				handler.ServeHTTP(w, r)
			}
		}
		if path != c.want || (w.Code == http.StatusOK) != (c.want != "") {
			t.Errorf("%s%s: the API is asked for %q, want %q; answered %d", c.host, c.target, path, c.want, w.Code)
		}
		if c.host == "oidc.example.com" && token != "" {
			t.Errorf("%s%s: the token is passed on", c.host, c.target)
		}
	}
	for _, c := range []struct {
		host, target string
		handler      http.Handler
		want         string
	}{
		{"api.example.com", "/", handlers["api.example.com"], "gateway of api.example.com"},
		{"api.example.com", "/v1/apps", handlers["api.example.com"], "/v1/apps"},
		{"oidc.example.com", "/", handlers["oidc.example.com"], ""},
		{"203.0.113.7", "/", nameless, "gateway of 203.0.113.7"},
	} {
		path = ""
		r := httptest.NewRequest(http.MethodGet, "https://"+c.host+c.target, nil)
		r.RequestURI = c.target
		r.Header.Set("Upgrade", "WebSocket")
		if c.handler.ServeHTTP(httptest.NewRecorder(), r); path != c.want {
			t.Errorf("a WebSocket to %s%s is asked for as %q, want %q", c.host, c.target, path, c.want)
		}
	}
}

// TestSignOnPaths: the name for signing on serves all paths of the pages and endpoints.
func TestSignOnPaths(t *testing.T) {
	t.Parallel()
	for _, path := range signon.Paths() {
		served := false
		signOnOnly(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = true })).
			ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil))
		if !served {
			t.Errorf("%s is not served", path)
		}
	}
}

// TestPlatformRequestsEnd: endless requests end with the daemon, and other requests get time to finish.
func TestPlatformRequestsEnd(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	entered := make(chan struct{})
	ended := make(chan error, 1)
	handler := endingWith(ctx, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-ctx.Done()
		if r.Context().Err() != nil {
			t.Error("a request gets no time")
		}
		<-r.Context().Done()
		ended <- context.Cause(r.Context())
	}))
	go handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	<-entered
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ends with %v", err)
	}
}
