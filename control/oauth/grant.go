package oauth

import (
	"cmp"
	"context"
	"crypto/subtle"
	"errors"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/internal/random"
)

// invalidGrant is the one answer to every code or refresh token that is refused.
func invalidGrant() error {
	return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonInvalidGrant,
		"The code or refresh token is unknown, used, expired or revoked, or was issued to another client or for another redirect_uri")
}

// ExchangeCode implements hangar.OAuthService.
func (s *Server) ExchangeCode(ctx context.Context, in hangar.OAuthExchange) (*hangar.OAuthTokens, error) {
	user, id, ok := parseCode(in.Code.Reveal())
	if !ok {
		return nil, invalidGrant()
	}
	for {
		made, err := s.tryExchange(ctx, user, id, in)
		if !errors.Is(err, state.ErrConflict) {
			return made, state.HangarError(err)
		}
	}
}

// tryExchange returns state.ErrConflict if the user or the record of codes and consents has changed meanwhile.
func (s *Server) tryExchange(ctx context.Context, user hangar.UserID, id hangar.TokenID, in hangar.OAuthExchange) (*hangar.OAuthTokens, error) {
	f, err := s.read(ctx, user)
	if errors.Is(err, state.ErrNotFound) {
		return nil, invalidGrant()
	}
	if err != nil {
		return nil, err
	}
	digest := auth.Digest(in.Code.Reveal())
	i := slices.IndexFunc(f.Codes, func(c code) bool { return c.ID == id && subtle.ConstantTimeCompare(c.Digest, digest) == 1 })
	if i < 0 {
		return nil, s.usedAgain(ctx, f.item, id, digest, in.Client)
	}
	c := f.Codes[i]
	if c.Client != in.Client.ID {
		return nil, invalidGrant()
	}
	f.take(id)
	txn, err := f.write()
	if err != nil {
		return nil, err
	}
	if !s.mayExchange(&f.account, &c, in) {
		// The code is used up, so that its holder cannot guess the verifier.
		if _, err := s.Store.Txn(ctx, txn); err != nil {
			return nil, err
		}
		return nil, invalidGrant()
	}
	if c.Client == hangar.OAuthClientCLI {
		txn.If = txn.If[1:] // IssueSignIn compares the user
		made, err := s.Users.Door().IssueSignIn(ctx, user, id, c.SignIns, auth.OAuth{Client: c.Client, Code: digest}, txn)
		if err != nil {
			return nil, err
		}
		return &hangar.OAuthTokens{
			Access: hangar.NewSensitive(made.Text), Scope: hangar.OAuthScopeSignIn, CreatedAt: made.CreatedAt, ExpiresAt: made.Grant.Until,
		}, nil
	}
	if err := s.makeRoom(ctx, user, c.Client); err != nil {
		return nil, err
	}
	token, err := s.token(ctx, user, &c, in.Client)
	if err != nil {
		return nil, err
	}
	return s.issue(ctx, token, c.Tie, auth.OAuth{Client: c.Client, Code: digest, SignIns: c.SignIns, Scope: hangar.OAuthScopeRead}, random.Bytes(familyBytes), txn)
}

// mayExchange reports whether a code of the client is valid and its exchange matches the authorization request.
func (s *Server) mayExchange(a *auth.Account, c *code, in hangar.OAuthExchange) bool {
	verifier := in.Verifier.Reveal()
	m, _ := a.In(c.OrgID)
	switch {
	case !s.Now().Before(c.Expires), c.Redirect != in.RedirectURI:
		return false
	case c.SignIns != a.SignIns, c.Tie != m.Tie:
		return false
	case c.Challenge == "":
		return verifier == "" // a verifier without a challenge: the challenge was stripped from the authorization request
	default:
		return proves(verifier, c.Challenge)
	}
}

