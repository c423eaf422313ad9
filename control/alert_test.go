package control_test

import (
	"bytes"
	"context"
	"iter"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/alerts"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/vault"
)

// fakeAlerts is a hangar.AlertHost that takes every rule but "bad".
type fakeAlerts struct{}

func (fakeAlerts) CheckAlertRules(_ context.Context, _ hangar.Org, rules string) error {
	if rules == "bad" {
		return hangar.Errorf(hangar.CodeInvalid, "", "bad rules")
	}
	return nil
}

func (fakeAlerts) AlertReport(_ context.Context, org hangar.OrgID) (hangar.AlertReport, error) {
	return hangar.AlertReport{Groups: []hangar.AlertGroup{{Name: string(org)}}}, nil
}

func (fakeAlerts) TestAlertRules(_ context.Context, org hangar.Org, rules string) (hangar.AlertReport, error) {
	return hangar.AlertReport{Groups: []hangar.AlertGroup{{Name: string(org.ID) + rules}}}, nil
}

func (p *plane) alerts() *alerts.Alerts { return p.Alerts(fakeAlerts{}) }

const webhookSecret = "the secret of a webhook"

// alertConfig has a webhook and e-mail.
func alertConfig() hangar.AlertConfig {
	return hangar.AlertConfig{
		Rules: "groups: []",
		Receivers: []hangar.AlertReceiver{
			{Name: "hook", Webhook: &hangar.AlertWebhook{URL: "https://hook.example.com/path", Secret: hangar.NewSensitive(webhookSecret)}},
			{Name: "mail", Match: map[string]string{"severity": "page"}, Email: &hangar.AlertEmail{To: []string{"ops@example.com"}}},
		},
		Grouping: hangar.AlertGrouping{By: []string{"app"}},
	}
}

func TestAlerts(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		a := p.alerts()
		_, err := a.AlertConfig(admin(t), hangar.OrgPersonal)
		wantError(t, err, hangar.CodeNotFound, hangar.ReasonAlertsNotFound)
		wantError(t, a.DeleteAlerts(admin(t), hangar.OrgPersonal), hangar.CodeNotFound, hangar.ReasonAlertsNotFound)
		want := alertConfig()
		want.Receivers[0].Webhook.Secret = hangar.Sensitive{}
		made, err := a.SetAlerts(admin(t), hangar.OrgPersonal, alertConfig())
		if err != nil {
			t.Fatal(err)
		}
		got, err := a.AlertConfig(admin(t), hangar.OrgPersonal)
		if err != nil {
			t.Fatal(err)
		}
		for _, shown := range []hangar.AlertConfig{made, got} {
			if diff := cmp.Diff(want, shown, cmpopts.IgnoreFields(hangar.AlertConfig{}, "UpdatedAt"), cmp.AllowUnexported(hangar.Sensitive{})); diff != "" || shown.UpdatedAt.IsZero() {
				t.Error(diff)
			}
		}
		// What was read can be written: the secret stays. For another URL or name, it has to be
		// there.
		if _, err := a.SetAlerts(admin(t), hangar.OrgPersonal, got); err != nil {
			t.Error(err)
		}
		for _, change := range []func(r *hangar.AlertReceiver){
			func(r *hangar.AlertReceiver) { r.Name = "other" },
			func(r *hangar.AlertReceiver) { r.Webhook = &hangar.AlertWebhook{URL: "https://evil.example.com/"} },
		} {
			in := alertConfig()
			in.Receivers[0].Webhook.Secret = hangar.Sensitive{}
			change(&in.Receivers[0])
			if _, err := a.SetAlerts(admin(t), hangar.OrgPersonal, in); hangar.CodeOf(err) != hangar.CodeInvalid || !strings.Contains(err.Error(), "secret is required") {
				t.Errorf("without a secret: %v", err)
			}
		}
		bad := alertConfig()
		bad.Rules = "bad"
		if _, err := a.SetAlerts(admin(t), hangar.OrgPersonal, bad); hangar.CodeOf(err) != hangar.CodeInvalid {
			t.Errorf("bad rules: %v", err)
		}
		items, _, err := state.All(t.Context(), store, "/", false)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range items {
			if bytes.Contains(i.Value, []byte(webhookSecret)) || bytes.Contains(i.Value, []byte("hook.example.com")) {
				t.Errorf("%s holds it in clear: %s", i.Key, i.Value)
			}
		}
		org, err := p.Orgs().Org(admin(t), hangar.OrgPersonal)
		if err != nil {
			t.Fatal(err)
		}
		if report, err := a.Alerts(admin(t), hangar.OrgPersonal); err != nil || report.Groups[0].Name != string(org.ID) {
			t.Errorf("the report is of %v, %v", report.Groups, err)
		}
		if report, err := a.TestAlerts(admin(t), hangar.OrgPersonal, "x"); err != nil || report.Groups[0].Name != string(org.ID)+"x" {
			t.Errorf("the test is of %v, %v", report.Groups, err)
		}
		if err := a.DeleteAlerts(admin(t), hangar.OrgPersonal); err != nil {
			t.Error(err)
		}
		_, err = a.AlertConfig(admin(t), hangar.OrgPersonal)
		wantError(t, err, hangar.CodeNotFound, hangar.ReasonAlertsNotFound)
	})
}

