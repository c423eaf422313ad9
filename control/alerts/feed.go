package alerts

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/control/vault"
)

// Feed is where the evaluation of alerts learns what to evaluate: a hangar.AlertFeed
// over the state.
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
	return func(yield func([]hangar.OrgAlerts, error) bool) {
		opened := map[string]openedAlerts{}
		for ctx.Err() == nil {
			set, revision, err := r.read(ctx, opened)
			if err == nil && !yield(set, nil) {
				return
			}
			if err == nil {
				err = r.change(ctx, revision+1)
			}
			if ctx.Err() != nil {
				return
			}
			if err != nil && !errors.Is(err, state.ErrCompacted) {
				yield(nil, state.HangarError(err))
				return
			}
		}
	}
}

// openedAlerts is a config that was decrypted, as of a revision.
type openedAlerts struct {
	revision state.Revision
	alerts   hangar.OrgAlerts
}

// read returns all configs as of a revision, and keeps in opened what it has decrypted.
func (r *Feed) read(ctx context.Context, opened map[string]openedAlerts) (set []hangar.OrgAlerts, _ state.Revision, _ error) {
	items, revision, err := state.All(ctx, r.store, state.AlertsPrefix, false)
	if err != nil {
		return nil, 0, err
	}
	orgs, err := r.orgs(ctx)
	if err != nil {
		return nil, 0, err
	}
	there := make(map[string]bool, len(items))
	for _, item := range items {
		there[item.Key] = true
		one, ok := opened[item.Key]
		if !ok || one.revision != item.Revision {
			one = openedAlerts{item.Revision, r.open(item, orgs)}
			if !one.alerts.Unreadable {
				opened[item.Key] = one
			}
		}
		set = append(set, one.alerts)
	}
	for key := range opened {
		if !there[key] {
			delete(opened, key)
		}
	}
	return set, revision, nil
}

// orgs are the organizations by their ids.
func (r *Feed) orgs(ctx context.Context) (map[hangar.OrgID]hangar.Org, error) {
	items, _, err := state.All(ctx, r.store, state.OrgsPrefix, false)
	if err != nil {
		return nil, err
	}
	orgs := make(map[hangar.OrgID]hangar.Org, len(items))
	for _, item := range items {
		rec, err := state.Decode[tenants.OrgRecord](item)
		if err != nil {
			r.log.Error("organization skipped", "key", item.Key, "err", err)
			continue
		}
		orgs[rec.ID] = rec.Org
	}
	return orgs, nil
}

func (r *Feed) open(item state.Item, orgs map[hangar.OrgID]hangar.Org) hangar.OrgAlerts {
	id := hangar.OrgID(strings.TrimPrefix(item.Key, state.AlertsPrefix))
	org, known := orgs[id]
	if !known {
		return hangar.OrgAlerts{Org: hangar.Org{ID: id}, Unreadable: true}
	}
	rec, err := open(r.vault, item)
	if err != nil {
		r.log.Error("rules of alerts cannot be read", "key", item.Key, "err", err)
		return hangar.OrgAlerts{Org: org, Unreadable: true}
	}
	return hangar.OrgAlerts{Org: org, Config: rec.config()}
}

// change returns when a config has changed after a revision.
func (r *Feed) change(ctx context.Context, from state.Revision) error {
	for batch, err := range r.store.Watch(ctx, state.AlertsPrefix, from) {
		if err != nil || len(batch.Changes) > 0 {
			return err
		}
	}
	return nil
}