// token returns the token for a code, without the fields that change with each refresh.
func (s *Server) token(ctx context.Context, user hangar.UserID, c *code, client *hangar.OAuthClient) (hangar.Token, error) {
	whole := hangar.WithPrincipal(ctx, hangar.Principal{User: user, SignedIn: true})
	who, err := s.Users.CurrentUser(whole)
	if err != nil {
		return hangar.Token{}, err
	}
	i := slices.IndexFunc(who.Memberships, func(m hangar.Membership) bool { return m.OrgID == c.OrgID })
	if i < 0 {
		return hangar.Token{}, invalidGrant()
	}
	return hangar.Token{
		ID: c.ID, Name: client.Title(), Kind: hangar.TokenOAuth, User: who.CustomerAddress, UserID: user, CreatedBy: who.CustomerAddress,
		Grant: hangar.Grant{Org: who.Memberships[i].Org, OrgID: c.OrgID, Actions: hangar.ActionRead},
	}, nil
}

// issue makes the access and refresh tokens of a grant.
func (s *Server) issue(ctx context.Context, token hangar.Token, tie string, client auth.OAuth, family []byte, txn state.Txn) (*hangar.OAuthTokens, error) {
	now := s.Now().UTC().Truncate(time.Second)
	refresh := refreshText(token.ID, family)
	client.Family, client.Refresh, client.RefreshUntil = auth.Digest(string(family)), auth.Digest(refresh), now.Add(hangar.OAuthRefreshLifetime)
	token.Grant.Until = now.Add(hangar.OAuthAccessLifetime)
	made, err := s.Tokens.IssueFor(ctx, token, tie, client, txn)
	if err != nil {
		return nil, err
	}
	return &hangar.OAuthTokens{
		Access: hangar.NewSensitive(made.Text), Refresh: hangar.NewSensitive(refresh), Scope: client.Scope,
		CreatedAt: made.CreatedAt, ExpiresAt: made.Grant.Until,
	}, nil
}

// makeRoom revokes the expired grants of a user, and the oldest ones beyond the limits for a user:
// in total and for one client.
func (s *Server) makeRoom(ctx context.Context, user hangar.UserID, client hangar.OAuthClientID) error {
	grants := s.Tokens.OfUser(user, hangar.TokenOAuth)
	now, all, same := s.Now(), len(grants)-(hangar.MaxOAuthGrants-1), 1-hangar.MaxClientGrants
	for _, g := range grants {
		if g.OAuth.Client == client {
			same++
		}
	}
	for i, g := range grants {
		surplus := g.OAuth.Client == client && same > 0
		if i >= all && !surplus && now.Before(g.OAuth.RefreshUntil) {
			continue
		}
		if g.OAuth.Client == client {
			same--
		}
		if err := s.Tokens.Revoke(ctx, g.ID); err != nil {
			return err
		}
	}
	return nil
}

// usedAgain revokes the tokens of a code that is exchanged a second time (RFC 6749, section 4.1.2),
// and returns the error for it. The code is not among codes. It returns state.ErrConflict if those have changed,
// because another server has just made it.
func (s *Server) usedAgain(ctx context.Context, codes state.Item, id hangar.TokenID, digest []byte, client *hangar.OAuthClient) error {
	r, item, err := state.Read[auth.Record](ctx, s.Store, auth.Prefix+string(id))
	if errors.Is(err, state.ErrNotFound) {
		return cmp.Or(state.Confirm(ctx, s.Store, codes, state.Item{Key: auth.Prefix + string(id)}), invalidGrant())
	}
	if err != nil {
		return err
	}
	if r.OAuth == nil || r.OAuth.Client != client.ID || subtle.ConstantTimeCompare(r.OAuth.Code, digest) != 1 {
		return invalidGrant()
	}
	s.Log.Warn("a code of single sign-on was used again: its grant has ended", keyUser, r.UserID, keyClient, client.ID, keyGrant, id)
	if err := s.revoke(ctx, id, item); err != nil {
		return err
	}
	return invalidGrant()
}

// revoke revokes the grant of a record, unless that has changed: another server may have refreshed it a moment ago.
func (s *Server) revoke(ctx context.Context, id hangar.TokenID, read state.Item) error {
	return s.Tokens.Revoke(ctx, id, state.Txn{If: []state.Compare{state.Unchanged(read)}})
}

// RefreshTokens implements hangar.OAuthService.
func (s *Server) RefreshTokens(ctx context.Context, client *hangar.OAuthClient, refresh hangar.Sensitive) (*hangar.OAuthTokens, error) {
	for {
		made, err := s.tryRefresh(ctx, client, refresh.Reveal())
		if !errors.Is(err, state.ErrConflict) {
			return made, state.HangarError(err)
		}
	}
}

