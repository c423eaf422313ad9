package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestCounterCounts(t *testing.T) {
	h := counter("box", time.Unix(0, 0))
	for _, want := range []string{
		"hello from box: request 1 since 1970-01-01T00:00:00Z\n",
		"hello from box: request 2 since 1970-01-01T00:00:00Z\n",
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/any", nil))
		if got := w.Body.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
