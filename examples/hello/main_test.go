package main

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
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

func TestNotesAreKept(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "notes")
	ask := func(method, body string) string {
		t.Helper()
		w := httptest.NewRecorder()
		(&notes{path: path}).ServeHTTP(w, httptest.NewRequest(method, "/notes", strings.NewReader(body)))
		return w.Body.String()
	}
	if got := ask("GET", ""); got != "" {
		t.Errorf("there is %q", got)
	}
	ask("POST", "one")
	if got := ask("POST", "two"); got != "one\ntwo\n" {
		t.Errorf("%q", got)
	}
	if got := ask("POST", strings.Repeat("x", maxNote+1)); strings.HasPrefix(got, "one") {
		t.Errorf("a long note is kept")
	}
	if got := ask("GET", ""); got != "one\ntwo\n" {
		t.Errorf("%q", got)
	}
}
