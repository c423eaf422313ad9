package control

import (
	"context"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/pushed"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
)

// Repositories implements hangar.RepositoryService.
type Repositories struct{ tenants *tenants.Directory }

var _ hangar.RepositoryService = (*Repositories)(nil)

// Repository implements hangar.RepositoryService. To a caller without the right, an
// existing organization looks like a missing one.
func (r *Repositories) Repository(ctx context.Context, name hangar.RepositoryName, action hangar.Action) (hangar.Repository, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return hangar.Repository{}, err
	}
	target, rest := name.Target(), name.Name()
	org, _, found := r.tenants.AnyOrg(ctx, target.Org)
	if target.Org != "" && found == nil {
		target.OrgID = org.ID
		app, _, err := r.tenants.AnyApp(ctx, target.App)
		switch {
		case err == nil && app.OrgID == org.ID:
			target.AppID = app.ID
		case err != nil && hangar.CodeOf(err) != hangar.CodeNotFound:
			return hangar.Repository{}, err
		}
	}
	if !p.May(action, target) && (action != hangar.ActionRead || target.Org != "") {
		return hangar.Repository{}, tenants.Forbidden("repository %s", name)
	}
	if target.Org == "" {
		return hangar.Repository{Name: rest}, nil
	}
	if found != nil {
		return hangar.Repository{}, found
	}
	return hangar.Repository{Org: org.ID, Name: rest}, nil
}

// removeContentOf removes the images of an organization from all hosts, and its repositories from
// the state. Every host has to answer, because no later call would remove what it still has.
func (o *Orgs) removeContentOf(ctx context.Context, org hangar.OrgID, item state.Item) error {
	answers := askAll(o.hosts, o.hosts.agents.Known(), func(a hangar.Agent) (struct{}, error) { return struct{}{}, a.RemoveOrg(ctx, org) })
	for _, a := range answers {
		if a.err != nil {
			return a.err
		}
	}
	return pushed.RemoveAll(ctx, o.store, hangar.Repository{Org: org}.Root(), state.Unchanged(item))
}
