package auth_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/state"
)

var acme = hangar.Target{Org: "acme", OrgID: "o-acme"}

func account(role hangar.Role) auth.Account {
	return auth.Account{ID: "u1", SignIns: "s1", Memberships: []auth.Membership{
		{Membership: hangar.Membership{OrgID: "o-acme", Org: "acme", Role: role}, Tie: "m1"},
	}}
}

// keep writes the record of a user, as another server does.
func keep(t *testing.T, store state.Store, a auth.Account) {
	t.Helper()
	put, err := state.Write(state.UserKey(a.ID), a)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Txn(t.Context(), state.Txn{Then: []state.Op{put}}); err != nil {
		t.Fatal(err)
	}
}

func login() hangar.Token {
	return hangar.Token{Name: "sign-in", Kind: hangar.TokenLogin, User: "ann@example.com", UserID: "u1", Grant: hangar.Grant{Actions: hangar.ActionAll}}
}

func ofUser() hangar.Token {
	made := token(time.Time{})
	made.UserID = "u1"
	return made
}

func issueTied(t *testing.T, tokens *auth.Tokens, token hangar.Token, tie string) *hangar.NewToken {
	t.Helper()
	made, err := tokens.IssueTied(t.Context(), token, tie)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// TestTokensOfAUser: a token of a user allows what it was made for and what the user may do, both.
func TestTokensOfAUser(t *testing.T) {
	store, dir := newState(), t.TempDir()
	keep(t, store, account(hangar.RoleMember))
	tokens, _ := open(t, store, dir)
	whole, part := issueTied(t, tokens, login(), "s1"), issueTied(t, tokens, ofUser(), "m1")
	for name, text := range map[string]string{"all of the user": whole.Text, "a part": part.Text} {
		p, err := tokens.Authenticate(t.Context(), text)
		if err != nil || p.User != "u1" || p.Admin || p.SignedIn != (text == whole.Text) ||
			!p.May(hangar.ActionRead, acme) || p.May(hangar.ActionWrite, acme) || !p.May(hangar.ActionWrite, hangar.Target{Org: "acme", OrgID: "o-acme", App: "web", AppID: "a"}) {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
	admin := account(hangar.RoleMember)
	admin.Admin = "a1"
	left := account(hangar.RoleAdmin)
	left.Memberships = nil
	again := account(hangar.RoleAdmin)
	again.Memberships[0].Tie = "m2"
	for name, test := range map[string]struct {
		account     auth.Account
		whole, part bool // valid
	}{
		"as before":            {account(hangar.RoleMember), true, true},
		"an administrator":     {admin, true, true},
		"has left":             {left, true, false},
		"is back":              {again, true, false},
		"has another password": {func() auth.Account { a := account(hangar.RoleMember); a.SignIns = "s2"; return a }(), false, true},
	} {
		keep(t, store, test.account)
		tokens, _ := open(t, store, dir)
		if valid(t, tokens, whole.Text) != test.whole || valid(t, tokens, part.Text) != test.part {
			t.Errorf("%s: signed in %t, part %t", name, valid(t, tokens, whole.Text), valid(t, tokens, part.Text))
		}
		if got := len(tokens.VoidTokens()); got != 2-count(test.whole)-count(test.part) {
			t.Errorf("%s: %d tokens have fallen", name, got)
		}
		if p, err := tokens.Authenticate(t.Context(), part.Text); err == nil && p.Admin {
			t.Errorf("%s: a part of an administrator is one", name)
		}
	}
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestUsersThatCannotBeReadOpenNothing: neither does one who is not there.
func TestUsersThatCannotBeReadOpenNothing(t *testing.T) {
	store, dir := newState(), t.TempDir()
	keep(t, store, account(hangar.RoleAdmin))
	tokens, admin := open(t, store, dir)
	texts := []string{issueTied(t, tokens, login(), "s1").Text, issueTied(t, tokens, ofUser(), "m1").Text}
	good, err := json.Marshal(account(hangar.RoleAdmin))
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]string{
		"no JSON": "{", "no object": "7", "another id": strings.Replace(string(good), `"u1"`, `"u2"`, 1), "another role": strings.Replace(string(good), `"admin"`, `"owner"`, 1),
		"no tie": strings.Replace(string(good), `"m1"`, `""`, 1), "no sign-ins": strings.Replace(string(good), `"s1"`, `""`, 1), "gone": "",
	} {
		op := state.Put(state.UserKey("u1"), []byte(bad))
		if bad == "" {
			op = state.Delete(state.UserKey("u1"))
		}
		if _, err := store.Txn(t.Context(), state.Txn{Then: []state.Op{op}}); err != nil {
			t.Fatal(err)
		}
		again, _ := open(t, store, dir)
		if !valid(t, again, admin) || slices.ContainsFunc(texts, func(text string) bool { return valid(t, again, text) }) {
			t.Errorf("%s: a token opens something", name)
		}
	}
}

func TestTokensOfUsersHaveATie(t *testing.T) {
	tokens, _ := open(t, newState(), t.TempDir())
	stray := login()
	stray.UserID = ""
	bound := login()
	bound.Grant.Org, bound.Grant.OrgID = "acme", "o-acme"
	for name, token := range map[string]hangar.Token{"signed in": login(), "a part": ofUser(), "a sign-in without a user": stray, "a sign-in for an organization": bound} {
		tie := ""
		if name == "a sign-in without a user" || name == "a sign-in for an organization" {
			tie = "s1"
		}
		if _, err := tokens.IssueTied(t.Context(), token, tie); err == nil {
			t.Errorf("%s: made with the tie %q", name, tie)
		}
	}
}

// TestUsersOfOtherServers: what another server does to a user counts here once it is heard of, and
// ends what lasts by that.
func TestUsersOfOtherServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newState()
		keep(t, store, account(hangar.RoleAdmin))
		here, _ := open(t, store, t.TempDir())
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- here.Run(ctx) }()
		part, whole := issueTied(t, here, ofUser(), "m1"), issueTied(t, here, login(), "s1")
		lives := []context.Context{here.Life(part.ID), here.Life(whole.ID)}
		// More than before ends nothing.
		more := account(hangar.RoleAdmin)
		more.Memberships = append(more.Memberships, auth.Membership{Membership: hangar.Membership{OrgID: "o2", Org: "other", Role: hangar.RoleMember}, Tie: "m2"})
		keep(t, store, more)
		synctest.Wait()
		p, err := here.Authenticate(t.Context(), whole.Text)
		if err != nil || !p.May(hangar.ActionRead, hangar.Target{Org: "other", OrgID: "o2"}) || over(lives[0]) || over(lives[1]) {
			t.Errorf("with another membership: %+v, %v", p, err)
		}
		less := more
		less.Memberships = more.Memberships[1:]
		keep(t, store, less)
		synctest.Wait()
		if valid(t, here, part.Text) || !valid(t, here, whole.Text) || !over(lives[0]) || !over(lives[1]) || !over(here.Life(part.ID)) || over(here.Life(whole.ID)) {
			t.Error("a membership that another server has ended")
		}
		if _, err := store.Txn(ctx, state.Txn{Then: []state.Op{state.Delete(state.UserKey("u1"))}}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if valid(t, here, whole.Text) || !over(here.Life(whole.ID)) {
			t.Error("a user whom another server has removed")
		}
		// What this server has done stays, even if older events arrive later.
		a := account(hangar.RoleAdmin)
		here.Learn("u1", &a, 1)
		if valid(t, here, whole.Text) {
			t.Error("news of the past count")
		}
		stop()
		<-done
	})
}
