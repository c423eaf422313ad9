package users

import (
	"context"
	"errors"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/state"
)

// OpenSession implements hangar.SessionService.
func (d Door) OpenSession(ctx context.Context, in hangar.SignIn) (*hangar.NewToken, error) {
	return d.users.signIn(ctx, in, hangar.TokenSession)
}

// OpenSessionAs implements hangar.SessionService.
func (d Door) OpenSessionAs(ctx context.Context, who hangar.Identity) (*hangar.NewToken, error) {
	u := d.users
	for {
		made, err := u.tryOpenAs(ctx, who)
		if !errors.Is(err, state.ErrConflict) {
			return made, state.HangarError(err)
		}
	}
}

// Session implements hangar.SessionService.
func (d Door) Session(_ context.Context, session hangar.Sensitive) (hangar.Principal, error) {
	r, p, ok := d.users.Tokens.Lookup(session.Reveal())
	if !ok || r.Kind != hangar.TokenSession {
		return hangar.Principal{}, hangar.Unauthenticated()
	}
	return p, nil
}

// CloseSession implements hangar.SessionService.
func (d Door) CloseSession(ctx context.Context, session hangar.Sensitive) error {
	r, _, ok := d.users.Tokens.Lookup(session.Reveal())
	if !ok || r.Kind != hangar.TokenSession {
		return nil
	}
	return state.HangarError(d.users.Tokens.Revoke(ctx, r.ID))
}

// IssueSignIn makes a token of hangar.TokenLogin for a user who has proven to a client who he or she is,
// as long as tie is still that of the user's sign-ins: state.ErrConflict otherwise, and when a compare of
// txn failed.
func (d Door) IssueSignIn(ctx context.Context, id hangar.UserID, token hangar.TokenID, tie string, client auth.OAuth, txn state.Txn) (*hangar.NewToken, error) {
	u := d.users
	f, err := u.read(ctx, id)
	if hangar.CodeOf(err) == hangar.CodeNotFound || err == nil && f.SignIns != tie {
		return nil, state.ErrConflict
	}
	if err != nil {
		return nil, err
	}
	txn.If = append(txn.If, state.Unchanged(f.item))
	made, err := u.signedIn(ctx, &f.record, hangar.TokenLogin, &txn)
	if err != nil {
		return nil, err
	}
	made.ID = token
	return u.Tokens.IssueFor(ctx, made, tie, client, txn)
}
