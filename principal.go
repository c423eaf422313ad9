package hangar

import "context"

// Principal is who asks: the identity that a verified credential stands for.
type Principal struct {
	Subject string  // for logs, leases and events, e.g. "admin"
	Org     OrgSlug // the one organization the principal is limited to; empty: all of them
	Admin   bool    // may do everything on this server
}

// MayAct reports whether the principal may act on things of the organization.
func (p Principal) MayAct(org OrgSlug) bool { return p.Admin || p.Org != "" && p.Org == org }

type principalKey struct{}

// WithPrincipal returns a context that carries who asks. Every method of the
// service interfaces reads it; without it they answer CodeUnauthenticated.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// PrincipalFrom returns who asks, or a CodeUnauthenticated error.
func PrincipalFrom(ctx context.Context) (Principal, error) {
	if p, ok := ctx.Value(principalKey{}).(Principal); ok {
		return p, nil
	}
	return Principal{}, &Error{Code: CodeUnauthenticated, Message: "Authenticate: token validation error"}
}

// Authenticator turns the token of a request into a Principal. It answers
// CodeUnauthenticated for a token that is unknown, expired or revoked.
type Authenticator interface {
	Authenticate(ctx context.Context, token string) (Principal, error)
}
