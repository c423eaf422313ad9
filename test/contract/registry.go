package contract

import (
	"slices"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

// RegistryService checks an implementation of hangar.RegistryService. It uses
// registries below contract.example.
func RegistryService(t *testing.T, h Harness) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, Harness){
		"life":      registryLife,
		"names":     registryNames,
		"bad input": registryBadInput,
	} {
		t.Run(name, func(t *testing.T) { test(t, h) })
	}
}

func login(user, password string) hangar.RegistryLogin {
	return hangar.RegistryLogin{Username: user, Password: hangar.NewSensitive(password)}
}

func registryLife(t *testing.T, h Harness) {
	ctx := h.Context(t)
	const name = "life.contract.example:5000"
	_, err := h.Registries.RegistryCredential(ctx, name)
	wantError(t, "get a missing one", err, hangar.CodeNotFound, "")
	wantError(t, "delete a missing one", h.Registries.DeleteRegistryCredential(ctx, name), hangar.CodeNotFound, "")
	made, err := h.Registries.SetRegistryCredential(ctx, name, login("me", "first"))
	must(t, "set", err)
	if made.Registry != name || made.Username != "me" || made.CreatedAt.IsZero() || made.UpdatedAt.IsZero() {
		t.Errorf("made %+v", made)
	}
	got, err := h.Registries.RegistryCredential(ctx, name)
	must(t, "get", err)
	if got != made {
		t.Errorf("got %+v, made %+v", got, made)
	}
	changed, err := h.Registries.SetRegistryCredential(ctx, name, login("you", "second"))
	must(t, "replace", err)
	if changed.Username != "you" || !changed.CreatedAt.Equal(made.CreatedAt) {
		t.Errorf("replaced %+v by %+v", made, changed)
	}
	must(t, "delete", h.Registries.DeleteRegistryCredential(ctx, name))
	_, err = h.Registries.RegistryCredential(ctx, name)
	wantError(t, "get what was deleted", err, hangar.CodeNotFound, "")
}

func registryNames(t *testing.T, h Harness) {
	ctx := h.Context(t)
	for sent, want := range map[string]string{
		"https://url.contract.example/v2/": "url.contract.example", "CASE.contract.example": "case.contract.example",
		"index.docker.io": "registry-1.docker.io", "[::1]:5000": "[::1]:5000",
	} {
		made, err := h.Registries.SetRegistryCredential(ctx, sent, login("me", "pass"))
		must(t, "set "+sent, err)
		t.Cleanup(func() { _ = h.Registries.DeleteRegistryCredential(ctx, want) })
		if made.Registry != want {
			t.Errorf("%s is kept as %s, want %s", sent, made.Registry, want)
		}
	}
	list, err := h.Registries.RegistryCredentials(ctx)
	must(t, "list", err)
	var names []string
	for _, r := range list {
		names = append(names, r.Registry)
	}
	if !slices.IsSorted(names) || !slices.Contains(names, "url.contract.example") || !slices.Contains(names, "registry-1.docker.io") {
		t.Errorf("listed %v", names)
	}
}

func registryBadInput(t *testing.T, h Harness) {
	ctx := h.Context(t)
	for what, in := range map[string]hangar.RegistryLogin{
		"username": {Password: hangar.NewSensitive("x")}, "password": {Username: "me"},
	} {
		_, err := h.Registries.SetRegistryCredential(ctx, "bad.contract.example", in)
		wantError(t, "without "+what, err, hangar.CodeInvalid, "")
		if err != nil && !strings.Contains(err.Error(), what) {
			t.Errorf("without %s: %v does not say so", what, err)
		}
	}
	for _, in := range []hangar.RegistryLogin{
		login("a:b", "x"), login("a\nb", "x"), login("me", ""), login("me", "nul\x00"),
		login(strings.Repeat("u", hangar.MaxRegistryUsername+1), "x"), login("me", strings.Repeat("p", hangar.MaxRegistryPassword+1)),
	} {
		_, err := h.Registries.SetRegistryCredential(ctx, "bad.contract.example", in)
		wantError(t, "set", err, hangar.CodeInvalid, "")
	}
	for _, name := range []string{"under score.example", "user@contract.example", "contract.example:port", "-.example", strings.Repeat("a", 300)} {
		_, err := h.Registries.SetRegistryCredential(ctx, name, login("me", "x"))
		wantError(t, "set "+name, err, hangar.CodeInvalid, "")
	}
}
