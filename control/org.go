package control

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/extensions"
	"github.com/hangar-platform/hangar/control/ledger"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/control/users"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/random"
)

// Orgs implements hangar.OrgService.
type Orgs struct {
	store   state.Store
	tenants *tenants.Directory
	ledger  *ledger.Ledger
	hosts   *hosts
	rows    *Rows
	peers   *Peers
	tokens  *auth.Tokens
	users   users.Upkeep
	// extensions destroys the extensions of an organization that is being deleted.
	extensions *extensions.Provisioner
	unfinished unfinished
	log        *slog.Logger
}

var _ hangar.OrgService = (*Orgs)(nil)

// CreateOrg implements hangar.OrgService.
func (o *Orgs) CreateOrg(ctx context.Context, in hangar.OrgCreate) (*hangar.Org, error) {
	if err := tenants.NeedAdministrator(ctx, "create organizations"); err != nil {
		return nil, err
	}
	if fault := tenants.NameFault(string(in.Slug)); fault != "" {
		return nil, hangar.Errorf(hangar.CodeInvalid, "", "Validation failed: Slug %s", fault)
	}
	if in.Name == "" {
		in.Name = string(in.Slug)
	}
	if fault := tenants.TitleFault(in.Name); fault != "" {
		return nil, hangar.Errorf(hangar.CodeInvalid, "", "Validation failed: Name %s", fault)
	}
	org, err := o.createOrg(ctx, in)
	if errors.Is(err, errExists) {
		return nil, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonNameTaken, "Validation failed: Slug has already been taken")
	}
	return org, err
}

var errExists = errors.New("exists")

// createOrg makes an organization with its default network, or returns errExists.
func (o *Orgs) createOrg(ctx context.Context, in hangar.OrgCreate) (*hangar.Org, error) {
	for {
		if _, err := o.store.Get(ctx, state.OrgKey(in.Slug)); err == nil {
			return nil, errExists
		} else if !errors.Is(err, state.ErrNotFound) {
			return nil, state.HangarError(err)
		}
		number, unclaimed, claim, err := state.NextNumber(ctx, o.store, state.OrgCounter)
		if err != nil {
			return nil, state.HangarError(err)
		}
		id := hangar.OrgID(random.ID())
		_, txn, err := o.tenants.Network(ctx, id, hangar.DefaultNetwork)
		if err != nil {
			return nil, state.HangarError(err)
		}
		org := hangar.Org{ID: id, Slug: in.Slug, Name: in.Name, NumericID: number}
		put, err := state.Write(state.OrgKey(in.Slug), tenants.OrgRecord{Org: org})
		if err != nil {
			return nil, err
		}
		txn.If = append(txn.If, state.Absent(state.OrgKey(in.Slug)), unclaimed)
		txn.Then = append(txn.Then, put, claim)
		if _, err = o.store.Txn(ctx, txn); err == nil {
			return &org, nil
		}
		if !errors.Is(err, state.ErrConflict) {
			return nil, state.HangarError(err)
		}
	}
}

// ensureOrg makes an organization unless it exists.
func (o *Orgs) ensureOrg(ctx context.Context, in hangar.OrgCreate) error {
	_, err := o.createOrg(ctx, in)
	if errors.Is(err, errExists) {
		return nil
	}
	return err
}

// Org implements hangar.OrgService. Any right in an organization includes reading its
// name.
func (o *Orgs) Org(ctx context.Context, slug hangar.OrgSlug) (*hangar.Org, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return nil, err
	}
	rec, _, err := o.tenants.AnyOrg(ctx, slug)
	if err != nil {
		return nil, err
	}
	if !p.Sees(tenants.OrgTarget(rec.Org)) {
		return nil, tenants.OrgNotFound(slug)
	}
	return &rec.Org, nil
}

