package provider

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Action is what happened to a resource.
type Action string

// The actions of webhooks.
const (
	ResourceCreated Action = "resource.created"
	ResourceUpdated Action = "resource.updated"
	ResourceDeleted Action = "resource.deleted"
)

// Event is the body of a webhook, with which a provider reports a change.
type Event struct {
	Action   Action   `json:"action"`
	Resource Resource `json:"resource"` // as GET /extensions/{id} answers it

	// Signer.Sign adds these to the body of a request.
	URL       string    `json:"url,omitempty"`
	Nonce     string    `json:"nonce,omitempty"`
	Timestamp Timestamp `json:"timestamp,omitzero"`
}

// Validate reports whether the action is known and the resource has what the action needs: an id,
// and for a created one also an organization and a user.
func (e *Event) Validate() error {
	switch e.Action {
	case ResourceCreated:
		if e.Resource.OrganizationID == "" || e.Resource.UserID == "" {
			return errors.New("provider: event: a created resource needs organization_id and user_id")
		}
	case ResourceUpdated, ResourceDeleted:
	default:
		return errors.New("provider: event: the action is unknown")
	}
	if e.Resource.ID == "" {
		return errors.New("provider: event: the resource has no id")
	}
	return nil
}

// The pauses between the attempts of a webhook.
const (
	firstPause = time.Second
	lastPause  = time.Minute
	maxPause   = 5 * time.Minute // limit of Retry-After
)

// DefaultAttempts is how often a WebhookClient tries by default, for about two minutes.
const DefaultAttempts = 8

// attemptTimeout bounds one attempt.
const attemptTimeout = 10 * time.Second

// WebhookClient sends webhooks to the platform. Its fields must not change while it sends.
type WebhookClient struct {
	// URL is the provider's webhook URL, which the platform shows.
	URL string
	// Signer has the secret for webhooks, which differs from the one for requests.
	Signer Signer
	// HTTP sends the requests; nil uses a new client. Redirects are never followed, because the
	// signature is only valid for URL.
	HTTP *http.Client
	// Attempts bounds how often a webhook is sent; 0 is DefaultAttempts.
	Attempts int
}

// WebhookError is an answer of the platform that is not a success.
type WebhookError struct {
	Status  int
	Message string // the first 512 bytes of the answer

	retryAfter time.Duration
}

// Error returns the status and the message.
func (e *WebhookError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("status %d %s", e.Status, e.Message))
}

// temporary reports whether the same webhook may succeed later.
func (e *WebhookError) temporary() bool {
	return e.Status == http.StatusTooManyRequests || e.Status >= 500
}

// Send sends a webhook and returns nil once the platform has accepted it. After an answer of 429 or
// 5xx, or none, it waits and tries again: 1 s, doubled each time up to 1 min, less a random part of up
// to a half. It waits longer if Retry-After says so, up to 5 min. Each attempt has its own
// signature, so the platform may see the event more than once. Other answers are a *WebhookError at
// once. After the last attempt, or when ctx ends, Send returns the error of the last attempt.
//
// Send does not store events: keep an event that must not be lost in the provider's own database
// until Send has succeeded.
func (c *WebhookClient) Send(ctx context.Context, e Event) error {
	if err := e.Validate(); err != nil {
		return err
	}
	e.URL, e.Nonce, e.Timestamp = "", "", 0 // of an earlier request
	body, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("provider: event: %w", err)
	}
	attempts := c.Attempts
	if attempts <= 0 {
		attempts = DefaultAttempts
	}
	for n := 1; ; n++ {
		again, err := c.attempt(ctx, body)
		if err == nil {
			return nil
		}
		if !again || n == attempts || wait(ctx, backoff(n, err)) != nil {
			return fmt.Errorf("provider: webhook, attempt %d: %w", n, err)
		}
	}
}

// attempt sends the body once, and reports whether it may be sent again.
func (c *WebhookClient) attempt(ctx context.Context, body []byte) (again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	if err := c.Signer.Sign(r); err != nil {
		return false, err
	}
	client := http.Client{}
	if c.HTTP != nil {
		client = *c.HTTP
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	response, err := client.Do(r)
	if err != nil {
		return true, err
	}
	defer response.Body.Close()
	if response.StatusCode/100 == 2 {
		return false, nil
	}
	message, _ := io.ReadAll(io.LimitReader(response.Body, 512))
	status := &WebhookError{Status: response.StatusCode, Message: string(message)}
	if seconds, err := strconv.ParseUint(response.Header.Get("Retry-After"), 10, 31); err == nil {
		status.retryAfter = time.Duration(seconds) * time.Second
	}
	return status.temporary(), status
}

// backoff returns the pause after the n-th attempt, which failed with err.
func backoff(n int, err error) time.Duration {
	pause := lastPause
	if n < 7 { // larger shifts exceed lastPause anyway
		pause = min(firstPause<<(n-1), lastPause)
	}
	pause -= rand.N(pause/2 + 1) //nolint:gosec // randomness only spreads the load
	if status, ok := errors.AsType[*WebhookError](err); ok {
		pause = max(pause, min(status.retryAfter, maxPause))
	}
	return pause
}

// wait returns nil after d, or the error of a context that ends before.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
