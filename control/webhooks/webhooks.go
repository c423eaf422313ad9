// Package webhooks keeps the webhooks of organizations, encrypted, in the cluster state.
//
// Webhooks is the service. A hangar.EventDelivery delivers to the webhooks, which it receives by a
// Feed. The package sends nothing.
package webhooks

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/control/vault"
	"github.com/hangar-platform/hangar/internal/keyset"
	"github.com/hangar-platform/hangar/internal/random"
	"github.com/hangar-platform/hangar/provider"
)

// Webhooks implements hangar.WebhookService.
type Webhooks struct {
	store    state.Store
	tenants  *tenants.Directory
	vault    *vault.Vault
	delivery hangar.EventDelivery
	now      func() time.Time
}

var _ hangar.WebhookService = (*Webhooks)(nil)

// New returns the service of the webhooks in a state, to which delivery delivers.
func New(store state.Store, dir *tenants.Directory, v *vault.Vault, delivery hangar.EventDelivery, now func() time.Time) *Webhooks {
	return &Webhooks{store: store, tenants: dir, vault: v, delivery: delivery, now: now}
}

// awaitPatience bounds how long an answer waits until the change applies to deliveries. The change
// is stored in any case.
const awaitPatience = 2 * time.Second

func notFound(id hangar.WebhookID) error {
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonWebhookNotFound, "There is no webhook %.40q", string(id))
}

// org returns an organization if the caller may write there.
func (w *Webhooks) org(ctx context.Context, slug hangar.OrgSlug) (hangar.Org, state.Item, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return hangar.Org{}, state.Item{}, err
	}
	return w.tenants.Org(ctx, p, slug, hangar.ActionWrite)
}

// read returns the record of an organization, and the condition that it is unchanged.
func (w *Webhooks) read(ctx context.Context, org hangar.Org) (rec record, cond state.Compare, err error) {
	key := state.WebhooksKey(org.ID)
	item, err := w.store.Get(ctx, key)
	if errors.Is(err, state.ErrNotFound) {
		return record{}, state.Absent(key), nil
	}
	if err == nil {
		rec, err = vault.Decode[record](w.vault, item)
	}
	return rec, state.Unchanged(item), state.HangarError(err)
}

// change applies alter to the record of an organization. It repeats that after a conflict.
func (w *Webhooks) change(ctx context.Context, slug hangar.OrgSlug, alter func(org hangar.Org, rec *record) error) (hangar.Org, error) {
	for {
		org, orgItem, err := w.org(ctx, slug)
		if err != nil {
			return org, err
		}
		rec, cond, err := w.read(ctx, org)
		if err == nil {
			err = alter(org, &rec)
		}
		if err != nil {
			return org, err
		}
		err = w.vault.Txn(ctx, func(keys keyset.Keys) (state.Txn, error) {
			// An organization that is being deleted accepts no webhooks.
			txn := state.Txn{If: []state.Compare{cond, state.Unchanged(orgItem)}}
			if len(rec.Webhooks) == 0 {
				txn.Then = []state.Op{state.Delete(state.WebhooksKey(org.ID))}
				return txn, nil
			}
			put, err := vault.Sealed(keys, state.WebhooksKey(org.ID), rec)
			txn.Then = []state.Op{put}
			return txn, err
		})
		if !errors.Is(err, state.ErrConflict) {
			return org, state.HangarError(err)
		}
	}
}

// settle waits until deliveries use the stored webhook, and returns its view. A failure is none of the caller's: the
// webhook is stored, and its secret is shown once.
func (w *Webhooks) settle(ctx context.Context, org hangar.Org, made webhook, names map[hangar.AppID]hangar.AppName) hangar.Webhook {
	wait, cancel := context.WithTimeout(ctx, awaitPatience)
	defer cancel()
	_ = w.delivery.AwaitReceiver(wait, receiverID(org.ID, made.ID), made.Version)
	return w.shown(org, made, names)
}

func (w *Webhooks) shown(org hangar.Org, one webhook, names map[hangar.AppID]hangar.AppName) hangar.Webhook {
	v := one.view(w.now(), names)
	v.Status = w.delivery.ReceiverStatus(receiverID(org.ID, one.ID))
	return v
}

// names returns the names of the Apps of an organization, if its webhooks have any.
func (w *Webhooks) names(ctx context.Context, org hangar.OrgID, list []webhook) (map[hangar.AppID]hangar.AppName, error) {
	if !slices.ContainsFunc(list, func(one webhook) bool { return len(one.Apps) > 0 }) {
		return nil, nil //nolint:nilnil // an empty map
	}
	prefix := state.OrgAppKey(org, "")
	items, _, err := state.All(ctx, w.store, prefix, false)
	if err != nil {
		return nil, state.HangarError(err)
	}
	names := make(map[hangar.AppID]hangar.AppName, len(items))
	for _, item := range items {
		names[hangar.AppID(item.Value)] = hangar.AppName(strings.TrimPrefix(item.Key, prefix))
	}
	return names, nil
}

