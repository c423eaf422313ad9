package users

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
)

// maySee reports whether a caller sees the members of an organization.
func maySee(p hangar.Principal, org hangar.Org) bool {
	return p.May(hangar.ActionRead, tenants.OrgTarget(org))
}

// mayManage reports whether a caller manages the members of an organization. A token that is not of
// an admin must allow everything and not expire, because a membership does not expire.
func mayManage(p hangar.Principal, org hangar.Org) bool {
	return p.HasRole(hangar.RoleAdmin, org.ID) || p.Covers(hangar.Grant{Org: org.Slug, OrgID: org.ID, Actions: hangar.ActionAll})
}

// ownerOf reports whether a caller is a user, with all that the user may do.
func ownerOf(p hangar.Principal, id hangar.UserID) bool { return p.SignedIn && p.User == id }

// orgFor returns an organization to whom may allows what they want of its members.
func (u *Users) orgFor(ctx context.Context, p hangar.Principal, slug hangar.OrgSlug, may func(hangar.Principal, hangar.Org) bool) (tenants.OrgRecord, state.Item, error) {
	org, item, err := u.Tenants.AnyOrg(ctx, slug)
	if err != nil {
		return org, item, err
	}
	if !may(p, org.Org) {
		return tenants.OrgRecord{}, state.Item{}, tenants.Denied(p, tenants.OrgTarget(org.Org))
	}
	return org, item, nil
}

// visible returns a user whom the caller may see.
func (u *Users) visible(ctx context.Context, p hangar.Principal, ref hangar.UserRef) (found, error) {
	f, err := u.anyUser(ctx, ref)
	if err != nil {
		return f, err
	}
	if p.Admin || p.User == f.ID {
		return f, nil
	}
	for _, m := range f.Memberships {
		if maySee(p, hangar.Org{ID: m.OrgID, Slug: m.Org}) {
			return f, nil
		}
	}
	return found{}, hangar.UserNotFound(ref)
}

// view is a user as a caller sees it. A third party that acts for a user learns neither e-mail addresses nor what
// else the user is; the customer address is for it.
func (u *Users) view(ctx context.Context, p hangar.Principal, rec *record) (*hangar.User, error) {
	user := &hangar.User{ID: rec.ID, Name: rec.Name, Email: rec.Email, Memberships: []hangar.Membership{}, CreatedAt: rec.Created}
	whole := p.Admin || p.User == rec.ID && p.Client == ""
	if p.Client != "" && !p.Admin {
		user.Email = ""
		if p.User == rec.ID {
			user.CustomerAddress = u.customerAddress(rec.Customer)
		}
	}
	for _, m := range rec.Memberships {
		if whole || maySee(p, hangar.Org{ID: m.OrgID, Slug: m.Org}) {
			user.Memberships = append(user.Memberships, m.Membership)
		}
	}
	if whole {
		user.Admin, user.CustomerAddress = rec.Admin != "", u.customerAddress(rec.Customer)
		at, err := u.Store.Get(ctx, ownedBy(state.SignInsPrefix, rec.ID))
		switch {
		case err == nil:
			if user.LastSignIn, err = time.Parse(time.RFC3339, string(at.Value)); err != nil {
				u.Log.Error("time of a sign-in cannot be read", keyKey, at.Key, keyError, err)
			}
		case !errors.Is(err, state.ErrNotFound):
			return nil, state.HangarError(err)
		}
	}
	if rec.ID == hangar.UserAdmin {
		orgs, err := tenants.OrgsByID(ctx, u.Store, func(item state.Item, err error) {
			u.Log.Error("organization skipped", keyKey, item.Key, keyError, err)
		})
		if err != nil {
			return nil, err
		}
		for _, org := range orgs {
			if !org.Deleting && (whole || maySee(p, org.Org)) {
				user.Memberships = append(user.Memberships, hangar.Membership{OrgID: org.ID, Org: org.Slug, Role: hangar.RoleAdmin})
			}
		}
	}
	slices.SortFunc(user.Memberships, func(a, b hangar.Membership) int { return strings.Compare(string(a.Org), string(b.Org)) })
	return user, nil
}

func (u *Users) customerAddress(local string) string {
	return local + "@customer." + string(u.Domain)
}

// User implements hangar.UserService.
func (u *Users) User(ctx context.Context, ref hangar.UserRef) (*hangar.User, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return nil, err
	}
	f, err := u.visible(ctx, p, ref)
	if err != nil {
		return nil, err
	}
	return u.view(ctx, p, &f.record)
}