// TestAlertFeed: what is evaluated follows the state, with secrets, over a rotation of the key,
// and ends with the organization.
func TestAlertFeed(t *testing.T) {
	onEachStore(t, func(t *testing.T, store state.Store) {
		p := newPlane(t, store)
		org, err := p.Orgs().CreateOrg(admin(t), hangar.OrgCreate{Slug: "acme"})
		if err != nil {
			t.Fatal(err)
		}
		next, stop := iter.Pull2(alerts.NewFeed(store, vault.New(store, p.keys, quiet), quiet).WatchAlerts(t.Context()))
		defer stop()
		want := func(n int) []hangar.OrgAlerts {
			t.Helper()
			set, err, ok := next()
			if err != nil || !ok || len(set) != n {
				t.Fatalf("the feed has %+v, %v, %t", set, err, ok)
			}
			return set
		}
		want(0)
		if _, err := p.alerts().SetAlerts(admin(t), "acme", alertConfig()); err != nil {
			t.Fatal(err)
		}
		check := func(one hangar.OrgAlerts) {
			t.Helper()
			if one.Org != *org || one.Unreadable || one.Config.Rules != "groups: []" || one.Config.Receivers[0].Webhook.Secret.Reveal() != webhookSecret || one.Config.Receivers[1].Match["severity"] != "page" {
				t.Errorf("the feed has %+v", one)
			}
		}
		check(want(1)[0])
		if _, err := p.Encryption().RotateEncryptionKey(admin(t)); err != nil {
			t.Fatal(err)
		}
		check(want(1)[0])
		if err := p.Orgs().DeleteOrg(admin(t), "acme"); err != nil {
			t.Fatal(err)
		}
		want(0)
		for _, key := range p.records(t, "/") {
			if strings.HasPrefix(key, "/alerts/") {
				t.Errorf("%s is left", key)
			}
		}
	})
}

// TestAlertRights: who may do what.
func TestAlertRights(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	a := p.alerts()
	if _, err := a.SetAlerts(admin(t), hangar.OrgPersonal, alertConfig()); err != nil {
		t.Fatal(err)
	}
	calls := map[string]func(ctx context.Context) error{
		"show": func(ctx context.Context) error { _, err := a.AlertConfig(ctx, hangar.OrgPersonal); return err },
		"set": func(ctx context.Context) error {
			_, err := a.SetAlerts(ctx, hangar.OrgPersonal, alertConfig())
			return err
		},
		"list":   func(ctx context.Context) error { _, err := a.Alerts(ctx, hangar.OrgPersonal); return err },
		"test":   func(ctx context.Context) error { _, err := a.TestAlerts(ctx, hangar.OrgPersonal, ""); return err },
		"delete": func(ctx context.Context) error { return a.DeleteAlerts(ctx, hangar.OrgPersonal) },
	}
	grant := func(actions hangar.Action, apps ...hangar.AppName) context.Context {
		return as(t, hangar.Principal{Subject: "me", Grants: []hangar.Grant{{Org: hangar.OrgPersonal, Actions: actions, Apps: apps}}})
	}
	for who, c := range map[string]struct {
		ctx  context.Context //nolint:containedctx // of a row
		may  string
		code hangar.Code // otherwise
	}{
		"nobody":        {t.Context(), "", hangar.CodeUnauthenticated},
		"a stranger":    {as(t, hangar.Principal{Subject: "you", Grants: []hangar.Grant{{Org: "other", Actions: hangar.ActionAll}}}), "", hangar.CodeNotFound},
		"one App":       {grant(hangar.ActionAll, "web"), "", hangar.CodeForbidden},
		"reader":        {grant(hangar.ActionRead), "", hangar.CodeForbidden},
		"metrics":       {grant(hangar.ActionMetrics), "list test", hangar.CodeForbidden},
		"writer":        {grant(hangar.ActionWrite), "show delete", hangar.CodeForbidden},
		"administrator": {grant(hangar.ActionAll), "show set list test delete", ""},
	} {
		for name, call := range calls {
			err := call(c.ctx)
			if may := strings.Contains(c.may, name); may != (err == nil) && hangar.ReasonOf(err) != hangar.ReasonAlertsNotFound || !may && hangar.CodeOf(err) != c.code {
				t.Errorf("%s, %s: %v", who, name, err)
			}
		}
	}
}