// apps returns the ids of Apps of an organization.
func (w *Webhooks) apps(ctx context.Context, org hangar.Org, names []hangar.AppName) (ids []hangar.AppID, err error) {
	if len(names) > hangar.MaxWebhookApps {
		return nil, hangar.Errorf(hangar.CodeInvalid, "", "invalid apps: there are %d, more than the %d that are allowed", len(names), hangar.MaxWebhookApps)
	}
	for _, name := range names {
		app, _, err := w.tenants.App(ctx, name, hangar.ActionRead)
		if err == nil && app.OrgID != org.ID {
			err = hangar.Errorf(hangar.CodeInvalid, "", "invalid apps: the App %q is one of another organization", string(name))
		}
		if err != nil {
			return nil, err
		}
		if !slices.Contains(ids, app.ID) {
			ids = append(ids, app.ID)
		}
	}
	return ids, nil
}

// checkURL answers CodeInvalid for a URL that cannot be called, or signed.
func checkURL(ctx context.Context, target string) error {
	if err := hangar.ValidateWebhookURL(target); err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, target, http.NoBody)
	if err == nil {
		err = provider.Signer{Secret: "x"}.Sign(r)
	}
	if err != nil {
		return hangar.Errorf(hangar.CodeInvalid, "", "invalid url: requests to it cannot be signed")
	}
	return nil
}

// CreateWebhook implements hangar.WebhookService.
func (w *Webhooks) CreateWebhook(ctx context.Context, slug hangar.OrgSlug, in hangar.WebhookCreate) (hangar.WebhookSecret, error) {
	var made webhook
	var names map[hangar.AppID]hangar.AppName
	org, err := w.change(ctx, slug, func(org hangar.Org, rec *record) error {
		if err := checkURL(ctx, in.URL); err != nil {
			return err
		}
		if err := hangar.ValidateWebhookEvents(in.Events); err != nil {
			return err
		}
		apps, err := w.apps(ctx, org, in.Apps)
		if err != nil {
			return err
		}
		if len(rec.Webhooks) >= hangar.MaxWebhooks {
			return hangar.Errorf(hangar.CodeExhausted, hangar.ReasonQuota, "The organization has %d webhooks, as many as it may", len(rec.Webhooks))
		}
		now := w.now().UTC().Truncate(time.Second)
		made = webhook{
			ID: hangar.WebhookID("wh_" + random.ID()), Version: 1, URL: in.URL, Events: in.Events, Apps: apps, OriginalNames: in.OriginalNames,
			Secret: newSecret(), CreatedAt: now, UpdatedAt: now,
		}
		rec.Webhooks = append(rec.Webhooks, made)
		names, err = w.names(ctx, org.ID, []webhook{made})
		return err
	})
	if err != nil {
		return hangar.WebhookSecret{}, err
	}
	return hangar.WebhookSecret{Webhook: w.settle(ctx, org, made, names), Secret: made.Secret}, nil
}

// Webhooks implements hangar.WebhookService.
func (w *Webhooks) Webhooks(ctx context.Context, slug hangar.OrgSlug) ([]hangar.Webhook, error) {
	org, _, err := w.org(ctx, slug)
	if err != nil {
		return nil, err
	}
	rec, _, err := w.read(ctx, org)
	if err != nil {
		return nil, err
	}
	names, err := w.names(ctx, org.ID, rec.Webhooks)
	if err != nil {
		return nil, err
	}
	list := []hangar.Webhook{}
	for _, one := range rec.Webhooks {
		list = append(list, w.shown(org, one, names))
	}
	return list, nil
}

// one returns a webhook.
func (w *Webhooks) one(ctx context.Context, slug hangar.OrgSlug, id hangar.WebhookID) (hangar.Org, webhook, error) {
	org, _, err := w.org(ctx, slug)
	if err != nil {
		return org, webhook{}, err
	}
	rec, _, err := w.read(ctx, org)
	if err != nil {
		return org, webhook{}, err
	}
	found := rec.find(id)
	if found == nil {
		return org, webhook{}, notFound(id)
	}
	return org, *found, nil
}

// Webhook implements hangar.WebhookService.
func (w *Webhooks) Webhook(ctx context.Context, slug hangar.OrgSlug, id hangar.WebhookID) (hangar.Webhook, error) {
	org, found, err := w.one(ctx, slug, id)
	if err != nil {
		return hangar.Webhook{}, err
	}
	names, err := w.names(ctx, org.ID, []webhook{found})
	return w.shown(org, found, names), err
}

