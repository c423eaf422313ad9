// Package names serves the platform at its own hostnames, some of which have only a part of the
// API.
package names

import (
	"context"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/signon"
	"github.com/hangar-platform/hangar/internal/pause"
)

// platformGrace is how long a request at a name of the platform may continue when the daemon
// ends, before its context ends: enough for all but streams and waits, which never end by
// themselves.
const platformGrace = time.Second

// Handlers returns what an edge serves at the names of the platform, and what it serves without a name.
// All names lead to the handler of the API, some to a part of it only. Without a name, the edge serves
// WireGuard's gateway. The gateway is also at the root of the API's name, because clients reach it by
// the host by which they reach the API. Requests end soon after ctx.
func Handlers(ctx context.Context, domain hangar.Hostname, api, gateway http.Handler) (named map[hangar.Hostname]http.Handler, nameless http.Handler) {
	handlers := map[hangar.Hostname]http.Handler{}
	for _, row := range []struct {
		name    hangar.PlatformName
		handler http.Handler
	}{
		{hangar.PlatformAPI, withGateway(api, gateway)},
		{hangar.PlatformRegistry, registryOnly(api)},
		{hangar.PlatformOIDC, issuersOnly(api)},
		{hangar.PlatformMetrics, seriesOnly(api)},
		{hangar.PlatformAuth, signOnOnly(api)},
	} {
		handlers[row.name.Hostname(domain)] = endingWith(ctx, row.handler)
	}
	return handlers, endingWith(ctx, gateway)
}

// withGateway serves the gateway at the root, by WebSocket.
func withGateway(api, gateway http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" && strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
			gateway.ServeHTTP(w, r)
			return
		}
		api.ServeHTTP(w, r)
	})
}

// registryOnly serves the OCI distribution API and nothing else.
func registryOnly(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2" && !strings.HasPrefix(r.URL.Path, "/v2/") {
			http.NotFound(w, r)
			return
		}
		api.ServeHTTP(w, r)
	})
}

// issuerPath is where third parties look for the documents of an organization's issuer.
var issuerPath = regexp.MustCompile(`^/[a-z0-9-]+/\.well-known/(openid-configuration|jwks)$`)

// issuersOnly serves what verifies identity tokens, which needs no token: a request that has
// one is answered as if it had none.
func issuersOnly(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !issuerPath.MatchString(r.URL.Path) || r.URL.RawPath != "" {
			http.NotFound(w, r)
			return
		}
		inner := r.Clone(r.Context())
		inner.URL.Path = "/oidc" + r.URL.Path
		inner.RequestURI = inner.URL.RequestURI()
		inner.Header.Del("Authorization")
		api.ServeHTTP(w, inner)
	})
}

// seriesOnly serves queries of series and nothing else.
func seriesOnly(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/prometheus/") {
			http.NotFound(w, r)
			return
		}
		api.ServeHTTP(w, r)
	})
}

// signOnOnly serves the pages where users sign in with a browser, and the endpoints for third parties.
func signOnOnly(api http.Handler) http.Handler {
	only := http.NewServeMux() // answers 404 for all other paths
	for _, path := range signon.Paths() {
		only.Handle(path, api)
	}
	return only
}

// endingWith ends the contexts of requests a little after ctx.
func endingWith(ctx context.Context, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inner, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		defer context.AfterFunc(ctx, func() {
			if pause.For(inner, platformGrace) == nil {
				cancel(context.Cause(ctx))
			}
		})()
		next.ServeHTTP(w, r.WithContext(inner))
	})
}
