package hangar

import (
	"context"
	"slices"
	"strings"
)

// Principal is the caller: the identity that a credential stands for, and what it may
// do. A credential may be a list of tokens; the principal may do all that any of them
// allows.
type Principal struct {
	Subject string // for logs, leases and events, e.g. "admin" or "ci@example.com"
	Admin   bool   // may do everything on this server
	Grants  []Grant
	Tokens  []TokenID // that the credential consists of
	User    UserID    // whose token it is; empty: no user's
	// SignedIn says that the credential stands for everything that the user may do, not for a part of
	// it. Only then Memberships are set.
	SignedIn    bool
	Memberships []Membership
	// Client is the third party that acts for the user. It must not learn the e-mail addresses of
	// others. Empty: none.
	Client OAuthClientID
}

// NeedAdministrator refuses with CodeForbidden everyone but administrators of the platform. what says
// what only they may do.
func (p Principal) NeedAdministrator(what string) error {
	if p.Admin {
		return nil
	}
	return Errorf(CodeForbidden, "", "Only an administrator of the platform may %s", what)
}

// May reports whether the principal may do action to the target.
func (p Principal) May(action Action, target Target) bool {
	return p.Admin || slices.ContainsFunc(p.Grants, func(g Grant) bool { return g.May(action, target) })
}

// MayExec reports whether the principal may execute a command in the target.
func (p Principal) MayExec(command []string, target Target) bool {
	return p.Admin || slices.ContainsFunc(p.Grants, func(g Grant) bool { return g.MayExec(command, target) })
}

// Reaches reports whether the principal may do any of actions to the target or to
// something in it.
func (p Principal) Reaches(actions Action, target Target) bool {
	return p.Admin || slices.ContainsFunc(p.Grants, func(g Grant) bool { return g.Reaches(actions, target) })
}

// Sees reports whether the principal may know that the target exists: a refusal is
// CodeForbidden then, and CodeNotFound otherwise.
func (p Principal) Sees(target Target) bool { return p.Reaches(ActionAll, target) }

// Covers reports whether the principal has all of what a grant allows, for at least
// as long, and so may pass it on.
func (p Principal) Covers(grant Grant) bool {
	return p.Admin || slices.ContainsFunc(p.Grants, func(g Grant) bool { return g.covers(grant) })
}

// Shorten returns the grant with an end no later than the principal's own grant that covers
// it. It is for callers that did not say how long a grant lasts.
func (p Principal) Shorten(grant Grant) Grant {
	if p.Covers(grant) {
		return grant
	}
	best := grant
	for _, g := range p.Grants {
		part := grant
		part.Until = g.Until
		if p.Covers(part) && (best.Until.Equal(grant.Until) || part.Until.After(best.Until)) {
			best = part
		}
	}
	return best
}

// Orgs returns the organizations in which the principal's grants allow something, sorted. It ignores
// Admin, which allows everything in all of them.
func (p Principal) Orgs() []OrgSlug {
	var orgs []OrgSlug
	for _, g := range p.Grants {
		if g.Reaches(ActionAll, Target{Org: g.Org, OrgID: g.OrgID}) {
			orgs = append(orgs, g.Org)
		}
	}
	slices.Sort(orgs)
	return slices.Compact(orgs)
}

// HasRole reports whether the user has signed in and has a role in an organization.
func (p Principal) HasRole(role Role, org OrgID) bool {
	return slices.ContainsFunc(p.Memberships, func(m Membership) bool { return m.OrgID == org && m.Role == role })
}

// Join returns the principal of a credential that stands for both. It has the subject of the first. Its
// user is the first one who has signed in, or else the first.
func (p Principal) Join(other Principal) Principal {
	if other.SignedIn && !p.SignedIn || p.User == "" {
		p.User, p.SignedIn, p.Memberships = other.User, other.SignedIn, other.Memberships
	}
	if p.Subject == "" {
		p.Subject = other.Subject
	}
	if p.Client == "" {
		p.Client = other.Client // a token of another kind must not lift the restrictions of a client
	}
	p.Admin = p.Admin || other.Admin
	p.Grants = slices.Concat(p.Grants, other.Grants)
	p.Tokens = slices.Concat(p.Tokens, other.Tokens)
	return p
}

type principalKey struct{}

// WithPrincipal returns a context that carries the caller. Every method of the service
// interfaces reads it; without it they answer CodeUnauthenticated.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// PrincipalFrom returns the caller, or a CodeUnauthenticated error.
func PrincipalFrom(ctx context.Context) (Principal, error) {
	if p, ok := ctx.Value(principalKey{}).(Principal); ok {
		return p, nil
	}
	return Principal{}, Unauthenticated()
}

// Unauthenticated is the error for a credential that is missing, unknown, expired or revoked. It does
// not say which.
func Unauthenticated() *Error {
	return &Error{Code: CodeUnauthenticated, Message: "Authenticate: token validation error"}
}

// Authenticator turns the credential of a request, a token or several with commas
// between them, into a Principal that may do what any of them allows. It answers
// CodeUnauthenticated when none is valid.
type Authenticator interface {
	Authenticate(ctx context.Context, credential string) (Principal, error)
	// Life returns a context that ends when a token expires or is revoked. For an unknown token it has
	// ended already. It is for work that outlasts the request that was authenticated.
	Life(id TokenID) context.Context
}

// Credential returns what follows the scheme in the value of an Authorization header. The scheme must
// be one of AuthorizationSchemes, in any case. It may be repeated, because some clients put it before a
// token that already has it.
func Credential(header string) (string, bool) {
	rest, known := strings.TrimSpace(header), false
	for {
		scheme, after, _ := strings.Cut(rest, " ")
		if !slices.ContainsFunc(AuthorizationSchemes(), func(s string) bool { return strings.EqualFold(s, scheme) }) {
			return rest, known && rest != ""
		}
		rest, known = strings.TrimSpace(after), true
	}
}
