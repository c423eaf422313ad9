package providers_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/providers"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/control/vault"
	"github.com/hangar-platform/hangar/internal/keyset"
)

// world is a registry with the App db of the organization vendor.
type world struct {
	*providers.Registry
	store   state.Store
	service *providers.Providers
	now     time.Time
}

func newWorld(t *testing.T) *world {
	t.Helper()
	keys, err := keyset.Create(filepath.Join(t.TempDir(), keyset.File))
	if err != nil {
		t.Fatal(err)
	}
	return newWorldOver(t, keys, state.NewMemory())
}

func newWorldOver(t *testing.T, keys *keyset.Keyset, store state.Store) *world {
	t.Helper()
	w := &world{store: store, now: time.Unix(1_700_000_000, 0)}
	put, err := state.Write(state.AppKey("db"), tenants.AppRecord{ID: "id-of-db", Name: "db", Org: "vendor", OrgID: "vendor-id"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.Txn(t.Context(), state.Txn{Then: []state.Op{put}}); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	w.Registry = providers.New(providers.Config{
		Store: w.store, Tenants: tenants.NewDirectory(w.store), Vault: vault.New(w.store, keys, log), Hooks: "https://api.example.com/hooks/extensions",
		Log: log, Now: func() time.Time { return w.now },
	})
	w.service = providers.NewProviders(w.Registry, func(context.Context, hangar.ProviderName) error { return nil })
	return w
}

func admin(t *testing.T) context.Context {
	t.Helper()
	return hangar.WithPrincipal(t.Context(), hangar.Principal{Subject: "admin", Admin: true})
}

func (w *world) create(t *testing.T, name hangar.ProviderName, edit func(*hangar.ProviderSettings)) (*hangar.NewProvider, error) {
	t.Helper()
	in := hangar.ProviderCreate{Name: name, ProviderSettings: hangar.ProviderSettings{BaseURL: "https://logs.example.com"}}
	if edit != nil {
		edit(&in.ProviderSettings)
	}
	return w.service.CreateProvider(admin(t), in)
}

func TestSettings(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]struct {
		edit  func(*hangar.ProviderSettings)
		fault string
	}{
		"no URL":            {func(s *hangar.ProviderSettings) { s.BaseURL = "" }, "invalid base_url: is required"},
		"plain":             {func(s *hangar.ProviderSettings) { s.BaseURL = "http://a.example.com" }, "must be https"},
		"file":              {func(s *hangar.ProviderSettings) { s.BaseURL = "file:///etc/passwd" }, "must be https://"},
		"user":              {func(s *hangar.ProviderSettings) { s.BaseURL = "https://a:b@example.com" }, "must be https://"},
		"query":             {func(s *hangar.ProviderSettings) { s.BaseURL = "https://example.com?a=b" }, "must not have a query"},
		"fragment":          {func(s *hangar.ProviderSettings) { s.BaseURL = "https://example.com#" }, "must not have a fragment"},
		"opaque":            {func(s *hangar.ProviderSettings) { s.BaseURL = "https:example.com" }, "must be https://"},
		"long":              {func(s *hangar.ProviderSettings) { s.BaseURL = "https://" + strings.Repeat("a", 3000) }, "more than 2048"},
		"redirect":          {func(s *hangar.ProviderSettings) { s.RedirectURIs = []string{"javascript:alert(1)"} }, "redirect_uris[0]"},
		"redirects":         {func(s *hangar.ProviderSettings) { s.RedirectURIs = slices.Repeat([]string{"https://a.b"}, 11) }, "redirect_uris"},
		"terms":             {func(s *hangar.ProviderSettings) { s.Terms = &hangar.ProviderTerms{URL: "https://a.b"} }, "terms.version"},
		"suffix":            {func(s *hangar.ProviderSettings) { s.NameSuffix = "/x" }, "name_suffix"},
		"plan twice":        {func(s *hangar.ProviderSettings) { s.Plans = []string{"a", "a"} }, "plans[1]"},
		"region":            {func(s *hangar.ProviderSettings) { s.Regions = []hangar.Region{"nowhere"} }, "regions[0]"},
		"limit":             {func(s *hangar.ProviderSettings) { s.Limits.PerOrg = -1 }, "limits.per_organization"},
		"App":               {func(s *hangar.ProviderSettings) { s.PlatformApp = "none" }, "there is no App"},
		"granted App":       {func(s *hangar.ProviderSettings) { s.GrantedApps = []hangar.AppName{"none"} }, "there is no App"},
		"unprintable title": {func(s *hangar.ProviderSettings) { s.DisplayName = "a\x00" }, "display_name"},
	} {
		if _, err := w.create(t, "logs", c.edit); hangar.CodeOf(err) != hangar.CodeInvalid || !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s is answered %v, want %q", name, err, c.fault)
		}
	}
	if items, _, _ := state.All(t.Context(), w.store, state.ClientsPrefix, true); len(items) != 0 {
		t.Errorf("%d clients are left", len(items))
	}
}

