package cli

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// failingKeyring is a Keyring of which writes may fail.
type failingKeyring struct {
	kept   map[string]string
	before func() error // each write; nil: nothing
	after  func()       // each write; nil: nothing
}

func (k *failingKeyring) Here() bool { return true }

func (k *failingKeyring) Get(context string) (string, error) { return k.kept[context], nil }

func (k *failingKeyring) write(apply func()) error {
	if k.before != nil {
		if err := k.before(); err != nil {
			return err
		}
	}
	apply()
	if k.after != nil {
		k.after()
	}
	return nil
}

func (k *failingKeyring) Set(context, token string) error {
	return k.write(func() { k.kept[context] = token })
}

func (k *failingKeyring) Remove(context string) error {
	return k.write(func() { delete(k.kept, context) })
}

// TestTokensAreOfTheirPlatform: a context has been signed in at one platform, and a sign-in at another under its
// name does not complete. No platform gets the token of the other.
func TestTokensAreOfTheirPlatform(t *testing.T) {
	t.Parallel()
	const first, second = "https://one.example.com", "https://two.example.com"
	tokens := map[string]string{first: "token-of-one", second: "token-of-two"}
	const keyring, file = false, true
	for name, tt := range map[string]struct {
		inFile [2]bool // of the first and the second sign-in
		spoil  func(k *failingKeyring, path string)
		want   string // token afterwards
	}{
		"nothing fails":                {[2]bool{keyring, keyring}, func(*failingKeyring, string) {}, tokens[second]},
		"the keyring refuses":          {[2]bool{keyring, keyring}, refuse, tokens[second]},
		"the file is not written":      {[2]bool{keyring, keyring}, func(k *failingKeyring, path string) { k.after = func() { open(path) } }, ""},
		"it ends between":              {[2]bool{keyring, keyring}, func(k *failingKeyring, _ string) { k.after = func() { panic("killed") } }, ""},
		"to the file, the old remains": {[2]bool{keyring, file}, refuse, tokens[second]},
		"to the file, not written":     {[2]bool{keyring, file}, func(_ *failingKeyring, path string) { open(path) }, tokens[first]},
		"from the file, not written":   {[2]bool{file, keyring}, func(k *failingKeyring, path string) { k.after = func() { open(path) } }, tokens[first]},
		"from the file, ends between":  {[2]bool{file, keyring}, func(k *failingKeyring, _ string) { k.after = func() { panic("killed") } }, tokens[first]},
		"in the file, not written":     {[2]bool{file, file}, func(_ *failingKeyring, path string) { open(path) }, tokens[first]},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			path := filepath.Join(home, ".config", "hangar", contextsFile)
			k := &failingKeyring{kept: map[string]string{}}
			c := &Target{Keyring: k, Getenv: func(name string) string { return map[string]string{"HOME": home}[name] }}
			if _, err := c.KeepContext(&SavedContext{Name: "lab", URL: first}, tokens[first], tt.inFile[0]); err != nil {
				t.Fatal(err)
			}
			tt.spoil(k, path)
			func() {
				defer func() { _ = recover() }()
				_, _ = c.KeepContext(&SavedContext{Name: "lab", URL: second}, tokens[second], tt.inFile[1])
			}()
			if err := os.Chmod(path, 0o600); err != nil {
				t.Fatal(err)
			}
			all, err := c.Contexts()
			if err != nil || len(all.Contexts) != 1 {
				t.Fatalf("contexts are %+v, %v", all, err)
			}
			x := &all.Contexts[0]
			token, err := c.TokenOf(x)
			if err != nil || token != tt.want {
				t.Errorf("%s gets %q, %v, want %q", x.URL, token, err, tt.want)
			}
			if token != "" && token != tokens[x.URL] {
				t.Errorf("%s gets %q", x.URL, token)
			}
		})
	}
}

// open lets others write to a file, so that it is not used.
func open(path string) {
	if err := os.Chmod(path, 0o666); err != nil {
		panic(err)
	}
}

func refuse(k *failingKeyring, _ string) {
	k.before = func() error { return errors.New("refused") }
}
