package webhooks

import (
	"context"
	"iter"
	"log/slog"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/vault"
)

// Feed tells who delivers of all webhooks: a hangar.EventReceiverFeed over the state.
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

// opened are the webhooks of a record that was decrypted, as of a revision.
type opened struct {
	revision  state.Revision
	receivers []hangar.EventReceiver
}

// WatchEventReceivers implements hangar.EventReceiverFeed.
func (f *Feed) WatchEventReceivers(ctx context.Context) iter.Seq2[[]hangar.EventReceiver, error] {
	known := map[string]opened{}
	return state.Snapshots(ctx, f.store, state.WebhooksPrefix, func(ctx context.Context) ([]hangar.EventReceiver, state.Revision, error) {
		return f.read(ctx, known)
	})
}

// read returns all webhooks as of a revision, and keeps in known what it has decrypted.
func (f *Feed) read(ctx context.Context, known map[string]opened) (all []hangar.EventReceiver, _ state.Revision, _ error) {
	items, revision, err := state.All(ctx, f.store, state.WebhooksPrefix, false)
	if err != nil {
		return nil, 0, err
	}
	there := make(map[string]bool, len(items))
	for _, item := range items {
		there[item.Key] = true
		one, ok := known[item.Key]
		if !ok || one.revision != item.Revision {
			org := hangar.OrgID(strings.TrimPrefix(item.Key, state.WebhooksPrefix))
			rec, err := open(f.vault, item)
			if err != nil {
				f.log.Error("webhooks cannot be read", "key", item.Key, "err", err)
				all = append(all, hangar.EventReceiver{Org: org, Unreadable: true})
				continue
			}
			one = opened{revision: item.Revision}
			for i := range rec.Webhooks {
				one.receivers = append(one.receivers, rec.Webhooks[i].receiver(org))
			}
			known[item.Key] = one
		}
		all = append(all, one.receivers...)
	}
	for key := range known {
		if !there[key] {
			delete(known, key)
		}
	}
	return all, revision, nil
}
