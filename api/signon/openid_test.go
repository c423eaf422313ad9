package signon_test

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/daemon"
	"github.com/hangar-platform/hangar/test/platform"
)

// openIDProvider is the example server of zitadel/oidc, with users of its own.
type openIDProvider struct {
	*httptest.Server
	clients map[string]*storage.Client
}

// openIDUsers are those of the provider, by their ids there.
type openIDUsers map[string]*storage.User

func (u openIDUsers) GetUserByID(id string) *storage.User { return u[id] }

func (u openIDUsers) GetUserByUsername(name string) *storage.User {
	for _, user := range u {
		if user.Username == name {
			return user
		}
	}
	return nil
}

func (openIDUsers) ExampleClientID() string { return "service" }

func newOpenIDProvider(t *testing.T, users openIDUsers) *openIDProvider {
	t.Helper()
	for id, u := range users {
		u.ID, u.Password = id, password
	}
	p := &openIDProvider{clients: map[string]*storage.Client{}}
	var handler http.Handler
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.ServeHTTP(w, r) }))
	t.Cleanup(p.Close)
	handler = exampleop.SetupServer(p.URL, storage.NewStorageWithClients(users, p.clients), slog.New(slog.DiscardHandler), false)
	return p
}

// newOpenIDWorld is a platform whose users sign in at a provider.
func newOpenIDWorld(t *testing.T, p *openIDProvider) *world {
	t.Helper()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("a secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := startWorld(t, platform.Options{Config: func(c *daemon.Config) {
		c.LoginOIDC, c.LoginOIDCClient, c.LoginOIDCSecretFile = p.URL, "hangar", secret
	}})
	p.clients["hangar"] = storage.WebClient("hangar", "a secret", w.URL()+"/sign-in/openid/callback")
	return w
}

var openIDLink = regexp.MustCompile(`<a class="button" href="([^"]+)">`)

