package webhooks

import (
	"context"
	"iter"
	"log/slog"
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/vault"
)

// Feed is the hangar.EventReceiverFeed of all webhooks in the state.
type Feed struct {
	store state.Store
	vault *vault.Vault
	log   *slog.Logger
}

var _ hangar.EventReceiverFeed = (*Feed)(nil)

// NewFeed returns the Feed of a state, with the Vault of that state.
func NewFeed(store state.Store, v *vault.Vault, log *slog.Logger) *Feed {
	return &Feed{store: store, vault: v, log: log}
}

// WatchEventReceivers implements hangar.EventReceiverFeed.
func (f *Feed) WatchEventReceivers(ctx context.Context) iter.Seq2[[]hangar.EventReceiver, error] {
	opened := vault.Opened[[]hangar.EventReceiver]{}
	return state.Snapshots(ctx, f.store, state.WebhooksPrefix, func(ctx context.Context) ([]hangar.EventReceiver, state.Revision, error) {
		items, revision, err := state.All(ctx, f.store, state.WebhooksPrefix, false)
		if err != nil {
			return nil, 0, err
		}
		return slices.Concat(opened.All(items, f.open)...), revision, nil
	})
}

// open returns the webhooks of an organization.
func (f *Feed) open(item state.Item) (all []hangar.EventReceiver, keep bool) {
	org := hangar.OrgID(strings.TrimPrefix(item.Key, state.WebhooksPrefix))
	rec, err := vault.Decode[record](f.vault, item)
	if err != nil {
		f.log.Error("webhooks cannot be read", "key", item.Key, "error", err)
		return []hangar.EventReceiver{{Org: org, Unreadable: true}}, false
	}
	for i := range rec.Webhooks {
		all = append(all, rec.Webhooks[i].receiver(org))
	}
	return all, true
}
