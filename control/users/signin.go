package users

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// Door implements hangar.SignInService and hangar.SessionService, for callers without a token.
type Door struct{ users *Users }

var (
	_ hangar.SignInService  = Door{}
	_ hangar.SessionService = Door{}
)

// Door returns the part of Users that asks for no principal.
func (u *Users) Door() Door { return Door{u} }

// wrong is the one answer to an address that is no user's and to a password that is another one.
func wrong() error {
	return hangar.Errorf(hangar.CodeUnauthenticated, hangar.ReasonWrongPassword, "The e-mail address or the password is wrong")
}

// SignIn implements hangar.SignInService.
func (d Door) SignIn(ctx context.Context, in hangar.SignIn) (*hangar.NewToken, error) {
	return d.users.signIn(ctx, in, hangar.TokenLogin)
}

// signIn makes a token of a kind for a user who knows the password.
func (u *Users) signIn(ctx context.Context, in hangar.SignIn, kind hangar.TokenKind) (*hangar.NewToken, error) {
	for {
		made, err := u.trySignIn(ctx, in, kind)
		if !errors.Is(err, state.ErrConflict) {
			return made, state.HangarError(err)
		}
	}
}

// trySignIn returns state.ErrConflict when the user has changed meanwhile.
func (u *Users) trySignIn(ctx context.Context, in hangar.SignIn, kind hangar.TokenKind) (*hangar.NewToken, error) {
	f, known, err := u.signsIn(ctx, in.Email)
	if err != nil {
		return nil, err
	}
	h, item := u.unmatched(), state.Item{}
	if known {
		if h, item, err = u.passwordOf(ctx, f.ID); err != nil {
			return nil, err
		}
	}
	password := in.Password
	if len(password.Reveal()) > hangar.MaxPassword {
		password = hangar.Sensitive{} // which is wrong for every user, and takes as long
	}
	right, err := u.matches(ctx, in.Source, password, h)
	if err != nil {
		return nil, err
	}
	if !known || !right {
		return nil, wrong()
	}
	txn := state.Txn{If: []state.Compare{state.Unchanged(f.item), state.Unchanged(item)}}
	if h.PasswordCost != u.PasswordCost {
		if h, err = u.hashed(ctx, in.Source, password); err != nil {
			return nil, err
		}
		txn.Then = append(txn.Then, putPassword(f.ID, h))
	}
	token, err := u.signedIn(ctx, &f.record, kind, &txn)
	if err != nil {
		return nil, err
	}
	return u.Tokens.IssueTied(ctx, token, f.SignIns, txn)
}

// signedIn is the token of a user who has signed in, for which there is room, with what else it writes.
func (u *Users) signedIn(ctx context.Context, rec *record, kind hangar.TokenKind, txn *state.Txn) (hangar.Token, error) {
	if err := u.makeRoom(ctx, rec.ID, kind); err != nil {
		return hangar.Token{}, err
	}
	now := u.Now().UTC().Truncate(time.Second)
	txn.Then = append(txn.Then, state.Put(ownedBy(state.SignInsPrefix, rec.ID), []byte(now.Format(time.RFC3339))))
	token := hangar.Token{
		Name: "sign-in", Kind: kind, User: rec.Email, UserID: rec.ID, CreatedBy: rec.Email,
		Grant: hangar.Grant{Actions: hangar.ActionAll, Until: now.Add(hangar.SignInLifetime)},
	}
	if kind == hangar.TokenSession {
		token.Name, token.Grant.Until = "browser", now.Add(hangar.SessionLifetime)
	}
	return token, nil
}

// signsIn returns the user of an e-mail address.
func (u *Users) signsIn(ctx context.Context, email string) (f found, known bool, err error) {
	f, err = u.anyUser(ctx, hangar.UserRef(email))
	if err == nil && !strings.EqualFold(f.Email, email) {
		return found{}, false, nil // named by id
	}
	switch {
	case err == nil:
		return f, true, nil
	case hangar.CodeOf(err) == hangar.CodeNotFound:
		return found{}, false, nil
	case hangar.ReasonOf(err) == hangar.ReasonRecordDamaged: // it opens nothing
		u.Log.Error("user cannot sign in", keyError, err)
		return found{}, false, nil
	default:
		return found{}, false, err
	}
}

// makeRoom ends those tokens of a user of one kind, from signing in, that have expired, and the oldest beyond
// what a user may have.
func (u *Users) makeRoom(ctx context.Context, id hangar.UserID, kind hangar.TokenKind) error {
	limit := hangar.MaxSignIns
	if kind == hangar.TokenSession {
		limit = hangar.MaxSessions
	}
	tokens := u.Tokens.OfUser(id, kind)
	now, surplus := u.Now(), len(tokens)-(limit-1)
	for i, token := range tokens {
		if i < surplus || !token.Grant.Until.IsZero() && !now.Before(token.Grant.Until) {
			if err := u.Tokens.Revoke(ctx, token.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// UseCode implements hangar.SignInService.
func (d Door) UseCode(ctx context.Context, in hangar.CodeUse) (*hangar.User, error) {
	u := d.users
	if err := hangar.CheckPassword("password", in.Password); err != nil {
		return nil, err
	}
	var rec *record
	var err error
	if id, ok := idOfCode(in.Code, resetCode); ok {
		rec, err = u.useReset(ctx, hangar.UserID(id), in)
	} else {
		rec, err = u.useInvitation(ctx, in)
	}
	if err != nil {
		return nil, err
	}
	u.revokeFallen(ctx, rec.ID)
	return u.view(ctx, hangar.Principal{User: rec.ID}, rec)
}

// SignOut implements hangar.UserService.
func (u *Users) SignOut(ctx context.Context) error {
	p, err := hangar.PrincipalFrom(ctx)
	if err != nil {
		return err
	}
	ended := false
	for _, id := range p.Tokens {
		if r, ok := u.Tokens.Find(id); !ok || r.Kind != hangar.TokenLogin {
			continue
		}
		if err := u.Tokens.Revoke(ctx, id); err != nil {
			return state.HangarError(err)
		}
		ended = true
	}
	if !ended {
		return hangar.Errorf(hangar.CodeForbidden, "", "The token does not come from signing in: revoke it to end it")
	}
	return nil
}
