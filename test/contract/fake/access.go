package fake

import (
	"context"

	"github.com/hangar-platform/hangar"
)

// permission decides whether a caller may do something to a target.
type permission func(p hangar.Principal, t hangar.Target) bool

func may(action hangar.Action) permission {
	return func(p hangar.Principal, t hangar.Target) bool { return p.May(action, t) }
}

// principal returns who asks, unless that one is allowed nothing.
func principal(ctx context.Context) (hangar.Principal, error) {
	p, err := hangar.PrincipalFrom(ctx)
	if err == nil && !p.Admin && len(p.Orgs()) == 0 {
		err = forbidden()
	}
	return p, err
}

func admin(ctx context.Context) error {
	p, err := principal(ctx)
	if err == nil && !p.Admin {
		err = forbidden()
	}
	return err
}

// appFor finds the App of ref for a caller who wants to do action to what ref names.
// The caller holds mu.
func (s *Service) appFor(ctx context.Context, action hangar.Action, ref hangar.MachineRef) (*hangar.App, error) {
	return s.appIf(ctx, ref, may(action))
}

func (s *Service) appIf(ctx context.Context, ref hangar.MachineRef, allow permission) (*hangar.App, error) {
	p, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	a, ok := s.apps[ref.App]
	if !ok {
		return nil, appNotFound(ref.App)
	}
	if ref.AppID != "" && ref.AppID != a.ID {
		return nil, appNotFound(ref.App)
	}
	if t := targetOf(a, ref.ID); !allow(p, t) {
		return nil, denied(p, t)
	}
	return a, nil
}

// reader finds an App for a caller who wants to read its Machines, and says which of
// them that one may.
func (s *Service) reader(ctx context.Context, name hangar.AppName) (func(hangar.MachineID) bool, error) {
	a, err := s.appIf(ctx, hangar.MachineRef{App: name}, func(p hangar.Principal, t hangar.Target) bool {
		return p.Reaches(hangar.ActionRead, t)
	})
	if err != nil {
		return nil, err
	}
	p, err := principal(ctx)
	return func(id hangar.MachineID) bool {
		return p.May(hangar.ActionRead, targetOf(a, id))
	}, err
}

// findFor returns a Machine for a caller who wants to do action to it. The caller
// holds mu.
func (s *Service) findFor(ctx context.Context, action hangar.Action, ref hangar.MachineRef) (*machine, error) {
	return s.findIf(ctx, ref, may(action))
}

func (s *Service) findIf(ctx context.Context, ref hangar.MachineRef, allow permission) (*machine, error) {
	a, err := s.appIf(ctx, ref, allow)
	if err != nil {
		return nil, err
	}
	m, ok := s.machines[ref.ID]
	if !ok || m.AppID != a.ID {
		return nil, machineNotFound(ref.ID)
	}
	return m, nil
}

// targetOf is a Machine of an App or, without an id, the App itself.
func targetOf(a *hangar.App, id hangar.MachineID) hangar.Target {
	return hangar.Target{Org: a.Org.Slug, OrgID: a.Org.ID, App: a.Name, AppID: a.ID, Machine: id}
}

// orgTarget is the organization that has a slug. The caller holds mu.
func (s *Service) orgTarget(slug hangar.OrgSlug) hangar.Target {
	t := hangar.Target{Org: slug}
	if org := s.orgs[slug]; org != nil {
		t.OrgID = org.ID
	}
	return t
}

// denied answers a caller who may not do what it wants.
func denied(p hangar.Principal, t hangar.Target) error {
	switch {
	case t.App != "" && !p.Sees(hangar.Target{Org: t.Org, OrgID: t.OrgID, App: t.App, AppID: t.AppID}):
		return appNotFound(t.App)
	case p.Sees(t):
		return forbidden()
	case t.Machine != "":
		return machineNotFound(t.Machine)
	default:
		return orgNotFound(t.Org)
	}
}

func forbidden() error {
	return hangar.Errorf(hangar.CodeForbidden, "", "You are not allowed to do this")
}

func appNotFound(name hangar.AppName) error {
	return hangar.AppNotFound()
}

func machineNotFound(id hangar.MachineID) error {
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonMachineNotFound, "machine not found: %s", id)
}

func orgNotFound(slug hangar.OrgSlug) error {
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonOrgNotFound, "Could not find Organization %q", slug)
}
