package provider_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar/provider"
)

func TestEvent(t *testing.T) {
	var e provider.Event
	raw := `{"timestamp":"1693513586","action":"resource.created","resource":{"plan":"pro","name":"db","organization_id":"o","user_id":"u","id":"1","status":"ready","size":3}}`
	if err := json.Unmarshal([]byte(raw), &e); err != nil {
		t.Fatal(err)
	}
	if e.Timestamp != 1693513586 || e.Action != provider.ResourceCreated || e.Resource.Plan != "pro" || string(e.Resource.Extra["size"]) != "3" {
		t.Errorf("it is read as %+v", e)
	}
	if err := e.Validate(); err != nil {
		t.Error(err)
	}
	for name, bad := range map[string]provider.Event{
		"no action":       {Resource: e.Resource},
		"unknown action":  {Action: "resource.moved", Resource: e.Resource},
		"no id":           {Action: provider.ResourceDeleted},
		"no user":         {Action: provider.ResourceCreated, Resource: provider.Resource{ID: "1", OrganizationID: "o"}},
		"no organization": {Action: provider.ResourceCreated, Resource: provider.Resource{ID: "1", UserID: "u"}},
	} {
		if bad.Validate() == nil {
			t.Errorf("valid with %s", name)
		}
	}
}

// platform answers webhooks with given responses, one after another, and then repeats the last.
type platform struct {
	t        *testing.T
	verifier *provider.Verifier
	answers  []answer
	got      []provider.Event
	at       []time.Duration
	began    time.Time
}

type answer struct {
	status int
	header string // Retry-After
	err    error
}

func (p *platform) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := p.verifier.Verify(r); err != nil {
		p.t.Errorf("attempt %d: %v", len(p.got)+1, err)
	}
	var e provider.Event
	if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
		p.t.Error(err)
	}
	a := p.answers[min(len(p.got), len(p.answers)-1)]
	p.got, p.at = append(p.got, e), append(p.at, time.Since(p.began))
	if a.err != nil {
		return nil, a.err
	}
	h := http.Header{"Location": {"https://hangar.example.com/elsewhere"}}
	if a.header != "" {
		h.Set("Retry-After", a.header)
	}
	return &http.Response{StatusCode: a.status, Header: h, Body: io.NopCloser(strings.NewReader(`{"error":"reason"}`)), Request: r}, nil
}

const hook = "https://hangar.example.com/hooks/extensions/logs"

func newPlatform(t *testing.T, answers ...answer) (*platform, *provider.WebhookClient) {
	t.Helper()
	v, err := provider.NewVerifier(provider.VerifierConfig{BaseURL: "https://hangar.example.com", Secrets: []string{"webhooks"}})
	if err != nil {
		t.Fatal(err)
	}
	p := &platform{t: t, verifier: v, answers: answers, began: time.Now()}
	return p, &provider.WebhookClient{URL: hook, Signer: provider.Signer{Secret: "webhooks"}, HTTP: &http.Client{Transport: p}}
}

var updated = provider.Event{
	Action:   provider.ResourceUpdated,
	Resource: provider.Resource{ID: "1", Plan: "pro", Status: provider.StatusReady},
	URL:      "https://another.example.com", Nonce: "of a request that was received", Timestamp: 1,
}

