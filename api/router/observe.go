package router

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/latency"
)

// Keys of log attributes.
const (
	KeyRequest = "request"
	KeyMethod  = "method"
	KeyPath    = "path"
	keyStatus  = "status"
	keyTook    = "took"
	KeyError   = "error"
	keyStack   = "stack"
)

type requestIDKey struct{}

// observe gives a request its id, survives panics, counts and logs.
func (rt *Router) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		id := ulid.MustNew(ulid.Timestamp(began), rand.Reader).String()
		if rt.Region != "" {
			id += "-" + string(rt.Region)
		}
		w.Header().Set(hangar.HeaderRequestID.Neutral, id)
		w.Header().Set(hangar.HeaderRequestID.Original, id)
		// A connection keeps the deadline of the request before.
		control := http.NewResponseController(w)
		_ = control.SetWriteDeadline(time.Time{})
		// The deadline is set at the start, because net/http reads the rest of a body before it sends
		// an answer. It removes the deadline at the end of the body.
		if r.ContentLength != 0 {
			_ = control.SetReadDeadline(time.Now().Add(input.BodyTimeout))
		}
		seen := latency.NewWriter(w)
		r = r.WithContext(context.WithValue(r.Context(), requestIDKey{}, id))
		rt.latency.Begun()
		defer func() { rt.latency.Ended(r.Pattern, seen.Status(), seen.Since(began)) }()
		defer func() {
			if v := recover(); v != nil {
				rt.panicked(seen, r, v)
			}
			rt.Log.DebugContext(r.Context(), "request answered", KeyRequest, id, KeyMethod, r.Method, KeyPath, r.URL.Path,
				keyStatus, seen.Status(), keyTook, time.Since(began))
		}()
		next.ServeHTTP(seen, r)
	})
}

// measure returns the counts of the requests of all routes.
func (rt *Router) measure() *latency.Counts {
	var routes []latency.Route
	for i := range rt.routes {
		r := &rt.routes[i]
		routes = append(routes, latency.Route{Method: r.Method, Path: r.Path, Lasting: r.Lasting})
	}
	for _, path := range rt.mounted {
		routes = append(routes, latency.Route{Path: path, Lasting: true})
	}
	return latency.New(routes)
}

// panicked answers 500. An answer that has begun can only be cut short.
func (rt *Router) panicked(w *latency.Writer, r *http.Request, v any) {
	if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(v)
	}
	rt.Log.ErrorContext(r.Context(), "handler panicked", KeyRequest, RequestID(r), KeyMethod, r.Method, KeyPath, r.URL.Path,
		KeyError, fmt.Sprint(v), keyStack, string(debug.Stack()))
	if w.Status() != 0 {
		panic(http.ErrAbortHandler)
	}
	rt.writeBody(w, http.StatusInternalServerError, Error{Text: internalText, Code: hangar.CodeInternal})
}

// RequestID is the id of a request, under which the log has more.
func RequestID(r *http.Request) string {
	id, _ := r.Context().Value(requestIDKey{}).(string)
	return id
}

// authenticate finds the principal of a request, and the lease that it acts under.
func (rt *Router) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := rt.principal(r)
		if err != nil {
			rt.WriteError(w, r, err)
			return
		}
		ctx := hangar.WithPrincipal(r.Context(), p)
		if nonce := leaseNonce(r.Header); nonce != "" {
			ctx = hangar.WithLeaseNonce(ctx, nonce)
		}
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// leaseNonce reads the lease that a request acts under, or "".
func leaseNonce(h http.Header) string {
	if nonce := h.Get(hangar.HeaderLeaseNonce.Neutral); nonce != "" {
		return nonce
	}
	return h.Get(hangar.HeaderLeaseNonce.Original)
}

func (rt *Router) principal(r *http.Request) (hangar.Principal, error) {
	if credential, ok := hangar.Credential(r.Header.Get("Authorization")); ok {
		return rt.Auth.Authenticate(r.Context(), credential)
	}
	return hangar.PrincipalFrom(r.Context())
}
