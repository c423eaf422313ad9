package users

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/internal/random"
)

// Codes begin with what they are for, and the id by which their record is found.
const (
	invitationCode = "hgi_"
	resetCode      = "hgp_"
	maxCode        = 128 // bytes
)

// platform takes the place of an organization's id in that of an invitation to none.
const platform = hangar.OrgID("platform")

// invitation is one as the state keeps it.
type invitation struct {
	hangar.Invitation
	OrgID  hangar.OrgID `json:"org_id,omitempty"`
	Digest []byte       `json:"digest"` // of its code
}

// invitationsOf is the prefix of the keys of invitations to an organization; empty: to none.
func invitationsOf(org hangar.OrgID) string {
	return state.InvitationsPrefix + string(cmp.Or(org, platform)) + "-"
}

// invitationID is that of an address and an organization.
func invitationID(org hangar.OrgID, email string) hangar.InvitationID {
	sum := sha256.Sum256([]byte(strings.ToLower(email)))
	return hangar.InvitationID(string(cmp.Or(org, platform)) + "-" + hex.EncodeToString(sum[:8]))
}

func invitationKey(id hangar.InvitationID) string { return state.InvitationsPrefix + string(id) }

// newCode makes a code that is found by an id.
func newCode(kind, id string) string { return kind + id + "_" + rand.Text() }

// idOfCode is the id in a code of a kind.
func idOfCode(code hangar.Sensitive, kind string) (string, bool) {
	rest, ok := strings.CutPrefix(code.Reveal(), kind)
	id, _, whole := strings.Cut(rest, "_")
	return id, ok && whole && len(rest) < maxCode && id != "" && !strings.Contains(id, "/")
}

// valid reports whether a code has a digest, and has not expired.
func (u *Users) valid(code hangar.Sensitive, want []byte, expires time.Time) bool {
	return subtle.ConstantTimeCompare(auth.Digest(code.Reveal()), want) == 1 && u.Now().Before(expires)
}

func codeInvalid() error {
	return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonCodeInvalid, "invalid code: it is unknown, used or expired, or for another user")
}

func invitationNotFound(id hangar.InvitationID) error {
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonInvitationNotFound, "Could not find invitation %.100q", string(id))
}

// InviteUser implements hangar.UserService.
func (u *Users) InviteUser(ctx context.Context, in hangar.UserInvite) (*hangar.NewInvitation, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return nil, err
	}
	if in.Org == "" {
		if err := tenants.NeedAdministrator(ctx, "invite users without an organization"); err != nil {
			return nil, err
		}
	} else {
		org, _, err := u.orgFor(ctx, p, in.Org, mayManage)
		if err != nil {
			return nil, err
		}
		if err := u.sweep(ctx, org.ID); err != nil {
			return nil, state.HangarError(err)
		}
	}
	if err := in.Validate(); err != nil {
		return nil, err
	}
	for {
		made, err := u.tryInvite(ctx, p, in)
		if !errors.Is(err, state.ErrConflict) {
			return made, state.HangarError(err)
		}
	}
}

// tryInvite returns state.ErrConflict when something that it was decided by has changed.
func (u *Users) tryInvite(ctx context.Context, p hangar.Principal, in hangar.UserInvite) (*hangar.NewInvitation, error) {
	now := u.Now().UTC().Truncate(time.Second)
	inv := invitation{Invitation: hangar.Invitation{
		Email: in.Email, Org: in.Org, Admin: in.Admin, InvitedBy: p.Subject, CreatedAt: now, ExpiresAt: now.Add(hangar.InvitationLifetime),
	}}
	var txn state.Txn
	var org tenants.OrgRecord
	if in.Org != "" {
		var item state.Item
		var err error
		if org, item, err = u.orgFor(ctx, p, in.Org, mayManage); err != nil {
			return nil, err
		}
		inv.OrgID, inv.Role = org.ID, cmp.Or(in.Role, hangar.RoleMember)
		txn.If = append(txn.If, state.Unchanged(item))
	}
	if err := u.inviteable(ctx, &inv); err != nil {
		return nil, err
	}
	inv.ID = invitationID(inv.OrgID, in.Email)
	code := newCode(invitationCode, string(inv.ID))
	inv.Digest = auth.Digest(code)
	put, err := state.Write(invitationKey(inv.ID), inv)
	if err != nil {
		return nil, err
	}
	switch before, err := u.Store.Get(ctx, put.Key); {
	case err == nil:
		txn.If = append(txn.If, state.Unchanged(before))
	case !errors.Is(err, state.ErrNotFound):
		return nil, err
	default:
		txn.If = append(txn.If, state.Absent(put.Key))
		if inv.OrgID != "" {
			if err := u.Ledger.Charge(ctx, &org, hangar.Quotas{hangar.QuotaMembers: 1}, &txn); err != nil {
				return nil, err
			}
		}
	}
	txn.Then = append(txn.Then, put)
	if _, err := u.Store.Txn(ctx, txn); err != nil {
		return nil, err
	}
	return &hangar.NewInvitation{Invitation: inv.Invitation, Code: code}, nil
}

