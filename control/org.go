package control

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/state"
)

// Orgs implements hangar.OrgService.
type Orgs struct{ *Control }

var _ hangar.OrgService = (*Orgs)(nil)

const maxTitle = 100 // characters of the name of an organization, or of a token

// titleFault says what is wrong with a name that is for people, or nothing.
func titleFault(title string) string {
	switch {
	case utf8.RuneCountInString(title) > maxTitle:
		return "is too long (maximum is 100 characters)"
	case !utf8.ValidString(title) || strings.ContainsFunc(title, func(r rune) bool { return !unicode.IsPrint(r) }):
		return "may only contain printable characters"
	case strings.TrimSpace(title) != title:
		return "may not begin or end with a blank"
	default:
		return ""
	}
}

// org returns an organization to whoever may do action to it.
func (c *Control) org(ctx context.Context, p hangar.Principal, slug hangar.OrgSlug, action hangar.Action) (hangar.Org, state.Item, error) {
	rec, item, err := c.anyOrg(ctx, slug)
	if err != nil {
		return hangar.Org{}, item, err
	}
	if target := orgTarget(rec.Org); !p.May(action, target) {
		return hangar.Org{}, state.Item{}, denied(p, target)
	}
	return rec.Org, item, nil
}

// anyOrg returns an organization, whoever asks.
func (c *Control) anyOrg(ctx context.Context, slug hangar.OrgSlug) (orgRecord, state.Item, error) {
	if nameFault(string(slug)) != "" {
		return orgRecord{}, state.Item{}, orgNotFound(slug)
	}
	rec, item, err := read[orgRecord](ctx, c.store, orgKey(slug))
	if errors.Is(err, state.ErrNotFound) || err == nil && rec.Deleting {
		return rec, item, orgNotFound(slug)
	}
	return rec, item, stateError(err)
}

func orgNotFound(slug hangar.OrgSlug) error {
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonOrgNotFound, "Could not find Organization %q", slug)
}

