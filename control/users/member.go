package users

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
)

type membership = auth.Membership

// join makes a user a member in a transaction, which fails if the organization is being deleted.
// It answers CodeFailedPrecondition for a user with too many memberships.
func (rec *record) join(org hangar.Org, item state.Item, role hangar.Role, txn *state.Txn) error {
	if len(rec.Memberships) >= hangar.MaxMemberships {
		return hangar.Errorf(hangar.CodeFailedPrecondition, "", "A user is a member of %d organizations at most", hangar.MaxMemberships)
	}
	put, err := state.Write(state.MemberKey(org.ID, rec.ID), owner{rec.ID})
	if err != nil {
		return err
	}
	rec.Memberships = append(slices.Clone(rec.Memberships), membership{
		Membership: hangar.Membership{OrgID: org.ID, Org: org.Slug, Role: role}, Tie: tie(),
	})
	txn.If, txn.Then = append(txn.If, state.Unchanged(item)), append(txn.Then, put)
	return nil
}

// leave ends a membership in a transaction.
func (rec *record) leave(org hangar.OrgID, txn *state.Txn) {
	rec.Memberships = slices.DeleteFunc(slices.Clone(rec.Memberships), func(m membership) bool { return m.OrgID == org })
	txn.Then = append(txn.Then, state.Delete(state.MemberKey(org, rec.ID)))
}