// TestSecretsAreSealed: no secret of a provider is in the state in clear, and no OAuth secret at all.
func TestSecretsAreSealed(t *testing.T) {
	w := newWorld(t)
	made, err := w.create(t, "logs", nil)
	if err != nil {
		t.Fatal(err)
	}
	items, _, err := state.All(t.Context(), w.store, "/", false)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []hangar.Sensitive{made.ClientSecret, made.RequestSecret, made.WebhookSecret} {
		if len(secret.Reveal()) < 64 {
			t.Errorf("a secret has %d bytes", len(secret.Reveal()))
		}
		for _, item := range items {
			if strings.Contains(string(item.Value), secret.Reveal()) || strings.Contains(string(item.Value), secret.Reveal()[5:]) {
				t.Errorf("a secret is in %s", item.Key)
			}
		}
	}
}

func TestOAuthClient(t *testing.T) {
	w := newWorld(t)
	made, err := w.create(t, "logs", func(s *hangar.ProviderSettings) { s.RedirectURIs = []string{"https://logs.example.com/callback"} })
	if err != nil {
		t.Fatal(err)
	}
	digests := func(secrets ...hangar.Sensitive) (list [][]byte) {
		for _, s := range secrets {
			sum := sha256.Sum256([]byte(s.Reveal()))
			list = append(list, sum[:])
		}
		return list
	}
	check := func(what string, want ...hangar.Sensitive) {
		t.Helper()
		c, err := w.OAuthClient(t.Context(), hangar.OAuthClientID(made.ClientID))
		if err != nil || c.Name != "logs" || c.DisplayName != "logs" || !slices.Equal(c.RedirectURIs, []string{"https://logs.example.com/callback"}) {
			t.Fatalf("%s: the client is %+v, %v", what, c, err)
		}
		if got := fmt.Sprint(c.Secrets); got != fmt.Sprint(digests(want...)) {
			t.Errorf("%s: %d digests, which are not those of the %d secrets", what, len(c.Secrets), len(want))
		}
	}
	check("at first", made.ClientSecret)
	next, err := w.service.RotateProvider(admin(t), "logs", hangar.ProviderRotate{})
	if err != nil {
		t.Fatal(err)
	}
	check("during the rotation", made.ClientSecret, next.ClientSecret)
	w.now = w.now.Add(hangar.DefaultRotationOverlap)
	check("after it", next.ClientSecret)
	for _, id := range []string{"", "unknown", "../logs", strings.Repeat("x", 100)} {
		if _, err := w.OAuthClient(t.Context(), hangar.OAuthClientID(id)); hangar.CodeOf(err) != hangar.CodeNotFound {
			t.Errorf("client %q is answered %v", id, err)
		}
	}
	if err := w.service.RemoveProvider(admin(t), "logs", false); err != nil {
		t.Fatal(err)
	}
	if _, err := w.OAuthClient(t.Context(), hangar.OAuthClientID(made.ClientID)); hangar.CodeOf(err) != hangar.CodeNotFound {
		t.Errorf("the client of a provider that is gone is answered %v", err)
	}
	left, _, _ := state.All(t.Context(), w.store, "/", true)
	for _, item := range left {
		if item.Key != state.SealKey && item.Key != state.AppKey("db") {
			t.Errorf("%s is left", item.Key)
		}
	}
}

