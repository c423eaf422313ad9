package provider

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// run runs `hangar provider` with arguments.
func run(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	inv := cli.New(cli.Streams{Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errs}, func(string) string { return "" })
	code = inv.Run(t.Context(), NewCommand(inv), args)
	return code, out.String(), errs.String()
}

// TestCheck: the check finds a server that accepts requests without a signature, and its exit status says so.
func TestCheck(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"id":"1","config":{},"status":"ready"}`))
	}))
	defer server.Close()
	code, out, _ := run(t, "secret\n", "check", server.URL, "--secret-file", "-")
	for _, want := range []string{"ok      an extension is created\n", "BROKEN  a request without a signature is refused\n", "skipped webhooks are signed and whole\n", "not tested"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
	if code != 1 {
		t.Errorf("the exit status is %d", code)
	}
	if _, out, _ = run(t, "secret\n", "check", server.URL, "--secret-file", "-", "--json"); !strings.HasPrefix(out, `{"rule":"an extension is created","outcome":"kept"}`+"\n") {
		t.Errorf("as JSON: %s", out)
	}
}

func TestCheckUsage(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no secret":          {[]string{"check", "http://127.0.0.1:1"}, "secret-file"},
		"an empty secret":    {[]string{"check", "http://127.0.0.1:1", "--secret-file", empty}, "is empty"},
		"no such file":       {[]string{"check", "http://127.0.0.1:1", "--secret-file", empty + "x"}, "no such file"},
		"no base URL":        {[]string{"check", "x", "--secret-file", "-"}, "base URL"},
		"webhooks, unsigned": {[]string{"check", "http://127.0.0.1:1", "--secret-file", "-", "--webhook-url", "http://x/y"}, "webhook-secret-file"},
		"no webhook URL":     {[]string{"check", "http://127.0.0.1:1", "--secret-file", "-", "--webhook-url", "x"}, "absolute"},
	} {
		code, _, errs := run(t, "secret", c.args...)
		if code == 0 || !strings.Contains(errs, c.want) {
			t.Errorf("%s: exit status %d, %s", name, code, errs)
		}
	}
}
