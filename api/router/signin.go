package router

import (
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/connlimit"
	"github.com/hangar-platform/hangar/internal/ratelimit"
)

// SignInPace is how often one source may present a token that is not valid. A valid one
// always passes, so that no client is locked out by others behind the same address.
var SignInPace = ratelimit.Pace{PerSecond: 1.0 / 3, Burst: 20}

// Source is the client for which a request counts, as package connlimit tells clients apart. Requests
// without an address share one.
func Source(r *http.Request) netip.Addr {
	at, _ := netip.ParseAddrPort(r.RemoteAddr) // the zero AddrPort has no client
	return connlimit.ClientOf(at.Addr())
}

// Origin is the server as the client of a request calls it: a scheme and a host.
func Origin(r *http.Request) string {
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	return scheme + "://" + r.Host
}

// CalledHost is the name or address of this server by which the caller knows it.
func CalledHost(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	if len(host) > 1 && host[0] == '[' && host[len(host)-1] == ']' {
		host = host[1 : len(host)-1]
	}
	return host
}

// signIn bounds the 401 answers to requests with credentials, for each source. Beyond SignInPace the
// answer is 429. It wraps all handlers that authenticate and looks at their answers, so a valid token
// costs nothing and is never refused.
func (rt *Router) signIn(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			w = &signInWriter{ResponseWriter: w, router: rt, request: r}
		}
		next.ServeHTTP(w, r)
	})
}

// signInWriter replaces an answer of 401 by one of 429 when there are too many.
type signInWriter struct {
	http.ResponseWriter
	router   *Router
	request  *http.Request
	begun    bool
	replaced bool
}

// WriteHeader implements http.ResponseWriter.
func (w *signInWriter) WriteHeader(status int) {
	if w.begun || status != http.StatusUnauthorized {
		w.begun = w.begun || status >= http.StatusOK
		if !w.replaced {
			w.ResponseWriter.WriteHeader(status)
		}
		return
	}
	w.begun = true
	wait := w.router.signIns.Take(Source(w.request), SignInPace)
	if wait <= 0 {
		w.ResponseWriter.WriteHeader(status)
		return
	}
	w.replaced = true
	for _, name := range []string{"Content-Length", "Content-Type", "WWW-Authenticate"} {
		w.Header().Del(name)
	}
	w.Header().Set("Retry-After", RetryAfter(wait))
	const text = "too many requests of this source had a token that is not valid"
	if strings.HasPrefix(w.request.URL.Path, "/v2/") { // in the form of registries
		w.Header().Set("Content-Type", MediaJSON)
		w.ResponseWriter.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.ResponseWriter.Write([]byte(`{"errors":[{"code":"TOOMANYREQUESTS","message":"` + text + `"}]}`))
		return
	}
	w.router.WriteError(w.ResponseWriter, w.request, hangar.Errorf(hangar.CodeExhausted, hangar.ReasonRateLimited, text))
}

// Write implements http.ResponseWriter. It drops the body of an answer that was replaced.
func (w *signInWriter) Write(p []byte) (int, error) {
	if w.replaced {
		return len(p), nil
	}
	w.begun = true
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController find deadlines, flushing and hijacking.
func (w *signInWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
