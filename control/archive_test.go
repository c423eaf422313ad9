package control_test

import (
	"bytes"
	"sync"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/state/statetest"
	"github.com/hangar-platform/hangar/control/vault"
)

// There is one password for all callers, also concurrent first ones, and it stays the
// same when the key that encrypts it is replaced.
func TestArchivePassword(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		var (
			wait  sync.WaitGroup
			got   [8][]byte
			fails [8]error
		)
		for i := range got {
			wait.Go(func() {
				got[i], fails[i] = vault.NewArchivePassword(vault.New(store, p.keys, quiet)).Password(t.Context())
			})
		}
		wait.Wait()
		for i := range got {
			if fails[i] != nil || len(got[i]) != 32 || !bytes.Equal(got[i], got[0]) {
				t.Fatalf("password %d is %x, %v; the first is %x", i, got[i], fails[i], got[0])
			}
		}
		before, err := store.Get(t.Context(), "/archive/password")
		if err != nil || bytes.Contains(before.Value, got[0]) {
			t.Fatalf("the state has %s, %v", before.Value, err)
		}
		admin := hangar.WithPrincipal(t.Context(), hangar.Principal{Admin: true})
		if _, err := p.Encryption().RotateEncryptionKey(admin); err != nil {
			t.Fatal(err)
		}
		after, err := store.Get(t.Context(), "/archive/password")
		if err != nil || bytes.Equal(before.Value, after.Value) {
			t.Fatalf("after the rotation the state has %s, %v", after.Value, err)
		}
		again, err := vault.NewArchivePassword(vault.New(store, p.keys, quiet)).Password(t.Context())
		if err != nil || !bytes.Equal(again, got[0]) {
			t.Fatalf("after the rotation the password is %x, %v", again, err)
		}
	})
}

// An unreachable state is reported as such.
func TestArchivePasswordAway(t *testing.T) {
	keys := newKeys(t)
	store := &statetest.Away{Store: state.NewMemory()}
	store.Lost.Store(true)
	password := vault.NewArchivePassword(vault.New(store, keys, quiet))
	_, err := password.Password(t.Context())
	if hangar.CodeOf(err) != hangar.CodeUnavailable {
		t.Fatalf("%v, want %s", err, hangar.CodeUnavailable)
	}
	store.Lost.Store(false)
	if got, err := password.Password(t.Context()); err != nil || len(got) != 32 {
		t.Fatalf("%x, %v once it is back", got, err)
	}
}