// inviteable refuses who is already what an invitation would make of him or her.
func (u *Users) inviteable(ctx context.Context, inv *invitation) error {
	f, err := u.lookup(ctx, emailKey(inv.Email), hangar.UserRef(inv.Email))
	if hangar.CodeOf(err) == hangar.CodeNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if inv.OrgID == "" && (!inv.Admin || f.Admin != "") {
		return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonNameTaken, "invalid email: %q is a user already", inv.Email)
	}
	if _, is := f.In(inv.OrgID); is {
		return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonNameTaken, "invalid email: %q is a member already", inv.Email)
	}
	return nil
}

// Invitations implements hangar.UserService.
func (u *Users) Invitations(ctx context.Context, slug hangar.OrgSlug) ([]*hangar.Invitation, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return nil, err
	}
	var org tenants.OrgRecord
	if slug == "" {
		err = tenants.NeedAdministrator(ctx, "see invitations without an organization")
	} else {
		org, _, err = u.orgFor(ctx, p, slug, mayManage)
	}
	if err != nil {
		return nil, err
	}
	items, _, err := state.All(ctx, u.Store, invitationsOf(org.ID), false)
	if err != nil {
		return nil, state.HangarError(err)
	}
	list := []*hangar.Invitation{}
	for _, item := range items {
		inv, err := state.Decode[invitation](item)
		if err != nil {
			u.Log.Error("invitation skipped", keyKey, item.Key, keyError, err)
			continue
		}
		if u.Now().Before(inv.ExpiresAt) {
			list = append(list, &inv.Invitation)
		}
	}
	slices.SortFunc(list, func(a, b *hangar.Invitation) int { return strings.Compare(a.Email, b.Email) })
	return list, nil
}

// CancelInvitation implements hangar.UserService.
func (u *Users) CancelInvitation(ctx context.Context, id hangar.InvitationID) error {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return err
	}
	for {
		inv, item, err := state.Read[invitation](ctx, u.Store, invitationKey(id))
		if errors.Is(err, state.ErrNotFound) || strings.Contains(string(id), "/") {
			return invitationNotFound(id)
		}
		if err != nil {
			return state.HangarError(err)
		}
		if !p.Admin && (inv.OrgID == "" || !mayManage(p, hangar.Org{ID: inv.OrgID, Slug: inv.Org})) {
			return invitationNotFound(id)
		}
		if err := u.discard(ctx, &inv, item); !errors.Is(err, state.ErrConflict) {
			return state.HangarError(err)
		}
	}
}

// discard removes an invitation, or returns state.ErrConflict.
func (u *Users) discard(ctx context.Context, inv *invitation, item state.Item) error {
	txn := state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{state.Delete(item.Key)}}
	if inv.OrgID != "" {
		if err := u.Ledger.Credit(ctx, inv.OrgID, hangar.Quotas{hangar.QuotaMembers: -1}, &txn); err != nil {
			return err
		}
	}
	_, err := u.Store.Txn(ctx, txn)
	return err
}

// sweep removes invitations that have expired: those to an organization, or all.
func (u *Users) sweep(ctx context.Context, org hangar.OrgID) error {
	prefix := state.InvitationsPrefix
	if org != "" {
		prefix = invitationsOf(org)
	}
	items, _, err := state.All(ctx, u.Store, prefix, false)
	if err != nil {
		return err
	}
	for _, item := range items {
		inv, err := state.Decode[invitation](item)
		if err != nil {
			u.Log.Error("invitation skipped", keyKey, item.Key, keyError, err)
			continue
		}
		if u.Now().Before(inv.ExpiresAt) {
			continue
		}
		if err := u.discard(ctx, &inv, item); err != nil && !errors.Is(err, state.ErrConflict) { // else it was replaced meanwhile
			return err
		}
	}
	return nil
}

