package keyset_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/hangar-platform/hangar/internal/keyset"
)

func create(t *testing.T) (*keyset.Keyset, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), keyset.File)
	k, err := keyset.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	return k, path
}

func reopen(t *testing.T, path string) *keyset.Keyset {
	t.Helper()
	k, err := keyset.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func seal(t *testing.T, k *keyset.Keyset, plain string, label ...string) (sealed []byte) {
	t.Helper()
	err := k.Use(func(keys keyset.Keys) (err error) {
		sealed, err = keys.Seal([]byte(plain), label...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return sealed
}

func open(k *keyset.Keyset, sealed []byte, label ...string) (plain string, err error) {
	err = k.Use(func(keys keyset.Keys) error {
		b, err := keys.Open(sealed, label...)
		plain = string(b)
		return err
	})
	return plain, err
}

func TestSealedOpensOnlyWhereItBelongs(t *testing.T) {
	t.Parallel()
	k, path := create(t)
	sealed := seal(t, k, "hello", "app", "web", "7")
	if bytes.Contains(sealed, []byte("hello")) {
		t.Fatal("the text is in what was sealed")
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the file is %v, %v", info.Mode(), err)
	}
	if got, err := open(reopen(t, path), sealed, "app", "web", "7"); err != nil || got != "hello" {
		t.Errorf("after a restart: %q, %v", got, err)
	}
	for _, label := range [][]string{nil, {"app", "web", "8"}, {"app", "we", "b7"}, {"appweb7"}, {"app", "web", "7", ""}} {
		if _, err := open(k, sealed, label...); !errors.Is(err, keyset.ErrUnreadable) {
			t.Errorf("opened as %q: %v", label, err)
		}
	}
	for i := range sealed {
		damaged := bytes.Clone(sealed)
		damaged[i] ^= 1
		if _, err := open(k, damaged, "app", "web", "7"); err == nil {
			t.Errorf("opened with byte %d changed", i)
		}
	}
	for n := range sealed {
		if _, err := open(k, sealed[:n], "app", "web", "7"); err == nil {
			t.Errorf("opened cut off at %d bytes", n)
		}
	}
	other, _ := create(t)
	if _, err := open(other, sealed, "app", "web", "7"); !errors.Is(err, keyset.ErrUnknownKey) {
		t.Errorf("opened with other keys: %v", err)
	}
}

func TestOnlyCreateMakesKeys(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), keyset.File)
	if _, err := keyset.Open(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	if _, err := keyset.Create(path); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := keyset.Create(path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("created again: %v", err)
	}
	for name, content := range map[string][]byte{
		"empty": nil, "cut off": good[:len(good)/2], "garbage": []byte("garbage"), "no keys": []byte(`{"primaryKeyId":1,"key":[]}`), "zeros": make([]byte, len(good)),
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := keyset.Open(path); !errors.Is(err, keyset.ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, content) {
			t.Errorf("%s: opening changed the file", name)
		}
	}
	if err := os.WriteFile(path, good, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	reopen(t, path)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("a file that others may read stays so: %v, %v", info.Mode(), err)
	}
}

// place keeps one sealed value.
type place struct {
	mu     sync.Mutex
	sealed []byte
}

func (p *place) put(k *keyset.Keyset, plain string) error {
	return k.Use(func(keys keyset.Keys) error {
		sealed, err := keys.Seal([]byte(plain), "place")
		p.mu.Lock()
		defer p.mu.Unlock()
		p.sealed = sealed
		return err
	})
}

func (p *place) reseal(k *keyset.Keyset) func(context.Context) (int, error) {
	return func(context.Context) (n int, err error) {
		err = k.Use(func(keys keyset.Keys) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			if keys.Current(p.sealed) {
				return nil
			}
			plain, err := keys.Open(p.sealed, "place")
			if err != nil {
				return err
			}
			n = 1
			p.sealed, err = keys.Seal(plain, "place")
			return err
		})
		return n, err
	}
}

func TestRotate(t *testing.T) {
	t.Parallel()
	k, path := create(t)
	var p place
	if err := p.put(k, "hello"); err != nil {
		t.Fatal(err)
	}
	first := p.sealed
	done, err := k.Rotate(t.Context(), p.reseal(k))
	if err != nil || done.Resealed != 1 || done.Dropped != 1 || k.Interrupted() {
		t.Fatalf("rotated %+v, %v", done, err)
	}
	if got, err := open(reopen(t, path), p.sealed, "place"); err != nil || got != "hello" {
		t.Errorf("sealed again: %q, %v", got, err)
	}
	if _, err := open(k, first, "place"); !errors.Is(err, keyset.ErrUnknownKey) {
		t.Errorf("the old key is still there: %v", err)
	}
	again, err := k.Rotate(t.Context(), p.reseal(k))
	if err != nil || again.Key == done.Key {
		t.Errorf("rotated again %+v, %v", again, err)
	}
}

func TestRotationThatFailsGoesOnWithItsKey(t *testing.T) {
	t.Parallel()
	k, path := create(t)
	var p place
	if err := p.put(k, "hello"); err != nil {
		t.Fatal(err)
	}
	failure := errors.New("disk full")
	fail := func(context.Context) (int, error) { return 0, failure }
	for range 3 {
		if _, err := k.Rotate(t.Context(), fail, p.reseal(k)); !errors.Is(err, failure) {
			t.Fatal(err)
		}
	}
	k = reopen(t, path)
	if !k.Interrupted() {
		t.Fatal("a rotation that failed is not seen after a restart")
	}
	if got, err := open(k, p.sealed, "place"); err != nil || got != "hello" {
		t.Errorf("while both keys are in use: %q, %v", got, err)
	}
	var newest uint32
	_ = k.Use(func(keys keyset.Keys) error { newest = keys.Newest(); return nil })
	done, err := k.Rotate(t.Context(), p.reseal(k))
	if err != nil || done.Key != newest || done.Dropped != 1 {
		t.Errorf("went on: %+v, %v; want key %d and one dropped", done, err, newest)
	}
}

// TestRotateWhileOthersSeal: values sealed at any time open after any number of rotations.
func TestRotateWhileOthersSeal(t *testing.T) {
	t.Parallel()
	k, _ := create(t)
	places := make([]place, 8)
	var reseal []func(context.Context) (int, error)
	for i := range places {
		if err := places[i].put(k, "x"); err != nil {
			t.Fatal(err)
		}
		reseal = append(reseal, places[i].reseal(k))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range places {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := places[i].put(k, "x"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 50 {
		if _, err := k.Rotate(t.Context(), reseal...); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	wg.Wait()
	for i := range places {
		if got, err := open(k, places[i].sealed, "place"); err != nil || got != "x" {
			t.Errorf("place %d: %q, %v", i, got, err)
		}
	}
}
