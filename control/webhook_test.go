package control_test

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/vault"
	"github.com/hangar-platform/hangar/control/webhooks"
)

// fakeDelivery is a hangar.EventDelivery that notes what it is asked.
type fakeDelivery struct {
	mu      sync.Mutex
	awaited []string
}

func (f *fakeDelivery) AwaitReceiver(_ context.Context, id string, version uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.awaited = append(f.awaited, fmt.Sprintf("%s %d", id, version))
	return nil
}

func (f *fakeDelivery) ReceiverStatus(string) hangar.WebhookStatus {
	return hangar.WebhookStatus{Waiting: 7}
}

func (f *fakeDelivery) ReceiverDeliveries(id string, _ hangar.DeliveryQuery) ([]hangar.WebhookDelivery, error) {
	return []hangar.WebhookDelivery{{ID: hangar.DeliveryID(id)}}, nil
}

func (f *fakeDelivery) Resend(id string, delivery hangar.DeliveryID) (hangar.WebhookDelivery, error) {
	return hangar.WebhookDelivery{ID: hangar.DeliveryID(id) + "/" + delivery}, nil
}

func (f *fakeDelivery) Ping(context.Context, string) (hangar.WebhookPing, error) {
	return hangar.WebhookPing{Delivered: true}, nil
}

const hookURL = "https://hook.example.com/path?a=1"

