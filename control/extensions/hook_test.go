package extensions

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/extensions/extensionstest"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/provider"
)

const hookURL = "https://api.example.com/hooks/extensions/logs"

// signedHook is the request of a webhook.
func signedHook(ctx context.Context, secret, body string) *http.Request {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/hooks/extensions/logs", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(provider.SignatureHeader, provider.Signature(secret, []byte(body)))
	return r
}

// hook sends a bare webhook of an age.
func (w *world) hook(secret, action, resource string, age time.Duration) error {
	w.t.Helper()
	body := fmt.Sprintf(`{"timestamp":"%d","action":"%s","resource":%s}`, w.clock.Now().Add(-age).Unix(), action, resource)
	return w.hooks.ReceiveHook(signedHook(w.t.Context(), secret, body), "logs")
}

func wantReason(t *testing.T, what string, err error, want string) {
	t.Helper()
	if got := hangar.ReasonOf(err); got != want || err == nil && want != "" {
		t.Errorf("%s is answered %v, want %q", what, err, want)
	}
}

// foreign is a resource that a provider has made for a user of acme by itself.
var foreign = fmt.Sprintf(`{"id":"f/1","name":"mine","plan":"pro","status":"ready","organization_id":%q,"user_id":%q,"usage":{"lines":7}}`, acme, ann)

// TestHookAuthentication: the signature, the time, and that it comes once.
func TestHookAuthentication(t *testing.T) {
	w, server := newWorld(t), extensionstest.New(t)
	made := w.provider("logs", server, nil)
	secret := made.WebhookSecret.Reveal()
	send := func(change func(*http.Request)) error {
		body := fmt.Sprintf(`{"timestamp":%d,"action":"resource.created","resource":%s}`, w.clock.Now().Unix(), foreign)
		r := signedHook(t.Context(), secret, body)
		change(r)
		return w.hooks.ReceiveHook(r, "logs")
	}
	wantReason(t, "no signature", send(func(r *http.Request) { r.Header.Del(provider.SignatureHeader) }), "webhook_signature")
	wantReason(t, "another signature", send(func(r *http.Request) { r.Header.Set(provider.SignatureHeader, strings.Repeat("0", 64)) }), "webhook_signature")
	wantReason(t, "the secret for requests", w.hook(made.RequestSecret.Reveal(), "resource.created", foreign, 0), "webhook_signature")
	wantReason(t, "an old one", w.hook(secret, "resource.created", foreign, 301*time.Second), "webhook_timestamp")
	wantReason(t, "one of the future", w.hook(secret, "resource.created", foreign, -301*time.Second), "webhook_timestamp")
	wantReason(t, "another provider", w.hooks.ReceiveHook(signedHook(t.Context(), secret, "{}"), "none"), hangar.ReasonProviderNotFound)
	if n := len(w.refs()); n != 0 {
		t.Fatalf("%d extensions are there", n)
	}
	wantReason(t, "a right one", send(func(*http.Request) {}), "")
	wantReason(t, "the same again", send(func(*http.Request) {}), "webhook_nonce")
	if n := len(w.refs()); n != 1 {
		t.Fatalf("%d extensions are there", n)
	}
	// With url and nonce, both are checked; without, neither.
	full := func(url, nonce string) error {
		body := fmt.Sprintf(`{"timestamp":%d,"action":"resource.updated","resource":{"id":"f/1","status":"ready"},"url":%q,"nonce":%q}`, w.clock.Now().Unix(), url, nonce)
		return w.hooks.ReceiveHook(signedHook(t.Context(), secret, body), "logs")
	}
	wantReason(t, "the URL of another provider", full(strings.Replace(hookURL, "logs", "other", 1), "0123456789abcdef"), "webhook_url")
	wantReason(t, "the right URL", full(hookURL, "0123456789abcdef"), "")
	wantReason(t, "the URL by another name of the server", full(strings.Replace(hookURL, "https://api.example.com", "http://127.0.0.1:8080", 1), "0123456789abcde0"), "")
	wantReason(t, "a nonce that was used", full(hookURL+"", "0123456789abcdef"), "webhook_nonce")
}

