package compat_test

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"testing"
)

// lease is a lease as existing clients decode it.
type lease struct {
	Status  string `json:"status"`
	Code    string `json:"code"`
	Message string `json:"message"`
	Data    *struct {
		Nonce       string `json:"nonce"`
		ExpiresAt   int64  `json:"expires_at"`
		Owner       string `json:"owner"`
		Description string `json:"description"`
		Version     string `json:"version"`
	} `json:"data"`
}

// acquire sends the time as a parameter and no body.
func (c *client) acquire(ctx context.Context, app, id string, ttl int) (*lease, error) {
	l := new(lease)
	return l, c.call(ctx, http.MethodPost, machines(app, id, "lease")+"?ttl="+strconv.Itoa(ttl), nil, l)
}

func (c *client) findLease(ctx context.Context, app, id string) (*lease, error) {
	l := new(lease)
	return l, c.call(ctx, http.MethodGet, machines(app, id, "lease"), nil, l)
}

func (c *client) releaseLease(ctx context.Context, app, id string) error {
	return c.call(ctx, http.MethodDelete, machines(app, id, "lease"), nil, nil)
}

// under returns a client that acts under a lease.
func (w world) under(nonce string) world {
	c := *w.client
	c.nonce = nonce
	w.client = &c
	return w
}

// leases does what a deployment does: acquire the lease of a Machine, refresh it, update under
// it, tag what another has leased, and release it.
func (w world) leases(t *testing.T) {
	ctx := t.Context()
	m := w.run(t, launch{Config: w.config()})
	_, err := w.findLease(ctx, w.app, m.ID)
	wantFailure(t, "no lease", err, 404, " lease not found")
	taken, err := w.acquire(ctx, w.app, m.ID, 120)
	must(t, "acquire", err)
	if taken.Status != "success" || taken.Data == nil || len(taken.Data.Nonce) != 12 || taken.Data.Owner == "" || taken.Data.Version != m.InstanceID {
		t.Fatalf("the lease is %+v", taken)
	}
	mine := w.under(taken.Data.Nonce)
	_, err = w.acquire(ctx, w.app, m.ID, 13)
	wantFailure(t, "a second lease", err, 409, "lease currently held by "+taken.Data.Owner+", expires at ")
	refreshed, err := mine.acquire(ctx, w.app, m.ID, 300)
	must(t, "refresh", err)
	if refreshed.Data.Nonce != taken.Data.Nonce || refreshed.Data.ExpiresAt <= taken.Data.ExpiresAt {
		t.Errorf("the refreshed lease is %+v, was %+v", refreshed.Data, taken.Data)
	}

	held := "aborted: machine ID " + m.ID + " lease currently held by "
	_, err = w.update(ctx, w.app, m.ID, launch{Config: w.config()})
	wantFailure(t, "update by another", err, 409, held)
	for verb, call := range map[string]func() error{
		"start":    func() error { _, err := w.start(ctx, w.app, m.ID); return err },
		"stop":     func() error { return w.stop(ctx, w.app, m.ID, "", 0) },
		"suspend":  func() error { return w.suspend(ctx, w.app, m.ID) },
		"restart":  func() error { return w.restart(ctx, w.app, m.ID, false, 0, "") },
		"destroy":  func() error { return w.destroy(ctx, w.app, m.ID, true) },
		"cordon":   func() error { return w.call(ctx, http.MethodPost, machines(w.app, m.ID, "cordon"), nil, nil) },
		"uncordon": func() error { return w.call(ctx, http.MethodPost, machines(w.app, m.ID, "uncordon"), nil, nil) },
	} {
		wantFailure(t, verb+" by another", call(), 409, held)
	}
	must(t, "tag what another has leased", w.call(ctx, http.MethodPost, machines(w.app, m.ID, "metadata", "fly_bluegreen_deployment_tag"),
		map[string]string{"value": "blue"}, nil))
	_, err = w.exec(ctx, w.app, m.ID, "echo", "", 0)
	must(t, "exec", err)

	updated, err := mine.update(ctx, w.app, m.ID, launch{Config: w.config()})
	must(t, "update", err)
	must(t, "wait for the version", w.wait(ctx, w.app, m.ID, url.Values{"state": {"started"}, "version": {updated.InstanceID}}))
	if found, err := mine.findLease(ctx, w.app, m.ID); err != nil || found.Data.Nonce != taken.Data.Nonce || found.Data.Version != updated.InstanceID {
		t.Errorf("after the update the lease is %+v, %v", found.Data, err)
	}
	if got := w.look(t, m.ID); got.Nonce != "" {
		t.Errorf("the machine shows nonce %q", got.Nonce)
	}
	must(t, "release", mine.releaseLease(ctx, w.app, m.ID))
	wantFailure(t, "release again", mine.releaseLease(ctx, w.app, m.ID), 400, "lease not found")
	must(t, "destroy under a lease that is over", mine.destroy(ctx, w.app, m.ID, true))

	// New Machines come with a lease.
	body := struct {
		launch
		LeaseTTL int `json:"lease_ttl"`
	}{launch{Config: w.config(), SkipLaunch: true}, 300}
	created := new(machine)
	must(t, "create with a lease", w.call(ctx, http.MethodPost, machines(w.app), body, created))
	w.reach(t, created.ID, "stopped")
	if len(created.Nonce) != 12 {
		t.Errorf("created with nonce %q", created.Nonce)
	}
	_, err = w.start(ctx, w.app, created.ID)
	wantFailure(t, "start by another", err, 409, "lease currently held by")
	must(t, "destroy", w.under(created.Nonce).destroy(ctx, w.app, created.ID, false))
}