func TestWebhooks(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		d := &fakeDelivery{}
		w := p.Webhooks(d)
		ctx := admin(t)
		org, err := p.Orgs().CreateOrg(ctx, hangar.OrgCreate{Slug: "acme"})
		if err != nil {
			t.Fatal(err)
		}
		for _, app := range []hangar.AppName{"web", "worker"} {
			if _, err := p.Apps().CreateApp(ctx, hangar.AppCreate{Name: app, Org: "acme"}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := p.Apps().CreateApp(ctx, hangar.AppCreate{Name: "foreign", Org: hangar.OrgPersonal}); err != nil {
			t.Fatal(err)
		}
		if list, err := w.Webhooks(ctx, "acme"); err != nil || len(list) != 0 || list == nil {
			t.Errorf("%v, %v", list, err)
		}
		made, err := w.CreateWebhook(ctx, "acme", hangar.WebhookCreate{URL: hookURL, Events: []hangar.EventType{hangar.EventExit}, Apps: []hangar.AppName{"web", "worker", "web"}})
		if err != nil {
			t.Fatal(err)
		}
		if len(made.Secret) < 20 || made.URL != hookURL || !slices.Equal(made.Apps, []hangar.AppName{"web", "worker"}) || made.Status.Waiting != 7 {
			t.Errorf("%+v", made)
		}
		if want := fmt.Sprintf("webhooks/%s/%s 1", org.ID, made.ID); !slices.Equal(d.awaited, []string{want}) {
			t.Errorf("awaited is %v, want %s", d.awaited, want)
		}
		for name, in := range map[string]hangar.WebhookCreate{
			"scheme": {URL: "ftp://example.com"}, "user": {URL: "https://me:secret@example.com/"}, "fragment": {URL: "https://example.com/#x"},
			"no host": {URL: "https:///x"}, "blank": {URL: "https://example.com/a b"}, "empty": {}, "long": {URL: "https://example.com/" + strings.Repeat("x", 3000)},
			"odd query": {URL: "https://example.com/?a=1;b"}, "unknown event": {URL: hookURL, Events: []hangar.EventType{"boom"}},
			"event twice": {URL: hookURL, Events: []hangar.EventType{"exit", "exit"}}, "foreign App": {URL: hookURL, Apps: []hangar.AppName{"foreign"}},
			"many Apps": {URL: hookURL, Apps: make([]hangar.AppName, hangar.MaxWebhookApps+1)},
		} {
			if _, err := w.CreateWebhook(ctx, "acme", in); hangar.CodeOf(err) != hangar.CodeInvalid || strings.Contains(err.Error(), "secret@") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := w.CreateWebhook(ctx, "acme", hangar.WebhookCreate{URL: hookURL, Apps: []hangar.AppName{"none"}}); hangar.CodeOf(err) != hangar.CodeNotFound {
			t.Errorf("an App that there is not: %v", err)
		}

		// Changes.
		target, every := "http://other.example.com", []hangar.EventType{}
		changed, err := w.UpdateWebhook(ctx, "acme", made.ID, hangar.WebhookUpdate{URL: &target, Events: &every})
		if err != nil || changed.URL != target || changed.Events != nil || !slices.Equal(changed.Apps, made.Apps) {
			t.Errorf("%+v, %v", changed, err)
		}
		bad := "nowhere"
		if _, err := w.UpdateWebhook(ctx, "acme", made.ID, hangar.WebhookUpdate{URL: &bad}); hangar.CodeOf(err) != hangar.CodeInvalid {
			t.Error(err)
		}
		if err := p.Apps().DestroyApp(ctx, "web", false); err != nil {
			t.Fatal(err)
		}
		if got, err := w.Webhook(ctx, "acme", made.ID); err != nil || !slices.Equal(got.Apps, []hangar.AppName{"worker"}) {
			t.Errorf("%+v, %v", got, err)
		}
		if err := p.Apps().DestroyApp(ctx, "worker", false); err != nil {
			t.Fatal(err)
		}
		if got, err := w.Webhook(ctx, "acme", made.ID); err != nil || got.Apps == nil || len(got.Apps) != 0 {
			t.Errorf("without its Apps it gets the events of all: %+v, %v", got, err)
		}
		none := []hangar.AppName{}
		if got, err := w.UpdateWebhook(ctx, "acme", made.ID, hangar.WebhookUpdate{Apps: &none}); err != nil || got.Apps != nil {
			t.Errorf("%+v, %v", got, err)
		}

		// What the other parts are asked.
		id := hangar.DeliveryID(fmt.Sprintf("webhooks/%s/%s", org.ID, made.ID))
		if list, err := w.WebhookDeliveries(ctx, "acme", made.ID, hangar.DeliveryQuery{}); err != nil || list[0].ID != id {
			t.Errorf("%+v, %v", list, err)
		}
		for _, q := range []hangar.DeliveryQuery{{State: "x"}, {Limit: -1}, {Limit: hangar.MaxWebhookDeliveries + 1}} {
			if _, err := w.WebhookDeliveries(ctx, "acme", made.ID, q); hangar.CodeOf(err) != hangar.CodeInvalid {
				t.Errorf("%+v: %v", q, err)
			}
		}
		if again, err := w.ResendDelivery(ctx, "acme", made.ID, "one"); err != nil || again.ID != id+"/one" {
			t.Errorf("%+v, %v", again, err)
		}

		// The end.
		if err := w.RemoveWebhook(ctx, "acme", made.ID); err != nil {
			t.Fatal(err)
		}
		wantError(t, w.RemoveWebhook(ctx, "acme", made.ID), hangar.CodeNotFound, hangar.ReasonWebhookNotFound)
		_, err = w.PingWebhook(ctx, "acme", made.ID)
		wantError(t, err, hangar.CodeNotFound, hangar.ReasonWebhookNotFound)
	})
}

// TestWebhookLimit: an organization has as many as it may, and another is not touched by that.
func TestWebhookLimit(t *testing.T) {
	t.Parallel()
	p := newPlane(t, state.NewMemory())
	w := p.Webhooks(&fakeDelivery{})
	if _, err := p.Orgs().CreateOrg(admin(t), hangar.OrgCreate{Slug: "acme"}); err != nil {
		t.Fatal(err)
	}
	var tries sync.WaitGroup
	errs := make(chan error, 3*hangar.MaxWebhooks)
	for range cap(errs) {
		tries.Go(func() {
			_, err := w.CreateWebhook(admin(t), "acme", hangar.WebhookCreate{URL: hookURL})
			errs <- err
		})
	}
	tries.Wait()
	close(errs)
	made := 0
	for err := range errs {
		if err == nil {
			made++
			continue
		}
		wantError(t, err, hangar.CodeExhausted, hangar.ReasonQuota)
	}
	if list, err := w.Webhooks(admin(t), "acme"); err != nil || made != hangar.MaxWebhooks || len(list) != made {
		t.Errorf("%d were made, %d are there, %v", made, len(list), err)
	}
	if _, err := w.CreateWebhook(admin(t), hangar.OrgPersonal, hangar.WebhookCreate{URL: hookURL}); err != nil {
		t.Error(err)
	}
}

// TestWebhookRotation: the secret before signs until the end of the overlap.
func TestWebhookRotation(t *testing.T) {
	t.Parallel()
	p := newPlane(t, state.NewMemory())
	w := p.Webhooks(&fakeDelivery{})
	ctx := admin(t)
	made, err := w.CreateWebhook(ctx, hangar.OrgPersonal, hangar.WebhookCreate{URL: hookURL})
	if err != nil {
		t.Fatal(err)
	}
	signs := func(at time.Time) string {
		t.Helper()
		for set, err := range webhooks.NewFeed(p.store, vault.New(p.store, p.keys, quiet), quiet).WatchEventReceivers(t.Context()) {
			if err != nil || len(set) != 1 {
				t.Fatal(set, err)
			}
			return set[0].SecretAt(at).Reveal()
		}
		return ""
	}
	hour, none, negative, long := hangar.Duration(time.Hour), hangar.Duration(0), hangar.Duration(-1), hangar.Duration(hangar.MaxWebhookOverlap+1)
	second, err := w.RotateWebhook(ctx, hangar.OrgPersonal, made.ID, hangar.WebhookRotate{Overlap: &hour})
	if err != nil || second.Secret == made.Secret || second.SecretChangesAt.IsZero() {
		t.Fatalf("%+v, %v", second, err)
	}
	now := made.CreatedAt
	if signs(now) != made.Secret || signs(now.Add(2*time.Hour)) != second.Secret {
		t.Error("the wrong secret signs")
	}
	third, err := w.RotateWebhook(ctx, hangar.OrgPersonal, made.ID, hangar.WebhookRotate{})
	if err != nil || signs(now.Add(2*time.Hour)) != made.Secret || signs(now.Add(25*time.Hour)) != third.Secret {
		t.Errorf("another one during the overlap: %+v, %v", third, err)
	}
	last, err := w.RotateWebhook(ctx, hangar.OrgPersonal, made.ID, hangar.WebhookRotate{Overlap: &none})
	if err != nil || !last.SecretChangesAt.IsZero() || signs(now.Add(-time.Hour)) != last.Secret {
		t.Errorf("at once: %+v, %v", last, err)
	}
	for _, overlap := range []*hangar.Duration{&negative, &long} {
		if _, err := w.RotateWebhook(ctx, hangar.OrgPersonal, made.ID, hangar.WebhookRotate{Overlap: overlap}); hangar.CodeOf(err) != hangar.CodeInvalid {
			t.Error(err)
		}
	}
}

// TestWebhookFeed: the receivers of events follow the state, with secrets, over a rotation of the key,
// and end with the organization.
func TestWebhookFeed(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		org, err := p.Orgs().CreateOrg(admin(t), hangar.OrgCreate{Slug: "acme"})
		if err != nil {
			t.Fatal(err)
		}
		next, stop := iter.Pull2(webhooks.NewFeed(store, vault.New(store, p.keys, quiet), quiet).WatchEventReceivers(t.Context()))
		defer stop()
		want := func(n int) []hangar.EventReceiver {
			t.Helper()
			set, err, ok := next()
			if err != nil || !ok || len(set) != n {
				t.Fatalf("the feed has %+v, %v, %t", set, err, ok)
			}
			return set
		}
		want(0)
		made, err := p.Webhooks(&fakeDelivery{}).CreateWebhook(admin(t), "acme", hangar.WebhookCreate{URL: hookURL})
		if err != nil {
			t.Fatal(err)
		}
		check := func(one hangar.EventReceiver) {
			t.Helper()
			if one.Org != org.ID || one.AllOf != org.ID || one.Apps != nil || one.URL != hookURL || one.Secret.Reveal() != made.Secret || one.Version != 1 {
				t.Errorf("the feed has %+v", one)
			}
		}
		check(want(1)[0])
		if _, err := p.Encryption().RotateEncryptionKey(admin(t)); err != nil {
			t.Fatal(err)
		}
		check(want(1)[0])
		item, err := store.Get(t.Context(), state.WebhooksKey(org.ID))
		if err != nil || strings.Contains(string(item.Value), "hook.example.com") || strings.Contains(string(item.Value), made.Secret) {
			t.Errorf("the record is %s, %v", item.Value, err)
		}
		if _, err := store.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put(item.Key, []byte("damaged"))}}); err != nil {
			t.Fatal(err)
		}
		if one := want(1)[0]; !one.Unreadable || one.Org != org.ID {
			t.Errorf("damaged: %+v", one)
		}
		if err := p.Orgs().DeleteOrg(admin(t), "acme"); err != nil {
			t.Fatal(err)
		}
		want(0)
	})
}

