package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/test/platform"
)

// fakeKeyring keeps tokens in memory. It returns errors while it is locked.
type fakeKeyring struct {
	tokens map[string]string
	absent bool
	broken error
}

func (k *fakeKeyring) Here() bool { return !k.absent }

func (k *fakeKeyring) Get(context string) (string, error) {
	token, ok := k.tokens[context]
	if !ok && k.broken == nil {
		return "", errors.New("no such token")
	}
	return token, k.broken
}

func (k *fakeKeyring) Set(context, token string) error {
	if k.broken == nil {
		k.tokens[context] = token
	}
	return k.broken
}

func (k *fakeKeyring) Remove(context string) error {
	if k.broken == nil {
		delete(k.tokens, context)
	}
	return k.broken
}

// laptop is a computer with a keyring and a home directory, on which a test runs commands.
type laptop struct {
	t    *testing.T
	home string
	keys *fakeKeyring
}

// run executes a command line with standard input and returns the code and the output.
func (l *laptop) run(stdin string, args ...string) (int, string) {
	l.t.Helper()
	var out strings.Builder
	c := cli.New(cli.Streams{Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &out}, func(name string) string {
		return map[string]string{"HOME": l.home, "HANGAR_CONFIG": "/dev/null"}[name]
	})
	c.Keyring = l.keys
	code := run(l.t.Context(), c, args)
	return code, out.String()
}

// must runs a command line that must succeed.
func (l *laptop) must(stdin string, args ...string) string {
	l.t.Helper()
	code, out := l.run(stdin, args...)
	if code != cli.ExitOK {
		l.t.Fatalf("hangar %s: code %d\n%s", strings.Join(args, " "), code, out)
	}
	return out
}

// file returns the content of the file of contexts.
func (l *laptop) file() string {
	l.t.Helper()
	raw, err := os.ReadFile(filepath.Join(l.home, ".config", "hangar", "contexts.json"))
	if err != nil {
		l.t.Fatal(err)
	}
	return string(raw)
}

// newPlatform serves an empty platform, and returns its URL and a token for it.
func newPlatform(t *testing.T) (url, token string) {
	t.Helper()
	p := platform.Start(t, platform.Options{})
	admin := &laptop{t, t.TempDir(), &fakeKeyring{absent: true}}
	out := admin.must("", "tokens", "create", "org", "personal", "--url", p.URL(), "--token", p.Token())
	return p.URL(), strings.TrimSpace(out[strings.LastIndex(out, "hgr_"):])
}

// TestLoginNeedsAPlatform: another program answers at that address.
func TestLoginNeedsAPlatform(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	l := &laptop{t, t.TempDir(), &fakeKeyring{absent: true}}
	code, out := l.run("token", "login", other.URL, "--token-stdin")
	if code != cli.ExitNotFound || !strings.Contains(out, other.URL+" is not the API of a platform") {
		t.Errorf("code %d\n%s", code, out)
	}
	for _, token := range []string{"", "two words", "ümlaut"} {
		if code, out := l.run(token, "login", other.URL, "--token-stdin"); code == cli.ExitOK || code == cli.ExitNotFound {
			t.Errorf("%q: code %d\n%s", token, code, out)
		}
	}
}

func TestTokensAreKeptInTheKeyring(t *testing.T) {
	t.Parallel()
	url, token := newPlatform(t)
	l := &laptop{t, t.TempDir(), &fakeKeyring{tokens: map[string]string{}}}
	if out := l.must(token+"\n", "login", url, "--name", "lab", "--token-stdin"); !strings.Contains(out, "kept in the keyring") {
		t.Errorf("login says\n%s", out)
	}
	if l.keys.tokens["lab"] != url+" "+token || strings.Contains(l.file(), token) {
		t.Errorf("keyring has %q, the file\n%s", l.keys.tokens["lab"], l.file())
	}
	l.must("", "apps", "list")

	l.keys.broken = errors.New("locked")
	code, out := l.run("", "apps", "list")
	if code != cli.ExitFailed || !strings.Contains(out, "read the token of context lab from the keyring: locked") || !strings.Contains(out, "--no-keyring") {
		t.Errorf("with a locked keyring: %d\n%s", code, out)
	}
	// Signing in works although the keyring is locked.
	if out := l.must(token, "login", url, "--name", "other", "--token-stdin"); !strings.Contains(out, "(the keyring refused it: locked)") {
		t.Errorf("login says\n%s", out)
	}
	l.must("", "apps", "list")
	l.keys.broken = nil

	// The token is in one place only.
	l.must(token, "login", "--context", "lab", "--token-stdin", "--no-keyring")
	if len(l.keys.tokens) != 0 || !strings.Contains(l.file(), token) {
		t.Errorf("keyring has %v", l.keys.tokens)
	}
	l.must("", "apps", "list", "--context", "lab")
	l.must(token, "login", "--context", "lab", "--token-stdin")
	l.must("", "context", "remove", "other")
	if strings.Contains(l.file(), token) {
		t.Errorf("the file still has the token:\n%s", l.file())
	}
	l.must("", "logout", "lab")
	if len(l.keys.tokens) != 0 {
		t.Errorf("after logout the keyring has %v", l.keys.tokens)
	}
	if code, _ := l.run("", "apps", "list", "--context", "lab"); code != cli.ExitDenied {
		t.Errorf("after logout: %d", code)
	}
}

// TestLoginsAtOnceAreAllKept: several commands change the file at the same time.
func TestLoginsAtOnceAreAllKept(t *testing.T) {
	t.Parallel()
	url, token := newPlatform(t)
	l := &laptop{t, t.TempDir(), &fakeKeyring{absent: true}}
	names := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() {
			if code, out := l.run(token, "login", url, "--name", name, "--token-stdin"); code != cli.ExitOK {
				t.Errorf("login %s: %d\n%s", name, code, out)
			}
		})
	}
	all.Wait()
	if out := l.must("", "context", "list", "-q"); out != strings.Join(names, "\n")+"\n" {
		t.Errorf("kept are\n%s", out)
	}
}
