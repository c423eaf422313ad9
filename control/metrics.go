package control

import (
	"context"
	"slices"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/tenants"
)

// Metrics implements hangar.MetricsService.
type Metrics struct{ tenants *tenants.Directory }

var _ hangar.MetricsService = (*Metrics)(nil)

// MetricsScope implements hangar.MetricsService.
func (m *Metrics) MetricsScope(ctx context.Context, slug hangar.OrgSlug) (hangar.MetricsScope, error) {
	p, err := tenants.Caller(ctx)
	if err != nil {
		return hangar.MetricsScope{}, err
	}
	org, _, err := m.tenants.AnyOrg(ctx, slug)
	if err != nil {
		return hangar.MetricsScope{}, err
	}
	scope, target := hangar.MetricsScope{Org: org.ID, Number: org.NumericID}, tenants.OrgTarget(org.Org)
	if p.May(hangar.ActionMetrics, target) {
		return scope, nil
	}
	if scope.Apps, err = m.apps(ctx, p, org.Org); err != nil {
		return hangar.MetricsScope{}, err
	}
	if len(scope.Apps) == 0 {
		return hangar.MetricsScope{}, tenants.Denied(p, target)
	}
	return scope, nil
}

// apps returns the Apps of an organization whose metrics the caller may query, for a caller without
// that right on the whole organization.
func (m *Metrics) apps(ctx context.Context, p hangar.Principal, org hangar.Org) ([]hangar.AppName, error) {
	var apps []hangar.AppName
	for _, grant := range p.Grants {
		for _, name := range grant.Apps {
			app, _, err := m.tenants.AnyApp(ctx, name)
			switch {
			case hangar.CodeOf(err) == hangar.CodeNotFound:
			case err != nil:
				return nil, err
			case app.OrgID == org.ID && p.May(hangar.ActionMetrics, app.Target("")):
				apps = append(apps, name)
			}
		}
	}
	slices.Sort(apps)
	return slices.Compact(apps), nil
}
