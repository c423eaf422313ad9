package control

import (
	"context"
	"slices"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// permission decides whether a caller may do something to a target.
type permission func(p hangar.Principal, t hangar.Target) bool

// principal returns who asks. One that is allowed nothing anywhere is refused before
// anything is looked at.
func principal(ctx context.Context) (hangar.Principal, error) {
	p, err := hangar.PrincipalFrom(ctx)
	if err == nil && !p.Admin && len(p.Orgs()) == 0 {
		err = hangar.Errorf(hangar.CodeForbidden, "", "The token allows nothing")
	}
	return p, err
}

// administrator reports whether one asks.
func administrator(ctx context.Context) bool {
	p, err := hangar.PrincipalFrom(ctx)
	return err == nil && p.Admin
}

// appIf returns the App of ref to whom may allows what they want of it, or of the
// Machine that ref names.
func (c *Control) appIf(ctx context.Context, ref hangar.MachineRef, may permission) (appRecord, state.Item, error) {
	p, err := principal(ctx)
	if err != nil {
		return appRecord{}, state.Item{}, err
	}
	rec, item, err := c.anyApp(ctx, ref.App)
	if err != nil {
		return rec, item, err
	}
	if ref.AppID != "" && ref.AppID != rec.ID {
		return appRecord{}, state.Item{}, hangar.AppNotFound()
	}
	if target := rec.target(ref.ID); !may(p, target) {
		return appRecord{}, state.Item{}, denied(p, target)
	}
	return rec, item, nil
}

// denied is the answer to a caller who may not do what it wants. Of what it cannot
// see, it learns no more than of what is not there.
func denied(p hangar.Principal, t hangar.Target) error {
	switch {
	case !p.Sees(hangar.Target{Org: t.Org, OrgID: t.OrgID, App: t.App, AppID: t.AppID}) && t.App != "":
		return hangar.AppNotFound()
	case !p.Sees(t) && t.Machine != "":
		return machineNotFound(t.Machine)
	case !p.Sees(t):
		return orgNotFound(t.Org)
	case t.Machine != "":
		return forbidden("machine %s", t.Machine)
	case t.App != "":
		return forbidden("app %q", t.App)
	default:
		return forbidden("organization %q", t.Org)
	}
}

func forbidden(what string, args ...any) error {
	return hangar.Errorf(hangar.CodeForbidden, "", "You are not allowed to do this to "+what, args...)
}

// visible leaves out the Machines of an App that the caller may not read.
func visible(ctx context.Context, app appRecord, list []*hangar.Machine) ([]*hangar.Machine, error) {
	p, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list, func(m *hangar.Machine) bool {
		return !p.May(hangar.ActionRead, app.target(m.ID))
	}), nil
}

// orgReader returns who asks, if that one may read something in an organization.
func (c *Control) orgReader(ctx context.Context, slug hangar.OrgSlug) (hangar.Principal, hangar.Org, error) {
	p, err := principal(ctx)
	if err != nil {
		return p, hangar.Org{}, err
	}
	rec, _, err := c.anyOrg(ctx, slug)
	if err != nil {
		return p, hangar.Org{}, err
	}
	if t := orgTarget(rec.Org); !p.Reaches(hangar.ActionRead, t) {
		return p, hangar.Org{}, denied(p, t)
	}
	return p, rec.Org, nil
}
