package tenants

import (
	"context"

	"github.com/hangar-platform/hangar"
)

// Permission decides whether a caller may do something to a target.
type Permission func(p hangar.Principal, t hangar.Target) bool

// Caller returns the caller's principal. One without any right is refused before
// anything is read, unless it is a user who has signed in.
func Caller(ctx context.Context) (hangar.Principal, error) {
	p, err := hangar.PrincipalFrom(ctx)
	if err == nil && !p.Admin && !p.SignedIn && len(p.Orgs()) == 0 {
		err = hangar.Errorf(hangar.CodeForbidden, "", "The token allows nothing")
	}
	return p, err
}

// Administrator reports whether an administrator asks.
func Administrator(ctx context.Context) bool {
	p, err := hangar.PrincipalFrom(ctx)
	return err == nil && p.Admin
}

// NeedAdministrator is Principal.NeedAdministrator of the Caller.
func NeedAdministrator(ctx context.Context, what string) error {
	p, err := Caller(ctx)
	if err == nil {
		err = p.NeedAdministrator(what)
	}
	return err
}

// Denied is the answer to a caller who may not do what it wants. What it cannot see
// looks to it like a missing thing.
func Denied(p hangar.Principal, t hangar.Target) error {
	switch {
	case !p.Sees(hangar.Target{Org: t.Org, OrgID: t.OrgID, App: t.App, AppID: t.AppID}) && t.App != "":
		return hangar.AppNotFound()
	case !p.Sees(t) && t.Machine != "":
		return MachineNotFound(t.Machine)
	case !p.Sees(t):
		return OrgNotFound(t.Org)
	case t.Machine != "":
		return Forbidden("machine %s", t.Machine)
	case t.App != "":
		return Forbidden("app %q", t.App)
	default:
		return Forbidden("organization %q", t.Org)
	}
}

// Forbidden is the answer, CodeForbidden, to a caller who sees what it may not use. what is a format
// with args.
func Forbidden(what string, args ...any) error {
	return hangar.Errorf(hangar.CodeForbidden, "", "You are not allowed to do this to "+what, args...)
}

// OrgNotFound says that there is no such organization: CodeNotFound, ReasonOrgNotFound.
func OrgNotFound(slug hangar.OrgSlug) error {
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonOrgNotFound, "Could not find Organization %q", slug)
}

// MachineNotFound says that there is no such Machine: CodeNotFound, ReasonMachineNotFound.
func MachineNotFound(id hangar.MachineID) error {
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonMachineNotFound, "machine not found: %s", id)
}

// AppIsGoing says that an App takes nothing new: CodeFailedPrecondition, ReasonWrongState.
func AppIsGoing(app hangar.AppName) error {
	return hangar.Errorf(hangar.CodeFailedPrecondition, hangar.ReasonWrongState, "App %q is being destroyed", app)
}