// CreateOrg implements hangar.OrgService.
func (o *Orgs) CreateOrg(ctx context.Context, in hangar.OrgCreate) (*hangar.Org, error) {
	p, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	if !p.Admin {
		return nil, hangar.Errorf(hangar.CodeForbidden, "", "Only an administrator may create organizations")
	}
	if fault := nameFault(string(in.Slug)); fault != "" {
		return nil, hangar.Errorf(hangar.CodeInvalid, "", "Validation failed: Slug %s", fault)
	}
	if in.Name == "" {
		in.Name = string(in.Slug)
	}
	if fault := titleFault(in.Name); fault != "" {
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
func (c *Control) createOrg(ctx context.Context, in hangar.OrgCreate) (*hangar.Org, error) {
	for {
		if _, err := c.store.Get(ctx, orgKey(in.Slug)); err == nil {
			return nil, errExists
		} else if !errors.Is(err, state.ErrNotFound) {
			return nil, stateError(err)
		}
		number, unclaimed, claim, err := c.next(ctx, orgCounter)
		if err != nil {
			return nil, stateError(err)
		}
		id := hangar.OrgID(randomID())
		_, txn, err := c.network(ctx, id, hangar.DefaultNetwork)
		if err != nil {
			return nil, stateError(err)
		}
		org := hangar.Org{ID: id, Slug: in.Slug, Name: in.Name, NumericID: number}
		put, err := write(orgKey(in.Slug), orgRecord{Org: org})
		if err != nil {
			return nil, err
		}
		txn.If = append(txn.If, state.Absent(orgKey(in.Slug)), unclaimed)
		txn.Then = append(txn.Then, put, claim)
		if _, err = c.store.Txn(ctx, txn); err == nil {
			return &org, nil
		}
		if !errors.Is(err, state.ErrConflict) {
			return nil, stateError(err)
		}
	}
}

// ensureOrg makes an organization unless it exists.
func (c *Control) ensureOrg(ctx context.Context, in hangar.OrgCreate) error {
	_, err := c.createOrg(ctx, in)
	if errors.Is(err, errExists) {
		return nil
	}
	return err
}

// Org implements hangar.OrgService. Whoever is allowed anything in an organization
// may know what it is called.
func (o *Orgs) Org(ctx context.Context, slug hangar.OrgSlug) (*hangar.Org, error) {
	p, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	rec, _, err := o.anyOrg(ctx, slug)
	if err != nil {
		return nil, err
	}
	if !p.Sees(orgTarget(rec.Org)) {
		return nil, orgNotFound(slug)
	}
	return &rec.Org, nil
}

// Orgs implements hangar.OrgService.
func (o *Orgs) Orgs(ctx context.Context) ([]*hangar.Org, error) {
	p, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	items, _, err := state.All(ctx, o.store, orgsPrefix, false)
	if err != nil {
		return nil, stateError(err)
	}
	orgs := []*hangar.Org{}
	for _, item := range items {
		rec, err := decode[orgRecord](item)
		if err != nil {
			o.log.Error("organization skipped", keyKey, item.Key, keyError, err)
			continue
		}
		if !rec.Deleting && p.Sees(orgTarget(rec.Org)) {
			orgs = append(orgs, &rec.Org)
		}
	}
	slices.SortFunc(orgs, func(a, b *hangar.Org) int { return strings.Compare(string(a.Slug), string(b.Slug)) })
	return orgs, nil
}

// DeleteOrg implements hangar.OrgService. Once it has marked the organization, which
// keeps Apps and tokens from being created in it, the decision stands unless there is
// an App; what cannot be removed now is when it is called again, or by Open.
func (o *Orgs) DeleteOrg(ctx context.Context, slug hangar.OrgSlug) error {
	p, err := principal(ctx)
	if err != nil {
		return err
	}
	for {
		rec, item, err := read[orgRecord](ctx, o.store, orgKey(slug))
		switch {
		case nameFault(string(slug)) != "" || errors.Is(err, state.ErrNotFound):
			return orgNotFound(slug)
		case err != nil:
			return stateError(err)
		case !p.May(hangar.ActionDelete, orgTarget(rec.Org)):
			return denied(p, orgTarget(rec.Org))
		case rec.Personal():
			return hangar.Errorf(hangar.CodeFailedPrecondition, "", "The organization %q is always there", slug)
		}
		// Before the mark, too, so that who creates something meets none that is taken back.
		if err := o.empty(ctx, rec.ID); err != nil {
			return stateError(err)
		}
		if err = o.removeOrg(ctx, rec, item); !errors.Is(err, state.ErrConflict) {
			return stateError(err)
		}
	}
}

// removeOrg removes an organization unless it has an App. It returns
// state.ErrConflict when somebody else did something to it.
func (c *Control) removeOrg(ctx context.Context, rec orgRecord, item state.Item) error {
	item, err := c.markOrg(ctx, rec, item, true)
	if err != nil {
		return err
	}
	if err := c.empty(ctx, rec.ID); err != nil {
		if hangar.ReasonOf(err) == hangar.ReasonOrgNotEmpty {
			_, unmarked := c.markOrg(ctx, rec, item, false)
			return cmp.Or(unmarked, err)
		}
		return err
	}
	if err := c.revokeAllOf(ctx, rec.ID); err != nil {
		return err
	}
	if err := c.removePeersOf(ctx, rec.ID); err != nil {
		return err
	}
	if err := c.removeContentOf(ctx, rec.ID); err != nil {
		return err
	}
	networks, _, err := state.All(ctx, c.store, networkKey(rec.ID, ""), true)
	if err != nil {
		return err
	}
	for batch := range slices.Chunk(networks, deletesAtOnce) {
		txn := state.Txn{If: []state.Compare{state.Unchanged(item)}}
		for _, n := range batch {
			txn.Then = append(txn.Then, state.Delete(n.Key))
		}
		if _, err := c.store.Txn(ctx, txn); err != nil {
			return err
		}
	}
	_, err = c.store.Txn(ctx, state.Txn{
		If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{state.Delete(item.Key), state.Delete(usageKey(rec.ID))},
	})
	return err
}

// revokeAllOf voids the tokens of an organization. It asks the state, which has those
// that another server made just before the organization was marked; the memory that
// tokens are verified by may not.
func (c *Control) revokeAllOf(ctx context.Context, org hangar.OrgID) error {
	items, _, err := state.All(ctx, c.store, auth.Prefix, false)
	if err != nil {
		return err
	}
	for _, item := range items {
		record, err := decode[auth.Record](item)
		if err != nil {
			c.log.Error("token skipped", keyKey, item.Key, keyError, err)
			continue
		}
		if record.OrgID == org {
			if err := c.tokens.Revoke(ctx, record.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// markOrg writes whether an organization is going, and returns its record.
func (c *Control) markOrg(ctx context.Context, rec orgRecord, item state.Item, deleting bool) (state.Item, error) {
	rec.Deleting = deleting
	put, err := write(item.Key, rec)
	if err != nil {
		return item, err
	}
	revision, err := c.store.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{put}})
	return state.Item{Key: item.Key, Value: put.Value, Revision: revision}, err
}

// empty refuses an organization that has an App. A record that cannot be read may be
// one.
func (c *Control) empty(ctx context.Context, org hangar.OrgID) error {
	items, _, err := state.All(ctx, c.store, appsPrefix, false)
	if err != nil {
		return err
	}
	for _, item := range items {
		rec, err := decode[appRecord](item)
		if err != nil {
			return err
		}
		if rec.OrgID == org {
			return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonOrgNotEmpty,
				"The organization %q has apps, such as %q; destroy them first", rec.Org, rec.Name)
		}
	}
	return nil
}

// healOrgs finishes the removal of organizations.
func (c *Control) healOrgs(ctx context.Context) error {
	items, _, err := state.All(ctx, c.store, orgsPrefix, false)
	if err != nil {
		return stateError(err)
	}
	for _, item := range items {
		rec, err := decode[orgRecord](item)
		if err != nil {
			c.log.Error("organization skipped", keyKey, item.Key, keyError, err)
			continue
		}
		if !rec.Deleting {
			continue
		}
		if err := c.removeOrg(ctx, rec, item); err != nil {
			c.log.Warn("organization is not removed yet", keyKey, item.Key, keyError, err)
		}
	}
	return nil
}
