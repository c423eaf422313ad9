// Package alerts keeps the rules and receivers of organizations' alerts, encrypted, in the cluster
// state.
//
// Alerts is the service; a hangar.AlertHost evaluates the rules, which it receives by a Feed. The
// package evaluates no rules and sends no notifications.
package alerts

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/control/vault"
	"github.com/hangar-platform/hangar/internal/keyset"
)

// record is a config as the state keeps it, encrypted.
type record struct {
	hangar.AlertConfig
	Secrets map[string]string `json:"secrets,omitempty"` // of webhooks, by the name of their receiver
}

func newRecord(config hangar.AlertConfig) record {
	rec := record{AlertConfig: withoutSecrets(config), Secrets: map[string]string{}}
	for _, r := range config.Receivers {
		if r.Webhook != nil {
			rec.Secrets[r.Name] = r.Webhook.Secret.Reveal()
		}
	}
	return rec
}

// config returns the config with its secrets.
func (r record) config() hangar.AlertConfig {
	config := r.AlertConfig
	config.Receivers = slices.Clone(config.Receivers)
	for i := range config.Receivers {
		one := &config.Receivers[i]
		if secret, ok := r.Secrets[one.Name]; ok && one.Webhook != nil {
			webhook := *one.Webhook
			webhook.Secret = hangar.NewSensitive(secret)
			one.Webhook = &webhook
		}
	}
	return config
}

// withoutSecrets returns a copy of a config without secrets, for the API.
func withoutSecrets(config hangar.AlertConfig) hangar.AlertConfig {
	config.Receivers = append([]hangar.AlertReceiver{}, config.Receivers...)
	for i := range config.Receivers {
		if w := config.Receivers[i].Webhook; w != nil {
			config.Receivers[i].Webhook = &hangar.AlertWebhook{URL: w.URL}
		}
	}
	return config
}

// keepSecrets gives webhooks without a secret the stored secret of the receiver with the same name
// and URL.
func keepSecrets(config, before hangar.AlertConfig) hangar.AlertConfig {
	config.Receivers = slices.Clone(config.Receivers)
	for i := range config.Receivers {
		one := &config.Receivers[i]
		if one.Webhook == nil || !one.Webhook.Secret.IsZero() {
			continue
		}
		for _, old := range before.Receivers {
			if old.Name == one.Name && old.Webhook != nil && old.Webhook.URL == one.Webhook.URL {
				one.Webhook = old.Webhook
			}
		}
	}
	return config
}

// Alerts implements hangar.AlertService.
type Alerts struct {
	store   state.Store
	tenants *tenants.Directory
	vault   *vault.Vault
	host    hangar.AlertHost
	now     func() time.Time
}

var _ hangar.AlertService = (*Alerts)(nil)

// New returns the service of the alerts in a state, which host evaluates.
func New(store state.Store, dir *tenants.Directory, v *vault.Vault, host hangar.AlertHost, now func() time.Time) *Alerts {
	return &Alerts{store: store, tenants: dir, vault: v, host: host, now: now}
}

// orgFor returns an organization if the caller may take all of actions there.
func (a *Alerts) orgFor(ctx context.Context, slug hangar.OrgSlug, actions ...hangar.Action) (org hangar.Org, item state.Item, err error) {
	p, err := tenants.Caller(ctx)
	for _, action := range actions {
		if err == nil {
			org, item, err = a.tenants.Org(ctx, p, slug, action)
		}
	}
	return org, item, err
}

func alertsNotFound(slug hangar.OrgSlug) error {
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonAlertsNotFound, "The organization %q has no rules for alerts", slug)
}

// read returns the record of an organization, and the condition that it is unchanged.
func (a *Alerts) read(ctx context.Context, org hangar.Org) (rec record, item state.Item, err error) {
	item, err = a.store.Get(ctx, state.AlertsKey(org.ID))
	if err == nil {
		rec, err = vault.Decode[record](a.vault, item)
	}
	if errors.Is(err, state.ErrNotFound) {
		return rec, item, alertsNotFound(org.Slug)
	}
	return rec, item, state.HangarError(err)
}

