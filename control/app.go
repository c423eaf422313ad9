package control

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/addresses"
	"github.com/hangar-platform/hangar/control/elections"
	"github.com/hangar-platform/hangar/control/extensions"
	"github.com/hangar-platform/hangar/control/hostnames"
	"github.com/hangar-platform/hangar/control/ledger"
	"github.com/hangar-platform/hangar/control/releases"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/control/vault"
	"github.com/hangar-platform/hangar/internal/random"
)

// Apps implements hangar.AppService.
type Apps struct {
	extensions *extensions.Provisioner
	releases   releases.Upkeep
	elections  elections.Upkeep
	store      state.Store
	tenants    *tenants.Directory
	ledger     *ledger.Ledger
	hosts      *hosts
	rows       *Rows
	orgs       *Orgs
	machines   *Machines
	volumes    *Volumes
	addresses  *addresses.Records
	hostnames  *hostnames.Hostnames
	secrets    *vault.AppSecrets
	domain     hangar.Hostname // below which Apps have names; empty: they have none
	log        *slog.Logger
	now        func() time.Time
	unfinished unfinished
}

var _ hangar.AppService = (*Apps)(nil)

// CreateApp implements hangar.AppService.
func (a *Apps) CreateApp(ctx context.Context, in hangar.AppCreate) (*hangar.App, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return nil, err
	}
	if in.Org == "" {
		in.Org = defaultOrg(p)
	}
	if in.Network == "" {
		in.Network = hangar.DefaultNetwork
	}
	if err := tenants.CheckAppName(in.Name); err != nil {
		return nil, err
	}
	if domain := a.domain; domain != "" && in.Name.Reserved() {
		return nil, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadName, "Validation failed: Name is reserved: %s is for the platform itself", in.Name.Hostname(domain))
	}
	if err := tenants.CheckNetworkName(in.Network); err != nil {
		return nil, err
	}
	for {
		org, item, err := a.tenants.Org(ctx, p, in.Org, hangar.ActionCreate)
		if err != nil {
			return nil, err
		}
		rec, err := a.tryCreateApp(ctx, in, org.ID, item)
		if err == nil {
			return present(rec, org, 0, 0), nil
		}
		if !errors.Is(err, state.ErrConflict) {
			return nil, state.HangarError(err)
		}
	}
}

// defaultOrg is the organization of a request that names none: the only one in the caller's grants,
// or else hangar.OrgPersonal.
func defaultOrg(p hangar.Principal) hangar.OrgSlug {
	if orgs := p.Orgs(); len(orgs) == 1 && !p.Admin {
		return orgs[0]
	}
	return hangar.OrgPersonal
}

// tryCreateApp returns state.ErrConflict if another caller created an App meanwhile, or the
// organization has changed since it was read.
func (a *Apps) tryCreateApp(ctx context.Context, in hangar.AppCreate, org hangar.OrgID, orgItem state.Item) (tenants.AppRecord, error) {
	switch _, err := a.store.Get(ctx, state.AppKey(in.Name)); {
	case err == nil:
		return tenants.AppRecord{}, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonNameTaken, "Validation failed: Name has already been taken")
	case !errors.Is(err, state.ErrNotFound):
		return tenants.AppRecord{}, err
	}
	network, txn, err := a.tenants.Network(ctx, org, in.Network)
	if err != nil {
		return tenants.AppRecord{}, err
	}
	counts := hangar.Quotas{hangar.QuotaApps: 1}
	if len(txn.Then) > 0 {
		counts[hangar.QuotaNetworks] = 1
	}
	number, unclaimed, claim, err := state.NextNumber(ctx, a.store, state.AppCounter)
	if err != nil {
		return tenants.AppRecord{}, err
	}
	rec := tenants.AppRecord{
		ID: hangar.AppID(random.ID()), Name: in.Name, NumericID: number, Org: in.Org, OrgID: org,
		Network: in.Network, NetworkID: network, CreatedAt: a.now().UTC(),
	}
	put, err := state.Write(state.AppKey(in.Name), rec)
	if err != nil {
		return rec, err
	}
	txn.If = append(txn.If, state.Absent(state.AppKey(in.Name)), unclaimed, state.Unchanged(orgItem))
	txn.Then = append(txn.Then, put, state.Put(state.OrgAppKey(org, rec.Name), []byte(rec.ID)), claim)
	owner, err := state.Decode[tenants.OrgRecord](orgItem)
	if err != nil {
		return rec, err
	}
	if err := a.ledger.Charge(ctx, &owner, counts, &txn); err != nil {
		return rec, err
	}
	_, err = a.store.Txn(ctx, txn)
	return rec, err
}

