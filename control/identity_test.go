package control_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/state/statetest"
)

// issued asks for a token and returns what it says.
func (p *plane) issued(ctx context.Context, t *testing.T, ref hangar.MachineRef) hangar.IdentityClaims {
	t.Helper()
	token, err := p.Identity().IssueIdentityToken(ctx, ref, hangar.IdentityTokenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	if err != nil {
		t.Fatal(err)
	}
	var claims hangar.IdentityClaims
	if err := json.Unmarshal(raw, &claims); err != nil {
		t.Fatal(err)
	}
	return claims
}

func TestMachineAsksForItself(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.app(t, "web")
	m, other := p.machine(t, "web", "one"), p.machine(t, "web", "two")
	self := hangar.WithSelf(as(t, hangar.Principal{Subject: "machine", Grants: []hangar.Grant{{
		Org: hangar.OrgPersonal, Apps: []hangar.AppName{"web"}, Machines: []hangar.MachineID{m.ID}, Actions: hangar.ActionRead,
	}}}), m.Ref())
	for _, ref := range []hangar.MachineRef{{}, m.Ref()} {
		c := p.issued(self, t, ref)
		if c.Subject != "personal:web:one" || c.Issuer != "https://oidc.example/personal" || c.Audience != "https://example/personal" ||
			c.IssuedAt != p.clock.Now().Unix() || c.AppID != "1" || c.OrgID != "1" {
			t.Errorf("claims are %+v", c)
		}
	}
	_, err := p.Identity().IssueIdentityToken(self, other.Ref(), hangar.IdentityTokenRequest{})
	wantError(t, err, hangar.CodeNotFound, hangar.ReasonMachineNotFound)
	// Its identity follows its host's record, and a stopped or missing Machine has none.
	if err := p.hosts[0].change(t.Context(), m.Ref(), func(m *hangar.Machine) { m.InstanceID = "01KXWWKW9T0000000000000009" }); err != nil {
		t.Fatal(err)
	}
	if c := p.issued(self, t, m.Ref()); c.MachineVersion != "01KXWWKW9T0000000000000009" {
		t.Errorf("the version is %s", c.MachineVersion)
	}
	if err := p.hosts[0].set(t.Context(), m.ID, hangar.MachineSuspended); err != nil {
		t.Fatal(err)
	}
	_, err = p.Identity().IssueIdentityToken(self, m.Ref(), hangar.IdentityTokenRequest{})
	wantError(t, err, hangar.CodeFailedPrecondition, hangar.ReasonWrongState)
	p.hosts[0].setDown(true)
	_, err = p.Identity().IssueIdentityToken(self, m.Ref(), hangar.IdentityTokenRequest{})
	wantError(t, err, hangar.CodeUnavailable, "")
}

// TestIdentityWithoutTheState: tokens and the documents of issuers need memory alone.
func TestIdentityWithoutTheState(t *testing.T) {
	store := &statetest.Away{Store: state.NewMemory()}
	p := newPlane(t, mirror(t, store))
	p.app(t, "web")
	m := p.machine(t, "web", "one")
	store.Lost.Store(true)
	defer store.Lost.Store(false)
	for range 2 {
		if c := p.issued(admin(t), t, m.Ref()); c.Subject != "personal:web:one" {
			t.Errorf("claims are %+v", c)
		}
		for _, ask := range []func(context.Context, hangar.OrgSlug) (hangar.IssuerDocument, error){p.Issuer().IssuerMetadata, p.Issuer().IssuerKeys} {
			if d, err := ask(t.Context(), hangar.OrgPersonal); err != nil || len(d.Body) == 0 || d.MaxAge <= 0 {
				t.Errorf("answered %+v, %v", d, err)
			}
			_, err := ask(t.Context(), "other")
			wantError(t, err, hangar.CodeNotFound, hangar.ReasonOrgNotFound)
			_, err = ask(t.Context(), "../seal")
			wantError(t, err, hangar.CodeNotFound, hangar.ReasonOrgNotFound)
		}
		if _, err := p.Identity().SigningKeys(admin(t)); err != nil {
			t.Error(err)
		}
		_, err := p.Identity().RotateSigningKey(admin(t))
		wantError(t, err, hangar.CodeUnavailable, "")
		p.clock.advance(40 * 24 * time.Hour) // the next key signs
	}
}

// TestSigningKeysAreEncrypted, and stay what they are when the key of that is replaced.
func TestSigningKeysAreEncrypted(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		before, err := p.Identity().SigningKeys(admin(t))
		if err != nil {
			t.Fatal(err)
		}
		items, _, err := state.All(t.Context(), store, "/", false)
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range items {
			if strings.Contains(string(item.Value), "private") || strings.Contains(string(item.Value), before[0].ID) {
				t.Errorf("%s holds keys in clear: %s", item.Key, item.Value)
			}
		}
		if _, err := p.Encryption().RotateEncryptionKey(admin(t)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			after, err := p.Identity().SigningKeys(admin(t))
			if err != nil || len(after) != 2 || after[0] != before[0] || after[1] != before[1] {
				t.Errorf("keys %+v became %+v, %v", before, after, err)
			}
			p.restart(t)
		}
	})
}
