package control

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/addresses"
	"github.com/hangar-platform/hangar/control/hostnames"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
)

// RouteRecords is the hangar.RouteFeed over the state: Apps, their addresses and their names, for
// the edge.
type RouteRecords struct {
	store state.Store
	log   *slog.Logger
}

var _ hangar.RouteFeed = (*RouteRecords)(nil)

// NewRouteRecords returns the RouteRecords of a state.
func NewRouteRecords(store state.Store, log *slog.Logger) *RouteRecords {
	return &RouteRecords{store: store, log: log}
}

// WatchRoutes implements hangar.RouteFeed. The Seq of a route is the revision of the latest
// write that it shows; all writes before that one are shown, too.
func (r *RouteRecords) WatchRoutes(ctx context.Context) iter.Seq2[hangar.RouteChange, error] {
	return func(yield func(hangar.RouteChange, error) bool) {
		feed := routeFeed{log: r.log, yield: yield}
		for synced := false; ctx.Err() == nil; synced = true {
			next, err := feed.list(ctx, r.store)
			if err == nil && !feed.stopped && !synced {
				feed.send(hangar.RouteChange{Synced: true})
			}
			if err == nil && !feed.stopped {
				err = feed.watch(ctx, r.store, next)
			}
			if feed.stopped || ctx.Err() != nil {
				return
			}
			if err != nil && !errors.Is(err, state.ErrCompacted) {
				yield(hangar.RouteChange{}, state.HangarError(err))
				return
			}
		}
	}
}

// routeFeed is one watcher with its copy of the routes' parts, by the App's id.
type routeFeed struct {
	log     *slog.Logger
	yield   func(hangar.RouteChange, error) bool
	apps    map[hangar.AppID]*routeParts
	ids     map[hangar.AppName]hangar.AppID // the Apps that have the names now
	names   map[hangar.Hostname]hangar.AppID
	changed map[hangar.AppID]state.Revision // since routes were sent
	stopped bool
}

// routeParts are the parts of a route. Addresses and Hostnames may be seen before their App.
type routeParts struct {
	app       tenants.AppRecord // without a name: there is none
	addresses map[string]hangar.Address
	hostnames map[hangar.Hostname]struct{}
}

// list reads all routes as of one revision, and sends them, and the removal of those that are gone
// since the last list.
func (f *routeFeed) list(ctx context.Context, store state.Store) (next state.Revision, err error) {
	before := f.apps
	f.apps, f.ids = map[hangar.AppID]*routeParts{}, map[hangar.AppName]hangar.AppID{}
	f.names, f.changed = map[hangar.Hostname]hangar.AppID{}, map[hangar.AppID]state.Revision{}
	var revision state.Revision
	for _, prefix := range []string{state.AppsPrefix, state.AddressesPrefix, state.HostnamesPrefix} {
		o := state.ListOptions{Revision: revision}
		for more := true; more; {
			page, err := store.List(ctx, prefix, o)
			if err != nil {
				return 0, err
			}
			revision, more = page.Revision, page.More
			o.Revision = revision
			for _, item := range page.Items {
				o.After = item.Key
				f.apply(state.Change{Item: item})
			}
		}
	}
	for id := range before {
		f.changed[id] = revision
	}
	for id := range f.changed {
		f.changed[id] = revision
	}
	f.flush()
	return revision + 1, nil
}

// watch follows all keys with one watch, so that writes to several of them are seen in their order.
func (f *routeFeed) watch(ctx context.Context, store state.Store, from state.Revision) error {
	for batch, err := range store.Watch(ctx, "/", from) {
		if err != nil {
			return err
		}
		for _, c := range batch.Changes {
			f.apply(c)
		}
		for id := range f.changed {
			f.changed[id] = batch.Revision
		}
		if f.flush(); f.stopped {
			return nil
		}
	}
	return nil
}

// apply applies a change that concerns a route. An unreadable one changes nothing.
func (f *routeFeed) apply(c state.Change) {
	var err error
	switch {
	case strings.HasPrefix(c.Key, state.AppsPrefix):
		err = f.applyApp(c, hangar.AppName(c.Key[len(state.AppsPrefix):]))
	case strings.HasPrefix(c.Key, state.AddressesPrefix):
		app, _, _ := strings.Cut(c.Key[len(state.AddressesPrefix):], "/")
		err = f.applyAddress(c, hangar.AppID(app))
	case strings.HasPrefix(c.Key, state.HostnamesPrefix):
		err = f.applyHostname(c, hostnames.Name(c.Key))
	}
	if err != nil {
		f.log.Error("part of a route skipped", keyKey, c.Key, keyError, err)
	}
}

// of returns the parts of an App's route, which are about to change.
func (f *routeFeed) of(app hangar.AppID) *routeParts {
	f.changed[app] = 0
	p := f.apps[app]
	if p == nil {
		p = &routeParts{addresses: map[string]hangar.Address{}, hostnames: map[hangar.Hostname]struct{}{}}
		f.apps[app] = p
	}
	return p
}

func (f *routeFeed) applyApp(c state.Change, name hangar.AppName) error {
	var rec tenants.AppRecord
	if !c.Deleted {
		var err error
		if rec, err = state.Decode[tenants.AppRecord](c.Item); err != nil {
			return err
		}
	}
	if old, ok := f.ids[name]; ok {
		f.of(old).app = tenants.AppRecord{}
		delete(f.ids, name)
	}
	if rec.ID == "" || rec.Deleting || rec.Name != name {
		return nil // an App that is being destroyed is not served
	}
	f.ids[name] = rec.ID
	f.of(rec.ID).app = rec
	return nil
}

func (f *routeFeed) applyAddress(c state.Change, app hangar.AppID) error {
	if c.Deleted {
		delete(f.of(app).addresses, c.Key)
		return nil
	}
	a, err := addresses.Parse(c.Item)
	if err == nil {
		f.of(app).addresses[c.Key] = a
	}
	return err
}

func (f *routeFeed) applyHostname(c state.Change, name hangar.Hostname) error {
	var app hangar.AppID // empty: the name is not proven for any App
	if !c.Deleted {
		var err error
		if app, err = hostnames.ServedApp(c.Item); err != nil {
			return err
		}
	}
	if old, ok := f.names[name]; ok && old != app {
		delete(f.of(old).hostnames, name)
		delete(f.names, name)
	}
	if app != "" {
		f.names[name] = app
		f.of(app).hostnames[name] = struct{}{}
	}
	return nil
}

// flush sends the routes that have changed.
func (f *routeFeed) flush() {
	for id, revision := range f.changed {
		delete(f.changed, id)
		p := f.apps[id]
		if p == nil || p.app.Name == "" {
			if p != nil && len(p.addresses)+len(p.hostnames) == 0 {
				delete(f.apps, id)
			}
			f.send(hangar.RouteChange{App: id})
			continue
		}
		f.send(hangar.RouteChange{App: id, Route: &hangar.AppRoute{
			ID: id, App: p.app.Name, Org: p.app.OrgID, Network: p.app.NetworkID, Seq: uint64(revision),
			Addresses: slices.SortedFunc(maps.Values(p.addresses), hangar.CompareAddresses),
			Hostnames: slices.Sorted(maps.Keys(p.hostnames)),
		}})
	}
}

func (f *routeFeed) send(c hangar.RouteChange) {
	f.stopped = f.stopped || !f.yield(c, nil)
}