func TestSendWebhook(t *testing.T) {
	for name, c := range map[string]struct {
		answers  []answer
		attempts int // of the client
		want     int // attempts
		status   int // of the error; 0 is success
		err      error
	}{
		"accepted":           {answers: []answer{{status: 200}}, want: 1},
		"nothing to say":     {answers: []answer{{status: 204}}, want: 1},
		"temporary failures": {answers: []answer{{status: 500}, {status: 503}, {status: 429}, {err: io.ErrUnexpectedEOF}, {status: 200}}, want: 5},
		"refused":            {answers: []answer{{status: 401}}, want: 1, status: 401},
		"conflict":           {answers: []answer{{status: 502}, {status: 409}}, want: 2, status: 409},
		"redirected":         {answers: []answer{{status: 307}}, want: 1, status: 307},
		"never":              {answers: []answer{{status: 503}}, want: provider.DefaultAttempts, status: 503},
		"few attempts":       {answers: []answer{{status: 503}}, attempts: 2, want: 2, status: 503},
		"unreachable":        {answers: []answer{{err: io.ErrUnexpectedEOF}}, attempts: 3, want: 3, err: io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, client := newPlatform(t, c.answers...)
				client.Attempts = c.attempts
				err := client.Send(t.Context(), updated)
				if len(p.got) != c.want {
					t.Errorf("there were %d attempts, want %d", len(p.got), c.want)
				}
				refused, ok := errors.AsType[*provider.WebhookError](err)
				switch {
				case c.status != 0 && (!ok || refused.Status != c.status || refused.Message != `{"error":"reason"}`):
					t.Errorf("the error is %v, want status %d", err, c.status)
				case c.status == 0 && !errors.Is(err, c.err):
					t.Errorf("the error is %v, want %v", err, c.err)
				}
				for _, e := range p.got {
					if e.Action != updated.Action || e.Resource.ID != "1" || e.URL != hook || len(e.Nonce) != 32 {
						t.Errorf("the event is %+v", e)
					}
				}
			})
		})
	}
}

func TestWebhookPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, client := newPlatform(t, answer{status: 503})
		client.Attempts = 10
		if err := client.Send(t.Context(), updated); err == nil {
			t.Error("it succeeds")
		}
		for i, want := range []int{1, 2, 4, 8, 16, 32, 60, 60, 60} {
			full := time.Duration(want) * time.Second
			if pause := p.at[i+1] - p.at[i]; pause < full/2 || pause > full {
				t.Errorf("pause %d is %s, want %s to %s", i+1, pause, full/2, full)
			}
		}
	})
}

func TestWebhookRetryAfter(t *testing.T) {
	for header, want := range map[string]struct{ min, max time.Duration }{
		"30":                            {30 * time.Second, 30 * time.Second},
		"86400":                         {5 * time.Minute, 5 * time.Minute},
		"0":                             {time.Second / 2, time.Second},
		"-1":                            {time.Second / 2, time.Second},
		"99999999999999999999":          {time.Second / 2, time.Second},
		"Wed, 21 Oct 2026 07:28:00 GMT": {time.Second / 2, time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			p, client := newPlatform(t, answer{status: 429, header: header}, answer{status: 200})
			if err := client.Send(t.Context(), updated); err != nil {
				t.Fatal(err)
			}
			if pause := p.at[1] - p.at[0]; pause < want.min || pause > want.max {
				t.Errorf("after Retry-After: %s the pause is %s", header, pause)
			}
		})
	}
}

func TestWebhookEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		p, client := newPlatform(t, answer{status: 503})
		err := client.Send(ctx, updated)
		if refused, ok := errors.AsType[*provider.WebhookError](err); !ok || refused.Status != 503 {
			t.Errorf("the error is %v, not that of the last attempt", err)
		}
		if got := time.Since(p.began); got != 5*time.Second {
			t.Errorf("it ended after %s", got)
		}
	})
}

func TestWebhookSendsNothingThatIsInvalid(t *testing.T) {
	p, client := newPlatform(t, answer{status: 200})
	if client.Send(t.Context(), provider.Event{Action: provider.ResourceDeleted}) == nil {
		t.Error("an event without an id is sent")
	}
	client.Signer.Secret = ""
	if client.Send(t.Context(), updated) == nil {
		t.Error("an event is sent without a secret")
	}
	client.URL = "https://hangar.example.com/%zz"
	if client.Send(t.Context(), updated) == nil {
		t.Error("an event is sent to no URL")
	}
	if len(p.got) != 0 {
		t.Errorf("%d requests were sent", len(p.got))
	}
}