// TestUnforgettable: the removal of a provider ends when one of its extensions cannot be forgotten.
func TestUnforgettable(t *testing.T) {
	w := newWorld(t)
	if _, err := w.create(t, "logs", nil); err != nil {
		t.Fatal(err)
	}
	count := func(n int) {
		t.Helper()
		var txn state.Txn
		if err := w.Counted(t.Context(), "logs", n, 0, &txn); err != nil {
			t.Fatal(err)
		}
		if _, err := w.store.Txn(t.Context(), txn); err != nil {
			t.Fatal(err)
		}
	}
	count(2)
	forgets := 0
	service := providers.NewProviders(w.Registry, func(context.Context, hangar.ProviderName) error {
		if forgets++; forgets == 1 {
			count(-1)
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(admin(t), 10*time.Second)
	defer cancel()
	if err := service.RemoveProvider(ctx, "logs", true); hangar.CodeOf(err) != hangar.CodeInternal {
		t.Errorf("removed: %v", err)
	}
	if forgets != 2 {
		t.Errorf("tried %d times, want once more than something was forgotten", forgets)
	}
}

// TestRequestSecret: requests are signed with the old secret until the provider must have the new one.
func TestRequestSecret(t *testing.T) {
	w := newWorld(t)
	made, err := w.create(t, "logs", nil)
	if err != nil {
		t.Fatal(err)
	}
	check := func(want hangar.Sensitive) {
		t.Helper()
		if got, err := w.RequestSecret(t.Context(), "logs"); err != nil || got.Reveal() != want.Reveal() {
			t.Errorf("another secret, %v", err)
		}
	}
	check(made.RequestSecret)
	next, err := w.service.RotateProvider(admin(t), "logs", hangar.ProviderRotate{Secrets: []hangar.ProviderSecret{hangar.SecretOfRequests}})
	if err != nil {
		t.Fatal(err)
	}
	check(made.RequestSecret)
	w.now = w.now.Add(hangar.DefaultRotationOverlap)
	check(next.RequestSecret)
	var none hangar.Duration
	if next, err = w.service.RotateProvider(admin(t), "logs", hangar.ProviderRotate{Overlap: &none}); err != nil {
		t.Fatal(err)
	}
	check(next.RequestSecret)
}

// TestEventReceivers: a provider gets the events of its own App and of those that it was granted, and
// its new secret signs when the old one ends.
func TestEventReceivers(t *testing.T) {
	w := newWorld(t)
	if _, err := w.create(t, "elsewhere", nil); err != nil {
		t.Fatal(err)
	}
	made, err := w.create(t, "here", func(s *hangar.ProviderSettings) {
		s.PlatformApp, s.GrantedApps, s.PublicEventTypes = "db", []hangar.AppName{"db"}, true
	})
	if err != nil {
		t.Fatal(err)
	}
	// receiver is the only one that there is now.
	receiver := func() hangar.EventReceiver {
		t.Helper()
		for list, err := range w.WatchEventReceivers(t.Context()) {
			if err != nil || len(list) != 1 {
				t.Fatalf("receivers are %v, %v", list, err)
			}
			return list[0]
		}
		t.Fatal("nothing is said of receivers")
		return hangar.EventReceiver{}
	}
	r := receiver()
	if r.URL != "https://logs.example.com/extensions/events" || r.AllowPrivate || !r.OriginalNames || r.AllOf != "" || r.Org != "" ||
		!slices.Equal(r.Apps, []hangar.AppID{"id-of-db"}) || r.Secret.Reveal() != made.RequestSecret.Reveal() || !r.Next.IsZero() {
		t.Errorf("the receiver is %+v", r)
	}
	next, err := w.service.RotateProvider(admin(t), "here", hangar.ProviderRotate{})
	if err != nil {
		t.Fatal(err)
	}
	rotated := receiver()
	end := w.now.Add(hangar.DefaultRotationOverlap)
	if rotated.ID != r.ID || rotated.Version <= r.Version || rotated.SecretAt(w.now).Reveal() != made.RequestSecret.Reveal() ||
		rotated.SecretAt(end).Reveal() != next.RequestSecret.Reveal() {
		t.Errorf("during the rotation the receiver is %+v", rotated)
	}
}

// TestNamesOfAppsChangeHands: a change of another setting gives an App that has taken a name nothing of what the
// provider's App had, and needs no App of that name.
func TestNamesOfAppsChangeHands(t *testing.T) {
	w := newWorld(t)
	if _, err := w.create(t, "logs", func(s *hangar.ProviderSettings) { s.PlatformApp, s.GrantedApps = "db", []hangar.AppName{"db"} }); err != nil {
		t.Fatal(err)
	}
	rivals, err := state.Write(state.AppKey("db"), tenants.AppRecord{ID: "rivals", Name: "db", Org: "rival", OrgID: "rival-id"})
	if err != nil {
		t.Fatal(err)
	}
	for what, op := range map[string]state.Op{"no App": state.Delete(state.AppKey("db")), "a rival's": rivals} {
		if _, err := w.store.Txn(t.Context(), state.Txn{Then: []state.Op{op}}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.service.UpdateProvider(admin(t), "logs", hangar.ProviderUpdate{Limits: &hangar.ProviderLimits{PerOrg: 3}}); err != nil {
			t.Errorf("%s has the name: %v", what, err)
		}
		rec, _, err := w.Find(t.Context(), "logs")
		if err != nil || rec.PlatformAppID != "id-of-db" || rec.PlatformOrgID != "vendor-id" || !slices.Equal(rec.GrantedAppIDs, []hangar.AppID{"id-of-db"}) {
			t.Errorf("%s has the name, and the provider has %+v, %v", what, rec, err)
		}
	}
	if _, err := w.store.Txn(t.Context(), state.Txn{Then: []state.Op{rivals}}); err != nil {
		t.Fatal(err)
	}
	name := hangar.AppName("db")
	if _, err := w.service.UpdateProvider(admin(t), "logs", hangar.ProviderUpdate{PlatformApp: &name}); err != nil {
		t.Fatal(err)
	}
	if rec, _, err := w.Find(t.Context(), "logs"); err != nil || rec.PlatformAppID != "rivals" || !slices.Equal(rec.GrantedAppIDs, []hangar.AppID{"id-of-db"}) {
		t.Errorf("set again, the provider has %+v, %v", rec, err)
	}
}

// TestProvidersAreBounded: there are so many and no more.
func TestProvidersAreBounded(t *testing.T) {
	w := newWorld(t)
	for i := range hangar.MaxProviders {
		if _, err := w.create(t, hangar.ProviderName(fmt.Sprintf("p%d", i)), nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.create(t, "more", nil); hangar.ReasonOf(err) != hangar.ReasonQuota {
		t.Errorf("one more is answered %v", err)
	}
	if _, err := w.create(t, "p1", nil); hangar.ReasonOf(err) != hangar.ReasonNameTaken {
		t.Errorf("one of the same name is answered %v", err)
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

// TestSecretsAreNotLost: what fails once they are stored does not hide them.
func TestSecretsAreNotLost(t *testing.T) {
	keys, err := keyset.Create(filepath.Join(t.TempDir(), keyset.File))
	if err != nil {
		t.Fatal(err)
	}
	store := &leaving{Store: state.NewMemory()}
	w := newWorldOver(t, keys, store)
	if _, err := w.create(t, "first", nil); err != nil { // with which the use of the keys is recorded
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(admin(t))
	store.leave = leave
	made, err := w.service.CreateProvider(ctx, hangar.ProviderCreate{Name: "logs", ProviderSettings: hangar.ProviderSettings{BaseURL: "https://logs.example.com"}})
	if err != nil || made.ClientSecret.Reveal() == "" {
		t.Fatalf("made %+v: %v", made, err)
	}
	ctx, store.leave = context.WithCancel(admin(t))
	rotated, err := w.service.RotateProvider(ctx, "logs", hangar.ProviderRotate{})
	if err != nil || rotated.ClientSecret.Reveal() == "" || rotated.ClientSecret == made.ClientSecret {
		t.Errorf("rotated %+v: %v", rotated, err)
	}
}