// App implements hangar.AppService. It reveals that an App of another organization
// exists, because clients use it to find out whether a name is taken.
func (a *Apps) App(ctx context.Context, name hangar.AppName) (*hangar.App, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return nil, err
	}
	rec, _, err := a.tenants.AnyApp(ctx, name)
	if err != nil {
		return nil, err
	}
	if !p.May(hangar.ActionRead, rec.Target("")) {
		return nil, tenants.Forbidden("app %q", name)
	}
	org, _, err := state.Read[tenants.OrgRecord](ctx, a.store, state.OrgKey(rec.Org))
	if err != nil {
		return nil, state.HangarError(err)
	}
	return a.counted(ctx, rec, org.Org)
}

// Apps implements hangar.AppService. An App whose record cannot be read is left
// out.
func (a *Apps) Apps(ctx context.Context, filter hangar.AppFilter) ([]*hangar.App, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return nil, err
	}
	var orgs []hangar.Org
	if filter.Org != "" {
		org, err := a.orgs.Org(ctx, filter.Org)
		if err != nil {
			return nil, err
		}
		orgs = []hangar.Org{*org}
	} else if orgs, err = a.orgs.reached(ctx, p); err != nil {
		return nil, err
	}
	apps := []*hangar.App{}
	for _, org := range orgs {
		recs, err := a.tenants.AppsOf(ctx, org.ID, func(item state.Item, err error) { a.log.Error("app skipped", keyKey, item.Key, keyError, err) })
		if err != nil {
			return nil, err
		}
		for _, rec := range recs {
			if !p.May(hangar.ActionRead, rec.Target("")) {
				continue
			}
			app, err := a.counted(ctx, rec, org)
			if err != nil {
				return nil, err
			}
			apps = append(apps, app)
		}
	}
	slices.SortFunc(apps, func(x, y *hangar.App) int { return strings.Compare(string(x.Name), string(y.Name)) })
	return apps, nil
}

// counted is present with what the App has now. Only existing Machines have a name.
func (a *Apps) counted(ctx context.Context, rec tenants.AppRecord, org hangar.Org) (*hangar.App, error) {
	names, _, err := state.All(ctx, a.store, state.NameKey(rec.ID, ""), true)
	if err != nil {
		return nil, state.HangarError(err)
	}
	volumes, err := a.rows.volumesOf(ctx, rec.ID)
	if err != nil {
		return nil, err
	}
	volumes = slices.DeleteFunc(volumes, func(row hangar.VolumeRow) bool { return row.Volume.State.Gone() })
	return present(rec, org, len(names), len(volumes)), nil
}

func present(rec tenants.AppRecord, org hangar.Org, machines, volumes int) *hangar.App {
	status := hangar.AppPending
	if rec.Deployed || machines > 0 {
		status = hangar.AppDeployed
	}
	return &hangar.App{
		ID: rec.ID, Name: rec.Name, NumericID: rec.NumericID, Org: org, Network: rec.Network, NetworkID: rec.NetworkID,
		Status: status, MachineCount: machines, VolumeCount: volumes, CreatedAt: rec.CreatedAt,
	}
}
