package auth_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/state"
)

// flaky is a state that can be made to fail.
type flaky struct {
	state.Store
	err error
}

func (f *flaky) List(ctx context.Context, prefix string, o state.ListOptions) (state.Page, error) {
	if f.err != nil {
		return state.Page{}, f.err
	}
	return f.Store.List(ctx, prefix, o)
}

func (f *flaky) Txn(ctx context.Context, txn state.Txn) (state.Revision, error) {
	if f.err != nil {
		return 0, f.err
	}
	return f.Store.Txn(ctx, txn)
}

func newState() *flaky { return &flaky{Store: state.NewMemory()} }

func open(t *testing.T, store state.Store, dir string) (*auth.Tokens, string) {
	t.Helper()
	tokens := auth.New(auth.Config{Store: store, Dir: dir})
	if err := tokens.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(tokens.AdminPath())
	if err != nil {
		t.Fatal(err)
	}
	return tokens, strings.TrimSpace(string(b))
}

func TestAdminToken(t *testing.T) {
	store, dir := newState(), t.TempDir()
	tokens, token := open(t, store, dir)
	info, err := os.Stat(filepath.Join(dir, auth.AdminFile))
	if err != nil || info.Mode() != 0o600 {
		t.Fatalf("mode %v, %v; want 0600", info.Mode(), err)
	}
	items, _, err := state.All(t.Context(), store, "/", false)
	if err != nil || len(items) != 1 {
		t.Fatalf("%d records, %v", len(items), err)
	}
	if bytes.Contains(items[0].Value, []byte(token)) || bytes.Contains(items[0].Value, []byte(token[20:])) {
		t.Fatal("the state holds more than a digest")
	}
	tests := []struct {
		name, credential string
		ok               bool
	}{
		{"the token", token, true},
		{"in a list", "other," + token, true},
		{"in a list with blanks", " other , " + token + " ", true},
		{"nothing", "", false},
		{"commas", ",,,", false},
		{"another", "hgr_" + strings.Repeat("A", 43), false},
		{"a part of it", token[:len(token)-1], false},
		{"more than it", token + "x", false},
		{"other case", strings.ToUpper(token), false},
		{"absurdly long", strings.Repeat("x,", 1<<20) + token, false},
		{"too many parts", strings.Repeat("x,", 40) + token, false},
	}
	for _, tt := range tests {
		p, err := tokens.Authenticate(t.Context(), tt.credential)
		if (err == nil) != tt.ok || p.Admin != tt.ok {
			t.Errorf("%s: %+v, %v", tt.name, p, err)
		}
		if err != nil && hangar.CodeOf(err) != hangar.CodeUnauthenticated {
			t.Errorf("%s: code %s", tt.name, hangar.CodeOf(err))
		}
	}
}

