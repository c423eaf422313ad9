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
	return c.appIf(ctx, ref, func(p hangar.Principal, t hangar.Target) bool { return p.May(action, t) })
}

// anyApp returns an App, whoever asks.
func (c *Control) anyApp(ctx context.Context, name hangar.AppName) (appRecord, state.Item, error) {
	if nameFault(string(name)) != "" {
		return appRecord{}, state.Item{}, hangar.AppNotFound()
	}
	rec, item, err := read[appRecord](ctx, c.store, appKey(name))
	if errors.Is(err, state.ErrNotFound) {
		return rec, item, hangar.AppNotFound()
	}
	return rec, item, stateError(err)
}

// CreateApp implements hangar.AppService.
func (a *Apps) CreateApp(ctx context.Context, in hangar.AppCreate) (*hangar.App, error) {
	p, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	if in.Org == "" {
		in.Org = defaultOrg(p)
	}
	if in.Network == "" {
		in.Network = hangar.DefaultNetwork
	}
	if err := checkAppName(in.Name); err != nil {
		return nil, err
	}
	if domain := a.domain(); domain != "" && in.Name.Reserved() {
		return nil, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadName, "Validation failed: Name is reserved: %s is for the platform itself", in.Name.Hostname(domain))
	}
	if err := checkNetworkName(in.Network); err != nil {
		return nil, err
	}
	for {
		org, item, err := a.org(ctx, p, in.Org, hangar.ActionCreate)
		if err != nil {
			return nil, err
		}
		rec, err := a.tryCreateApp(ctx, in, org.ID, item)
		if err == nil {
			return present(rec, org, 0, 0), nil
		}
		if !errors.Is(err, state.ErrConflict) {
			return nil, stateError(err)
		}
	}
}

// defaultOrg is the organization of a wish that names none: the only one that the
// caller has anything to do with, or else hangar.OrgPersonal.
func defaultOrg(p hangar.Principal) hangar.OrgSlug {
	if orgs := p.Orgs(); len(orgs) == 1 && !p.Admin {
		return orgs[0]
	}
	return hangar.OrgPersonal
}

// tryCreateApp returns state.ErrConflict when somebody else created something
// meanwhile, or when the organization changed since it was read.
func (a *Apps) tryCreateApp(ctx context.Context, in hangar.AppCreate, org hangar.OrgID, orgItem state.Item) (appRecord, error) {
	switch _, err := a.store.Get(ctx, appKey(in.Name)); {
	case err == nil:
		return appRecord{}, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonNameTaken, "Validation failed: Name has already been taken")
	case !errors.Is(err, state.ErrNotFound):
		return appRecord{}, err
	}
	network, txn, err := a.network(ctx, org, in.Network)
	if err != nil {
		return appRecord{}, err
	}
	counts := hangar.Quotas{hangar.QuotaApps: 1}
	if len(txn.Then) > 0 {
		counts[hangar.QuotaNetworks] = 1
	}
	number, unclaimed, claim, err := a.next(ctx, appCounter)
	if err != nil {
		return appRecord{}, err
	}
	rec := appRecord{
		ID: hangar.AppID(randomID()), Name: in.Name, NumericID: number, Org: in.Org, OrgID: org,
		Network: in.Network, NetworkID: network, CreatedAt: a.now().UTC(),
	}
	put, err := write(appKey(in.Name), rec)
	if err != nil {
		return rec, err
	}
	txn.If = append(txn.If, state.Absent(appKey(in.Name)), unclaimed, state.Unchanged(orgItem))
	txn.Then = append(txn.Then, put, claim)
	owner, err := decode[orgRecord](orgItem)
	if err != nil {
		return rec, err
	}
	if err := a.ledger.charge(ctx, &owner, counts, &txn); err != nil {
		return rec, err
	}
	_, err = a.store.Txn(ctx, txn)
	return rec, err
}

// App implements hangar.AppService. That an App of somebody else exists is told:
// clients ask for it to find out whether a name is taken.
func (a *Apps) App(ctx context.Context, name hangar.AppName) (*hangar.App, error) {
	p, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	rec, _, err := a.anyApp(ctx, name)
	if err != nil {
		return nil, err
	}
	if !p.May(hangar.ActionRead, rec.target("")) {
		return nil, forbidden("app %q", name)
	}
	org, _, err := read[orgRecord](ctx, a.store, orgKey(rec.Org))
	if err != nil {
		return nil, stateError(err)
	}
	names, _, err := state.All(ctx, a.store, nameKey(rec.ID, ""), true)
	if err != nil {
		return nil, stateError(err)
	}
	volumes, err := a.volumesOf(ctx, rec)
	if err != nil {
		return nil, err
	}
	return present(rec, org.Org, len(names), countVolumes(volumes)[rec.ID]), nil
}

// Apps implements hangar.AppService. An App whose record cannot be read is left
// out.
func (a *Apps) Apps(ctx context.Context, filter hangar.AppFilter) ([]*hangar.App, error) {
	p, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	if filter.Org != "" {
		if _, err := a.Orgs().Org(ctx, filter.Org); err != nil {
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
	rows, err := a.rows.volumes(ctx, volumesPrefix)
	if err != nil {
		return nil, err
	}
	volumes := countVolumes(rows)
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
		if p.May(hangar.ActionRead, rec.target("")) && (filter.Org == "" || filter.Org == rec.Org) {
			apps = append(apps, present(rec, orgs[rec.Org], counts[rec.ID], volumes[rec.ID]))
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
		rec, err := decode[orgRecord](item)
		if err != nil {
			c.log.Error("organization skipped", keyKey, item.Key, keyError, err)
			continue
		}
		orgs[rec.Slug] = rec.Org
	}
	return orgs, nil
}

// machineCounts counts the names of Machines, which those that exist have.
func (c *Control) machineCounts(ctx context.Context) (map[hangar.AppID]int, error) {
	items, _, err := state.All(ctx, c.store, namesPrefix, true)
	if err != nil {
		return nil, stateError(err)
	}
	counts := map[hangar.AppID]int{}
	for _, item := range items {
		app, _, _ := strings.Cut(strings.TrimPrefix(item.Key, namesPrefix), "/")
		counts[hangar.AppID(app)]++
	}
	return counts, nil
}

// countVolumes counts those that are not destroyed.
func countVolumes(rows []hangar.VolumeRow) map[hangar.AppID]int {
	counts := map[hangar.AppID]int{}
	for _, row := range rows {
		if !row.Volume.State.Gone() {
			counts[row.Volume.AppID]++
		}
	}
	return counts
}

func present(rec appRecord, org hangar.Org, machines, volumes int) *hangar.App {
	status := hangar.AppPending
	if rec.Deployed || machines > 0 {
		status = hangar.AppDeployed
	}
	return &hangar.App{
		ID: rec.ID, Name: rec.Name, NumericID: rec.NumericID, Org: org, Network: rec.Network, NetworkID: rec.NetworkID,
		Status: status, MachineCount: machines, VolumeCount: volumes, CreatedAt: rec.CreatedAt,
	}
}