// UpdateUser implements hangar.UserService.
func (u *Users) UpdateUser(ctx context.Context, ref hangar.UserRef, in hangar.UserUpdate) (*hangar.User, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return nil, err
	}
	f, err := u.visible(ctx, p, ref)
	if err != nil {
		return nil, err
	}
	if !p.Admin && (!ownerOf(p, f.ID) || in.Admin != nil) {
		return nil, tenants.Forbidden("user %q", ref)
	}
	if in.Name != nil {
		if err := checkName(*in.Name); err != nil {
			return nil, err
		}
	}
	if in.Admin != nil && !*in.Admin && f.ID == hangar.UserAdmin {
		return nil, hangar.Errorf(hangar.CodeFailedPrecondition, "", "The user %q is always an administrator", f.ID)
	}
	rec, err := u.change(ctx, f.ID, func(rec *record, _ *state.Txn) error {
		if in.Name != nil {
			rec.Name = *in.Name
		}
		switch {
		case in.Admin == nil || *in.Admin == (rec.Admin != ""):
		case *in.Admin:
			rec.Admin = tie()
		default:
			rec.Admin = ""
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	u.revokeFallen(ctx, f.ID)
	return u.view(ctx, p, rec)
}

func checkName(name string) error {
	fault := tenants.TitleFault(name)
	if name == "" {
		fault = "is required"
	}
	if fault != "" {
		return hangar.Errorf(hangar.CodeInvalid, "", "invalid name: %s", fault)
	}
	return nil
}

// SetMember implements hangar.UserService.
func (u *Users) SetMember(ctx context.Context, slug hangar.OrgSlug, ref hangar.UserRef, role hangar.Role) (*hangar.User, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := role.Validate(); err != nil {
		return nil, err
	}
	org, item, err := u.orgFor(ctx, p, slug, mayManage)
	if err != nil {
		return nil, err
	}
	f, err := u.visible(ctx, p, ref)
	if err != nil {
		return nil, err
	}
	if f.ID == hangar.UserAdmin {
		return nil, alwaysThere()
	}
	rec, err := u.change(ctx, f.ID, func(rec *record, txn *state.Txn) error {
		i := slices.IndexFunc(rec.Memberships, func(m membership) bool { return m.OrgID == org.ID })
		if i >= 0 {
			rec.Memberships = slices.Clone(rec.Memberships)
			rec.Memberships[i].Role = role
			return nil
		}
		if !p.Admin {
			return hangar.UserNotFound(ref)
		}
		if org, item, err = u.orgFor(ctx, p, slug, mayManage); err != nil {
			return err
		}
		if err := u.Ledger.Charge(ctx, &org, hangar.Quotas{hangar.QuotaMembers: 1}, txn); err != nil {
			return err
		}
		return rec.join(org.Org, item, role, txn)
	})
	if err != nil {
		return nil, err
	}
	return u.view(ctx, p, rec)
}

func alwaysThere() error {
	return hangar.Errorf(hangar.CodeFailedPrecondition, "", "The user %q is always there, and an admin of every organization", hangar.UserAdmin)
}

// RemoveMember implements hangar.UserService.
func (u *Users) RemoveMember(ctx context.Context, slug hangar.OrgSlug, ref hangar.UserRef) error {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return err
	}
	org, _, err := u.Tenants.AnyOrg(ctx, slug)
	if err != nil {
		return err
	}
	f, err := u.anyUser(ctx, ref)
	if target := tenants.OrgTarget(org.Org); !mayManage(p, org.Org) && (err != nil || !ownerOf(p, f.ID) || !p.Sees(target)) {
		return tenants.Denied(p, target)
	}
	if err != nil {
		return err
	}
	if f.ID == hangar.UserAdmin {
		return alwaysThere()
	}
	_, err = u.change(ctx, f.ID, func(rec *record, txn *state.Txn) error {
		if _, is := rec.In(org.ID); !is {
			return hangar.UserNotFound(ref)
		}
		rec.leave(org.ID, txn)
		return u.Ledger.Credit(ctx, org.ID, hangar.Quotas{hangar.QuotaMembers: -1}, txn)
	})
	if err != nil {
		return err
	}
	u.revokeFallen(ctx, f.ID)
	return nil
}

// RemoveUser implements hangar.UserService.
func (u *Users) RemoveUser(ctx context.Context, ref hangar.UserRef) error {
	if err := tenants.NeedAdministrator(ctx, "remove users"); err != nil {
		return err
	}
	f, err := u.anyUser(ctx, ref)
	if err != nil {
		return err
	}
	if f.ID == hangar.UserAdmin {
		return alwaysThere()
	}
	for {
		txn := state.Txn{If: []state.Compare{state.Unchanged(f.item)}, Then: []state.Op{
			state.Delete(f.item.Key), state.Delete(emailKey(f.Email)), state.Delete(state.CustomersPrefix + f.Customer),
			state.Delete(ownedBy(state.PasswordsPrefix, f.ID)), state.Delete(ownedBy(state.SignInsPrefix, f.ID)), state.Delete(ownedBy(state.ResetsPrefix, f.ID)), state.Delete(state.OAuthKey(f.ID)),
		}}
		if f.Identity != "" {
			txn.Then = append(txn.Then, state.Delete(state.IdentitiesPrefix+f.Identity))
		}
		for _, m := range f.Memberships {
			f.leave(m.OrgID, &txn)
			if err := u.Ledger.Credit(ctx, m.OrgID, hangar.Quotas{hangar.QuotaMembers: -1}, &txn); err != nil {
				return state.HangarError(err)
			}
		}
		revision, err := u.Store.Txn(ctx, txn)
		if err == nil {
			u.Tokens.Learn(f.ID, nil, revision)
			u.revokeFallen(ctx, f.ID)
			return nil
		}
		if !errors.Is(err, state.ErrConflict) {
			return state.HangarError(err)
		}
		if f, err = u.read(ctx, f.ID); err != nil {
			return err
		}
	}
}

// RemoveOrg ends all memberships in an organization and all invitations to it. It is a part of
// deleting the organization, which takes no members any more, and may be repeated.
func (k Upkeep) RemoveOrg(ctx context.Context, org hangar.OrgID) error {
	u := k.users
	members, _, err := state.All(ctx, u.Store, state.MemberKey(org, ""), true)
	if err != nil {
		return err
	}
	for _, item := range members {
		id := hangar.UserID(strings.TrimPrefix(item.Key, state.MemberKey(org, "")))
		_, err := u.change(ctx, id, func(rec *record, txn *state.Txn) error {
			rec.leave(org, txn)
			return nil
		})
		if hangar.CodeOf(err) == hangar.CodeNotFound || hangar.ReasonOf(err) == hangar.ReasonRecordDamaged {
			// A user who cannot be read has no membership that counts, and the organization goes.
			_, err = u.Store.Txn(ctx, state.Txn{Then: []state.Op{state.Delete(item.Key)}})
		}
		if err != nil {
			return err
		}
	}
	invitations, _, err := state.All(ctx, u.Store, invitationsOf(org), true)
	if err != nil {
		return err
	}
	for _, item := range invitations {
		if _, err := u.Store.Txn(ctx, state.Txn{Then: []state.Op{state.Delete(item.Key)}}); err != nil {
			return err
		}
	}
	return nil
}
