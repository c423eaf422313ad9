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
		seen := &statusWriter{ResponseWriter: w}
		r = r.WithContext(context.WithValue(r.Context(), requestIDKey{}, id))
		s.counts.open.Inc()
		defer func() {
			s.counts.open.Dec()
			s.counts.answered(r.Pattern, seen.status, seen.since(began))
		}()
		defer func() {
			if v := recover(); v != nil {
				s.panicked(seen, r, v)
			}
			s.Log.DebugContext(r.Context(), "request answered", keyRequest, id, keyMethod, r.Method, keyPath, r.URL.Path,
				keyStatus, seen.status, keyTook, time.Since(began))
		}()
		next.ServeHTTP(seen, r)
	})
}

// panicked answers 500. Where an answer has begun, cutting it short is the only
// way left to say so.
func (s *server) panicked(w *statusWriter, r *http.Request, v any) {
	if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(v)
	}
	s.Log.ErrorContext(r.Context(), "handler panicked", keyRequest, requestID(r), keyMethod, r.Method, keyPath, r.URL.Path,
		keyError, fmt.Sprint(v), keyStack, string(debug.Stack()))
	if w.status != 0 {
		panic(http.ErrAbortHandler)
	}
	s.writeBody(w, http.StatusInternalServerError, errorBody{Text: internalText, Code: hangar.CodeInternal})
}

func requestID(r *http.Request) string {
	id, _ := r.Context().Value(requestIDKey{}).(string)
	return id
}

// statusWriter remembers the status of an answer, and when it began.
type statusWriter struct {
	http.ResponseWriter
	status int
	at     time.Time
}

func (w *statusWriter) begin(status int) {
	if w.status == 0 {
		w.status, w.at = status, time.Now()
	}
}

// since is the time from then until the answer began, or until now if it has not.
func (w *statusWriter) since(then time.Time) time.Duration {
	if w.status == 0 {
		return time.Since(then)
	}
	return w.at.Sub(then)
}

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(status int) {
	w.begin(status)
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *statusWriter) Write(p []byte) (int, error) {
	w.begin(http.StatusOK)
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController find deadlines, flushing and hijacking.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

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
