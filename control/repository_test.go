package control_test

import (
	"slices"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// TestRepositoryAccess: who may pull, push and delete in which repository, and where that is
// kept.
func TestRepositoryAccess(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	acme, err := p.Orgs().CreateOrg(admin(t), hangar.OrgCreate{Slug: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	all := hangar.ActionAll
	repositories := []hangar.RepositoryName{"acme/shop", "acme/shop/worker", "acme/blog", "shared"}
	own := map[hangar.RepositoryName]hangar.Repository{
		"acme/shop": {Org: acme.ID, Name: "shop"}, "acme/shop/worker": {Org: acme.ID, Name: "shop/worker"}, "acme/blog": {Org: acme.ID, Name: "blog"},
		"shared": {Name: "shared"},
	}
	deploy := hangar.Grant{Org: "acme", Apps: []hangar.AppName{"shop"}, Actions: all}
	other := hangar.Grant{Org: "other", Actions: all}
	const read, write, remove = hangar.ActionRead, hangar.ActionWrite, hangar.ActionDelete
	for who, tt := range map[string]struct {
		principal hangar.Principal
		may       map[hangar.Action][]hangar.RepositoryName
	}{
		"admin":  {hangar.Principal{Admin: true}, map[hangar.Action][]hangar.RepositoryName{read: repositories, write: repositories, remove: repositories}},
		"org":    {hangar.Principal{Grants: []hangar.Grant{{Org: "acme", Actions: all}}}, map[hangar.Action][]hangar.RepositoryName{read: repositories, write: repositories[:3], remove: repositories[:3]}},
		"deploy": {hangar.Principal{Grants: []hangar.Grant{deploy}}, map[hangar.Action][]hangar.RepositoryName{read: {"acme/shop", "acme/shop/worker", "shared"}, write: repositories[:2], remove: repositories[:2]}},
		"reader": {hangar.Principal{Grants: []hangar.Grant{{Org: "acme", Actions: read}}}, map[hangar.Action][]hangar.RepositoryName{read: repositories}},
		"other":  {hangar.Principal{Grants: []hangar.Grant{other}}, map[hangar.Action][]hangar.RepositoryName{read: {"shared"}}},
		"both":   {hangar.Principal{Grants: []hangar.Grant{other, deploy}}, map[hangar.Action][]hangar.RepositoryName{read: {"acme/shop", "acme/shop/worker", "shared"}, write: repositories[:2], remove: repositories[:2]}},
	} {
		for _, action := range []hangar.Action{read, write, remove} {
			for _, name := range repositories {
				at, err := p.Repositories().Repository(as(t, tt.principal), name, action)
				allowed := slices.Contains(tt.may[action], name)
				if (err == nil) != allowed || err != nil && hangar.CodeOf(err) != hangar.CodeForbidden || allowed && at != own[name] {
					t.Errorf("%s may %v %s: %+v, %v, want %t", who, action, name, at, err, allowed)
				}
			}
		}
	}
	_, err = p.Repositories().Repository(admin(t), "nowhere/app", write)
	wantError(t, err, hangar.CodeNotFound, hangar.ReasonOrgNotFound)
}

// TestDeletedOrgsLeaveNothingOnHosts: an organization is gone once its hosts have removed what
// they keep of it, also when one is away or the daemon ends in between, and the next one under
// its slug has other repositories.
func TestDeletedOrgsLeaveNothingOnHosts(t *testing.T) {
	hosts := []*fakeHost{newFakeHost("aaaaaaaa", "loc"), newFakeHost("bbbbbbbb", "loc")}
	p := newPlane(t, state.NewMemory(), hosts...)
	made, err := p.Orgs().CreateOrg(admin(t), hangar.OrgCreate{Slug: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	hosts[1].setDown(true)
	if err := p.Orgs().DeleteOrg(admin(t), "acme"); hangar.CodeOf(err) != hangar.CodeUnavailable {
		t.Fatalf("with a host that is away: %v", err)
	}
	_, err = p.Repositories().Repository(admin(t), "acme/app", hangar.ActionWrite)
	wantError(t, err, hangar.CodeNotFound, hangar.ReasonOrgNotFound)
	_, err = p.Orgs().CreateOrg(admin(t), hangar.OrgCreate{Slug: "acme"})
	wantError(t, err, hangar.CodeInvalid, hangar.ReasonNameTaken)
	hosts[1].setDown(false)
	p.restart(t)
	for _, h := range hosts {
		if !slices.Contains(h.removedOrgs, made.ID) {
			t.Errorf("host %s has not removed the organization", h.host.ID)
		}
	}
	next, err := p.Orgs().CreateOrg(admin(t), hangar.OrgCreate{Slug: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	at, err := p.Repositories().Repository(admin(t), "acme/app", hangar.ActionWrite)
	if err != nil || at.Org != next.ID || at.Org == made.ID {
		t.Errorf("the next organization has %+v, %v", at, err)
	}
}
