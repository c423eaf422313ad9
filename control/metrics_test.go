package control_test

import (
	"slices"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
)

// TestMetricsScope: who may query the series of which Apps, and the answers to all others.
func TestMetricsScope(t *testing.T) {
	store := state.NewMemory()
	p := newPlane(t, store)
	acme, err := p.Orgs().CreateOrg(admin(t), hangar.OrgCreate{Slug: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Orgs().CreateOrg(admin(t), hangar.OrgCreate{Slug: "other"}); err != nil {
		t.Fatal(err)
	}
	ids := map[hangar.AppName]hangar.AppID{}
	for name, org := range map[hangar.AppName]hangar.OrgSlug{"shop": "acme", "blog": "acme", "foreign": "other"} {
		app, err := p.Apps().CreateApp(admin(t), hangar.AppCreate{Name: name, Org: org})
		if err != nil {
			t.Fatal(err)
		}
		ids[name] = app.ID
	}
	const metrics = hangar.ActionMetrics
	for who, tt := range map[string]struct {
		grants []hangar.Grant
		all    bool
		apps   []hangar.AppName
		code   hangar.Code
	}{
		"org":            {grants: []hangar.Grant{{Org: "acme", OrgID: acme.ID, Actions: metrics}}, all: true},
		"deploy":         {grants: []hangar.Grant{{Org: "acme", OrgID: acme.ID, Apps: []hangar.AppName{"shop"}, AppIDs: []hangar.AppID{ids["shop"]}, Actions: hangar.ActionAll}}, apps: []hangar.AppName{"shop"}},
		"two tokens":     {grants: []hangar.Grant{{Org: "acme", Apps: []hangar.AppName{"shop"}, Actions: metrics}, {Org: "acme", Apps: []hangar.AppName{"blog", "shop"}, Actions: metrics}}, apps: []hangar.AppName{"blog", "shop"}},
		"an App before":  {grants: []hangar.Grant{{Org: "acme", OrgID: acme.ID, Apps: []hangar.AppName{"shop"}, AppIDs: []hangar.AppID{"gone"}, Actions: metrics}}, code: hangar.CodeForbidden},
		"a foreign App":  {grants: []hangar.Grant{{Org: "acme", Apps: []hangar.AppName{"foreign"}, Actions: metrics}}, code: hangar.CodeForbidden},
		"a missing App":  {grants: []hangar.Grant{{Org: "acme", Apps: []hangar.AppName{"nothing"}, Actions: metrics}}, code: hangar.CodeForbidden},
		"no metrics":     {grants: []hangar.Grant{{Org: "acme", Actions: hangar.ActionRead}}, code: hangar.CodeForbidden},
		"a Machine":      {grants: []hangar.Grant{{Org: "acme", Apps: []hangar.AppName{"shop"}, Machines: []hangar.MachineID{"d8912340000002"}, Actions: metrics}}, code: hangar.CodeForbidden},
		"another org":    {grants: []hangar.Grant{{Org: "other", Actions: hangar.ActionAll}}, code: hangar.CodeNotFound},
		"an org before":  {grants: []hangar.Grant{{Org: "acme", OrgID: "gone", Actions: hangar.ActionAll}}, code: hangar.CodeNotFound},
		"nothing at all": {code: hangar.CodeForbidden},
	} {
		scope, err := p.Metrics().MetricsScope(as(t, hangar.Principal{Grants: tt.grants}), "acme")
		switch {
		case hangar.CodeOf(err) != tt.code:
			t.Errorf("%s: %v, want code %v", who, err, tt.code)
		case err == nil && (scope.Org != acme.ID || scope.Number != acme.NumericID || (scope.Apps == nil) != tt.all || !slices.Equal(scope.Apps, tt.apps)):
			t.Errorf("%s: %+v", who, scope)
		}
	}
	if _, err := p.Metrics().MetricsScope(t.Context(), "acme"); hangar.CodeOf(err) != hangar.CodeUnauthenticated {
		t.Errorf("without a principal: %v", err)
	}
	_, err = p.Metrics().MetricsScope(admin(t), "nowhere")
	wantError(t, err, hangar.CodeNotFound, hangar.ReasonOrgNotFound)
	orgs, err := tenants.OrgsByID(t.Context(), store, func(item state.Item, err error) { t.Errorf("%s: %v", item.Key, err) })
	if err != nil || orgs[acme.ID].NumericID != acme.NumericID || len(orgs) != 3 {
		t.Errorf("organizations are %v, %v", orgs, err)
	}
}
