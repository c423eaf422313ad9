package users

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/internal/random"
)

// maxInvitationsTaken is how many invitations are accepted with the first sign-in, so that it fits into a
// transaction. Others are accepted by their codes.
const maxInvitationsTaken = 20

// identityOf is the digest of who a user is at an OpenID Connect provider. Issuers are URLs and so
// hold no blank.
func identityOf(who hangar.Identity) string {
	sum := sha256.Sum256([]byte(who.Issuer + " " + who.Subject))
	return hex.EncodeToString(sum[:])
}

// tryOpenAs opens a session, or returns state.ErrConflict when something that it was decided by has changed.
func (u *Users) tryOpenAs(ctx context.Context, who hangar.Identity) (*hangar.NewToken, error) {
	f, err := u.lookup(ctx, state.IdentitiesPrefix+identityOf(who), hangar.UserRef(who.Email))
	if hangar.CodeOf(err) == hangar.CodeNotFound {
		if err := u.bind(ctx, who); err != nil {
			return nil, err
		}
		return nil, state.ErrConflict // the user is found now
	}
	if err != nil {
		return nil, err
	}
	txn := state.Txn{If: []state.Compare{state.Unchanged(f.item)}}
	token, err := u.signedIn(ctx, &f.record, hangar.TokenSession, &txn)
	if err != nil {
		return nil, err
	}
	return u.Tokens.IssueTied(ctx, token, f.SignIns, txn)
}

// bind ties an identity that nothing is tied to yet to the user of its e-mail address, whom invitations make
// if there is none.
func (u *Users) bind(ctx context.Context, who hangar.Identity) error {
	if !who.EmailVerified || hangar.CheckEmail(who.Email) != nil {
		return uninvited()
	}
	f, err := u.lookup(ctx, emailKey(who.Email), hangar.UserRef(who.Email))
	switch {
	case hangar.CodeOf(err) == hangar.CodeNotFound:
		return u.createInvited(ctx, who)
	case err != nil:
		return err
	case f.Identity == identityOf(who):
		return nil // another sign-in has just tied it
	case f.Identity != "":
		return hangar.Errorf(hangar.CodeFailedPrecondition, "", "The user of %s signs in with another identity", who.Email)
	}
	rec := f.record
	rec.Identity = identityOf(who)
	key := state.IdentitiesPrefix + rec.Identity
	tied, err := state.Write(key, owner{rec.ID})
	if err != nil {
		return err
	}
	put, err := state.Write(f.item.Key, rec)
	if err != nil {
		return err
	}
	revision, err := u.Store.Txn(ctx, state.Txn{
		If: []state.Compare{state.Unchanged(f.item), state.Absent(key)}, Then: []state.Op{put, tied},
	})
	if err != nil {
		return err
	}
	u.Tokens.Learn(rec.ID, &rec.Account, revision)
	return nil
}

func uninvited() error {
	return hangar.Errorf(hangar.CodeForbidden, "", "There is neither a user nor an invitation of this e-mail address")
}

// createInvited makes the user of the invitations to a verified e-mail address.
func (u *Users) createInvited(ctx context.Context, who hangar.Identity) error {
	items, _, err := state.All(ctx, u.Store, state.InvitationsPrefix, false)
	if err != nil {
		return err
	}
	rec := record{Account: auth.Account{ID: hangar.UserID(random.ID()), SignIns: tie()}, Name: who.Name, Identity: identityOf(who)}
	if checkName(rec.Name) != nil {
		rec.Name, _, _ = strings.Cut(who.Email, "@")
	}
	var txn state.Txn
	taken := 0
	for _, item := range items {
		inv, err := state.Decode[invitation](item)
		if err != nil {
			u.Log.Error("invitation skipped", keyKey, item.Key, keyError, err)
			continue
		}
		if !strings.EqualFold(inv.Email, who.Email) || !u.Now().Before(inv.ExpiresAt) || taken == maxInvitationsTaken {
			continue
		}
		with := state.Txn{If: slices.Clone(txn.If), Then: slices.Clone(txn.Then)}
		switch err := u.take(ctx, &rec, &inv, item, &with); {
		case hangar.CodeOf(err) == hangar.CodeInvalid: // its organization is gone
			continue
		case err != nil:
			return err
		}
		txn, rec.Email = with, inv.Email
		taken++
	}
	if taken == 0 {
		if _, err := u.lookup(ctx, emailKey(who.Email), hangar.UserRef(who.Email)); hangar.CodeOf(err) != hangar.CodeNotFound {
			return cmp.Or(err, state.ErrConflict) // another sign-in has just taken them
		}
		return uninvited()
	}
	_, err = u.create(ctx, rec, txn)
	return err
}