// alter changes one webhook.
func (w *Webhooks) alter(ctx context.Context, slug hangar.OrgSlug, id hangar.WebhookID, alter func(org hangar.Org, one *webhook, now time.Time) error) (hangar.Webhook, error) {
	var made webhook
	var names map[hangar.AppID]hangar.AppName
	org, err := w.change(ctx, slug, func(org hangar.Org, rec *record) (err error) {
		found := rec.find(id)
		if found == nil {
			return notFound(id)
		}
		now := w.now().UTC().Truncate(time.Second)
		if err := alter(org, found, now); err != nil {
			return err
		}
		found.Version++
		found.UpdatedAt = now
		made = *found
		names, err = w.names(ctx, org.ID, []webhook{made})
		return err
	})
	if err != nil {
		return hangar.Webhook{}, err
	}
	return w.settle(ctx, org, made, names), nil
}

// UpdateWebhook implements hangar.WebhookService.
func (w *Webhooks) UpdateWebhook(ctx context.Context, slug hangar.OrgSlug, id hangar.WebhookID, in hangar.WebhookUpdate) (hangar.Webhook, error) {
	return w.alter(ctx, slug, id, func(org hangar.Org, one *webhook, _ time.Time) error {
		if in.URL != nil {
			if err := checkURL(ctx, *in.URL); err != nil {
				return err
			}
			one.URL = *in.URL
		}
		if in.Events != nil {
			if err := hangar.ValidateWebhookEvents(*in.Events); err != nil {
				return err
			}
			one.Events = *in.Events
		}
		if in.Apps != nil {
			apps, err := w.apps(ctx, org, *in.Apps)
			if err != nil {
				return err
			}
			one.Apps = apps
		}
		if in.OriginalNames != nil {
			one.OriginalNames = *in.OriginalNames
		}
		return nil
	})
}

// RotateWebhook implements hangar.WebhookService.
func (w *Webhooks) RotateWebhook(ctx context.Context, slug hangar.OrgSlug, id hangar.WebhookID, in hangar.WebhookRotate) (hangar.WebhookSecret, error) {
	overlap := hangar.DefaultWebhookOverlap
	if in.Overlap != nil {
		overlap = time.Duration(*in.Overlap)
	}
	secret := ""
	shown, err := w.alter(ctx, slug, id, func(_ hangar.Org, one *webhook, now time.Time) error {
		if overlap < 0 || overlap > hangar.MaxWebhookOverlap {
			return hangar.Errorf(hangar.CodeInvalid, "", "invalid overlap: %s is not between 0s and %s", overlap, hangar.MaxWebhookOverlap)
		}
		secret = one.rotate(now, overlap)
		return nil
	})
	return hangar.WebhookSecret{Webhook: shown, Secret: secret}, err
}

// RemoveWebhook implements hangar.WebhookService.
func (w *Webhooks) RemoveWebhook(ctx context.Context, slug hangar.OrgSlug, id hangar.WebhookID) error {
	_, err := w.change(ctx, slug, func(_ hangar.Org, rec *record) error {
		if rec.find(id) == nil {
			return notFound(id)
		}
		rec.Webhooks = slices.DeleteFunc(rec.Webhooks, func(one webhook) bool { return one.ID == id })
		return nil
	})
	return err
}

// WebhookDeliveries implements hangar.WebhookService.
func (w *Webhooks) WebhookDeliveries(ctx context.Context, slug hangar.OrgSlug, id hangar.WebhookID, q hangar.DeliveryQuery) ([]hangar.WebhookDelivery, error) {
	org, found, err := w.one(ctx, slug, id)
	if err != nil {
		return nil, err
	}
	if err := q.Validate(); err != nil {
		return nil, err
	}
	return w.delivery.ReceiverDeliveries(receiverID(org.ID, found.ID), q)
}

// ResendDelivery implements hangar.WebhookService.
func (w *Webhooks) ResendDelivery(ctx context.Context, slug hangar.OrgSlug, id hangar.WebhookID, delivery hangar.DeliveryID) (hangar.WebhookDelivery, error) {
	org, found, err := w.one(ctx, slug, id)
	if err != nil {
		return hangar.WebhookDelivery{}, err
	}
	return w.delivery.Resend(receiverID(org.ID, found.ID), delivery)
}

// PingWebhook implements hangar.WebhookService.
func (w *Webhooks) PingWebhook(ctx context.Context, slug hangar.OrgSlug, id hangar.WebhookID) (hangar.WebhookPing, error) {
	org, found, err := w.one(ctx, slug, id)
	if err != nil {
		return hangar.WebhookPing{}, err
	}
	return w.delivery.Ping(ctx, receiverID(org.ID, found.ID))
}
