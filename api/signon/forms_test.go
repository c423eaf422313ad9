package signon_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

func (b *browser) cookie(t *testing.T, name string) *http.Cookie {
	t.Helper()
	u, err := url.Parse(b.URL())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range b.http.Jar.Cookies(u) {
		if c.Name == name {
			return c
		}
	}
	return &http.Cookie{}
}

func (b *browser) setCookie(t *testing.T, name, value string) {
	t.Helper()
	u, err := url.Parse(b.URL())
	if err != nil {
		t.Fatal(err)
	}
	b.http.Jar.SetCookies(u, []*http.Cookie{{Name: name, Value: value, Path: "/"}})
}

// signedIn reports whether the browser has a session.
func (b *browser) signedIn(t *testing.T) bool {
	t.Helper()
	return strings.Contains(b.get(t, "/sign-in").body, "You are signed in")
}

func credentials(f url.Values) url.Values {
	f.Set("email", "ann@example.com")
	f.Set("password", password)
	return f
}

// TestForeignForms: forms of other sites, and of other browsers, change nothing.
func TestForeignForms(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.user(t, "ann")
	b, attacker := w.browser(t), w.browser(t)
	foreign := attacker.get(t, "/sign-in").form().Get("token")
	for name, test := range map[string]struct {
		token   string // "": the token of the page
		headers []string
	}{
		"without a token":      {token: "x"},
		"of another browser":   {token: foreign},
		"of another site":      {headers: []string{"Sec-Fetch-Site", "cross-site"}},
		"of a sibling":         {headers: []string{"Sec-Fetch-Site", "same-site"}},
		"of no site":           {headers: []string{"Sec-Fetch-Site", "none"}},
		"of another origin":    {headers: []string{"Origin", "https://evil.example"}},
		"of another scheme":    {headers: []string{"Origin", "https://" + w.Addr()}},
		"of an opaque origin":  {token: "x", headers: []string{"Origin", "null"}},
		"of the origin's name": {headers: []string{"Origin", "http://" + w.Addr() + ".evil.example"}},
	} {
		f := credentials(b.get(t, "/sign-in").form())
		if test.token != "" {
			f.Set("token", test.token)
		}
		if p := b.post(t, "/sign-in", f, test.headers...); p.status != http.StatusForbidden || b.signedIn(t) {
			t.Errorf("sign-in %s: %d", name, p.status)
		}
	}
	noCookies := &browser{w, &http.Client{Transport: b.http.Transport}}
	if p := noCookies.post(t, "/sign-in", credentials(noCookies.get(t, "/sign-in").form())); p.status != http.StatusForbidden {
		t.Errorf("a browser without cookies: %d", p.status)
	}

	// A new session replaces one from before the sign-in, even one that an attacker has planted.
	attacker.signIn(t, attacker.get(t, "/sign-in"), "ann")
	fixed := attacker.cookie(t, "hangar-session").Value
	for _, planted := range []string{"hgs_planted", fixed} {
		victim := w.browser(t)
		page := victim.get(t, "/sign-in")
		victim.setCookie(t, "hangar-session", planted)
		p := victim.signIn(t, page, "ann")
		if got := victim.cookie(t, "hangar-session").Value; got == planted || !strings.HasPrefix(got, "hgs_") || p.status != http.StatusOK {
			t.Errorf("planted %s: %d, the session is %s", planted, p.status, got)
		}
	}
	if attacker.signedIn(t) {
		t.Error("the planted session is still valid")
	}

	for _, path := range []string{edit(), "/sign-in"} {
		p := b.signIn(t, b.get(t, path), "ann")
		consent := b.get(t, edit())
		checkHeaders(t, path, consent)
		checkHeaders(t, path, p)
		if policy := consent.header.Get("Content-Security-Policy"); !strings.Contains(policy, "form-action 'self' https://provider.example.com;") {
			t.Errorf("the policy of the consent is %q", policy)
		}
		f := consent.form()
		f.Set("organization", string(w.acme))
		f.Set("decision", "allow")
		for name, change := range map[string]func(f url.Values) []string{
			"without a token":    func(f url.Values) []string { f.Del("token"); return nil },
			"with another token": func(f url.Values) []string { f.Set("token", foreign); return nil },
			"of another site":    func(url.Values) []string { return []string{"Sec-Fetch-Site", "cross-site"} },
			"of another origin":  func(url.Values) []string { return []string{"Origin", "https://evil.example"} },
			"for another's org":  func(f url.Values) []string { f.Set("organization", string(w.team)); return nil },
			"for no org":         func(f url.Values) []string { f.Del("organization"); return nil },
			"for another client": func(f url.Values) []string {
				f.Set("request", strings.Replace(f.Get("request"), "client_id=logs", "client_id=errors", 1))
				return nil
			},
			"for another redirection": func(f url.Values) []string {
				f.Set("request", strings.Replace(f.Get("request"), "provider", "evil", 1))
				return nil
			},
			"twice": func(f url.Values) []string { f.Add("decision", "allow"); return nil },
		} {
			changed := url.Values{}
			for k, v := range f {
				changed[k] = append([]string(nil), v...)
			}
			headers := change(changed)
			if p := b.post(t, "/oauth/authorize", changed, headers...); p.away != nil || p.status != http.StatusForbidden && p.status != http.StatusBadRequest {
				t.Errorf("consent %s: %d %v", name, p.status, p.away)
			}
		}
		f.Set("decision", "deny")
		if p := b.post(t, "/oauth/authorize", f); p.away == nil || p.away.Query().Get("error") != "access_denied" || p.away.Query().Get("state") != "s" {
			t.Errorf("denied: %d %v", p.status, p.away)
		}
		out := b.get(t, "/sign-in").form()
		if p := b.post(t, "/sign-out", url.Values{"token": {"x"}}); p.status != http.StatusForbidden || !b.signedIn(t) {
			t.Errorf("signed out by another: %d", p.status)
		}
		for _, to := range []string{"//evil.example", "https://evil.example", "client_id=logs&redirect_uri=https%3A%2F%2Fevil.example"} {
			if p := b.post(t, "/sign-out", url.Values{"token": out["token"], "request": {to}}); p.away != nil || !b.signedIn(t) {
				t.Errorf("signed out to %s: %d %v", to, p.status, p.away)
			}
		}
		session := b.cookie(t, "hangar-session").Value
		if p := b.post(t, "/sign-out", out); p.status != http.StatusOK || b.signedIn(t) {
			t.Errorf("signed out: %d", p.status)
		}
		b.setCookie(t, "hangar-session", session)
		if b.signedIn(t) {
			t.Error("the session is valid after its end")
		}
	}
}

