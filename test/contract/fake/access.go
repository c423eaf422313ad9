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
	if t := (hangar.Target{Org: a.Org.Slug, App: a.Name, Machine: ref.ID}); !allow(p, t) {
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
		return p.May(hangar.ActionRead, hangar.Target{Org: a.Org.Slug, App: name, Machine: id})
	}, err
}

// findFor returns a Machine for a caller who wants to do action to it. The caller
// holds mu.
func (s *Service) findFor(ctx context.Context, action hangar.Action, ref hangar.MachineRef) (*machine, error) {
	return s.findIf(ctx, ref, may(action))
}

func (s *Service) findIf(ctx context.Context, ref hangar.MachineRef, allow permission) (*machine, error) {
	if _, err := s.appIf(ctx, ref, allow); err != nil {
		return nil, err
	}
	m, ok := s.machines[ref.ID]
	if !ok || m.App != ref.App {
		return nil, machineNotFound(ref.ID)
	}
	return m, nil
}

// denied answers a caller who may not do what it wants.
func denied(p hangar.Principal, t hangar.Target) error {
	switch {
	case t.App != "" && !p.Sees(hangar.Target{Org: t.Org, App: t.App}):
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
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonAppNotFound, "Could not find App %q", name)
}

func machineNotFound(id hangar.MachineID) error {
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonMachineNotFound, "machine not found: %s", id)
}

func orgNotFound(slug hangar.OrgSlug) error {
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonOrgNotFound, "Could not find Organization %q", slug)
}