// invited returns the invitation of a code.
func (u *Users) invited(ctx context.Context, code hangar.Sensitive) (invitation, state.Item, error) {
	id, ok := idOfCode(code, invitationCode)
	if !ok {
		return invitation{}, state.Item{}, codeInvalid()
	}
	inv, item, err := state.Read[invitation](ctx, u.Store, invitationKey(hangar.InvitationID(id)))
	if errors.Is(err, state.ErrNotFound) || err == nil && !u.valid(code, inv.Digest, inv.ExpiresAt) {
		return invitation{}, state.Item{}, codeInvalid()
	}
	return inv, item, state.HangarError(err)
}

// take makes of a user what an invitation says, in a transaction that lasts only if the invitation is
// still there. A place in the organization is counted for it already.
func (u *Users) take(ctx context.Context, rec *record, inv *invitation, item state.Item, txn *state.Txn) error {
	txn.If, txn.Then = append(txn.If, state.Unchanged(item)), append(txn.Then, state.Delete(item.Key))
	if inv.Admin && rec.Admin == "" {
		rec.Admin = tie()
	}
	if inv.OrgID == "" {
		return nil
	}
	if _, is := rec.In(inv.OrgID); is {
		return u.Ledger.Credit(ctx, inv.OrgID, hangar.Quotas{hangar.QuotaMembers: -1}, txn)
	}
	org, at, err := u.Tenants.AnyOrg(ctx, inv.Org)
	if hangar.CodeOf(err) == hangar.CodeNotFound || err == nil && org.ID != inv.OrgID {
		return codeInvalid() // the organization is gone, or going
	}
	if err != nil {
		return err
	}
	return rec.join(org.Org, at, inv.Role, txn)
}

// AcceptInvitation implements hangar.UserService.
func (u *Users) AcceptInvitation(ctx context.Context, code hangar.Sensitive) (*hangar.User, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return nil, err
	}
	if !p.SignedIn {
		return nil, hangar.Errorf(hangar.CodeForbidden, "", "Sign in to accept an invitation: the token is not for all of a user")
	}
	rec, err := u.change(ctx, p.User, func(rec *record, txn *state.Txn) error {
		inv, item, err := u.invited(ctx, code) // again with each attempt: it may have been used
		if err != nil {
			return err
		}
		if !strings.EqualFold(inv.Email, rec.Email) {
			return codeInvalid()
		}
		return u.take(ctx, rec, &inv, item, txn)
	})
	if err != nil {
		return nil, err
	}
	return u.view(ctx, p, rec)
}

// useInvitation makes the user of an invitation.
func (u *Users) useInvitation(ctx context.Context, in hangar.CodeUse) (*record, error) {
	inv, _, err := u.invited(ctx, in.Code)
	if err != nil {
		return nil, err
	}
	if in.Name == "" {
		in.Name, _, _ = strings.Cut(inv.Email, "@")
	}
	if err := checkName(in.Name); err != nil {
		return nil, err
	}
	h, err := u.hashed(ctx, string(inv.ID), in.Password)
	if err != nil {
		return nil, err
	}
	for {
		inv, item, err := u.invited(ctx, in.Code)
		if err != nil {
			return nil, err
		}
		switch _, err := u.Store.Get(ctx, emailKey(inv.Email)); {
		case err == nil:
			return nil, hangar.Errorf(hangar.CodeFailedPrecondition, "", "There is a user of %s already: sign in, and accept the invitation", inv.Email)
		case !errors.Is(err, state.ErrNotFound):
			return nil, state.HangarError(err)
		}
		rec := record{Account: auth.Account{ID: hangar.UserID(random.ID()), SignIns: tie()}, Name: in.Name, Email: inv.Email}
		txn := state.Txn{Then: []state.Op{putPassword(rec.ID, h)}}
		if err := u.take(ctx, &rec, &inv, item, &txn); err != nil {
			return nil, state.HangarError(err)
		}
		made, err := u.create(ctx, rec, txn)
		if err == nil {
			return made, nil
		}
		if !errors.Is(err, state.ErrConflict) {
			return nil, state.HangarError(err)
		}
	}
}
