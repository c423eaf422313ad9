package control

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// Apps implements hangar.AppService.
type Apps struct{ *Control }

var _ hangar.AppService = (*Apps)(nil)

// app returns an App to whoever may do action to it.
func (c *Control) app(ctx context.Context, name hangar.AppName, action hangar.Action) (appRecord, state.Item, error) {
	return c.appFor(ctx, action, hangar.MachineRef{App: name})
}

// appFor returns the App of ref to whoever may do action to what ref names: the App
// itself, or one of its Machines.
func (c *Control) appFor(ctx context.Context, action hangar.Action, ref hangar.MachineRef) (appRecord, state.Item, error) {
	p, err := hangar.PrincipalFrom(ctx)
	if err != nil {
		return appRecord{}, state.Item{}, err
	}
	rec, item, err := c.anyApp(ctx, ref.App)
	if err == nil && !p.May(action, hangar.Target{Org: rec.Org, App: rec.Name, Machine: ref.ID}) {
		err = hangar.Errorf(hangar.CodeForbidden, "", "You are not allowed to act on app %q", ref.App)
	}
	return rec, item, err
}

// anyApp returns an App, whoever asks.
func (c *Control) anyApp(ctx context.Context, name hangar.AppName) (appRecord, state.Item, error) {
	if nameFault(string(name)) != "" {
		return appRecord{}, state.Item{}, appNotFound(name)
	}
	rec, item, err := read[appRecord](ctx, c.store, appKey(name))
	if errors.Is(err, state.ErrNotFound) {
		return rec, item, appNotFound(name)
	}
	return rec, item, stateError(err)
}

func appNotFound(name hangar.AppName) error {
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonAppNotFound, "Could not find App %q", name)
}

// CreateApp implements hangar.AppService.
func (a *Apps) CreateApp(ctx context.Context, in hangar.AppCreate) (*hangar.App, error) {
	p, err := hangar.PrincipalFrom(ctx)
	if err != nil {
		return nil, err
	}
	if in.Org == "" {
		in.Org = p.Org
	}
	if in.Org == "" {
		in.Org = hangar.OrgPersonal
	}
	if in.Network == "" {
		in.Network = hangar.DefaultNetwork
	}
	if err := checkAppName(in.Name); err != nil {
		return nil, err
	}
	if err := checkNetworkName(in.Network); err != nil {
		return nil, err
	}
	org, err := a.org(ctx, p, in.Org, hangar.ActionCreate)
	if err != nil {
		return nil, err
	}
	for {
		rec, err := a.tryCreateApp(ctx, in)
		if err == nil {
			return present(rec, org, 0), nil
		}
		if !errors.Is(err, state.ErrConflict) {
			return nil, stateError(err)
		}
	}
}

// tryCreateApp returns state.ErrConflict when somebody else created something
// meanwhile.
func (a *Apps) tryCreateApp(ctx context.Context, in hangar.AppCreate) (appRecord, error) {
	switch _, err := a.store.Get(ctx, appKey(in.Name)); {
	case err == nil:
		return appRecord{}, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonNameTaken, "Validation failed: Name has already been taken")
	case !errors.Is(err, state.ErrNotFound):
		return appRecord{}, err
	}
	network, txn, err := a.network(ctx, in.Org, in.Network)
	if err != nil {
		return appRecord{}, err
	}
	number, unclaimed, claim, err := a.next(ctx, appCounter)
	if err != nil {
		return appRecord{}, err
	}
	rec := appRecord{
		ID: randomID(), Name: in.Name, NumericID: number, Org: in.Org,
		Network: in.Network, NetworkID: network, CreatedAt: a.now().UTC(),
	}
	put, err := write(appKey(in.Name), rec)
	if err != nil {
		return rec, err
	}
	txn.If = append(txn.If, state.Absent(appKey(in.Name)), unclaimed)
	txn.Then = append(txn.Then, put, claim)
	_, err = a.store.Txn(ctx, txn)
	return rec, err
}

