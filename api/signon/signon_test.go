package signon_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/oauth2"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/client"
)

// info asks who a token stands for.
func (w *world) info(t *testing.T, token string) (status int, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.URL()+"/oauth/token/info", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(raw)
}

// TestSingleSignOn: a user signs in and lets a third party see one of several organizations. The third
// party learns no more than it should. The second time, the user is not asked.
func TestSingleSignOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ann := w.user(t, "ann", "team")
	b, provider := w.browser(t), w.provider()
	verifier := oauth2.GenerateVerifier()
	ask := b.get(t, provider.AuthCodeURL("a state & more", oauth2.S256ChallengeOption(verifier)))
	if ask.status != http.StatusOK || !strings.Contains(ask.body, "Logs &amp; &lt;More&gt;") || !strings.Contains(ask.body, `autocomplete="current-password"`) {
		t.Fatalf("asked to sign in: %d %s", ask.status, ask.body)
	}
	choose := b.signIn(t, ask, "ann")
	if choose.status != http.StatusOK || !strings.Contains(choose.body, string(w.acme)) || !strings.Contains(choose.body, string(w.team)) {
		t.Fatalf("asked for consent: %d %s", choose.status, choose.body)
	}
	back := b.allow(t, choose, w.team)
	if back.away == nil || !strings.HasPrefix(back.away.String(), "https://provider.example.com/callback?keep=1&") {
		t.Fatalf("sent to %v (%d %s)", back.away, back.status, back.body)
	}
	q := back.away.Query()
	if q.Get("state") != "a state & more" || !strings.HasPrefix(q.Get("iss"), "https://auth.hangar.localhost") || q.Has("error") {
		t.Errorf("sent back with %v", q)
	}
	token, err := provider.Exchange(t.Context(), q.Get("code"), oauth2.VerifierOption(verifier))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(token.AccessToken, "fo1_") || token.TokenType != "Bearer" || token.RefreshToken == "" || token.Extra("expires_in") != 7200.0 ||
		token.Extra("scope") != "read" || time.Since(time.Unix(int64(token.Extra("created_at").(float64)), 0)).Abs() > time.Hour {
		t.Errorf("token %+v, expires_in %v, scope %v, created_at %v", token, token.Extra("expires_in"), token.Extra("scope"), token.Extra("created_at"))
	}

	status, body := w.info(t, token.AccessToken)
	var got map[string]any
	if err := json.Unmarshal([]byte(body), &got); err != nil || status != http.StatusOK {
		t.Fatalf("%d %s: %v", status, body, err)
	}
	expires, created := got["expires_in"].(float64), got["created_at"]
	delete(got, "expires_in")
	if expires <= 7000 || expires > 7200 || created != token.Extra("created_at") {
		t.Errorf("expires in %v, created at %v", expires, created)
	}
	delete(got, "created_at")
	want := map[string]any{
		"resource_owner_id": string(ann.ID), "user_id": string(ann.ID), "user_name": "ann", "email": ann.CustomerAddress,
		"organizations": []any{map[string]any{"id": string(w.team), "role": "admin"}}, "scope": []any{"read"}, "application": map[string]any{"uid": "logs"},
	}
	if a, b := mustJSON(t, got), mustJSON(t, want); a != b || ann.CustomerAddress == "" {
		t.Errorf("info\n%s\nwant\n%s", a, b)
	}

	w.checkPrincipal(t, token.AccessToken, ann)

	// The user is not asked again for the same organization, nor in a browser without a choice to make.
	again := b.get(t, provider.AuthCodeURL("2", oauth2.SetAuthURLParam("organization_id", string(w.team))))
	if again.away == nil || again.away.Query().Get("code") == "" {
		t.Errorf("asked again: %d %s", again.status, again.body)
	}
	for _, path := range []string{
		provider.AuthCodeURL("3", oauth2.SetAuthURLParam("organization_id", string(w.acme))), // another organization
		provider.AuthCodeURL("3"), // which one is not said
		w.URL() + "/oauth/authorize?response_type=code&client_id=errors&redirect_uri=" + url.QueryEscape("https://errors.example.com/callback"),
	} {
		if p := b.get(t, path); p.away != nil || !strings.Contains(p.body, `name="decision"`) {
			t.Errorf("%s: not asked: %d %v", path, p.status, p.away)
		}
	}

	refreshed, err := provider.TokenSource(t.Context(), &oauth2.Token{RefreshToken: token.RefreshToken}).Token()
	if err != nil || refreshed.RefreshToken == token.RefreshToken || refreshed.AccessToken == token.AccessToken {
		t.Fatalf("refreshed %+v, %v", refreshed, err)
	}
	if status, _ := w.info(t, refreshed.AccessToken); status != http.StatusOK {
		t.Errorf("the new token: %d", status)
	}
	if status, _ := w.info(t, token.AccessToken); status != http.StatusUnauthorized {
		t.Errorf("the old token: %d", status)
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// checkPrincipal: an access token reads the one organization and changes nothing. It shows no e-mail
// address.
func (w *world) checkPrincipal(t *testing.T, token string, user *hangar.User) {
	t.Helper()
	as := client.New(w.URL(), token)
	defer as.Close()
	me, err := as.CurrentUser(t.Context())
	if err != nil || me.ID != user.ID || me.Email != "" || me.CustomerAddress != user.CustomerAddress || len(me.Memberships) != 1 || me.Memberships[0].OrgID != w.team {
		t.Errorf("the user is %+v, %v", me, err)
	}
	members, err := as.Users(t.Context(), hangar.UserFilter{Org: "team"})
	if err != nil || len(members) != 1 || members[0].Email != "" {
		t.Errorf("members %+v, %v", members, err)
	}
	if _, err := as.Org(t.Context(), "team"); err != nil {
		t.Errorf("the organization: %v", err)
	}
	tokens, err := as.CurrentTokens(t.Context())
	if err != nil || len(tokens) != 1 || strings.Contains(mustJSON(t, tokens), "example.com\"") || tokens[0].Kind != hangar.TokenOAuth {
		t.Errorf("tokens %s, %v", mustJSON(t, tokens), err)
	}
	denied := map[string]error{}
	_, denied["another organization"] = as.Org(t.Context(), "acme")
	_, denied["members of another"] = as.Users(t.Context(), hangar.UserFilter{Org: "acme"})
	_, denied["create"] = as.CreateApp(t.Context(), hangar.AppCreate{Name: "web", Org: "team"})
	_, denied["token"] = as.CreateToken(t.Context(), hangar.TokenCreate{Kind: hangar.TokenReadOnly, Org: "team"})
	_, denied["invite"] = as.InviteUser(t.Context(), hangar.UserInvite{Email: "x@example.com", Org: "team"})
	_, denied["invitations"] = as.Invitations(t.Context(), "team")
	_, denied["rename"] = as.UpdateUser(t.Context(), hangar.UserRef(user.ID), hangar.UserUpdate{Name: new("Eve")})
	denied["leave"] = as.RemoveMember(t.Context(), "team", hangar.UserRef(user.ID))
	denied["sign out"] = as.SignOut(t.Context())
	denied["password"] = as.SetPassword(t.Context(), hangar.PasswordChange{Current: hangar.NewSensitive(password), New: hangar.NewSensitive("another good password")})
	_, denied["all tokens"] = as.Tokens(t.Context(), hangar.TokenFilter{})
	for what, err := range denied {
		if code := hangar.CodeOf(err); !slices.Contains([]hangar.Code{hangar.CodeForbidden, hangar.CodeNotFound}, code) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