// CurrentUser implements hangar.UserService.
func (u *Users) CurrentUser(ctx context.Context) (*hangar.User, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return nil, err
	}
	if p.User == "" {
		return nil, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonUserNotFound, "The token belongs to no user")
	}
	f, err := u.read(ctx, p.User)
	if err != nil {
		return nil, err
	}
	return u.view(ctx, p, &f.record)
}

// Users implements hangar.UserService.
func (u *Users) Users(ctx context.Context, filter hangar.UserFilter) ([]*hangar.User, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return nil, err
	}
	if filter.Org == "" || filter.CustomerAddress != "" {
		if err := tenants.NeedAdministrator(ctx, "list users beyond the members of an organization"); err != nil {
			return nil, err
		}
	}
	var records []record
	switch {
	case filter.CustomerAddress != "":
		records, err = u.customer(ctx, filter)
	case filter.Org != "":
		var org tenants.OrgRecord
		if org, _, err = u.orgFor(ctx, p, filter.Org, maySee); err == nil {
			records, err = u.members(ctx, org.ID)
		}
	default:
		records, err = u.all(ctx)
	}
	if err != nil {
		return nil, state.HangarError(err)
	}
	slices.SortFunc(records, func(a, b record) int { return strings.Compare(strings.ToLower(a.Email), strings.ToLower(b.Email)) })
	list := make([]*hangar.User, 0, len(records))
	for i := range records {
		user, err := u.view(ctx, p, &records[i])
		if err != nil {
			return nil, err
		}
		list = append(list, user)
	}
	return list, nil
}

// customer is the user of a customer address, if there is one who is of the organization that is
// asked for.
func (u *Users) customer(ctx context.Context, filter hangar.UserFilter) ([]record, error) {
	local, ok := strings.CutSuffix(strings.ToLower(filter.CustomerAddress), strings.ToLower(u.customerAddress("")))
	if !ok || local == "" || strings.ContainsAny(local, "/@") {
		return nil, nil
	}
	f, err := u.lookup(ctx, state.CustomersPrefix+local, hangar.UserRef(filter.CustomerAddress))
	if hangar.CodeOf(err) == hangar.CodeNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if filter.Org != "" && !slices.ContainsFunc(f.Memberships, func(m membership) bool { return m.Org == filter.Org }) {
		return nil, nil
	}
	return []record{f.record}, nil
}

// members are the users with a membership in an organization.
func (u *Users) members(ctx context.Context, org hangar.OrgID) ([]record, error) {
	items, _, err := state.All(ctx, u.Store, state.MemberKey(org, ""), true)
	if err != nil {
		return nil, err
	}
	var list []record
	for _, item := range items {
		f, err := u.read(ctx, hangar.UserID(strings.TrimPrefix(item.Key, state.MemberKey(org, ""))))
		switch {
		case hangar.CodeOf(err) == hangar.CodeNotFound: // removed meanwhile
		case hangar.ReasonOf(err) == hangar.ReasonRecordDamaged:
			u.Log.Error("user skipped", keyKey, item.Key, keyError, err)
		case err != nil:
			return nil, err
		default:
			list = append(list, f.record)
		}
	}
	return list, nil
}

// all are all users.
func (u *Users) all(ctx context.Context) ([]record, error) {
	items, _, err := state.All(ctx, u.Store, state.UsersPrefix, false)
	if err != nil {
		return nil, err
	}
	list := make([]record, 0, len(items))
	for _, item := range items {
		rec, err := state.Decode[record](item)
		if err != nil {
			u.Log.Error("user skipped", keyKey, item.Key, keyError, err)
			continue
		}
		list = append(list, rec)
	}
	return list, nil
}

// Person is a user as third parties know them.
type Person struct {
	ID              hangar.UserID
	CustomerAddress string
	Admin           bool // of the platform
	Memberships     []hangar.Membership
}

// Role returns what the person is in an organization: administrators of the platform are admins
// of every one. It is empty for a user who is no member.
func (p *Person) Role(org hangar.OrgID) hangar.Role {
	if p.Admin || p.ID == hangar.UserAdmin {
		return hangar.RoleAdmin
	}
	for _, m := range p.Memberships {
		if m.OrgID == org {
			return m.Role
		}
	}
	return ""
}

// Person returns a user. It answers CodeNotFound with ReasonUserNotFound.
func (k Upkeep) Person(ctx context.Context, id hangar.UserID) (*Person, error) {
	f, err := k.users.read(ctx, id)
	if err != nil {
		return nil, err
	}
	p := &Person{ID: f.ID, CustomerAddress: k.users.customerAddress(f.Customer), Admin: f.Admin != ""}
	for _, m := range f.Memberships {
		p.Memberships = append(p.Memberships, m.Membership)
	}
	return p, nil
}
