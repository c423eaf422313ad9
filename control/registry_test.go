package control_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/vault"
	"github.com/hangar-platform/hangar/test/contract"
)

func TestRegistryService(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		contract.RegistryService(t, contract.Harness{
			Registries: p.Registries(),
			Context:    func(tb testing.TB) context.Context { tb.Helper(); return admin(t) },
		})
	})
}

func (p *plane) login(t *testing.T, registry, user, password string) {
	t.Helper()
	in := hangar.RegistryLogin{Username: user, Password: hangar.NewSensitive(password)}
	if _, err := p.Registries().SetRegistryCredential(admin(t), registry, in); err != nil {
		t.Fatal(err)
	}
}

func TestCredentialsAreForAdministrators(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	p.login(t, "ghcr.io", "me", "pass")
	member := as(t, hangar.Principal{Subject: "me", Grants: []hangar.Grant{{Org: hangar.OrgPersonal, Actions: hangar.ActionAll}}})
	_, err := p.Registries().RegistryCredentials(member)
	wantError(t, err, hangar.CodeForbidden, "")
	_, err = p.Registries().RegistryCredential(member, "ghcr.io")
	wantError(t, err, hangar.CodeForbidden, "")
	_, err = p.Registries().SetRegistryCredential(member, "ghcr.io", hangar.RegistryLogin{})
	wantError(t, err, hangar.CodeForbidden, "")
	wantError(t, p.Registries().DeleteRegistryCredential(member, "ghcr.io"), hangar.CodeForbidden, "")
	_, err = p.Encryption().RotateEncryptionKey(member)
	wantError(t, err, hangar.CodeForbidden, "")
}

func TestCredentialsAreEncrypted(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		p.login(t, "ghcr.io", "alice", "plaintext")
		items, _, err := state.All(t.Context(), store, "/", false)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range items {
			if bytes.Contains(i.Value, []byte("plaintext")) || bytes.Contains(i.Value, []byte("alice")) {
				t.Errorf("%s holds it in clear: %s", i.Key, i.Value)
			}
		}
	})
}

// TestLogins: hosts know what is kept, also while the state cannot be reached.
func TestLogins(t *testing.T) {
	p := newPlane(t, mirror(t, state.NewMemory()))
	logins := vault.NewLogins(vault.New(p.store, p.keys, quiet))
	expect := func(registry, want string) {
		t.Helper()
		if _, got, ok := logins.Credentials(t.Context(), registry); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %t; want %q", registry, got, ok, want)
		}
	}
	expect("a.example", "")
	p.login(t, "a.example", "me", "one")
	expect("a.example", "one")
	p.login(t, "a.example", "me", "two")
	p.login(t, "docker.io", "me", "hub")
	expect("a.example", "two")
	expect("registry-1.docker.io", "hub")
	if _, err := p.Encryption().RotateEncryptionKey(admin(t)); err != nil {
		t.Fatal(err)
	}
	expect("a.example", "two")
	if err := p.Registries().DeleteRegistryCredential(admin(t), "a.example"); err != nil {
		t.Fatal(err)
	}
	expect("a.example", "")
}

// TestAnotherKeysetIsRefused: as soon as there is something encrypted, which the keys of
// identity tokens are on the first start.
func TestAnotherKeysetIsRefused(t *testing.T) {
	store := state.NewMemory()
	open := func() error {
		tokens := auth.New(auth.Config{Store: store, Dir: t.TempDir()})
		return control.New(control.Config{Store: store, Tokens: tokens, Agents: fleet{}, Keys: newKeys(t), Region: "loc", Log: quiet}).Open(t.Context())
	}
	if err := open(); err != nil {
		t.Errorf("with other keys, while nothing is encrypted: %v", err)
	}
	if sealed, err := vault.HasSealed(t.Context(), store); err != nil || sealed {
		t.Errorf("nothing is encrypted: %t, %v", sealed, err)
	}
	newPlane(t, store)
	if sealed, err := vault.HasSealed(t.Context(), store); err != nil || !sealed {
		t.Errorf("something is encrypted: %t, %v", sealed, err)
	}
	wantError(t, open(), hangar.CodeInternal, "")
}