// TestWebhookRights: who may do what.
func TestWebhookRights(t *testing.T) {
	t.Parallel()
	p := newPlane(t, state.NewMemory())
	w := p.Webhooks(&fakeDelivery{})
	made, err := w.CreateWebhook(admin(t), hangar.OrgPersonal, hangar.WebhookCreate{URL: hookURL})
	if err != nil {
		t.Fatal(err)
	}
	of := hangar.OrgPersonal
	calls := map[string]func(ctx context.Context) error{
		"create": func(ctx context.Context) error {
			_, err := w.CreateWebhook(ctx, of, hangar.WebhookCreate{URL: "x"})
			return err
		},
		"list": func(ctx context.Context) error { _, err := w.Webhooks(ctx, of); return err },
		"show": func(ctx context.Context) error { _, err := w.Webhook(ctx, of, made.ID); return err },
		"update": func(ctx context.Context) error {
			_, err := w.UpdateWebhook(ctx, of, made.ID, hangar.WebhookUpdate{})
			return err
		},
		"rotate": func(ctx context.Context) error {
			_, err := w.RotateWebhook(ctx, of, made.ID, hangar.WebhookRotate{})
			return err
		},
		"ping": func(ctx context.Context) error { _, err := w.PingWebhook(ctx, of, made.ID); return err },
		"log": func(ctx context.Context) error {
			_, err := w.WebhookDeliveries(ctx, of, made.ID, hangar.DeliveryQuery{})
			return err
		},
		"resend": func(ctx context.Context) error { _, err := w.ResendDelivery(ctx, of, made.ID, "x"); return err },
		"remove": func(ctx context.Context) error { return w.RemoveWebhook(ctx, of, "wh_none") },
	}
	grant := func(actions hangar.Action, apps ...hangar.AppName) context.Context {
		return as(t, hangar.Principal{Subject: "me", Grants: []hangar.Grant{{Org: of, Actions: actions, Apps: apps}}})
	}
	for who, c := range map[string]struct {
		ctx  context.Context //nolint:containedctx // of a row
		code hangar.Code     // empty: is allowed
	}{
		"nobody":         {t.Context(), hangar.CodeUnauthenticated},
		"a stranger":     {as(t, hangar.Principal{Subject: "you", Grants: []hangar.Grant{{Org: "other", Actions: hangar.ActionAll}}}), hangar.CodeNotFound},
		"one App":        {grant(hangar.ActionAll, "web"), hangar.CodeForbidden},
		"all but write":  {grant(hangar.ActionAll &^ hangar.ActionWrite), hangar.CodeForbidden},
		"writer":         {grant(hangar.ActionWrite), ""},
		"administrator":  {admin(t), ""},
		"everything":     {grant(hangar.ActionAll), ""},
		"reads and more": {grant(hangar.ActionRead | hangar.ActionControl | hangar.ActionMetrics), hangar.CodeForbidden},
	} {
		for name, call := range calls {
			err := call(c.ctx)
			got := hangar.CodeOf(err)
			if c.code == "" && (got == hangar.CodeInvalid || hangar.ReasonOf(err) == hangar.ReasonWebhookNotFound) { // as it is allowed
				got = ""
			}
			if got != c.code || c.code == hangar.CodeNotFound && hangar.ReasonOf(err) != hangar.ReasonOrgNotFound {
				t.Errorf("%s, %s: %v", who, name, err)
			}
		}
	}
}