// org returns an organization to whoever may do action to it.
func (c *Control) org(ctx context.Context, p hangar.Principal, slug hangar.OrgSlug, action hangar.Action) (hangar.Org, error) {
	if !p.May(action, hangar.Target{Org: slug}) {
		return hangar.Org{}, hangar.Errorf(hangar.CodeForbidden, "", "You are not allowed to act on organization %q", slug)
	}
	if strings.Contains(string(slug), "/") {
		return hangar.Org{}, orgNotFound(slug)
	}
	org, _, err := read[hangar.Org](ctx, c.store, orgKey(slug))
	if errors.Is(err, state.ErrNotFound) {
		return org, orgNotFound(slug)
	}
	return org, stateError(err)
}

func orgNotFound(slug hangar.OrgSlug) error {
	return hangar.Errorf(hangar.CodeNotFound, "", "Could not find Organization %q", slug)
}

// App implements hangar.AppService.
func (a *Apps) App(ctx context.Context, name hangar.AppName) (*hangar.App, error) {
	rec, _, err := a.app(ctx, name, hangar.ActionRead)
	if err != nil {
		return nil, err
	}
	org, _, err := read[hangar.Org](ctx, a.store, orgKey(rec.Org))
	if err != nil {
		return nil, stateError(err)
	}
	names, _, err := state.All(ctx, a.store, nameKey(name, ""), true)
	if err != nil {
		return nil, stateError(err)
	}
	return present(rec, org, len(names)), nil
}

// Apps implements hangar.AppService. An App whose record cannot be read is left
// out.
func (a *Apps) Apps(ctx context.Context, filter hangar.AppFilter) ([]*hangar.App, error) {
	p, err := hangar.PrincipalFrom(ctx)
	if err != nil {
		return nil, err
	}
	if filter.Org != "" {
		if _, err := a.org(ctx, p, filter.Org, hangar.ActionRead); err != nil {
			return nil, err
		}
	}
	orgs, err := a.orgs(ctx)
	if err != nil {
		return nil, err
	}
	counts, err := a.machineCounts(ctx)
	if err != nil {
		return nil, err
	}
	items, _, err := state.All(ctx, a.store, appsPrefix, false)
	if err != nil {
		return nil, stateError(err)
	}
	apps := []*hangar.App{}
	for _, item := range items {
		rec, err := decode[appRecord](item)
		if err != nil {
			a.log.Error("app skipped", keyKey, item.Key, keyError, err)
			continue
		}
		if p.May(hangar.ActionRead, hangar.Target{Org: rec.Org, App: rec.Name}) && (filter.Org == "" || filter.Org == rec.Org) {
			apps = append(apps, present(rec, orgs[rec.Org], counts[rec.Name]))
		}
	}
	slices.SortFunc(apps, func(x, y *hangar.App) int { return strings.Compare(string(x.Name), string(y.Name)) })
	return apps, nil
}

func (c *Control) orgs(ctx context.Context) (map[hangar.OrgSlug]hangar.Org, error) {
	items, _, err := state.All(ctx, c.store, orgsPrefix, false)
	if err != nil {
		return nil, stateError(err)
	}
	orgs := make(map[hangar.OrgSlug]hangar.Org, len(items))
	for _, item := range items {
		org, err := decode[hangar.Org](item)
		if err != nil {
			c.log.Error("organization skipped", keyKey, item.Key, keyError, err)
			continue
		}
		orgs[org.Slug] = org
	}
	return orgs, nil
}

// machineCounts counts the names of Machines, which those that exist have.
func (c *Control) machineCounts(ctx context.Context) (map[hangar.AppName]int, error) {
	items, _, err := state.All(ctx, c.store, namesPrefix, true)
	if err != nil {
		return nil, stateError(err)
	}
	counts := map[hangar.AppName]int{}
	for _, item := range items {
		app, _, _ := strings.Cut(strings.TrimPrefix(item.Key, namesPrefix), "/")
		counts[hangar.AppName(app)]++
	}
	return counts, nil
}

func present(rec appRecord, org hangar.Org, machines int) *hangar.App {
	status := hangar.AppPending
	if rec.Deployed || machines > 0 {
		status = hangar.AppDeployed
	}
	return &hangar.App{
		ID: rec.ID, Name: rec.Name, NumericID: rec.NumericID, Org: org, Network: rec.Network, NetworkID: rec.NetworkID,
		Status: status, MachineCount: machines, CreatedAt: rec.CreatedAt,
	}
}
