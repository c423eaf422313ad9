package hangar

import "context"

// Principal is who asks: the identity that a verified credential stands for.
type Principal struct {
	Subject string  // for logs, leases and events, e.g. "admin"
	Org     OrgSlug // the one organization the principal is limited to; empty: all of them
	Admin   bool    // may do everything on this server
}

// Action is what somebody wants to do with a thing.
type Action uint8

// The actions.
const (
	ActionRead    Action = 1 << iota // see it
	ActionWrite                      // change its config, metadata, lease or cordon, its secrets
	ActionCreate                     // make a thing in it
	ActionDelete                     // destroy it
	ActionControl                    // start, stop, suspend, restart, signal, execute in it
)

// Target is what an action is about: a Machine, an App (Machine is empty) or an
// organization (App is empty, too).
type Target struct {
	Org     OrgSlug
	App     AppName
	Machine MachineID
}

// May reports whether the principal may do action to the target.
func (p Principal) May(action Action, target Target) bool {
	return p.Admin || action != 0 && p.Org != "" && p.Org == target.Org
}

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