func TestAdminTokenOutlivesRestart(t *testing.T) {
	store, dir := newState(), t.TempDir()
	_, first := open(t, store, dir)
	tokens, second := open(t, store, dir)
	if first != second {
		t.Fatal("a restart made another token")
	}
	if _, err := tokens.Authenticate(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	store.err = errors.New("the state cannot be reached")
	if _, err := tokens.Authenticate(t.Context(), first); err != nil {
		t.Fatalf("without the state: %v", err)
	}
}

func TestCrashBetweenFileAndState(t *testing.T) {
	store, dir := newState(), t.TempDir()
	store.err = errors.New("the state cannot be reached")
	tokens := auth.New(auth.Config{Store: store, Dir: dir})
	if err := tokens.Open(t.Context()); err == nil {
		t.Fatal("opens without a state")
	}
	before, err := os.ReadFile(tokens.AdminPath())
	if err != nil {
		t.Fatal(err)
	}
	store.err = nil
	tokens, token := open(t, store, dir)
	if strings.TrimSpace(string(before)) != token {
		t.Fatal("the next start made another token")
	}
	if _, err := tokens.Authenticate(t.Context(), token); err != nil {
		t.Fatal(err)
	}
}

func TestRemovedFileVoidsTheToken(t *testing.T) {
	store, dir := newState(), t.TempDir()
	tokens, first := open(t, store, dir)
	if err := os.Remove(tokens.AdminPath()); err != nil {
		t.Fatal(err)
	}
	for range 2 { // also after one more restart
		tokens, second := open(t, store, dir)
		if _, err := tokens.Authenticate(t.Context(), first); err == nil {
			t.Fatal("the old token is still valid")
		}
		if _, err := tokens.Authenticate(t.Context(), second); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEmptyFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, auth.AdminFile), []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := auth.New(auth.Config{Store: newState(), Dir: dir}).Open(t.Context()); err == nil {
		t.Fatal("an empty file became a token")
	}
}

// token is a request for all rights in an organization.
func token(until time.Time) hangar.Token {
	return hangar.Token{
		Name: "ci", Kind: hangar.TokenOrg, User: "ci@example.com",
		Grant: hangar.Grant{Org: "acme", OrgID: "o-acme", Actions: hangar.ActionAll, Until: until},
	}
}

func issue(tb testing.TB, tokens *auth.Tokens, token hangar.Token) *hangar.NewToken {
	tb.Helper()
	made, err := tokens.Issue(tb.Context(), token)
	if err != nil {
		tb.Fatal(err)
	}
	return made
}

func valid(t *testing.T, tokens *auth.Tokens, credential string) bool {
	t.Helper()
	_, err := tokens.Authenticate(t.Context(), credential)
	if err != nil && hangar.CodeOf(err) != hangar.CodeUnauthenticated {
		t.Errorf("code %s", hangar.CodeOf(err))
	}
	return err == nil
}

func TestIssueAndRevoke(t *testing.T) {
	store, dir := newState(), t.TempDir()
	tokens, _ := open(t, store, dir)
	made := issue(t, tokens, token(time.Time{}))
	if !strings.HasPrefix(made.Text, "hgr_"+string(made.ID)+"_") || len(made.ID) != 12 {
		t.Errorf("token %s of id %s", made.Text, made.ID)
	}
	p, err := tokens.Authenticate(t.Context(), made.Text)
	if err != nil || p.Subject != "ci@example.com" || p.Admin || len(p.Tokens) != 1 || p.Tokens[0] != made.ID ||
		!p.May(hangar.ActionDelete, hangar.Target{Org: "acme", OrgID: "o-acme"}) || p.May(hangar.ActionRead, hangar.Target{Org: "other", OrgID: "o-other"}) {
		t.Fatalf("principal %+v, %v", p, err)
	}
	again, _ := open(t, store, dir)
	if !valid(t, again, made.Text) {
		t.Error("the token is not valid after a restart")
	}
	store.err = errors.New("the state cannot be reached")
	if !valid(t, tokens, made.Text) {
		t.Error("the token is not valid without the state")
	}
	if err := tokens.Revoke(t.Context(), made.ID); err == nil {
		t.Error("revoked without the state")
	}
	store.err = nil
	for range 2 {
		if err := tokens.Revoke(t.Context(), made.ID); err != nil {
			t.Fatal(err)
		}
		if valid(t, tokens, made.Text) {
			t.Fatal("the token is valid after it was revoked")
		}
	}
	again, _ = open(t, store, dir)
	if valid(t, again, made.Text) {
		t.Error("the token is valid again after a restart")
	}
}

func TestCombinedTokens(t *testing.T) {
	tokens, admin := open(t, newState(), t.TempDir())
	other := token(time.Time{})
	other.Grant.Org, other.Grant.OrgID, other.User = "other", "o-other", "other@example.com"
	a, b := issue(t, tokens, token(time.Time{})), issue(t, tokens, other)
	p, err := tokens.Authenticate(t.Context(), "junk,"+a.Text+", "+b.Text)
	if err != nil || p.Subject != "ci@example.com" || p.Admin || len(p.Tokens) != 2 {
		t.Fatalf("%+v, %v", p, err)
	}
	for _, org := range []hangar.OrgSlug{"acme", "other"} {
		if !p.May(hangar.ActionWrite, hangar.Target{Org: org, OrgID: hangar.OrgID("o-" + org)}) {
			t.Errorf("may not act on %s", org)
		}
	}
	if p, err := tokens.Authenticate(t.Context(), a.Text+","+admin); err != nil || !p.Admin {
		t.Errorf("with the admin token: %+v, %v", p, err)
	}
}

func TestExpiry(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	tokens := auth.New(auth.Config{Store: newState(), Dir: t.TempDir(), Now: func() time.Time { return now }})
	if err := tokens.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	made := issue(t, tokens, token(now.Add(time.Hour)))
	for _, step := range []struct {
		after time.Duration
		want  bool
	}{{0, true}, {time.Hour - time.Second, true}, {time.Second, false}, {time.Hour, false}} {
		now = now.Add(step.after)
		if got := valid(t, tokens, made.Text); got != step.want {
			t.Errorf("at %s: %t, want %t", now, got, step.want)
		}
	}
}

// TestOtherServers runs two servers on one state: what one does, the other learns.
func TestOtherServers(t *testing.T) {
	store := newState()
	a := auth.New(auth.Config{Store: store, Dir: t.TempDir(), Name: "a"})
	b := auth.New(auth.Config{Store: store, Dir: t.TempDir(), Name: "b"})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, tokens := range []*auth.Tokens{a, b} {
		if err := tokens.Open(ctx); err != nil {
			t.Fatal(err)
		}
		running.Go(func() { _ = tokens.Run(ctx) })
	}
	defer running.Wait()
	defer cancel()
	eventually := func(what string, want bool, credential string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); valid(t, b, credential) != want; runtime.Gosched() {
			if time.Now().After(end) {
				t.Fatalf("%s goes unnoticed", what)
			}
		}
	}
	for range 20 {
		made := issue(t, a, token(time.Time{}))
		eventually("a new token", true, made.Text)
		if err := a.Revoke(t.Context(), made.ID); err != nil {
			t.Fatal(err)
		}
		eventually("a revoked token", false, made.Text)
		// And a token revoked here stays revoked, even if older events arrive later.
		mine := issue(t, b, token(time.Time{}))
		if err := b.Revoke(t.Context(), mine.ID); err != nil {
			t.Fatal(err)
		}
		for range 100 {
			if valid(t, b, mine.Text) {
				t.Fatal("a token came back")
			}
		}
	}
}

