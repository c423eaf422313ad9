package webhook

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/daemon"
	"github.com/hangar-platform/hangar/test/platform"
)

// user runs `hangar webhooks` with arguments.
type user struct {
	*testing.T
	env map[string]string
}

func (u user) run(args ...string) (code int, stdout, stderr string) {
	u.Helper()
	var out, errs bytes.Buffer
	inv := cli.New(cli.Streams{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs}, func(name string) string { return u.env[name] })
	code = inv.Run(u.Context(), NewCommand(inv), args)
	return code, out.String(), errs.String()
}

// want runs a command, and checks that its output has the texts.
func (u user) want(code int, args []string, texts ...string) string {
	u.Helper()
	got, out, errs := u.run(args...)
	if got != code {
		u.Fatalf("%v: exit status %d, not %d: %s%s", args, got, code, out, errs)
	}
	for _, text := range texts {
		if !strings.Contains(out+errs, text) {
			u.Errorf("%v: the output lacks %q:\n%s%s", args, text, out, errs)
		}
	}
	return out
}

// TestWebhooks creates, changes, tests and deletes a webhook.
func TestWebhooks(t *testing.T) {
	t.Parallel()
	refuses := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if refuses {
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	defer server.Close()
	p := platform.Start(t, platform.Options{Config: func(c *daemon.Config) { c.AllowWebhook = []string{"127.0.0.0/8"} }})
	if _, err := p.Client().CreateOrg(t.Context(), hangar.OrgCreate{Slug: "acme", Name: "Acme"}); err != nil {
		t.Fatal(err)
	}
	for _, app := range []hangar.AppName{"web", "worker"} {
		if _, err := p.Client().CreateApp(t.Context(), hangar.AppCreate{Name: app, Org: "acme"}); err != nil {
			t.Fatal(err)
		}
	}
	u := user{t, map[string]string{"HANGAR_URL": p.URL(), "HANGAR_TOKEN": p.Token()}}

	u.want(0, []string{"list", "acme"}, "No webhooks.")
	secret := strings.TrimSpace(u.want(0, []string{"create", "acme", server.URL + "/events", "--events", "start,exit"}, "Created webhook"))
	hooks, err := p.Client().Webhooks(t.Context(), "acme")
	if err != nil || len(hooks) != 1 || secret == "" {
		t.Fatalf("%v, %v, secret %q", hooks, err, secret)
	}
	id := string(hooks[0].ID)
	u.want(0, []string{"list", "acme"}, id, "start,exit", "ok", server.URL+"/events")
	u.want(0, []string{"show", "acme", id}, "Events", "start,exit", "Waiting", "0")
	u.want(0, []string{"ping", "acme", id}, "The event was accepted after", "HTTP 200")
	refuses = true
	u.want(cli.ExitFailed, []string{"ping", "acme", id}, "The event was not accepted", "HTTP 418")
	u.want(cli.ExitFailed, []string{"ping", "acme", id, "--json"}, `"delivered": false`)
	u.want(0, []string{"update", "acme", id, "--events", "all", "--app", "web,worker", "--original-names"}, "all", "web,worker")
	u.want(2, []string{"update", "acme", id}, "nothing to change")
	if next := strings.TrimSpace(u.want(0, []string{"rotate", "acme", id, "--overlap", "1h"}, "Requests are signed with the new secret from ")); next == "" || next == secret {
		t.Errorf("the new secret is %q, the one before %q", next, secret)
	}
	u.want(0, []string{"show", "acme", id}, "New secret signs from")
	u.want(0, []string{"deliveries", "acme", id}, "No deliveries.")
	if code, _, errs := u.run("resend", "acme", id, "none"); code == 0 || errs == "" {
		t.Errorf("an unknown delivery: exit status %d, %s", code, errs)
	}
	u.want(0, []string{"remove", "acme", id, "--yes"}, "Removed webhook")
	u.want(0, []string{"list", "acme"}, "No webhooks.")
	if code, _, errs := u.run("create", "acme", "ftp://example.com/"); code == 0 || !strings.Contains(errs, "url") {
		t.Errorf("a target that is not a web server: exit status %d, %s", code, errs)
	}
}
