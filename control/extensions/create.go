package extensions

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/providers"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/control/users"
	"github.com/hangar-platform/hangar/internal/random"
	"github.com/hangar-platform/hangar/provider"
)

// acceptance says which version of a provider's terms a user has accepted.
type acceptance struct {
	Version string    `json:"version"`
	At      time.Time `json:"at"`
}

func termsKey(name hangar.ProviderName, user hangar.UserID) string {
	return state.TermsPrefix + string(name) + "/" + string(user)
}

// CreateExtension implements hangar.ExtensionService.
func (e *Extensions) CreateExtension(ctx context.Context, app hangar.AppName, in hangar.ExtensionCreate) (*hangar.Extension, error) {
	for {
		f, err := e.tryCreate(ctx, app, in)
		if errors.Is(err, state.ErrConflict) {
			continue
		}
		if err != nil {
			return nil, state.HangarError(err)
		}
		view := e.settled(ctx, f, settledPhase)
		if view == nil {
			return nil, hangar.ExtensionNotFound(f.Body.Name) // it was destroyed meanwhile
		}
		return view, nil
	}
}

// tryCreate journals a new extension in the phase create. It returns state.ErrConflict if a record
// that it has read has changed.
func (e *Extensions) tryCreate(ctx context.Context, app hangar.AppName, in hangar.ExtensionCreate) (found, error) {
	owner, appItem, err := e.Tenants.App(ctx, app, hangar.ActionWrite)
	if err != nil {
		return found{}, err
	}
	if owner.Deleting {
		return found{}, tenants.AppIsGoing(app)
	}
	person, err := e.creator(ctx, owner.OrgID)
	if err != nil {
		return found{}, err
	}
	by, providerItem, err := e.requestedProvider(ctx, in.Provider)
	if err != nil {
		return found{}, err
	}
	name := cmp.Or(in.Name, by.DefaultName(app))
	if fault := tenants.NameFault(name); fault != "" {
		return found{}, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadName, "Validation failed: Name %s", fault)
	}
	wanted := choices{Plan: in.Plan, PrimaryRegion: string(in.PrimaryRegion), ReadRegions: texts(in.ReadRegions)}
	if err := checkChoices(&by, wanted); err != nil {
		return found{}, err
	}
	txn := state.Txn{If: []state.Compare{state.Unchanged(appItem), state.Unchanged(providerItem)}}
	if err := e.acceptTerms(ctx, &by, person.ID, in.AcceptTerms, &txn); err != nil {
		return found{}, err
	}
	org, err := e.Tenants.OrgOfApp(ctx, owner)
	if err != nil {
		return found{}, err
	}
	if err := e.roomFor(ctx, &by, owner.OrgID); err != nil {
		return found{}, err
	}
	rec := e.newRecord(&owner, org, person, &by, name)
	rec.Overwrite = in.Overwrite
	rec.choose(wanted)
	return e.commitNew(ctx, rec, owner, org, &by, txn)
}

// requestedProvider returns the provider that a creation names.
func (e *Extensions) requestedProvider(ctx context.Context, name hangar.ProviderName) (providers.Record, state.Item, error) {
	by, item, err := e.Providers.Find(ctx, name)
	if hangar.CodeOf(err) == hangar.CodeNotFound || err == nil && by.Removing {
		err = hangar.Errorf(hangar.CodeInvalid, hangar.ReasonProviderNotFound, "invalid provider: there is no provider %.63q", string(name))
	}
	return by, item, err
}

// newRecord returns the record of a new extension of an App, without the choices of its creator.
func (e *Extensions) newRecord(owner *tenants.AppRecord, org *tenants.OrgRecord, creator *users.Person, by *providers.Record, name string) record {
	now := e.Now()
	rec := record{
		ID: hangar.ExtensionID(random.ID()), Provider: by.Name, Org: owner.OrgID, OrgSlug: owner.Org, App: owner.ID, AppName: owner.Name,
		Network: owner.Network, NetworkID: owner.NetworkID, CreatedAt: now.UTC().Truncate(time.Second),
		Body: provider.Provision{
			Name: name, OrganizationID: string(owner.OrgID), OrganizationName: cmp.Or(org.Name, string(org.Slug)),
			UserID: string(creator.ID), UserEmail: creator.CustomerAddress, UserRole: string(creator.Role(owner.OrgID)),
		},
	}
	rec.Body.ID = string(rec.ID)
	rec.enter(phaseCreate, now)
	return rec
}

// commitNew stores a new record under the conditions of a transaction, with an address, its name and its quotas.
func (e *Extensions) commitNew(
	ctx context.Context, rec record, owner tenants.AppRecord, org *tenants.OrgRecord, by *providers.Record, txn state.Txn,
) (found, error) {
	ip, reserve, err := e.Addresses.Reserve(ctx, owner, rec.ID)
	if err != nil {
		return found{}, err
	}
	rec.Body.IPAddress = ip
	txn.If, txn.Then = append(txn.If, reserve.If...), append(txn.Then, reserve.Then...)
	if err := e.claim(ctx, &rec, org, by, &txn); err != nil {
		return found{}, err
	}
	revision, err := e.Store.Txn(ctx, txn)
	if err != nil {
		return found{}, err
	}
	put := txn.Then[slices.IndexFunc(txn.Then, func(o state.Op) bool { return o.Key == rec.ref().key() })]
	return found{rec, state.Item{Key: put.Key, Value: put.Value, Revision: revision}}, nil
}