// Orgs implements hangar.OrgService.
func (o *Orgs) Orgs(ctx context.Context) ([]*hangar.Org, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return nil, err
	}
	list, err := o.reached(ctx, p)
	if err != nil {
		return nil, err
	}
	orgs := make([]*hangar.Org, len(list))
	for i := range list {
		orgs[i] = &list[i]
	}
	return orgs, nil
}

// reached returns the organizations that p sees, sorted by slug, without those that cannot be read: for
// administrators all, and otherwise those that the grants name.
func (o *Orgs) reached(ctx context.Context, p hangar.Principal) (orgs []hangar.Org, err error) {
	var items []state.Item
	if p.Admin {
		if items, _, err = state.All(ctx, o.store, state.OrgsPrefix, false); err != nil {
			return nil, state.HangarError(err)
		}
	} else {
		for _, slug := range p.Orgs() {
			item, err := o.store.Get(ctx, state.OrgKey(slug))
			if errors.Is(err, state.ErrNotFound) {
				continue
			}
			if err != nil {
				return nil, state.HangarError(err)
			}
			items = append(items, item)
		}
	}
	for _, item := range items {
		rec, err := state.Decode[tenants.OrgRecord](item)
		if err != nil {
			o.log.Error("organization skipped", keyKey, item.Key, keyError, err)
			continue
		}
		if !rec.Deleting && p.Sees(tenants.OrgTarget(rec.Org)) {
			orgs = append(orgs, rec.Org)
		}
	}
	return orgs, nil
}

// DeleteOrg implements hangar.OrgService. Once the organization is marked, no App or token can be
// created in it, and its deletion cannot be undone unless it has an App. After a failure, another
// call or Open continues it.
func (o *Orgs) DeleteOrg(ctx context.Context, slug hangar.OrgSlug) error {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return err
	}
	for {
		rec, item, err := state.Read[tenants.OrgRecord](ctx, o.store, state.OrgKey(slug))
		switch {
		case tenants.NameFault(string(slug)) != "" || errors.Is(err, state.ErrNotFound):
			return tenants.OrgNotFound(slug)
		case err != nil:
			return state.HangarError(err)
		case !p.May(hangar.ActionDelete, tenants.OrgTarget(rec.Org)):
			return tenants.Denied(p, tenants.OrgTarget(rec.Org))
		case rec.Personal():
			return hangar.Errorf(hangar.CodeFailedPrecondition, "", "The organization %q is always there", slug)
		}
		// Checked before the mark, too, so that creators do not see a mark that is undone.
		if err := o.empty(ctx, rec.Org); err != nil {
			return state.HangarError(err)
		}
		if err = o.removeOrg(ctx, rec, item); !errors.Is(err, state.ErrConflict) {
			return state.HangarError(err)
		}
	}
}

// removeOrg removes an organization unless it has an App. It returns state.ErrConflict if another
// caller has changed it.
func (o *Orgs) removeOrg(ctx context.Context, rec tenants.OrgRecord, item state.Item) error {
	item, err := o.markOrg(ctx, rec, item, true)
	if err == nil {
		// The removal continues if the caller disconnects, because half of one is useless.
		err = finish.Do(ctx, destroyTimeout, func(ctx finish.Context) error { return o.finishRemoval(ctx, rec, item) })
	}
	if err != nil && hangar.ReasonOf(err) != hangar.ReasonOrgNotEmpty {
		o.unfinished.signal() // also after a conflict: the caller may have left, and whose mark it is now may be lost
	}
	return err
}

