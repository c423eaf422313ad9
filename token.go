package hangar

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// TokenID identifies a token and is never reused. It is a part of the token's text and not secret.
type TokenID string

// TokenKind is a preset of what a token allows.
type TokenKind string

// The kinds of tokens.
const (
	TokenDeploy      TokenKind = "deploy"       // everything in some Apps
	TokenOrg         TokenKind = "org"          // everything in an organization
	TokenReadOnly    TokenKind = "readonly"     // to see an organization, or some Apps or Machines of it
	TokenMachineExec TokenKind = "machine-exec" // to see the same, and to execute some commands there
	TokenMetrics     TokenKind = "metrics"      // to query the metrics of an organization or some Apps, nothing else
	TokenCustom      TokenKind = "custom"       // the actions that it is made with
)

// TokenLogin is the kind of tokens that come from signing in. They allow everything that the user may
// do, in all organizations. Their grant names no organization.
const TokenLogin TokenKind = "login"

// The kinds of tokens that users get through browsers.
const (
	TokenSession TokenKind = "session" // of the browser itself, like TokenLogin, but only for the pages of the platform
	TokenOAuth   TokenKind = "oauth"   // of a third party, to see one organization of the user
)

// OfUser reports whether tokens of the kind count for a user, and not against a quota of an organization.
func (k TokenKind) OfUser() bool { return k == TokenLogin || k == TokenSession || k == TokenOAuth }

// TokenKinds lists every kind that CreateToken makes.
func TokenKinds() []TokenKind {
	return []TokenKind{TokenDeploy, TokenOrg, TokenReadOnly, TokenMachineExec, TokenMetrics, TokenCustom}
}

// Token describes an API token. Only its owner knows its text.
type Token struct {
	ID   TokenID   `json:"id"`
	Name string    `json:"name"`
	Kind TokenKind `json:"kind"`
	User string    `json:"user"` // whom it stands for: the subject of its principal
	// UserID is the user who owns the token. It allows what both the grant and the user's memberships
	// allow, and ends with the membership through which it was made. Empty: no user.
	UserID    UserID    `json:"user_id,omitempty"`
	Admin     bool      `json:"admin,omitempty"`
	Grant     Grant     `json:"grant"`
	CreatedBy string    `json:"created_by"` // the subject of its creator
	CreatedAt time.Time `json:"created_at"`
	LastUsed  time.Time `json:"last_used_at,omitzero"` // zero: not yet; lags by some minutes
}

// NewToken is a new token with its text.
type NewToken struct {
	Token
	Text string // the credential; it cannot be shown again
}

// TokenCreate is the request for a new token.
type TokenCreate struct {
	Kind     TokenKind     `json:"kind" schema:"required"`
	Name     string        `json:"name,omitempty"`     // at most 100 characters; empty: derived from the kind. Tokens may share one
	User     string        `json:"user,omitempty"`     // at most 100 characters; empty: the subject of the caller; naming others needs ActionWrite to the organization
	Org      OrgSlug       `json:"org_slug,omitempty"` // empty: the first App's, or else the only one in which the caller has rights, or OrgPersonal
	Apps     []AppName     `json:"apps,omitempty"`
	Machines []MachineID   `json:"machines,omitempty"`
	Actions  Action        `json:"actions,omitzero"` // of TokenCustom
	Commands []CommandRule `json:"commands,omitempty"`
	Expiry   string        `json:"expiry,omitempty"` // see ParseExpiry; empty: also no later than the token that makes it
}

// The lifetimes of tokens.
const (
	DefaultTokenLifetime = 90 * 24 * time.Hour
	ExpiryNever          = "never"
)

// ParseExpiry returns when a token that is made now expires: after a duration such as "720h", or at a
// time as in RFC 3339. "never" returns the zero time, and "" means DefaultTokenLifetime. It answers
// CodeInvalid for anything else, and for a time that has passed.
func ParseExpiry(text string, now time.Time) (time.Time, error) {
	switch text {
	case "":
		return now.Add(DefaultTokenLifetime), nil
	case ExpiryNever:
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		var d time.Duration
		if d, err = time.ParseDuration(text); err != nil {
			return at, Errorf(CodeInvalid, "", `invalid expiry: %.40q is not a duration such as "720h", a time as in RFC 3339, or "never"`, text)
		}
		at = now.Add(d)
	}
	if !at.After(now) {
		return at, Errorf(CodeInvalid, "", "invalid expiry: %.40q has passed", text)
	}
	return at, nil
}

