package check

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/hangar-platform/hangar/provider"
)

// webhookWithin is how long a webhook may take to arrive after the other checks.
const webhookWithin = 30 * time.Second

// Receiver receives the webhooks that a provider sends during a test. It is the handler at the
// webhook URL with which the provider is configured, and safe for concurrent use.
type Receiver struct {
	verifier *provider.Verifier

	mu     sync.Mutex // guards the fields below
	events []provider.Event
	read   int // number of events that Next has returned
	faults []string
	came   chan struct{} // has room for one
}

// NewReceiver returns a Receiver for webhooks that are signed with secret. It verifies that they are
// signed for its own URL: base, which is the scheme and host with which the provider is configured, and
// the path of the request.
func NewReceiver(base, secret string) (*Receiver, error) {
	v, err := provider.NewVerifier(provider.VerifierConfig{BaseURL: base, Secrets: []string{secret}, AllowBare: true})
	if err != nil {
		return nil, err
	}
	return &Receiver{verifier: v, came: make(chan struct{}, 1)}, nil
}

// ServeHTTP answers 204, or 400 with the error.
func (v *Receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	err := v.verifier.Verify(r)
	var e provider.Event
	if err == nil {
		e, err = readEvent(r.Body)
	}
	v.mu.Lock()
	if err != nil {
		v.faults = append(v.faults, err.Error())
	} else {
		v.events = append(v.events, e)
	}
	v.mu.Unlock()
	select {
	case v.came <- struct{}{}:
	default:
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func readEvent(body io.Reader) (e provider.Event, err error) {
	raw, err := io.ReadAll(body)
	if err != nil {
		return e, err
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		return e, fmt.Errorf("the body is not an event: %w", err)
	}
	return e, e.Validate()
}

// Next waits for the next webhook, until ctx ends.
func (v *Receiver) Next(ctx context.Context) (provider.Event, error) {
	for {
		v.mu.Lock()
		if v.read < len(v.events) {
			e := v.events[v.read]
			v.read++
			v.mu.Unlock()
			return e, nil
		}
		v.mu.Unlock()
		select {
		case <-v.came:
		case <-ctx.Done():
			return provider.Event{}, ctx.Err()
		}
	}
}

// about reports whether an event about a resource was received, and returns the first fault.
func (v *Receiver) about(id string) (found bool, fault string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.faults) > 0 {
		fault = v.faults[0]
	}
	for _, e := range v.events {
		found = found || e.Resource.ID == id
	}
	return found, fault
}

// webhooks checks the received webhooks. A provider need not report changes that the platform made
// itself, so none is not an error.
func (k *checker) webhooks(ctx context.Context) {
	const rule = "webhooks are signed and whole"
	if k.Webhooks == nil {
		k.skipped(rule, "no webhook URL was given")
		return
	}
	timeout := time.NewTimer(webhookWithin)
	defer timeout.Stop()
	for {
		found, fault := k.Webhooks.about(k.made.ID)
		switch {
		case fault != "":
			k.broken(rule, "%s", fault)
			return
		case found:
			k.kept(rule)
			return
		}
		select {
		case <-k.Webhooks.came:
		case <-timeout.C:
			k.skipped(rule, "none about this extension arrived within %s", webhookWithin)
			return
		case <-ctx.Done():
			return
		}
	}
}