// tryRefresh returns state.ErrConflict if the grant has changed meanwhile.
func (s *Server) tryRefresh(ctx context.Context, client *hangar.OAuthClient, text string) (*hangar.OAuthTokens, error) {
	id, family, ok := parseRefresh(text)
	if !ok {
		return nil, invalidGrant()
	}
	r, item, err := state.Read[auth.Record](ctx, s.Store, auth.Prefix+string(id))
	if errors.Is(err, state.ErrNotFound) {
		return nil, invalidGrant()
	}
	if err != nil {
		return nil, err
	}
	if r.Kind != hangar.TokenOAuth || r.OAuth.Client != client.ID || subtle.ConstantTimeCompare(r.OAuth.Family, auth.Digest(string(family))) != 1 {
		return nil, invalidGrant()
	}
	again := subtle.ConstantTimeCompare(r.OAuth.Refresh, auth.Digest(text)) != 1
	if again || !s.Now().Before(r.OAuth.RefreshUntil) {
		if err := s.revoke(ctx, id, item); err != nil {
			return nil, err
		}
		if again {
			s.Log.Warn("a refresh token of single sign-on was used again: its grant has ended", keyUser, r.UserID, keyClient, client.ID, keyGrant, id)
		}
		return nil, invalidGrant()
	}
	account, user, err := state.Read[auth.Account](ctx, s.Store, state.UserKey(r.UserID))
	if errors.Is(err, state.ErrNotFound) || err == nil && !account.Backs(&r) {
		return nil, invalidGrant()
	}
	if err != nil {
		return nil, err
	}
	return s.issue(ctx, r.Token, r.Tie, *r.OAuth, family, state.Txn{If: []state.Compare{state.Unchanged(item), state.Unchanged(user)}})
}

// TokenInfo implements hangar.OAuthService.
func (s *Server) TokenInfo(ctx context.Context, access hangar.Sensitive) (*hangar.OAuthTokenInfo, error) {
	r, p, ok := s.Tokens.Lookup(access.Reveal())
	if !ok || r.Kind != hangar.TokenOAuth {
		return nil, hangar.Unauthenticated()
	}
	user, err := s.Users.CurrentUser(hangar.WithPrincipal(ctx, p))
	if hangar.CodeOf(err) == hangar.CodeNotFound {
		return nil, hangar.Unauthenticated() // removed meanwhile
	}
	if err != nil {
		return nil, err
	}
	return &hangar.OAuthTokenInfo{User: user, Client: r.OAuth.Client, Scope: r.OAuth.Scope, CreatedAt: r.CreatedAt, ExpiresAt: r.Grant.Until}, nil
}

// RevokeGrant implements hangar.OAuthService.
func (s *Server) RevokeGrant(ctx context.Context, client *hangar.OAuthClient, token hangar.Sensitive) error {
	for {
		err := s.tryRevoke(ctx, client, token.Reveal())
		if !errors.Is(err, state.ErrConflict) {
			return state.HangarError(err)
		}
	}
}

// tryRevoke returns state.ErrConflict if the grant has changed meanwhile.
func (s *Server) tryRevoke(ctx context.Context, client *hangar.OAuthClient, text string) error {
	id, family, refresh := parseRefresh(text)
	if !refresh {
		var ok bool
		if id, ok = idOf(text); !ok {
			return nil
		}
	}
	r, item, err := state.Read[auth.Record](ctx, s.Store, auth.Prefix+string(id))
	if errors.Is(err, state.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	known := false
	switch {
	case r.OAuth == nil:
	case refresh:
		known = subtle.ConstantTimeCompare(r.OAuth.Family, auth.Digest(string(family))) == 1
	default:
		known = subtle.ConstantTimeCompare(r.Digest, auth.Digest(text)) == 1
	}
	switch {
	case !known:
		return state.Confirm(ctx, s.Store, item)
	case r.OAuth.Client != client.ID:
		return hangar.Errorf(hangar.CodeInvalid, hangar.ReasonUnauthorizedClient, "The token was issued to another client")
	default:
		return s.revoke(ctx, id, item)
	}
}