// atProvider follows the link of a page to the provider, signs in there, and returns where the browser
// is sent.
func (b *browser) atProvider(t *testing.T, shown page, name string) string {
	t.Helper()
	m := openIDLink.FindStringSubmatch(shown.body)
	if m == nil {
		t.Fatalf("no link to the provider: %d %s", shown.status, shown.body)
	}
	to := b.get(t, strings.ReplaceAll(m[1], "&amp;", "&"))
	if to.away == nil {
		t.Fatalf("not sent to the provider: %d %s", to.status, to.body)
	}
	client := &http.Client{Transport: b.http.Transport, CheckRedirect: func(r *http.Request, _ []*http.Request) error {
		if r.URL.Host == b.Addr() {
			return http.ErrUseLastResponse
		}
		return nil
	}}
	do := func(method, at string, form url.Values) (body string, res *http.Response) {
		r, err := http.NewRequestWithContext(t.Context(), method, at, strings.NewReader(form.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		if method == http.MethodPost {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		if res, err = client.Do(r); err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		raw, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw), res
	}
	body, res := do(http.MethodGet, to.away.String(), nil)
	id := hidden.FindStringSubmatch(body)
	if id == nil {
		t.Fatalf("the provider shows no form: %s %s", res.Status, body)
	}
	_, res = do(http.MethodPost, res.Request.URL.Scheme+"://"+res.Request.URL.Host+"/login/username", url.Values{"id": {id[2]}, "username": {name}, "password": {password}})
	back := res.Header.Get("Location")
	if !strings.HasPrefix(back, b.URL()+"/sign-in/openid/callback?") {
		t.Fatalf("the provider sends the browser to %q (%s)", back, res.Status)
	}
	return back
}

// TestOpenIDSignIn: an invitation makes the user who signs in at the provider. A user with a password
// is found by the verified address. From then on the identity decides.
func TestOpenIDSignIn(t *testing.T) {
	people := openIDUsers{
		"1": {Username: "ann", FirstName: "Ann", LastName: "Ash", Email: "Ann@example.com", EmailVerified: true},
		"2": {Username: "bob", FirstName: "Bob", Email: "bob@example.com", EmailVerified: true},
		"3": {Username: "eve", Email: "ann@example.com", EmailVerified: true},
		"4": {Username: "liar", Email: "carl@example.com"},
		"5": {Username: "stranger", Email: "stranger@example.com", EmailVerified: true},
	}
	p := newOpenIDProvider(t, people)
	w := newOpenIDWorld(t, p)
	carl := w.user(t, "carl")
	bob := w.user(t, "bob")
	for _, org := range []hangar.OrgSlug{"acme", "team"} {
		if _, err := w.admin.InviteUser(t.Context(), hangar.UserInvite{Email: "ann@example.com", Org: org, Role: hangar.RoleMember}); err != nil {
			t.Fatal(err)
		}
	}

	// During an authorization request of a third party, which continues.
	b := w.browser(t)
	consent := b.get(t, b.atProvider(t, b.get(t, w.provider().AuthCodeURL("s")), "ann"))
	if consent.status != http.StatusOK || !strings.Contains(consent.body, string(w.acme)) || !strings.Contains(consent.body, string(w.team)) {
		t.Fatalf("after the provider: %d %v %s", consent.status, consent.away, consent.body)
	}
	ann, err := w.admin.User(t.Context(), "ann@example.com")
	if err != nil || len(ann.Memberships) != 2 || ann.LastSignIn.IsZero() {
		t.Fatalf("the user of the invitations: %+v, %v", ann, err)
	}
	for _, org := range []hangar.OrgSlug{"acme", "team"} {
		if list, err := w.admin.Invitations(t.Context(), org); err != nil || len(list) != 0 {
			t.Errorf("invitations to %s are left: %v, %v", org, list, err)
		}
	}

	// The identity decides, not the address: Ann now has another address at the provider.
	people["1"].Email = "ann.ash@example.com"
	again := w.browser(t)
	if shown := again.get(t, again.atProvider(t, again.get(t, "/sign-in"), "ann")); !strings.Contains(shown.body, "You are signed in") || !strings.Contains(shown.body, "ann@example.com") {
		t.Errorf("the second time: %d %s", shown.status, shown.body)
	}
	withPassword := w.browser(t)
	if shown := withPassword.get(t, withPassword.atProvider(t, withPassword.get(t, "/sign-in"), "bob")); !strings.Contains(shown.body, "bob@example.com") {
		t.Errorf("a user with a password: %d %s", shown.status, shown.body)
	}
	if shown := withPassword.signIn(t, w.browser(t).get(t, "/sign-in"), "bob"); shown.status != http.StatusForbidden {
		t.Errorf("the form of another browser: %d", shown.status)
	}

	for name, text := range map[string]string{
		"eve":      "another account",
		"liar":     "no invitation",
		"stranger": "no invitation",
	} {
		other := w.browser(t)
		shown := other.get(t, other.atProvider(t, other.get(t, "/sign-in"), name))
		if shown.status != http.StatusForbidden || !strings.Contains(shown.body, text) || other.signedIn(t) {
			t.Errorf("%s: %d %s", name, shown.status, shown.body)
		}
	}

	// An administrator unties the identity with a code for a password.
	reset, err := w.admin.ResetPassword(t.Context(), "ann@example.com")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.admin.UseCode(t.Context(), hangar.CodeUse{Code: hangar.NewSensitive(reset.Code), Password: hangar.NewSensitive(password)}); err != nil {
		t.Fatal(err)
	}
	if again.signedIn(t) {
		t.Error("the session outlasts the code")
	}
	other := w.browser(t)
	if shown := other.get(t, other.atProvider(t, other.get(t, "/sign-in"), "eve")); !strings.Contains(shown.body, "You are signed in") {
		t.Errorf("the next identity: %d %s", shown.status, shown.body)
	}

	// A new user with the address of a removed user is another user.
	if err := w.admin.RemoveUser(t.Context(), hangar.UserRef(bob.ID)); err != nil {
		t.Fatal(err)
	}
	gone := w.browser(t)
	if shown := gone.get(t, gone.atProvider(t, gone.get(t, "/sign-in"), "bob")); shown.status != http.StatusForbidden {
		t.Errorf("a user who was removed: %d %s", shown.status, shown.body)
	}
	if _, err := w.admin.User(t.Context(), hangar.UserRef(carl.ID)); err != nil {
		t.Error(err)
	}
}

// TestOpenIDLongAnswer: a provider's answer may have parameters of any length that a browser sends.
func TestOpenIDLongAnswer(t *testing.T) {
	p := newOpenIDProvider(t, openIDUsers{"1": {Username: "ann", Email: "ann@example.com", EmailVerified: true}})
	w := newOpenIDWorld(t, p)
	w.user(t, "ann")
	b := w.browser(t)
	back := b.atProvider(t, b.get(t, "/sign-in"), "ann")
	if shown := b.get(t, back+"&session_state="+strings.Repeat("s", 20_000)); !b.signedIn(t) {
		t.Errorf("not signed in: %d %s", shown.status, shown.body)
	}
}

// TestOpenIDMisuse: a callback of a sign-in that did not start here signs no one in.
func TestOpenIDMisuse(t *testing.T) {
	p := newOpenIDProvider(t, openIDUsers{"1": {Username: "ann", Email: "ann@example.com", EmailVerified: true}})
	w := newOpenIDWorld(t, p)
	w.user(t, "ann")

	attacker, victim := w.browser(t), w.browser(t)
	back := attacker.atProvider(t, attacker.get(t, "/sign-in"), "ann")
	victim.get(t, "/sign-in/openid") // has begun itself
	changed := func(key, value string) string {
		u, err := url.Parse(back)
		if err != nil {
			t.Fatal(err)
		}
		q := u.Query()
		q.Set(key, value)
		u.RawQuery = q.Encode()
		return u.String()
	}
	for name, test := range map[string]struct {
		browser *browser
		at      string
	}{
		"the sign-in of another browser": {victim, back},
		"a browser that has not begun":   {w.browser(t), back},
		"another state":                  {attacker, changed("state", "x")},
		"no parameters":                  {w.browser(t), "/sign-in/openid/callback"},
		"a state twice":                  {w.browser(t), back + "&state=x"},
	} {
		if shown := test.browser.get(t, test.at); shown.status != http.StatusForbidden && shown.status != http.StatusBadRequest || test.browser.signedIn(t) {
			t.Errorf("%s: %d %s", name, shown.status, shown.body)
		}
	}

	// Each starts a new sign-in, because a state counts once.
	for name, change := range map[string]url.Values{
		"refused by the provider": {"code": {""}, "error": {"access_denied"}, "error_description": {"<script>evil"}},
		"another code":            {"code": {"x"}},
	} {
		b := w.browser(t)
		back = b.atProvider(t, b.get(t, w.provider().AuthCodeURL("s")), "ann")
		at := back
		for key := range change {
			back = changed(key, change.Get(key))
		}
		shown := b.get(t, back)
		if shown.status != http.StatusForbidden || strings.Contains(shown.body, "evil") || !strings.Contains(shown.body, `name="request" value="client_id=logs`) {
			t.Errorf("%s: %d %s", name, shown.status, shown.body)
		}
		if shown := b.get(t, at); shown.status != http.StatusForbidden || b.signedIn(t) {
			t.Errorf("%s, and the right one after it: %d", name, shown.status)
		}
	}
	used := w.browser(t)
	at := used.atProvider(t, used.get(t, "/sign-in"), "ann")
	used.get(t, at)
	if !used.signedIn(t) {
		t.Fatal("not signed in")
	}
	if shown := used.get(t, at); shown.status != http.StatusForbidden {
		t.Errorf("the same again: %d", shown.status)
	}
	for _, request := range []string{"client_id=nobody", "client_id=logs&redirect_uri=https%3A%2F%2Fevil.example", strings.Repeat("x", 10_000)} {
		if shown := used.get(t, "/sign-in/openid?request="+url.QueryEscape(request)); shown.status != http.StatusBadRequest || shown.away != nil {
			t.Errorf("request %.40q: %d %v", request, shown.status, shown.away)
		}
	}

	waiting := w.browser(t)
	at = waiting.atProvider(t, waiting.get(t, "/sign-in"), "ann")
	p.Close()
	if shown := waiting.get(t, at); shown.status != http.StatusServiceUnavailable || waiting.signedIn(t) || strings.Contains(shown.body, p.URL) {
		t.Errorf("the provider is down: %d %s", shown.status, shown.body)
	}
	if shown := waiting.signIn(t, waiting.get(t, "/sign-in"), "ann"); !waiting.signedIn(t) {
		t.Errorf("by password meanwhile: %d %s", shown.status, shown.body)
	}
}
