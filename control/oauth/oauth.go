// Package oauth lets third parties learn who a user of the platform is, and see an organization of the user's: it has
// the rules of an OAuth 2.0 authorization server (RFC 6749, RFC 7009, RFC 7636, and the recommendations of RFC 9700),
// without its HTTP.
//
// Promises. Of codes and tokens only digests are kept. A code is exchanged once: exchanging it deletes it in the
// transaction that makes the token. A grant, an access token and a refresh token, is one record of package auth under
// the id of its code. So a refresh replaces both tokens at once, revoking one revokes both, and a code or refresh token
// that is used a second time, even long after, revokes the grant that it belongs to. A grant depends on two ties of the
// user's record (see auth.Account): that of the membership and that of signing in. When either ends, the grant allows
// nothing, even if a crash has left its record.
//
// Concurrency. Server is safe for concurrent use. It keeps nothing in memory: package auth verifies
// access tokens, from memory of its own.
//
// The package keeps no clients: hangar.OAuthClients registers all but the built-in client of the command line. It
// decides what a grant is; package auth decides what its token allows.
package oauth

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/auth"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/users"
)

const (
	keyUser   = "user"
	keyClient = "client"
	keyGrant  = "grant"
)

// Config is what a Server needs.
type Config struct {
	Store   state.Store
	Tokens  *auth.Tokens
	Users   *users.Users
	Clients hangar.OAuthClients // nil: there is only hangar.OAuthClientCLI
	Log     *slog.Logger
	Now     func() time.Time
}

// Server implements hangar.OAuthService.
type Server struct{ Config }

var _ hangar.OAuthService = (*Server)(nil)

// New returns a Server.
func New(cfg Config) *Server { return &Server{cfg} }

// OAuthClient implements hangar.OAuthService.
func (s *Server) OAuthClient(ctx context.Context, id hangar.OAuthClientID) (*hangar.OAuthClient, error) {
	switch {
	case id == hangar.OAuthClientCLI:
		return &hangar.OAuthClient{
			ID: id, Name: string(id), DisplayName: "The command line of hangar on your computer", Public: true,
			RedirectURIs: []string{"http://127.0.0.1/", "http://[::1]/"},
		}, nil
	case s.Clients == nil || id == "":
		return nil, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonInvalidClient, "There is no client %.100q", string(id))
	default:
		return s.Clients.OAuthClient(ctx, id)
	}
}

// record has a user's codes and consents, as the state stores them. Their number is bounded, so
// that the record fits into one value.
type record struct {
	Codes    []code    `json:"codes,omitempty"`    // not exchanged yet, oldest first
	Consents []consent `json:"consents,omitempty"` // oldest first
}

// code is an authorization code.
type code struct {
	ID        hangar.TokenID       `json:"id"`     // also of the token
	Digest    []byte               `json:"digest"` // SHA-256 of the code
	Client    hangar.OAuthClientID `json:"client"`
	Redirect  string               `json:"redirect_uri"`
	Challenge string               `json:"challenge,omitempty"`
	OrgID     hangar.OrgID         `json:"org_id,omitempty"`
	Tie       string               `json:"tie,omitempty"` // of the membership
	SignIns   string               `json:"sign_ins"`      // the tie of signing in
	Expires   time.Time            `json:"expires_at"`
}

// consent is a user's permission for a client to see an organization.
type consent struct {
	Client hangar.OAuthClientID `json:"client"`
	OrgID  hangar.OrgID         `json:"org_id"`
	Tie    string               `json:"tie"` // of the membership, with which the consent ends
}

// found is the record of a user, with the account that decides whether codes and consents are
// valid.
type found struct {
	record
	account auth.Account
	user    state.Item
	item    state.Item // of the record; its revision is 0 if there is none
}

// read returns the record of a user, which may be empty, or state.ErrNotFound for an unknown user.
func (s *Server) read(ctx context.Context, user hangar.UserID) (f found, err error) {
	if f.account, f.user, err = state.Read[auth.Account](ctx, s.Store, state.UserKey(user)); err != nil {
		return f, err
	}
	f.record, f.item, err = state.Read[record](ctx, s.Store, state.OAuthKey(user))
	if errors.Is(err, state.ErrNotFound) {
		f.item, err = state.Item{Key: state.OAuthKey(user)}, nil
	}
	f.Codes, f.Consents = slices.Clone(f.Codes), slices.Clone(f.Consents)
	return f, err
}

