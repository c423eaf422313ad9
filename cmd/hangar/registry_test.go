package main

import (
	"net/http/httptest"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/test/contract/fake"
)

// TestRegistryAccess: who may pull, push and delete in which repository.
func TestRegistryAccess(t *testing.T) {
	t.Parallel()
	all := hangar.ActionAll
	access := registryAccess(fake.Tokens{
		"admin":  {Admin: true},
		"org":    {Grants: []hangar.Grant{{Org: "acme", Actions: all}}},
		"deploy": {Grants: []hangar.Grant{{Org: "acme", Apps: []hangar.AppName{"shop"}, Actions: all}}},
		"reader": {Grants: []hangar.Grant{{Org: "acme", Actions: hangar.ActionRead}}},
		"other":  {Grants: []hangar.Grant{{Org: "other", Actions: all}}},
	})
	const read, write, remove = hangar.ActionRead, hangar.ActionWrite, hangar.ActionDelete
	repositories := []string{"acme/shop", "acme/shop/worker", "acme/blog", "shared"}
	for token, may := range map[string]map[hangar.Action][]string{
		"admin":        {read: repositories, write: repositories, remove: repositories},
		"org":          {read: repositories, write: repositories[:3], remove: repositories[:3]},
		"deploy":       {read: {"acme/shop", "acme/shop/worker", "shared"}, write: {"acme/shop", "acme/shop/worker"}, remove: {"acme/shop", "acme/shop/worker"}},
		"reader":       {read: repositories},
		"other":        {read: {"shared"}},
		"other,deploy": {read: {"acme/shop", "acme/shop/worker", "shared"}, write: {"acme/shop", "acme/shop/worker"}, remove: {"acme/shop", "acme/shop/worker"}},
	} {
		for _, action := range []hangar.Action{read, write, remove} {
			allowed := map[string]bool{}
			for _, r := range may[action] {
				allowed[r] = true
			}
			for _, repository := range repositories {
				r := httptest.NewRequestWithContext(t.Context(), "GET", "/v2/", nil)
				r.SetBasicAuth("anybody", token)
				err := access(r, repository, action)
				if (err == nil) != allowed[repository] || err != nil && hangar.CodeOf(err) != hangar.CodeForbidden {
					t.Errorf("%s may %s %s: %v, want %t", token, action, repository, err, allowed[repository])
				}
			}
		}
	}
	for header, valid := range map[string]bool{
		"Bearer reader": true, "flyv1 FlyV1 reader": true, "Bearer void": false, "": false, "reader": false, "Basic cmVhZGVyOnZvaWQ=": false,
	} {
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/v2/", nil)
		r.Header.Set("Authorization", header)
		if err := access(r, "", 0); (err == nil) != valid || err != nil && hangar.CodeOf(err) != hangar.CodeUnauthenticated {
			t.Errorf("%q: %v, want valid %t", header, err, valid)
		}
	}
}