func TestUnreadableRecordsOpenNothing(t *testing.T) {
	store, dir := newState(), t.TempDir()
	tokens, admin := open(t, store, dir)
	made := issue(t, tokens, token(time.Time{}))
	item, err := store.Get(t.Context(), auth.Prefix+string(made.ID))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"no JSON": "{", "no object": "7", "another id": strings.Replace(string(item.Value), string(made.ID), "other", 1),
		"short digest": `{"id":"` + string(made.ID) + `","digest":"AAAA"}`, "no grant": strings.Replace(string(item.Value), `"read",`, `"fly",`, 1),
	} {
		if _, err := store.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put(item.Key, []byte(value))}}); err != nil {
			t.Fatal(err)
		}
		again, _ := open(t, store, dir)
		list := again.List(func(*hangar.Token) bool { return true })
		if valid(t, again, made.Text) || !valid(t, again, admin) || len(list) != 1 {
			t.Errorf("%s: token valid %t, admin valid %t, %d tokens", name, valid(t, again, made.Text), valid(t, again, admin), len(list))
		}
	}
}

// TestUses: when a token was used last survives, and costs the state next to nothing.
func TestUses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, dir := newState(), t.TempDir()
		tokens, _ := open(t, store, dir)
		made, idle := issue(t, tokens, token(time.Time{})), issue(t, tokens, token(time.Time{}))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- tokens.Run(ctx) }()
		time.Sleep(time.Second)
		before, err := store.List(t.Context(), "/", state.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for range 1000 {
			valid(t, tokens, made.Text)
		}
		used := time.Now()
		time.Sleep(2 * auth.FlushInterval)
		after, err := store.List(t.Context(), "/", state.ListOptions{})
		if err != nil || after.Revision != before.Revision+1 {
			t.Errorf("1000 uses are %d writes, %v", after.Revision-before.Revision, err)
		}
		cancel()
		<-ended
		again, _ := open(t, store, dir)
		for id, want := range map[hangar.TokenID]time.Time{made.ID: used, idle.ID: {}} {
			r, ok := again.Find(id)
			if !ok || r.LastUsed.Unix() != want.Unix() {
				t.Errorf("used at %s, want %s", r.LastUsed, want)
			}
		}
		if err := again.Revoke(t.Context(), made.ID); err != nil {
			t.Fatal(err)
		}
		left, err := store.List(t.Context(), "/token-uses/", state.ListOptions{})
		if err != nil || len(left.Items) != 0 {
			t.Errorf("after the token is gone: %v, %v", left.Items, err)
		}
	})
}

func BenchmarkAuthenticate(b *testing.B) {
	for _, n := range []int{1, 10_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			tokens := auth.New(auth.Config{Store: newState(), Dir: b.TempDir()})
			if err := tokens.Open(b.Context()); err != nil {
				b.Fatal(err)
			}
			var last *hangar.NewToken
			for range n {
				last = issue(b, tokens, token(time.Time{}))
			}
			for b.Loop() {
				if _, err := tokens.Authenticate(b.Context(), last.Text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkAuthenticateUser is of a user with as many memberships as there may be.
func BenchmarkAuthenticateUser(b *testing.B) {
	tokens := auth.New(auth.Config{Store: newState(), Dir: b.TempDir()})
	if err := tokens.Open(b.Context()); err != nil {
		b.Fatal(err)
	}
	a := auth.Account{ID: "u1", SignIns: "s1"}
	for i := range hangar.MaxMemberships {
		id := strconv.Itoa(i)
		a.Memberships = append(a.Memberships, auth.Membership{
			Membership: hangar.Membership{OrgID: hangar.OrgID(id), Org: hangar.OrgSlug(id), Role: hangar.RoleMember}, Tie: id,
		})
	}
	tokens.Learn(a.ID, &a, 2)
	made, err := tokens.IssueTied(b.Context(), hangar.Token{Kind: hangar.TokenLogin, UserID: a.ID, Grant: hangar.Grant{Actions: hangar.ActionAll}}, "s1")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := tokens.Authenticate(b.Context(), made.Text); err != nil {
			b.Fatal(err)
		}
	}
}