// claim adds to a transaction a new record, its name, and its quotas.
func (e *Extensions) claim(ctx context.Context, rec *record, org *tenants.OrgRecord, by *providers.Record, txn *state.Txn) error {
	put, err := state.Write(rec.ref().key(), *rec)
	if err != nil {
		return err
	}
	own, err := state.Write(nameKey(rec.Body.Name), rec.ref())
	if err != nil {
		return err
	}
	switch _, err := e.Store.Get(ctx, own.Key); {
	case err == nil:
		return nameTaken()
	case !errors.Is(err, state.ErrNotFound):
		return err
	}
	txn.If = append(txn.If, state.Absent(put.Key), state.Absent(own.Key))
	txn.Then = append(txn.Then, put, own)
	if err := e.Providers.Counted(ctx, by.Name, 1, by.Limits.WithDefaults().Extensions, txn); err != nil {
		return err
	}
	return e.Ledger.Charge(ctx, org, hangar.Quotas{hangar.QuotaExtensions: 1}, txn)
}

func nameTaken() error {
	return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonNameTaken, "Validation failed: Name has already been taken")
}

// roomFor refuses an extension beyond the provider's limit for one organization. Two concurrent
// creations may exceed it by one; the quota of the organization is exact.
func (s *shared) roomFor(ctx context.Context, by *providers.Record, org hangar.OrgID) error {
	all, err := s.ofOrg(ctx, org)
	if err != nil {
		return err
	}
	n, limit := 0, by.Limits.WithDefaults().PerOrg
	for i := range all {
		if all[i].Provider == by.Name {
			n++
		}
	}
	if n >= limit {
		return hangar.Errorf(hangar.CodeExhausted, hangar.ReasonQuota,
			"The organization has %d extensions of provider %s, which is the limit", n, by.Name)
	}
	return nil
}

// creator returns the calling user, who must be a member of org.
func (e *Extensions) creator(ctx context.Context, org hangar.OrgID) (*users.Person, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return nil, err
	}
	noUser := hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonUserNotFound,
		"The token belongs to no user, and a provider has to know which user creates an extension: sign in, or use a token that a user has made")
	if p.User == "" {
		return nil, noUser
	}
	person, err := e.Users.Person(ctx, p.User)
	if hangar.CodeOf(err) == hangar.CodeNotFound || err == nil && person.Role(org) == "" {
		return nil, noUser
	}
	return person, err
}

// checkChoices refuses what a provider does not offer.
func checkChoices(by *providers.Record, w choices) error {
	if len(w.Plan) > maxWord || !printable(w.Plan) {
		return hangar.Errorf(hangar.CodeInvalid, "", "invalid plan: must have at most %d printable characters", maxWord)
	}
	if w.Plan != "" && len(by.Plans) > 0 && !slices.Contains(by.Plans, w.Plan) {
		return hangar.Errorf(hangar.CodeInvalid, "", "invalid plan: %.64q is none of %v", w.Plan, by.Plans)
	}
	if w.PrimaryRegion != "" {
		if err := hangar.CheckRegions("primary_region", []hangar.Region{hangar.Region(w.PrimaryRegion)}, by.Regions); err != nil {
			return err
		}
	}
	if len(w.ReadRegions) > 0 && !by.ReadReplicas {
		return hangar.Errorf(hangar.CodeInvalid, "", "invalid read_regions: the provider offers no read replicas")
	}
	var regions []hangar.Region
	for _, r := range w.ReadRegions {
		regions = append(regions, hangar.Region(r))
	}
	return hangar.CheckRegions("read_regions", regions, by.Regions)
}

// acceptTerms adds to a transaction that a user accepts the terms of a provider. It refuses a user
// who has not accepted them.
func (e *Extensions) acceptTerms(ctx context.Context, by *providers.Record, user hangar.UserID, version string, txn *state.Txn) error {
	if by.Terms == nil {
		return nil
	}
	key := termsKey(by.Name, user)
	known, item, err := state.Read[acceptance](ctx, e.Store, key)
	unchanged := state.Unchanged(item)
	if errors.Is(err, state.ErrNotFound) {
		unchanged, err = state.Absent(key), nil
	}
	if err != nil {
		return err
	}
	if known.Version == by.Terms.Version {
		return nil
	}
	if version != by.Terms.Version {
		return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonTermsNotAccepted,
			"Read the terms of %s, version %s, at %s, and accept them with accept_terms %q", by.DisplayName, by.Terms.Version, by.Terms.URL, by.Terms.Version)
	}
	put, err := state.Write(key, acceptance{Version: version, At: e.Now().UTC().Truncate(time.Second)})
	txn.If, txn.Then = append(txn.If, unchanged), append(txn.Then, put)
	return err
}
