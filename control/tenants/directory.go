// Package tenants finds organizations and Apps, and checks that the caller may do something
// to them.
//
// Promises. What a caller may not see is not found, in the same words and after the same work
// as a missing thing; see Denied. A record is returned with the item that it was read from,
// so that a change that depends on it can compare that it is still current.
//
// Concurrency. All is safe for concurrent use; nothing is kept in memory.
//
// It makes no organizations and Apps, and removes none.
package tenants

import (
	"context"
	"errors"
	"math"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// Directory finds organizations and Apps in a state.
type Directory struct{ store state.Store }

// NewDirectory returns the Directory of a state.
func NewDirectory(store state.Store) *Directory { return &Directory{store: store} }

// App returns an App if the caller may do action to it.
func (d *Directory) App(ctx context.Context, name hangar.AppName, action hangar.Action) (AppRecord, state.Item, error) {
	return d.AppFor(ctx, action, hangar.MachineRef{App: name})
}

// AppFor returns the App of ref if the caller may do action to what ref names: the App
// itself, or one of its Machines.
func (d *Directory) AppFor(ctx context.Context, action hangar.Action, ref hangar.MachineRef) (AppRecord, state.Item, error) {
	return d.AppIf(ctx, ref, func(p hangar.Principal, t hangar.Target) bool { return p.May(action, t) })
}

// AnyApp returns an App, without a check of access.
func (d *Directory) AnyApp(ctx context.Context, name hangar.AppName) (AppRecord, state.Item, error) {
	if NameFault(string(name)) != "" {
		return AppRecord{}, state.Item{}, hangar.AppNotFound()
	}
	rec, item, err := state.Read[AppRecord](ctx, d.store, state.AppKey(name))
	if errors.Is(err, state.ErrNotFound) {
		return rec, item, hangar.AppNotFound()
	}
	return rec, item, state.HangarError(err)
}

// AppsOf returns the Apps of an organization, in the order of their names, without a check of access. One whose record
// cannot be read is left out; skipped is called for it.
func (d *Directory) AppsOf(ctx context.Context, org hangar.OrgID, skipped func(item state.Item, err error)) ([]AppRecord, error) {
	prefix := state.OrgAppKey(org, "")
	names, _, err := state.All(ctx, d.store, prefix, true)
	if err != nil {
		return nil, state.HangarError(err)
	}
	apps := make([]AppRecord, 0, len(names))
	for _, name := range names {
		item, err := d.store.Get(ctx, state.AppKey(hangar.AppName(strings.TrimPrefix(name.Key, prefix))))
		if errors.Is(err, state.ErrNotFound) {
			continue // destroyed meanwhile
		}
		if err != nil {
			return nil, state.HangarError(err)
		}
		rec, err := state.Decode[AppRecord](item)
		if err != nil {
			skipped(item, err)
			continue
		}
		if rec.OrgID == org { // otherwise the name has changed hands meanwhile
			apps = append(apps, rec)
		}
	}
	return apps, nil
}

// AppOf returns the App that has both a name and an id, without a check of access. The name may
// have changed hands since it was resolved.
func (d *Directory) AppOf(ctx context.Context, name hangar.AppName, id hangar.AppID) (AppRecord, error) {
	rec, _, err := d.AnyApp(ctx, name)
	if err == nil && rec.ID != id {
		err = hangar.AppNotFound()
	}
	return rec, err
}

// AppIf returns the App of ref to whom may allows what they want of it, or of the
// Machine that ref names.
func (d *Directory) AppIf(ctx context.Context, ref hangar.MachineRef, may Permission) (AppRecord, state.Item, error) {
	p, err := Caller(ctx)
	if err != nil {
		return AppRecord{}, state.Item{}, err
	}
	rec, item, err := d.AnyApp(ctx, ref.App)
	if err != nil {
		return rec, item, err
	}
	if ref.AppID != "" && ref.AppID != rec.ID {
		return AppRecord{}, state.Item{}, hangar.AppNotFound()
	}
	if target := rec.Target(ref.ID); !may(p, target) {
		return AppRecord{}, state.Item{}, Denied(p, target)
	}
	return rec, item, nil
}

// Org returns an organization if the caller may do action to it.
func (d *Directory) Org(ctx context.Context, p hangar.Principal, slug hangar.OrgSlug, action hangar.Action) (hangar.Org, state.Item, error) {
	rec, item, err := d.AnyOrg(ctx, slug)
	if err != nil {
		return hangar.Org{}, item, err
	}
	if target := OrgTarget(rec.Org); !p.May(action, target) {
		return hangar.Org{}, state.Item{}, Denied(p, target)
	}
	return rec.Org, item, nil
}

// AnyOrg returns an organization, without a check of access.
func (d *Directory) AnyOrg(ctx context.Context, slug hangar.OrgSlug) (OrgRecord, state.Item, error) {
	if NameFault(string(slug)) != "" {
		return OrgRecord{}, state.Item{}, OrgNotFound(slug)
	}
	rec, item, err := state.Read[OrgRecord](ctx, d.store, state.OrgKey(slug))
	if errors.Is(err, state.ErrNotFound) || err == nil && rec.Deleting {
		return rec, item, OrgNotFound(slug)
	}
	return rec, item, state.HangarError(err)
}

// OrgReader returns the caller, if it may read something in an organization.
func (d *Directory) OrgReader(ctx context.Context, slug hangar.OrgSlug) (hangar.Principal, hangar.Org, error) {
	p, err := Caller(ctx)
	if err != nil {
		return p, hangar.Org{}, err
	}
	rec, _, err := d.AnyOrg(ctx, slug)
	if err != nil {
		return p, hangar.Org{}, err
	}
	if t := OrgTarget(rec.Org); !p.Reaches(hangar.ActionRead, t) {
		return p, hangar.Org{}, Denied(p, t)
	}
	return p, rec.Org, nil
}

// OrgOfApp returns the organization of an App.
func (d *Directory) OrgOfApp(ctx context.Context, app AppRecord) (*OrgRecord, error) {
	rec, _, err := state.Read[OrgRecord](ctx, d.store, state.OrgKey(app.Org))
	if errors.Is(err, state.ErrNotFound) || err == nil && rec.ID != app.OrgID {
		return nil, OrgNotFound(app.Org)
	}
	return &rec, state.HangarError(err)
}

// Network returns the number of an organization's network and, if it is a new
// one, what binds it in a transaction. It answers CodeExhausted when no number is left.
func (d *Directory) Network(ctx context.Context, org hangar.OrgID, name string) (hangar.NetworkID, state.Txn, error) {
	key := state.NetworkKey(org, name)
	known, _, err := state.Read[NetworkRecord](ctx, d.store, key)
	if err == nil {
		return known.ID, state.Txn{}, nil
	}
	if !errors.Is(err, state.ErrNotFound) {
		return 0, state.Txn{}, err
	}
	n, unclaimed, claim, err := state.NextNumber(ctx, d.store, state.NetworkCounter)
	if err != nil {
		return 0, state.Txn{}, err
	}
	if n > math.MaxUint32 {
		return 0, state.Txn{}, hangar.Errorf(hangar.CodeExhausted, "", "No network numbers are left")
	}
	id := hangar.NetworkID(n)
	bind, err := state.Write(key, NetworkRecord{ID: id})
	return id, state.Txn{If: []state.Compare{state.Absent(key), unclaimed}, Then: []state.Op{bind, claim}}, err
}

// OrgsByID returns all organizations of a state, including those that are being deleted. An
// unreadable record is left out; skipped is called for it.
func OrgsByID(ctx context.Context, store state.Store, skipped func(item state.Item, err error)) (map[hangar.OrgID]OrgRecord, error) {
	items, _, err := state.All(ctx, store, state.OrgsPrefix, false)
	if err != nil {
		return nil, state.HangarError(err)
	}
	orgs := make(map[hangar.OrgID]OrgRecord, len(items))
	for _, item := range items {
		rec, err := state.Decode[OrgRecord](item)
		if err != nil {
			skipped(item, err)
			continue
		}
		orgs[rec.ID] = rec
	}
	return orgs, nil
}