// TestSignInTellsNothing: a failed sign-in does not reveal whether the user exists. Attempts are
// bounded as in the API.
func TestSignInTellsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.user(t, "ann")
	b := w.browser(t)
	try := func(email, secret string) page {
		f := b.get(t, "/sign-in").form()
		f.Set("email", email)
		f.Set("password", secret)
		return b.post(t, "/sign-in", f)
	}
	wrong, nobody := try("ann@example.com", "wrong"), try("bob@example.com", "wrong")
	if wrong.status != http.StatusForbidden || nobody.status != wrong.status || strings.ReplaceAll(nobody.body, "bob@", "ann@") != wrong.body {
		t.Errorf("answers differ: %d %s and %d %s", wrong.status, wrong.body, nobody.status, nobody.body)
	}
	if p := try("admin", ""); p.status != http.StatusForbidden {
		t.Errorf("the user admin: %d", p.status)
	}
	refused := 0
	for range 20 {
		if p := try("ann@example.com", "wrong"); p.status == http.StatusTooManyRequests && p.header.Get("Retry-After") != "" {
			refused++
		}
	}
	if refused < 10 {
		t.Errorf("%d of 20 attempts are refused", refused)
	}
	if _, err := w.admin.SignIn(t.Context(), hangar.SignIn{Email: "ann@example.com", Password: hangar.NewSensitive(password)}); hangar.CodeOf(err) != hangar.CodeExhausted {
		t.Errorf("the API counts otherwise: %v", err)
	}
}