// finishRemoval removes an organization that is marked, or its mark if there is an App after all.
func (o *Orgs) finishRemoval(ctx context.Context, rec tenants.OrgRecord, item state.Item) error {
	if err := o.empty(ctx, rec.Org); err != nil {
		if hangar.ReasonOf(err) == hangar.ReasonOrgNotEmpty {
			_, unmarked := o.markOrg(ctx, rec, item, false)
			return cmp.Or(unmarked, err)
		}
		return err
	}
	if err := o.extensions.EndOrg(ctx, rec.ID); err != nil {
		return err
	}
	if err := o.users.RemoveOrg(ctx, rec.ID); err != nil {
		return err
	}
	if err := o.revokeAllOf(ctx, rec.ID); err != nil {
		return err
	}
	if err := o.peers.removeAllOf(ctx, rec.ID); err != nil {
		return err
	}
	if err := o.removeContentOf(ctx, rec.ID, item); err != nil {
		return err
	}
	networks, _, err := state.All(ctx, o.store, state.NetworkKey(rec.ID, ""), true)
	if err != nil {
		return err
	}
	for batch := range slices.Chunk(networks, deletesAtOnce) {
		txn := state.Txn{If: []state.Compare{state.Unchanged(item)}}
		for _, n := range batch {
			txn.Then = append(txn.Then, state.Delete(n.Key))
		}
		if _, err := o.store.Txn(ctx, txn); err != nil {
			return err
		}
	}
	_, err = o.store.Txn(ctx, state.Txn{
		If: []state.Compare{state.Unchanged(item)},
		Then: []state.Op{
			state.Delete(item.Key), state.Delete(state.UsageKey(rec.ID)), state.Delete(state.AlertsKey(rec.ID)), state.Delete(state.WebhooksKey(rec.ID)),
			state.Delete(state.SSHAuthorityKey(rec.ID)),
		},
	})
	return err
}

// revokeAllOf revokes the tokens of an organization. It reads the state itself, because memory may
// lack tokens that another server made just before the mark.
func (o *Orgs) revokeAllOf(ctx context.Context, org hangar.OrgID) error {
	items, _, err := state.All(ctx, o.store, auth.Prefix, false)
	if err != nil {
		return err
	}
	for _, item := range items {
		record, err := state.Decode[auth.Record](item)
		if err != nil {
			o.log.Error("token skipped", keyKey, item.Key, keyError, err)
			continue
		}
		if record.OrgID == org {
			if err := o.tokens.Revoke(ctx, record.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// markOrg writes whether an organization is being deleted, and returns its record.
func (o *Orgs) markOrg(ctx context.Context, rec tenants.OrgRecord, item state.Item, deleting bool) (state.Item, error) {
	rec.Deleting = deleting
	put, err := state.Write(item.Key, rec)
	if err != nil {
		return item, err
	}
	revision, err := o.store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{put}})
	return state.Item{Key: item.Key, Value: put.Value, Revision: revision}, err
}

// empty refuses an organization that has an App, also one whose record cannot be read.
func (o *Orgs) empty(ctx context.Context, org hangar.Org) error {
	prefix := state.OrgAppKey(org.ID, "")
	page, err := o.store.List(ctx, prefix, state.ListOptions{KeysOnly: true, Limit: 1})
	if err != nil || len(page.Items) == 0 {
		return err
	}
	return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonOrgNotEmpty,
		"The organization %q has apps, such as %q; destroy them first", org.Slug, strings.TrimPrefix(page.Items[0].Key, prefix))
}

// heal finishes the deletion of the organizations that ripe selects.
func (o *Orgs) heal(ctx context.Context, ripe func(state.Item) bool) error {
	items, _, err := state.All(ctx, o.store, state.OrgsPrefix, false)
	if err != nil {
		return state.HangarError(err)
	}
	var group errgroup.Group
	group.SetLimit(destroysAtOnce)
	for _, item := range items {
		rec, err := state.Decode[tenants.OrgRecord](item)
		if err != nil {
			o.log.Error("organization skipped", keyKey, item.Key, keyError, err)
			continue
		}
		if !rec.Deleting || !ripe(item) {
			continue
		}
		group.Go(func() error {
			if err := o.removeOrg(ctx, rec, item); err != nil {
				o.log.Warn("organization is not removed yet", keyKey, item.Key, keyError, err)
			}
			return nil
		})
	}
	return group.Wait()
}
