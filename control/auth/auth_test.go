package auth_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/auth"
)

// memory is a Store that can be made to fail.
type memory struct {
	records []auth.Record
	err     error
}

func (m *memory) Tokens(context.Context) ([]auth.Record, error) {
	return slices.Clone(m.records), m.err
}

func (m *memory) PutToken(_ context.Context, r auth.Record) error {
	if m.err == nil {
		m.records = append(slices.DeleteFunc(m.records, func(o auth.Record) bool { return o.Name == r.Name }), r)
	}
	return m.err
}

func open(t *testing.T, store *memory, dir string) (*auth.Tokens, string) {
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
	store, dir := &memory{}, t.TempDir()
	tokens, token := open(t, store, dir)
	info, err := os.Stat(filepath.Join(dir, auth.AdminFile))
	if err != nil || info.Mode() != 0o600 {
		t.Fatalf("mode %v, %v; want 0600", info.Mode(), err)
	}
	for _, r := range store.records {
		if bytes.Contains(r.Digest, []byte(token)) || len(r.Digest) != 32 {
			t.Fatal("the store holds more than a digest")
		}
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
	store, dir := &memory{}, t.TempDir()
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
	store, dir := &memory{err: errors.New("the state cannot be reached")}, t.TempDir()
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
	store, dir := &memory{}, t.TempDir()
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
	if err := auth.New(auth.Config{Store: &memory{}, Dir: dir}).Open(t.Context()); err == nil {
		t.Fatal("an empty file became a token")
	}
}

func BenchmarkAuthenticate(b *testing.B) {
	tokens := auth.New(auth.Config{Store: &memory{}, Dir: b.TempDir()})
	if err := tokens.Open(b.Context()); err != nil {
		b.Fatal(err)
	}
	token, err := os.ReadFile(tokens.AdminPath())
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := tokens.Authenticate(b.Context(), string(token)); err != nil {
			b.Fatal(err)
		}
	}
}
