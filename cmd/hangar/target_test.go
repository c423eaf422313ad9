package main

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// TestTheContextIsNotThatOfAnotherPlatform: what names another platform than the context in use neither signs in at
// that context, which would send it the token, nor signs out of it.
func TestTheContextIsNotThatOfAnotherPlatform(t *testing.T) {
	t.Parallel()
	serve := func(name string) *httptest.Server {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			t.Errorf("%s is sent %s %s with %q", name, r.Method, r.URL, r.Header.Get("Authorization"))
			http.NotFound(w, r)
		}))
		t.Cleanup(s.Close)
		return s
	}
	used, other := serve("the context in use"), serve("the other platform")
	for name, test := range map[string]struct {
		flags []string
		env   map[string]string
	}{
		"flag of a URL":                 {[]string{"--url", other.URL}, nil},
		"URL of the environment":        {nil, map[string]string{"HANGAR_URL": other.URL}},
		"flag of a directory":           {[]string{"--dir", "/nonexistent"}, nil},
		"directory of the environment":  {nil, map[string]string{"HANGAR_DIR": "/nonexistent"}},
		"flag of the daemon":            {[]string{"--context", "local"}, nil},
		"flag of a directory and a URL": {[]string{"--dir", "/nonexistent"}, map[string]string{"HANGAR_URL": other.URL}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home := t.TempDir()
			env := map[string]string{"HOME": home, "HANGAR_CONFIG": "/dev/null", "HANGAR_TOKEN": "secret"}
			maps.Copy(env, test.env)
			dir := filepath.Join(home, ".config", "hangar")
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			before := fmt.Sprintf(`{"current":"lab","contexts":[{"name":"lab","url":%q,"token":"kept"}]}`, used.URL)
			file := filepath.Join(dir, "contexts.json")
			if err := os.WriteFile(file, []byte(before), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, command := range []string{"login", "logout"} {
				var out strings.Builder
				c := cli.New(cli.Streams{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out}, func(name string) string { return env[name] })
				c.Keyring = &fakeKeyring{absent: true}
				code := run(t.Context(), c, append([]string{command}, test.flags...))
				if after, err := os.ReadFile(file); code != cli.ExitUsage || err != nil || string(after) != before {
					t.Errorf("%s: code %d\n%s%s, %v", command, code, &out, after, err)
				}
			}
		})
	}
}
