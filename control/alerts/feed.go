package alerts

import (
	"context"
	"iter"
	"log/slog"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/control/vault"
)

// Feed is the hangar.AlertFeed of the alert configs in the state.
type Feed struct {
	store state.Store
	vault *vault.Vault
	log   *slog.Logger
}

var _ hangar.AlertFeed = (*Feed)(nil)

// NewFeed returns the Feed of a state, with the Vault of that state.
func NewFeed(store state.Store, v *vault.Vault, log *slog.Logger) *Feed {
	return &Feed{store: store, vault: v, log: log}
}

// WatchAlerts implements hangar.AlertFeed.
func (r *Feed) WatchAlerts(ctx context.Context) iter.Seq2[[]hangar.OrgAlerts, error] {
	opened := vault.Opened[hangar.OrgAlerts]{}
	return state.Snapshots(ctx, r.store, state.AlertsPrefix, func(ctx context.Context) ([]hangar.OrgAlerts, state.Revision, error) {
		return r.read(ctx, opened)
	})
}

// read returns all configs as of a revision. opened caches decrypted ones.
func (r *Feed) read(ctx context.Context, opened vault.Opened[hangar.OrgAlerts]) ([]hangar.OrgAlerts, state.Revision, error) {
	items, revision, err := state.All(ctx, r.store, state.AlertsPrefix, false)
	if err != nil {
		return nil, 0, err
	}
	orgs, err := tenants.OrgsByID(ctx, r.store, func(item state.Item, err error) {
		r.log.Error("organization skipped", "key", item.Key, "error", err)
	})
	if err != nil {
		return nil, 0, err
	}
	return opened.All(items, func(item state.Item) (hangar.OrgAlerts, bool) {
		one := r.open(item, orgs)
		return one, !one.Unreadable
	}), revision, nil
}

func (r *Feed) open(item state.Item, orgs map[hangar.OrgID]tenants.OrgRecord) hangar.OrgAlerts {
	id := hangar.OrgID(strings.TrimPrefix(item.Key, state.AlertsPrefix))
	org, known := orgs[id]
	if !known {
		return hangar.OrgAlerts{Org: hangar.Org{ID: id}, Unreadable: true}
	}
	rec, err := vault.Decode[record](r.vault, item)
	if err != nil {
		r.log.Error("rules of alerts cannot be read", "key", item.Key, "error", err)
		return hangar.OrgAlerts{Org: org.Org, Unreadable: true}
	}
	return hangar.OrgAlerts{Org: org.Org, Config: rec.config()}
}
