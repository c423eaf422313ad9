package vault_test

import (
	"bytes"
	"errors"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/vault"
	"github.com/hangar-platform/hangar/internal/keyset"
)

func newKeys(t *testing.T) *keyset.Keyset {
	t.Helper()
	keys, err := keyset.Create(filepath.Join(t.TempDir(), keyset.File))
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func keep(t *testing.T, v *vault.Vault, key, text string) {
	t.Helper()
	err := v.Txn(t.Context(), func(keys keyset.Keys) (state.Txn, error) {
		put, err := vault.Sealed(keys, key, text)
		return state.Txn{Then: []state.Op{put}}, err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestVault(t *testing.T) {
	store := state.NewMemory()
	v := vault.New(store, newKeys(t), slog.New(slog.DiscardHandler))
	if has, err := vault.HasSealed(t.Context(), store); err != nil || has {
		t.Fatalf("an empty state has what is sealed: %v, %v", has, err)
	}
	want := map[string]string{state.SecretsPrefix + "a": "plain a", state.SecretsPrefix + "b": "plain b"}
	for key, text := range want {
		keep(t, v, key, text)
		item, err := store.Get(t.Context(), key)
		if err != nil || bytes.Contains(item.Value, []byte("plain")) {
			t.Errorf("stored as %s, %v", item.Value, err)
		}
	}
	got := map[string]string{}
	err := v.Each(t.Context(), state.SecretsPrefix, func(item state.Item, open func(any) error) {
		var text string
		if err := open(&text); err != nil {
			t.Error(err)
		}
		got[item.Key] = text
	})
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("decoded %v, %v", got, err)
	}

	// A record is bound to its key.
	a, err := store.Get(t.Context(), state.SecretsPrefix+"a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put(state.SecretsPrefix+"c", a.Value)}}); err != nil {
		t.Fatal(err)
	}
	var text string
	if err := v.Get(t.Context(), state.SecretsPrefix+"c", &text); hangar.CodeOf(err) != hangar.CodeInternal {
		t.Errorf("a record that was moved is read as %q, %v", text, err)
	}

	// Other keys open nothing, and write nothing.
	other := vault.New(store, newKeys(t), slog.New(slog.DiscardHandler))
	if err := other.Check(t.Context()); hangar.CodeOf(err) != hangar.CodeInternal {
		t.Errorf("other keys are taken for those of the state: %v", err)
	}
	err = other.Txn(t.Context(), func(keyset.Keys) (state.Txn, error) {
		t.Error("other keys write")
		return state.Txn{}, nil
	})
	if hangar.CodeOf(err) != hangar.CodeInternal {
		t.Errorf("other keys write: %v", err)
	}

	if err := vault.ForgetSealed(t.Context(), store); err != nil {
		t.Fatal(err)
	}
	if err := other.Check(t.Context()); err != nil {
		t.Errorf("what is forgotten is in the way of other keys: %v", err)
	}
	if err := v.Get(t.Context(), a.Key, &text); !errors.Is(err, state.ErrNotFound) {
		t.Errorf("what is forgotten is read as %q, %v", text, err)
	}
}

func TestRotation(t *testing.T) {
	store, keys := state.NewMemory(), newKeys(t)
	v := vault.New(store, keys, slog.New(slog.DiscardHandler))
	names := []string{state.SecretsPrefix + "a", state.CredentialsPrefix + "b", state.CertificatesPrefix + "c", state.ArchivePrefix + "d"}
	before := map[string][]byte{}
	for _, key := range names {
		keep(t, v, key, "text of "+key)
		item, err := store.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		before[key] = item.Value
	}
	admin := hangar.WithPrincipal(t.Context(), hangar.Principal{Subject: "admin", Admin: true})
	done, err := vault.NewEncryption(v, nil).RotateEncryptionKey(admin)
	if err != nil || done.Resealed != len(names)+1 { // and the seal
		t.Fatalf("rotated %+v, %v", done, err)
	}
	for _, key := range names {
		var text string
		if err := v.Get(t.Context(), key, &text); err != nil || text != "text of "+key {
			t.Errorf("%s is %q, %v", key, text, err)
		}
		if item, err := store.Get(t.Context(), key); err != nil || slices.Equal(item.Value, before[key]) {
			t.Errorf("%s is as it was, %v", key, err)
		}
	}
}