// write returns the transaction that stores the record unless it or the user has changed.
func (f *found) write() (txn state.Txn, err error) {
	put, err := state.Write(f.item.Key, f.record)
	return state.Txn{If: []state.Compare{state.Unchanged(f.user), state.Unchanged(f.item)}, Then: []state.Op{put}}, err
}

// signedIn returns the principal of a user who has signed in.
func signedIn(ctx context.Context) (hangar.Principal, error) {
	p, err := hangar.PrincipalFrom(ctx)
	if err == nil && (!p.SignedIn || p.User == "") {
		err = hangar.Errorf(hangar.CodeForbidden, "", "Sign in: the token is not for all of a user")
	}
	return p, err
}

// Choice implements hangar.OAuthService.
func (s *Server) Choice(ctx context.Context, client hangar.OAuthClientID) (*hangar.OAuthChoice, error) {
	p, err := signedIn(ctx)
	if err != nil {
		return nil, err
	}
	choice := &hangar.OAuthChoice{}
	if choice.User, err = s.Users.CurrentUser(ctx); err != nil {
		return nil, err
	}
	f, err := s.read(ctx, p.User)
	if err != nil {
		return nil, state.HangarError(err)
	}
	for _, c := range f.Consents {
		if m, _ := f.account.In(c.OrgID); c.Client == client && c.Tie == m.Tie {
			choice.Consented = append(choice.Consented, c.OrgID)
		}
	}
	return choice, nil
}

// Authorize implements hangar.OAuthService.
func (s *Server) Authorize(ctx context.Context, in hangar.OAuthAuthorization) (hangar.Sensitive, error) {
	p, err := signedIn(ctx)
	if err != nil {
		return hangar.Sensitive{}, err
	}
	if in.Client.Public && in.Challenge == "" {
		return hangar.Sensitive{}, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonInvalidRequest, "A client without a secret must send a code_challenge")
	}
	for {
		f, err := s.read(ctx, p.User)
		if err != nil {
			return hangar.Sensitive{}, state.HangarError(err)
		}
		made := code{
			ID: auth.NewID(), Client: in.Client.ID, Redirect: in.RedirectURI, Challenge: in.Challenge, SignIns: f.account.SignIns,
			Expires: s.Now().UTC().Add(hangar.OAuthCodeLifetime),
		}
		if in.Client.ID != hangar.OAuthClientCLI {
			m, ok := f.account.In(in.Org)
			if !ok {
				return hangar.Sensitive{}, hangar.Errorf(hangar.CodeForbidden, hangar.ReasonAccessDenied, "You are no member of the organization")
			}
			made.OrgID, made.Tie = m.OrgID, m.Tie
			if in.Remember {
				f.remember(consent{in.Client.ID, m.OrgID, m.Tie})
			}
		}
		text := codeText(p.User, made.ID)
		made.Digest = auth.Digest(text)
		f.add(made, s.Now())
		txn, err := f.write()
		if err != nil {
			return hangar.Sensitive{}, err
		}
		if _, err = s.Store.Txn(ctx, txn); err == nil {
			return hangar.NewSensitive(text), nil
		}
		if !errors.Is(err, state.ErrConflict) {
			return hangar.Sensitive{}, state.HangarError(err)
		}
	}
}

// add adds a code. It drops expired codes, and the oldest beyond the limit.
func (r *record) add(c code, now time.Time) {
	r.Codes = append(slices.DeleteFunc(r.Codes, func(c code) bool { return !now.Before(c.Expires) }), c)
	r.Codes = r.Codes[max(0, len(r.Codes)-hangar.MaxOAuthCodes):]
}

// remember adds a consent or replaces an earlier one. It drops the oldest beyond the limit.
func (r *record) remember(c consent) {
	r.Consents = slices.DeleteFunc(r.Consents, func(o consent) bool { return o.Client == c.Client && o.OrgID == c.OrgID })
	r.Consents = append(r.Consents, c)
	r.Consents = r.Consents[max(0, len(r.Consents)-hangar.MaxOAuthConsents):]
}

// take removes a code.
func (r *record) take(id hangar.TokenID) {
	r.Codes = slices.DeleteFunc(r.Codes, func(c code) bool { return c.ID == id })
}

// validID reports whether a text may be a part of a key of the state.
func validID(text string) bool {
	const most = 64
	return text != "" && len(text) <= most && !strings.ContainsFunc(text, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
}