// TestHookSecretsRotate: during a rotation both secrets count, and no webhook counts twice.
func TestHookSecretsRotate(t *testing.T) {
	w, server := newWorld(t), extensionstest.New(t)
	made := w.provider("logs", server, nil)
	old := made.WebhookSecret.Reveal()
	wantReason(t, "before", w.hook(old, "resource.created", foreign, 0), "")
	overlap := hangar.Duration(time.Minute)
	rotated, err := w.providers.RotateProvider(w.admin(), "logs", hangar.ProviderRotate{
		Secrets: []hangar.ProviderSecret{hangar.SecretOfWebhooks}, Overlap: &overlap,
	})
	if err != nil || !rotated.RequestSecret.IsZero() || !rotated.ClientSecret.IsZero() {
		t.Fatalf("rotated %+v, %v", rotated, err)
	}
	wantReason(t, "a replay after the rotation", w.hook(old, "resource.created", foreign, 0), "webhook_nonce")
	wantReason(t, "by the new secret", w.hook(rotated.WebhookSecret.Reveal(), "resource.updated", foreign, 0), "")
	wantReason(t, "by the old secret", w.hook(old, "resource.updated", foreign, time.Second), "")
	if _, err := w.providers.RotateProvider(w.admin(), "logs", hangar.ProviderRotate{}); hangar.CodeOf(err) != hangar.CodeFailedPrecondition {
		t.Errorf("a third secret: %v", err)
	}
	w.clock.advance(2 * time.Minute)
	wantReason(t, "by the old secret after its time", w.hook(old, "resource.updated", foreign, 0), "webhook_signature")
	wantReason(t, "by the new secret", w.hook(rotated.WebhookSecret.Reveal(), "resource.updated", foreign, 0), "")
}

// TestHookOfForeignResource: what a provider has made by itself is listed for its organization, and
// destroyed with it.
func TestHookOfForeignResource(t *testing.T) {
	w, server := newWorld(t), extensionstest.New(t)
	secret := w.provider("logs", server, nil).WebhookSecret.Reveal()
	wantReason(t, "created", w.hook(secret, "resource.created", foreign, 2*time.Second), "")
	wantReason(t, "created again", w.hook(secret, "resource.created", foreign, time.Second), "")
	list, err := w.service.OrgExtensions(w.as(acme), "acme")
	if err != nil || len(list) != 1 {
		t.Fatalf("listed are %v, %v", list, err)
	}
	if e := list[0]; e.Name != "mine" || e.Plan != "pro" || e.User != ann || e.Status != hangar.ExtensionReady || e.App != "" || string(e.Usage["usage"]) != `{"lines":7}` {
		t.Errorf("listed is %+v", e)
	}
	if _, err := w.service.OrgExtensions(w.as(rival), "acme"); hangar.ReasonOf(err) != hangar.ReasonOrgNotFound {
		t.Errorf("another organization sees it: %v", err)
	}
	wantReason(t, "overtaken", w.hook(secret, "resource.updated", `{"id":"f/1","status":"old"}`, 3*time.Second), "")
	if list, err = w.service.OrgExtensions(w.as(acme), "acme"); err != nil || len(list) != 1 || list[0].Status != hangar.ExtensionReady {
		t.Errorf("an older webhook counts: %v, %v", list, err)
	}
	if err := w.work.EndOrg(t.Context(), acme); err != nil {
		t.Fatal(err)
	}
	w.steps()
	w.nothingLeft()
	wantPaths(t, server, "DELETE /extensions/f/1")
}