// AlertConfig implements hangar.AlertService.
func (a *Alerts) AlertConfig(ctx context.Context, slug hangar.OrgSlug) (hangar.AlertConfig, error) {
	org, _, err := a.orgFor(ctx, slug, hangar.ActionWrite)
	if err != nil {
		return hangar.AlertConfig{}, err
	}
	rec, _, err := a.read(ctx, org)
	return withoutSecrets(rec.AlertConfig), err
}

// SetAlerts implements hangar.AlertService.
func (a *Alerts) SetAlerts(ctx context.Context, slug hangar.OrgSlug, in hangar.AlertConfig) (hangar.AlertConfig, error) {
	// Rules read series, and notifications carry what they find to other servers.
	org, orgItem, err := a.orgFor(ctx, slug, hangar.ActionWrite, hangar.ActionMetrics)
	if err != nil {
		return hangar.AlertConfig{}, err
	}
	if err := a.host.CheckAlertRules(ctx, org, in.Rules); err != nil {
		return hangar.AlertConfig{}, err
	}
	for {
		before, item, err := a.read(ctx, org)
		cond := state.Unchanged(item)
		switch {
		case err == nil:
		case hangar.CodeOf(err) == hangar.CodeNotFound:
			cond = state.Absent(state.AlertsKey(org.ID))
		case hangar.ReasonOf(err) == hangar.ReasonRecordDamaged: // SetAlerts replaces an unreadable record, which is how it is repaired
			before = record{}
		default:
			return hangar.AlertConfig{}, err
		}
		next := keepSecrets(in, before.config())
		if err := next.Validate(); err != nil {
			return hangar.AlertConfig{}, err
		}
		next.UpdatedAt = a.now().UTC().Truncate(time.Second)
		err = a.vault.Txn(ctx, func(keys keyset.Keys) (state.Txn, error) {
			put, err := vault.Sealed(keys, state.AlertsKey(org.ID), newRecord(next))
			// An organization that is being deleted accepts no rules.
			return state.Txn{If: []state.Compare{cond, state.Unchanged(orgItem)}, Then: []state.Op{put}}, err
		})
		if err == nil {
			return withoutSecrets(next), nil
		}
		if !errors.Is(err, state.ErrConflict) {
			return hangar.AlertConfig{}, state.HangarError(err)
		}
		if org, orgItem, err = a.orgFor(ctx, slug, hangar.ActionWrite, hangar.ActionMetrics); err != nil {
			return hangar.AlertConfig{}, err
		}
	}
}

// DeleteAlerts implements hangar.AlertService.
func (a *Alerts) DeleteAlerts(ctx context.Context, slug hangar.OrgSlug) error {
	org, _, err := a.orgFor(ctx, slug, hangar.ActionWrite)
	if err != nil {
		return err
	}
	for {
		item, err := a.store.Get(ctx, state.AlertsKey(org.ID))
		if errors.Is(err, state.ErrNotFound) {
			return alertsNotFound(slug)
		}
		if err != nil {
			return state.HangarError(err)
		}
		_, err = a.store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{state.Delete(item.Key)}})
		if !errors.Is(err, state.ErrConflict) {
			return state.HangarError(err)
		}
	}
}

// Alerts implements hangar.AlertService.
func (a *Alerts) Alerts(ctx context.Context, slug hangar.OrgSlug) (hangar.AlertReport, error) {
	org, _, err := a.orgFor(ctx, slug, hangar.ActionMetrics)
	if err != nil {
		return hangar.AlertReport{}, err
	}
	return a.host.AlertReport(ctx, org.ID)
}

// TestAlerts implements hangar.AlertService.
func (a *Alerts) TestAlerts(ctx context.Context, slug hangar.OrgSlug, rules string) (hangar.AlertReport, error) {
	org, _, err := a.orgFor(ctx, slug, hangar.ActionMetrics)
	if err != nil {
		return hangar.AlertReport{}, err
	}
	return a.host.TestAlertRules(ctx, org, rules)
}
