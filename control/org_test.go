package control_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/state"
)

func (p *plane) org(t *testing.T, slug hangar.OrgSlug) *hangar.Org {
	t.Helper()
	org, err := p.Orgs().CreateOrg(admin(t), hangar.OrgCreate{Slug: slug})
	if err != nil {
		t.Fatal(err)
	}
	return org
}

// tokensOf are the ids of the tokens of an organization, as the state has them.
func (p *plane) tokensOf(t *testing.T, org hangar.OrgSlug) (ids []hangar.TokenID) {
	t.Helper()
	items, _, err := state.All(t.Context(), p.store, auth.Prefix, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range items {
		var r auth.Record
		if err := json.Unmarshal(item.Value, &r); err != nil {
			t.Fatal(err)
		}
		if r.Grant.Org == org {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

func TestNamesOfOrgs(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	for title, text := range map[string]string{
		"Café & Söhne": "", strings.Repeat("ü", 100): "",
		strings.Repeat("ü", 101): "Validation failed: Name is too long (maximum is 100 characters)",
		"a\nb":                   "Validation failed: Name may only contain printable characters",
		"a\xff":                  "Validation failed: Name may only contain printable characters",
		" a":                     "Validation failed: Name may not begin or end with a blank",
	} {
		_, err := p.Orgs().CreateOrg(admin(t), hangar.OrgCreate{Slug: "acme", Name: title})
		switch {
		case text == "":
			if err != nil {
				t.Errorf("%q: %v", title, err)
			}
			if err := p.Orgs().DeleteOrg(admin(t), "acme"); err != nil {
				t.Error(err)
			}
		case err == nil || err.Error() != text || hangar.CodeOf(err) != hangar.CodeInvalid:
			t.Errorf("%q: %v, want %s", title, err, text)
		}
	}
}

// TestOrgsAreHealed: a removal that a crash cut short is finished by the next start,
// and taken back if there is an App.
func TestOrgsAreHealed(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		for _, slug := range []hangar.OrgSlug{"gone", "kept"} {
			p.org(t, slug)
			if _, err := p.Tokens().CreateToken(admin(t), hangar.TokenCreate{Kind: hangar.TokenOrg, Org: slug}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := p.Apps().CreateApp(admin(t), hangar.AppCreate{Name: "shop", Org: "kept"}); err != nil {
			t.Fatal(err)
		}
		for _, slug := range []hangar.OrgSlug{"gone", "kept"} {
			p.markDeleting(t, slug)
		}
		_, err := p.Apps().CreateApp(admin(t), hangar.AppCreate{Name: "more", Org: "gone"})
		wantError(t, err, hangar.CodeNotFound, hangar.ReasonOrgNotFound)
		_, err = p.Tokens().CreateToken(admin(t), hangar.TokenCreate{Kind: hangar.TokenOrg, Org: "gone"})
		wantError(t, err, hangar.CodeNotFound, hangar.ReasonOrgNotFound)
		p.restart(t)
		if _, err := p.Orgs().Org(admin(t), "kept"); err != nil {
			t.Errorf("an organization with an App: %v", err)
		}
		if left := p.records(t, "/orgs/"); len(left) != 2 {
			t.Errorf("organizations left: %v", left)
		}
		if left := append(p.records(t, "/networks/gone/"), p.records(t, "/orgs/gone")...); len(left) != 0 {
			t.Errorf("records left: %v", left)
		}
		if len(p.tokensOf(t, "gone")) != 0 || len(p.tokensOf(t, "kept")) != 1 {
			t.Errorf("tokens left: %v and %v", p.tokensOf(t, "gone"), p.tokensOf(t, "kept"))
		}
	})
}

// TestOrgsVanishWhole deletes organizations while others create in them, on two
// control planes: what is there afterwards belongs to an organization.
func TestOrgsVanishWhole(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		a := newPlane(t, store)
		b := &plane{store: store, dir: t.TempDir(), hosts: a.hosts, keys: a.keys, clock: a.clock}
		b.restart(t)
		for range 10 {
			a.org(t, "acme")
			var deleted error
			var work sync.WaitGroup
			start := make(chan struct{})
			work.Go(func() {
				<-start
				deleted = a.Orgs().DeleteOrg(admin(t), "acme")
			})
			for _, p := range []*plane{a, b} {
				work.Go(func() {
					<-start
					_, err := p.Tokens().CreateToken(admin(t), hangar.TokenCreate{Kind: hangar.TokenOrg, Org: "acme"})
					if err != nil && hangar.ReasonOf(err) != hangar.ReasonOrgNotFound {
						t.Error(err)
					}
				})
			}
			var app error
			work.Go(func() {
				<-start
				_, app = b.Apps().CreateApp(admin(t), hangar.AppCreate{Name: "shop", Org: "acme"})
			})
			close(start)
			work.Wait()
			_, err := store.Get(t.Context(), "/orgs/acme")
			switch {
			case deleted == nil:
				if !errors.Is(err, state.ErrNotFound) || hangar.ReasonOf(app) != hangar.ReasonOrgNotFound || len(a.tokensOf(t, "acme")) != 0 {
					t.Fatalf("deleted, but: %v, app %v, tokens %v", err, app, a.tokensOf(t, "acme"))
				}
			case hangar.ReasonOf(deleted) == hangar.ReasonOrgNotEmpty:
				if err != nil || app != nil {
					t.Fatalf("refused because of an App, but: %v, app %v", err, app)
				}
				if err := b.Apps().DestroyApp(admin(t), "shop", true); err != nil {
					t.Fatal(err)
				}
				if err := a.Orgs().DeleteOrg(admin(t), "acme"); err != nil {
					t.Fatal(err)
				}
			default:
				t.Fatalf("delete: %v", deleted)
			}
		}
	})
}

// TestOrgIsRemovedWithoutItsCaller: once an organization is marked, its removal does not end with the request.
func TestOrgIsRemovedWithoutItsCaller(t *testing.T) {
	store := faultyStore{state.NewMemory(), &faults{}}
	p := newPlane(t, store)
	p.org(t, "acme")
	ctx, cancel := context.WithCancel(admin(t))
	store.arm(callerGone, 1, cancel) // by the mark
	if err := p.Orgs().DeleteOrg(ctx, "acme"); err != nil || ctx.Err() == nil {
		t.Errorf("the removal: %v, its caller: %v", err, ctx.Err())
	}
	if left := p.records(t, state.OrgKey("acme")); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// TestNumbersOfOrgs: an organization that takes the slug of one that is gone has
// nothing of it.
func TestNumbersOfOrgs(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	first := p.org(t, "acme")
	before, err := p.Apps().CreateApp(admin(t), hangar.AppCreate{Name: "shop", Org: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Apps().DestroyApp(admin(t), "shop", true); err != nil {
		t.Fatal(err)
	}
	if err := p.Orgs().DeleteOrg(admin(t), "acme"); err != nil {
		t.Fatal(err)
	}
	second := p.org(t, "acme")
	after, err := p.Apps().CreateApp(admin(t), hangar.AppCreate{Name: "shop", Org: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	if first.ID == second.ID || first.NumericID == second.NumericID || before.NetworkID == after.NetworkID {
		t.Errorf("%+v on network %d, after %+v on network %d", second, after.NetworkID, first, before.NetworkID)
	}
}

// TestTokenRevokedDuringADeletion: the token counts no more when the deletion of its organization is undone.
func TestTokenRevokedDuringADeletion(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.org(t, "acme")
	token, err := p.Tokens().CreateToken(admin(t), hangar.TokenCreate{Org: "acme", Kind: hangar.TokenOrg})
	if err != nil {
		t.Fatal(err)
	}
	item, err := p.store.Get(t.Context(), "/orgs/acme")
	if err != nil {
		t.Fatal(err)
	}
	put := func(value string) {
		t.Helper()
		if _, err := p.store.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put(item.Key, []byte(value))}}); err != nil {
			t.Fatal(err)
		}
	}
	put(strings.Replace(string(item.Value), "{", `{"deleting":true,`, 1))
	if err := p.Tokens().RevokeToken(admin(t), string(token.ID)); err != nil {
		t.Fatal(err)
	}
	put(string(item.Value))
	if got := p.used(t, "acme", hangar.QuotaTokens); got != 0 {
		t.Errorf("%d tokens count", got)
	}
}
