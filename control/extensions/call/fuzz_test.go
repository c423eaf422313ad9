package call

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/provider"
)

// answering is a provider that answers everything with one response.
type answering struct {
	status             int
	media, retry, body string
}

// RoundTrip implements http.RoundTripper.
func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: a.status, Request: r, Body: io.NopCloser(strings.NewReader(a.body)),
		Header: http.Header{"Content-Type": {a.media}, "Retry-After": {a.retry}},
	}, nil
}

// FuzzAnswer: every answer of a provider results in a usable extension or an error of this package, which shows a
// tenant nothing of the body.
func FuzzAnswer(f *testing.F) {
	f.Add(201, "application/json", "", `{"id":"r/1","config":{"LOGS_URL":"https://logs.example.com"}}`)
	f.Add(202, "application/problem+json; charset=utf-8", "7", `{"id":"1","config":{}}`)
	f.Add(200, "application/json", "", `{"id":"r/1","name":"logs","status":"ready","plan":"small","x":[1]}`)
	f.Add(200, "text/html", "", `<script>secret</script>`)
	f.Add(503, "application/json", "99999999999", `{"error":"secret-of-the-provider"}`)
	f.Add(302, "", "-1", "moved-to-somewhere-else")
	f.Add(200, "application/json", "", "{\"id\":\"\u202e..\",\"config\":{\"=\":\"\xff\"}}")
	f.Fuzz(func(t *testing.T, status int, media, retry, body string) {
		if status < 100 || status > 999 {
			return
		}
		c := &Caller{client: &http.Client{Transport: answering{status, media, retry, body}}, now: time.Now}
		to := Target{Base: "https://provider.example.com", Secret: "a secret"}
		check := func(err error) {
			var e *Error
			switch {
			case err == nil:
			case !errors.As(err, &e):
				t.Errorf("%T: %v", err, err)
			case e.Kind == "" || e.Kind == Unsent || e.Text == "" || e.RetryAfter < 0 || e.RetryAfter > maxRetryAfter:
				t.Errorf("%+v", e)
			case len(body) > 8 && strings.Contains(e.Text, body):
				t.Errorf("the error shows the body: %q", e.Text)
			}
		}
		made, _, err := c.Provision(t.Context(), to, provider.Provision{ID: "1", Name: "logs"})
		check(err)
		if err == nil && (!ValidID(made.ID) || made.Config == nil) {
			t.Errorf("%+v is taken", made)
		}
		r, err := c.Resource(t.Context(), to, "r/1")
		check(err)
		if err == nil && r.ID != "r/1" {
			t.Errorf("%+v is taken for r/1", r)
		}
		check(c.Delete(t.Context(), to, "r/1"))
	})
}