// TestHookOfExtension: the provider reports changes, and the end.
func TestHookOfExtension(t *testing.T) {
	w, server := newWorld(t), extensionstest.New(t)
	secret := w.provider("logs", server, nil).WebhookSecret.Reveal()
	w.create(hangar.ExtensionCreate{Provider: "logs"})
	w.steps()
	wantReason(t, "an update", w.hook(secret, "resource.updated", `{"id":"r/1","plan":"pro","status":"sleeping"}`, time.Second), "")
	if e := w.one(); e.Status != hangar.ExtensionSleeping || e.Plan != "pro" {
		t.Errorf("updated it is %+v", e)
	}
	wantReason(t, "an older one", w.hook(secret, "resource.updated", `{"id":"r/1","plan":"hobby","status":"ready"}`, time.Minute), "")
	if e := w.one(); e.Status != hangar.ExtensionSleeping || e.Plan != "pro" {
		t.Errorf("an older webhook counts: %+v", e)
	}
	wantReason(t, "an unknown one", w.hook(secret, "resource.updated", `{"id":"r/2","status":"ready"}`, 0), hangar.ReasonExtensionNotFound)
	wantReason(t, "the end of an unknown one", w.hook(secret, "resource.deleted", `{"id":"r/2"}`, 0), "")
	wantReason(t, "the end", w.hook(secret, "resource.deleted", `{"id":"r/1"}`, 0), "")
	if got := w.secrets(acme, "web"); len(got) != 0 {
		t.Errorf("secrets are left: %q", got)
	}
	w.steps() // asks the provider again
	w.nothingLeft()
	again := fmt.Sprintf(`{"id":"r/1","status":"ready","organization_id":%q,"user_id":%q}`, acme, ann)
	wantReason(t, "a creation that the end has overtaken", w.hook(secret, "resource.created", again, time.Second), "")
	w.nothingLeft()
	w.clock.advance(tombstoneLife + time.Second)
	if err := w.work.removeTombstones(t.Context()); err != nil {
		t.Fatal(err)
	}
	if items, _, _ := state.All(t.Context(), w.store, state.ResourcesPrefix, true); len(items) != 0 {
		t.Errorf("%d ids are never forgotten", len(items))
	}
}

// TestHookBeforeAnswer: a provider reports an extension before it has answered its creation.
func TestHookBeforeAnswer(t *testing.T) {
	w, server := newWorld(t), extensionstest.New(t)
	secret := w.provider("logs", server, nil).WebhookSecret.Reveal()
	made := w.create(hangar.ExtensionCreate{Provider: "logs"})
	of := fmt.Sprintf(`{"id":"r/1","name":"web-logs","status":"ready","organization_id":%q,"user_id":%q}`, acme, ann)
	wantReason(t, "created", w.hook(secret, "resource.created", of, 0), "")
	w.steps()
	if e := w.one(); e.ID != made.ID || e.Status != hangar.ExtensionReady {
		t.Errorf("it is %+v", e)
	}
	if n := len(w.refs()); n != 1 {
		t.Errorf("there are %d extensions", n)
	}
}

// TestHookNonsense: what makes no sense is refused with a reason.
func TestHookNonsense(t *testing.T) {
	w, server := newWorld(t), extensionstest.New(t)
	secret := w.provider("logs", server, nil).WebhookSecret.Reveal()
	for name, resource := range map[string]string{
		"no organization":       `{"id":"1","status":"ready"}`,
		"unknown organization":  fmt.Sprintf(`{"id":"1","organization_id":"x","user_id":%q}`, ann),
		"another organization":  fmt.Sprintf(`{"id":"1","organization_id":%q,"user_id":%q}`, rival, ann),
		"unknown user":          fmt.Sprintf(`{"id":"1","organization_id":%q,"user_id":"x"}`, acme),
		"a path as user":        fmt.Sprintf(`{"id":"1","organization_id":%q,"user_id":"../%s"}`, acme, ann),
		"no id":                 fmt.Sprintf(`{"organization_id":%q,"user_id":%q}`, acme, ann),
		"an id with a line":     fmt.Sprintf(`{"id":"a\nb","organization_id":%q,"user_id":%q}`, acme, ann),
		"no object":             `7`,
		"a number as status":    fmt.Sprintf(`{"id":"1","status":7,"organization_id":%q,"user_id":%q}`, acme, ann),
		"a status that is long": fmt.Sprintf(`{"id":"1","status":%q,"organization_id":%q,"user_id":%q}`, strings.Repeat("x", 100), acme, ann),
		"much usage":            fmt.Sprintf(`{"id":"1","x":%q,"organization_id":%q,"user_id":%q}`, strings.Repeat("x", hangar.MaxExtensionUsage), acme, ann),
	} {
		if err := w.hook(secret, "resource.created", resource, 0); hangar.CodeOf(err) != hangar.CodeInvalid {
			t.Errorf("%s is answered %v", name, err)
		}
	}
	wantReason(t, "too large", w.hook(secret, "resource.created", `{"id":"`+strings.Repeat("x", maxHookBody)+`"}`, 0), "webhook_size")
	if err := w.hook(secret, "resource.exploded", foreign, 0); hangar.CodeOf(err) != hangar.CodeInvalid {
		t.Errorf("an unknown action is answered %v", err)
	}
	w.nothingLeft()
}

