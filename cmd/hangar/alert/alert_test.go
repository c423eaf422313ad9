package alert

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// keptAlerts is a hangar.AlertService that records its calls.
type keptAlerts struct {
	org    hangar.OrgSlug
	config *hangar.AlertConfig
	tested string
}

func (k *keptAlerts) AlertConfig(_ context.Context, org hangar.OrgSlug) (hangar.AlertConfig, error) {
	k.org = org
	if k.config == nil {
		return hangar.AlertConfig{}, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonAlertsNotFound, "no rules")
	}
	return *k.config, nil
}

func (k *keptAlerts) SetAlerts(_ context.Context, org hangar.OrgSlug, in hangar.AlertConfig) (hangar.AlertConfig, error) {
	k.org, k.config = org, &in
	return in, in.Validate()
}

func (k *keptAlerts) DeleteAlerts(_ context.Context, org hangar.OrgSlug) error {
	k.org, k.config = org, nil
	return nil
}

func (k *keptAlerts) Alerts(_ context.Context, org hangar.OrgSlug) (hangar.AlertReport, error) {
	k.org = org
	at := time.Now().Add(-2 * time.Hour)
	return hangar.AlertReport{
		Groups:    []hangar.AlertGroup{{Name: "g", Rules: []hangar.AlertRule{{Name: "Bad", Health: hangar.AlertHealthError, Error: "no such function"}}}},
		Alerts:    []hangar.Alert{{Group: "g", Name: "Down", State: hangar.AlertFiring, Labels: map[string]string{"alertname": "Down", "app": "web"}, Value: 0.5, ActiveAt: at}},
		Receivers: []hangar.AlertReceiverStatus{{Name: "ops", FailedAt: at, Error: "the webhook answers with status 500"}},
	}, nil
}

func (k *keptAlerts) TestAlerts(ctx context.Context, org hangar.OrgSlug, rules string) (hangar.AlertReport, error) {
	k.tested = rules
	return k.Alerts(ctx, org)
}

type everybody struct{}

func (everybody) Authenticate(context.Context, string) (hangar.Principal, error) {
	return hangar.Principal{Subject: "admin", Admin: true}, nil
}

func (everybody) Life(hangar.TokenID) context.Context { return context.Background() }

// TestAlertsCommands: from files over the API to the service, and back.
func TestAlertsCommands(t *testing.T) {
	t.Parallel()
	service := &keptAlerts{}
	server := httptest.NewServer(api.New(api.Config{Alerts: service, Auth: everybody{}, Log: slog.New(slog.DiscardHandler)}))
	defer server.Close()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	var out, errs strings.Builder
	run := func(want int, args ...string) {
		t.Helper()
		out.Reset()
		errs.Reset()
		c := cli.New(cli.Streams{Stdin: strings.NewReader("groups: [from stdin]"), Stdout: &out, Stderr: &errs}, func(name string) string {
			return map[string]string{"HANGAR_URL": server.URL, "HANGAR_TOKEN": "x", "HOME": dir}[name]
		})
		if code := c.Run(t.Context(), NewCommand(c), args); code != want {
			t.Fatalf("%v: code %d, not %d\n%s%s", args, code, want, &out, &errs)
		}
	}
	says := func(b *strings.Builder, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(b.String(), w) {
				t.Errorf("%q is not in\n%s", w, b)
			}
		}
	}
	rules := write("rules.yml", "groups: []\n")
	run(0, "set", rules)
	says(&errs, "no notifications are sent")
	write("secret", "0123456789abcdef\n")
	receivers := write("receivers.yml", `
receivers:
  - name: ops
    match: {severity: page}
    send_resolved: false
    webhook: {url: "https://example.com/x", secret_file: secret}
  - name: mail
    email: {to: [ops@example.com]}
grouping: {group_by: [app], repeat_interval: 12h}
`)
	run(0, "set", rules, "--receivers", receivers, "--org", "acme")
	got := service.config
	if service.org != "acme" || got.Rules != "groups: []\n" || len(got.Receivers) != 2 || got.Receivers[0].Webhook.Secret.Reveal() != "0123456789abcdef" ||
		got.Receivers[0].WantsResolved() || got.Receivers[0].Match["severity"] != "page" || got.Receivers[1].Email.To[0] != "ops@example.com" ||
		got.Grouping.Repeat != hangar.Duration(12*time.Hour) || got.Grouping.By[0] != "app" {
		t.Errorf("%s has %+v", service.org, got)
	}
	run(0, "show")
	says(&out, "# receiver ops: https://example.com/x  if severity=\"page\"", "# receiver mail: ops@example.com", "repeated after 12h0m0s\ngroups: []\n")
	if service.org != hangar.OrgPersonal || strings.Contains(out.String(), "0123456789abcdef") {
		t.Errorf("%s is shown %s", service.org, &out)
	}
	for name, text := range map[string]string{"unknown field": "receivers: [{name: a, web: b}]", "unknown secret": "receivers: [{name: a, webhook: {url: x, key: y}}]", "no YAML": "["} {
		run(1, "set", rules, "--receivers", write("bad.yml", text))
		if !strings.Contains(errs.String(), "bad.yml") {
			t.Errorf("%s: %s", name, &errs)
		}
	}
	run(0, "list")
	says(&out, "STATE", "firing", "Down", "2h ago", "0.5", `app="web"`)
	says(&errs, "Group g, rule Bad: no such function", "Receiver ops, 2h ago: the webhook answers with status 500")
	run(0, "list", "--json")
	says(&out, `"value": "0.5"`)
	run(1, "test", "-") // a rule is not healthy
	run(1, "test", "-", "--json")
	says(&out, `"value": "0.5"`)
	if service.tested != "groups: [from stdin]" {
		t.Errorf("tested %q", service.tested)
	}
	run(0, "remove", "--yes")
	if service.config != nil {
		t.Error("the rules still exist")
	}
	run(3, "show")
}
