package platform_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
	"github.com/hangar-platform/hangar/daemon"
	"github.com/hangar-platform/hangar/provider"
	"github.com/hangar-platform/hangar/test/platform"
)

// receiver is a customer's server of webhooks, as its author would write it with package provider.
type receiver struct {
	*httptest.Server
	t *testing.T

	mu       sync.Mutex
	verifier *provider.Verifier
	events   []provider.MachineEvent
	pings    int
	got      chan struct{} // has room for one
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{t: t, got: make(chan struct{}, 1)}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

// trust accepts requests that are signed with secrets.
func (r *receiver) trust(secrets ...string) {
	r.t.Helper()
	v, err := provider.NewVerifier(provider.VerifierConfig{BaseURL: r.URL, Secrets: secrets})
	if err != nil {
		r.t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.verifier = v
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, in *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.verifier == nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if err := r.verifier.Verify(in); err != nil {
		r.t.Errorf("refused: %v", err)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if in.Header.Get("Ce-Type") == "io.platform.webhook.ping" {
		r.pings++
		return
	}
	e, err := provider.ReadMachineEvent(in)
	if err != nil {
		r.t.Errorf("not a machine event: %v", err)
	}
	r.events = append(r.events, e)
	select {
	case r.got <- struct{}{}:
	default:
	}
}

// until returns the events once there is one that ok accepts.
func (r *receiver) until(ctx context.Context, ok func(provider.MachineEvent) bool) []provider.MachineEvent {
	r.t.Helper()
	for {
		r.mu.Lock()
		events := slices.Clone(r.events)
		r.mu.Unlock()
		if slices.ContainsFunc(events, ok) {
			return events
		}
		select {
		case <-r.got:
		case <-ctx.Done():
			r.t.Fatalf("of %d events none is the one: %v", len(events), context.Cause(ctx))
		}
	}
}

// eventsOf are the events of a Machine from its API, the oldest first.
func eventsOf(t *testing.T, c *client.Client, ref hangar.MachineRef) []hangar.Event {
	t.Helper()
	events, err := c.MachineEvents(t.Context(), ref, 50)
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(events)
	return events
}

// TestWebhookGetsEveryEvent: the webhook of an organization gets every event of its Machines, in
// order and signed, and none of other organizations.
func TestWebhookGetsEveryEvent(t *testing.T) {
	t.Parallel()
	p := platform.Start(t, platform.Options{Config: func(c *daemon.Config) { c.AllowWebhook = []string{"127.0.0.0/8"} }})
	c, ctx := p.Client(), t.Context()
	r := newReceiver(t)
	for _, org := range []hangar.OrgSlug{"acme", "other"} {
		if _, err := c.CreateOrg(ctx, hangar.OrgCreate{Slug: org, Name: string(org)}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.CreateApp(ctx, hangar.AppCreate{Name: "app-of-" + hangar.AppName(org), Org: org}); err != nil {
			t.Fatal(err)
		}
	}
	made, err := c.CreateWebhook(ctx, "acme", hangar.WebhookCreate{URL: r.URL + "/events?of=acme"})
	if err != nil {
		t.Fatal(err)
	}
	r.trust(made.Secret)
	if ping, err := c.PingWebhook(ctx, "acme", made.ID); err != nil || !ping.Delivered || r.pings != 1 {
		t.Fatalf("ping: %+v, %v", ping, err)
	}
	var refs []hangar.MachineRef
	for _, app := range []hangar.AppName{"app-of-acme", "app-of-other", "app-of-acme"} {
		m, err := c.CreateMachine(ctx, app, hangar.MachineCreate{Config: hangar.MachineConfig{Image: "nginx"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.WaitMachine(ctx, m.Ref(), hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStarted}}); err != nil {
			t.Fatal(err)
		}
		refs = append(refs, m.Ref())
	}
	for _, ref := range refs {
		if err := c.StopMachine(ctx, ref, hangar.MachineStop{}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.WaitMachine(ctx, ref, hangar.MachineWait{States: []hangar.MachineState{hangar.MachineStopped}}); err != nil {
			t.Fatal(err)
		}
	}
	var want []hangar.Event
	for _, ref := range []hangar.MachineRef{refs[0], refs[2]} {
		events := eventsOf(t, c, ref)
		want = append(want, events...)
		last := string(events[len(events)-1].ID)
		r.until(ctx, func(e provider.MachineEvent) bool { return e.ID == last })
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.events) != len(want) {
		t.Errorf("%d events were delivered, want %d", len(r.events), len(want))
	}
	for _, ref := range []hangar.MachineRef{refs[0], refs[2]} {
		var got []provider.MachineEvent
		for _, e := range r.events {
			if e.MachineID == string(ref.ID) {
				got = append(got, e)
			}
		}
		for i, e := range eventsOf(t, c, ref) {
			var data struct {
				Source hangar.EventSource `json:"source"`
			}
			if i >= len(got) {
				t.Fatalf("%s: only %d events", ref.ID, len(got))
			}
			if err := json.Unmarshal(got[i].Data, &data); err != nil {
				t.Error(err)
			}
			if got[i].ID != string(e.ID) || got[i].Type != "io.platform.machine."+string(e.Type) || got[i].Status != e.Status ||
				got[i].Source != "/v1/apps/app-of-acme/machines/"+string(ref.ID) || got[i].Time.UnixMilli() != e.Timestamp || data.Source != e.Source {
				t.Errorf("%s: event %d is %+v, want %+v", ref.ID, i, got[i], e)
			}
		}
	}
	deliveries, err := c.WebhookDeliveries(ctx, "acme", made.ID, hangar.DeliveryQuery{})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range deliveries {
		if d.State == hangar.DeliveryDead || d.Attempts > 1 {
			t.Errorf("delivery %+v", d)
		}
	}
}