// TestHooksAreBounded: a provider that sends without end fills nothing, and takes nothing from
// another one.
func TestHooksAreBounded(t *testing.T) {
	w, server, calm := newWorld(t), extensionstest.New(t), extensionstest.New(t)
	secret := w.provider("logs", server, func(in *hangar.ProviderCreate) { in.Limits = hangar.ProviderLimits{PerOrg: 5, Webhooks: 60} }).WebhookSecret.Reveal()
	other := w.provider("calm", calm, nil).WebhookSecret.Reveal()
	var quota, pace int
	for i := range 40 {
		of := fmt.Sprintf(`{"id":"%d","status":"ready","organization_id":%q,"user_id":%q}`, i, acme, ann)
		switch err := w.hook(secret, "resource.created", of, 0); hangar.ReasonOf(err) {
		case "":
		case hangar.ReasonQuota:
			quota++
		case hangar.ReasonRateLimited:
			pace++
		default:
			t.Fatal(err)
		}
	}
	if n := len(w.refs()); n != 5 || quota != 5 || pace != 30 {
		t.Errorf("%d are there, %d were beyond the limit of the organization, %d beyond that of a minute", n, quota, pace)
	}
	body := fmt.Sprintf(`{"timestamp":%d,"action":"resource.created","resource":%s}`, w.clock.Now().Unix(), foreign)
	wantReason(t, "another provider's", w.hooks.ReceiveHook(signedHook(t.Context(), other, body), "calm"), "")
}

// TestQuotaOfExtensions: an organization that has as many as it may gets no more, and another one does.
func TestQuotaOfExtensions(t *testing.T) {
	w, server := newWorld(t), extensionstest.New(t)
	w.provider("logs", server, func(in *hangar.ProviderCreate) { in.Limits.PerOrg = 3 })
	for i := range 4 {
		_, err := w.service.CreateExtension(w.as(acme), "web", hangar.ExtensionCreate{Provider: "logs", Name: fmt.Sprintf("x-%d", i)})
		if want := i < 3; (err == nil) != want || err != nil && hangar.ReasonOf(err) != hangar.ReasonQuota {
			t.Errorf("the %dth is answered %v", i, err)
		}
	}
	if _, err := w.service.CreateExtension(w.as(rival), "shop", hangar.ExtensionCreate{Provider: "logs"}); err != nil {
		t.Error(err)
	}
	if _, err := w.service.CreateExtension(w.as(rival), "shop", hangar.ExtensionCreate{Provider: "logs", Name: "x-1"}); hangar.ReasonOf(err) != hangar.ReasonNameTaken {
		t.Errorf("a name that another organization has: %v", err)
	}
	// One that goes by force is forgotten with its secrets.
	w.steps()
	if err := w.providers.RemoveProvider(w.admin(), "logs", false); hangar.CodeOf(err) != hangar.CodeFailedPrecondition {
		t.Errorf("a provider with extensions is removed: %v", err)
	}
	if err := w.providers.RemoveProvider(w.admin(), "logs", true); err != nil {
		t.Fatal(err)
	}
	w.nothingLeft()
	if got := w.secrets(acme, "web"); len(got) != 0 {
		t.Errorf("secrets are left: %q", got)
	}
}

// FuzzHook: no webhook that is signed makes the server panic, or leaves records of it that cannot be read.
func FuzzHook(f *testing.F) {
	f.Add(`{"timestamp":%d,"action":"resource.created","resource":` + foreign + `}`)
	f.Add(`{"timestamp":"%d","action":"resource.updated","resource":{"id":"r/1","plan":"pro","status":"ready","x":[1]}}`)
	f.Add(`{"timestamp":%d,"action":"resource.deleted","resource":{"id":"r/1"},"url":"` + hookURL + `","nonce":"0123456789abcdef"}`)
	f.Fuzz(func(t *testing.T, text string) {
		event, err := parseEvent([]byte(strings.Replace(text, "%d", "1700000000", 1)))
		if err != nil {
			if hangar.CodeOf(err) != hangar.CodeInvalid {
				t.Errorf("%q is answered %v", text, err)
			}
			return
		}
		var r record
		r.learn(event.Resource, time.Time{})
		put, err := state.Write("key", r)
		if err != nil {
			t.Fatal(err)
		}
		var back record
		if err := json.Unmarshal(put.Value, &back); err != nil {
			t.Errorf("%q is stored as %s: %v", text, put.Value, err)
		}
		_ = resourceKey("logs", event.Resource.ID)
	})
}