// leaving is a state whose caller leaves as soon as it has changed something.
type leaving struct {
	state.Store

	leave func()
}

func (l *leaving) Txn(ctx context.Context, txn state.Txn) (state.Revision, error) {
	revision, err := l.Store.Txn(ctx, txn)
	if err == nil && l.leave != nil {
		l.leave()
	}
	return revision, err
}

// TestWebhookSecretIsNotLost: what fails once a webhook is stored does not hide its secret, which is shown once.
func TestWebhookSecretIsNotLost(t *testing.T) {
	store := &leaving{Store: state.NewMemory()}
	p := newPlane(t, store)
	p.orgWithApp(t, "acme")
	w := p.Webhooks(&fakeDelivery{})
	ctx, leave := context.WithCancel(admin(t))
	store.leave = leave
	made, err := w.CreateWebhook(ctx, "acme", hangar.WebhookCreate{URL: hookURL, Apps: []hangar.AppName{"acme"}})
	if err != nil || made.Secret == "" || !slices.Equal(made.Apps, []hangar.AppName{"acme"}) {
		t.Errorf("made %+v: %v", made, err)
	}
	ctx, store.leave = context.WithCancel(admin(t))
	rotated, err := w.RotateWebhook(ctx, "acme", made.ID, hangar.WebhookRotate{})
	if err != nil || rotated.Secret == "" || rotated.Secret == made.Secret {
		t.Errorf("rotated %+v: %v", rotated, err)
	}
}
