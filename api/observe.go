package api

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
	keyRequest = "request"
	keyMethod  = "method"
	keyPath    = "path"
	keyStatus  = "status"
	keyTook    = "took"
	keyError   = "error"
	keyStack   = "stack"
)

type requestIDKey struct{}

// observe gives a request its id, survives panics, counts and logs.
func (s *server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		id := ulid.MustNew(ulid.Timestamp(began), rand.Reader).String()
		if s.Region != "" {
			id += "-" + string(s.Region)
		}
		w.Header().Set(hangar.HeaderRequestID.Neutral, id)
		w.Header().Set(hangar.HeaderRequestID.Original, id)
		// A connection keeps the deadline of the request before.
		control := http.NewResponseController(w)
		_ = control.SetWriteDeadline(time.Time{})
		// From the start, because net/http reads what a handler has left of a body
		// before it sends an answer. It lifts the deadline at the end of the body.
		if r.ContentLength != 0 {
			_ = control.SetReadDeadline(time.Now().Add(input.BodyTimeout))
		}
		seen := latency.NewWriter(w)
		r = r.WithContext(context.WithValue(r.Context(), requestIDKey{}, id))
		s.latency.Begun()
		defer func() { s.latency.Ended(r.Pattern, seen.Status(), seen.Since(began)) }()
		defer func() {
			if v := recover(); v != nil {
				s.panicked(seen, r, v)
			}
			s.Log.DebugContext(r.Context(), "request answered", keyRequest, id, keyMethod, r.Method, keyPath, r.URL.Path,
				keyStatus, seen.Status(), keyTook, time.Since(began))
		}()
		next.ServeHTTP(seen, r)
	})
}

// measure returns what counts the requests of all routes.
func (s *server) measure() *latency.Counts {
	var routes []latency.Route
	for i := range s.table {
		r := &s.table[i]
		routes = append(routes, latency.Route{Method: r.method, Path: r.path, Lasting: r.lasting})
	}
	if s.Registry != nil {
		routes = append(routes, latency.Route{Path: registryPath, Lasting: true})
	}
	return latency.New(routes)
}

// panicked answers 500. Where an answer has begun, cutting it short is the only
// way left to say so.
func (s *server) panicked(w *latency.Writer, r *http.Request, v any) {
	if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(v)
	}
	s.Log.ErrorContext(r.Context(), "handler panicked", keyRequest, requestID(r), keyMethod, r.Method, keyPath, r.URL.Path,
		keyError, fmt.Sprint(v), keyStack, string(debug.Stack()))
	if w.Status() != 0 {
		panic(http.ErrAbortHandler)
	}
	s.writeBody(w, http.StatusInternalServerError, errorBody{Text: internalText, Code: hangar.CodeInternal})
}

func requestID(r *http.Request) string {
	id, _ := r.Context().Value(requestIDKey{}).(string)
	return id
}

// authenticate finds the principal of a request, and the lease that it acts under.
func (s *server) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := s.principal(r)
		if err != nil {
			s.writeError(w, r, err)
			return
		}
		ctx := hangar.WithPrincipal(r.Context(), p)
		if nonce := leaseNonce(r.Header); nonce != "" {
			ctx = hangar.WithLeaseNonce(ctx, nonce)
		}
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

func (s *server) principal(r *http.Request) (hangar.Principal, error) {
	if credential, ok := hangar.Credential(r.Header.Get("Authorization")); ok {
		return s.Auth.Authenticate(r.Context(), credential)
	}
	return hangar.PrincipalFrom(r.Context())
}