// GrantOf returns what the requested token allows, or CodeInvalid, naming the field
// that does not fit the kind.
func (in TokenCreate) GrantOf(now time.Time) (Grant, error) {
	g := Grant{Org: in.Org, Apps: in.Apps, Machines: in.Machines, Actions: in.Actions, Commands: in.Commands}
	bad := func(field, rule string) (Grant, error) {
		return Grant{}, Errorf(CodeInvalid, "", "invalid %s: %s", field, rule)
	}
	if in.Kind != TokenCustom && in.Actions != 0 {
		return bad("actions", fmt.Sprintf("are for tokens of kind %s; the kind %s has its own", TokenCustom, in.Kind))
	}
	if in.Kind != TokenCustom && in.Kind != TokenMachineExec && len(in.Commands) > 0 {
		return bad("commands", fmt.Sprintf("are for tokens of kind %s", TokenMachineExec))
	}
	switch in.Kind {
	case TokenDeploy:
		if len(in.Apps) == 0 || len(in.Machines) > 0 {
			return bad("apps", "a deploy token is for one App or several, as a whole")
		}
		g.Actions = ActionAll
	case TokenOrg:
		if len(in.Apps) > 0 || len(in.Machines) > 0 {
			return bad("apps", "an org token is for the whole organization; make a deploy token")
		}
		g.Actions = ActionAll
	case TokenReadOnly:
		g.Actions = ActionRead | ActionMetrics
	case TokenMachineExec:
		if len(in.Commands) == 0 {
			return bad("commands", "name at least one command that may be executed")
		}
		g.Actions = ActionRead | ActionControl
	case TokenMetrics:
		g.Actions = ActionMetrics
	case TokenCustom:
	default:
		return bad("kind", fmt.Sprintf("%.40q is none of %v", in.Kind, TokenKinds()))
	}
	var err error
	if g.Until, err = ParseExpiry(in.Expiry, now); err != nil {
		return Grant{}, err
	}
	g.Until = g.Until.UTC().Truncate(time.Second)
	return g, g.Validate()
}

// TokenFilter selects tokens. The zero value selects all that the caller may see.
type TokenFilter struct {
	Org OrgSlug
	App AppName // only tokens for this App, alone or with others; needs no Org
}

// Matches reports whether the filter selects a token.
func (f TokenFilter) Matches(t *Token) bool {
	return (f.Org == "" || f.Org == t.Grant.Org) && (f.App == "" || slices.Contains(t.Grant.Apps, f.App))
}

// TokenService makes, shows and revokes tokens. To make, see or revoke a token needs ActionWrite to
// everything that it is for. Administrators see all tokens, and users who have signed in see their own.
// A token that a user makes belongs to that user.
type TokenService interface {
	// CreateToken answers CodeForbidden for a token that would allow more than its creator may do, or
	// for longer. It answers CodeNotFound for a missing organization or App, and CodeInvalid for a bad
	// request. Each call makes a new token.
	CreateToken(ctx context.Context, in TokenCreate) (*NewToken, error)
	// Tokens are sorted by the time of their creation. It answers CodeForbidden for a
	// caller that may see none, and CodeNotFound for a missing organization.
	Tokens(ctx context.Context, filter TokenFilter) ([]*Token, error)
	// RevokeToken ends a token, named by its id or, if only one has it, its name. Once
	// it returns, the token is void on this server, and on the others of the cluster as
	// soon as they learn of it. It answers CodeNotFound with ReasonTokenNotFound, and
	// CodeConflict for a name that several tokens have.
	RevokeToken(ctx context.Context, idOrName string) error
	// CurrentTokens are the tokens of the request. Every caller may ask for them.
	CurrentTokens(ctx context.Context) ([]*Token, error)
	// AuthenticateTokens returns the valid tokens in a header that was presented to the
	// caller. It needs no authentication: every caller that knows a token may ask about it. It
	// answers CodeInvalid with ReasonTokenInvalid when there are none.
	AuthenticateTokens(ctx context.Context, header Authorization) ([]*Token, error)
	// Authorize returns the access, with its organization, if the tokens in a header that was presented
	// to the caller allow it and the target exists. Otherwise it answers CodeForbidden, in the same
	// words for a missing target, or an error of Access.Validate or AuthenticateTokens.
	Authorize(ctx context.Context, header Authorization, in Access) (Access, error)
}
