package tenants_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
)

// directory has the App web of the organization acme.
func directory(t *testing.T) *tenants.Directory {
	t.Helper()
	store := state.NewMemory()
	for key, record := range map[string]any{
		state.OrgKey("acme"): tenants.OrgRecord{Org: hangar.Org{ID: "o1", Slug: "acme"}},
		state.OrgKey("old"):  tenants.OrgRecord{Org: hangar.Org{ID: "o2", Slug: "old"}, Deleting: true},
		state.AppKey("web"):  tenants.AppRecord{ID: "a1", Name: "web", Org: "acme", OrgID: "o1"},
	} {
		put, err := state.Write(key, record)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.Txn(t.Context(), state.Txn{Then: []state.Op{put}}); err != nil {
			t.Fatal(err)
		}
	}
	return tenants.NewDirectory(store)
}

func as(t *testing.T, grants ...hangar.Grant) context.Context {
	t.Helper()
	return hangar.WithPrincipal(t.Context(), hangar.Principal{Subject: "me", Grants: grants})
}

// TestStrangersFindNothing: things of another organization look like missing ones.
func TestStrangersFindNothing(t *testing.T) {
	dir := directory(t)
	stranger := as(t, hangar.Grant{Org: "other", OrgID: "o3", Actions: hangar.ActionAll})
	_, _, there := dir.App(stranger, "web", hangar.ActionRead)
	_, _, nowhere := dir.App(stranger, "wex", hangar.ActionRead)
	if there == nil || nowhere == nil || there.Error() != nowhere.Error() || hangar.ReasonOf(there) != hangar.ReasonAppNotFound {
		t.Errorf("%v for what is there, %v for what is not", there, nowhere)
	}
	for _, slug := range []hangar.OrgSlug{"acme", "none", "old"} {
		if _, _, err := dir.OrgReader(stranger, slug); hangar.ReasonOf(err) != hangar.ReasonOrgNotFound {
			t.Errorf("organization %s is answered %v", slug, err)
		}
	}
}

func TestMembersFindWhatTheyMay(t *testing.T) {
	dir := directory(t)
	reader := as(t, hangar.Grant{Org: "acme", OrgID: "o1", Actions: hangar.ActionRead})
	rec, item, err := dir.App(reader, "web", hangar.ActionRead)
	if err != nil || rec.ID != "a1" || item.Key != state.AppKey("web") {
		t.Errorf("found %+v at %s, %v", rec, item.Key, err)
	}
	if _, _, err := dir.App(reader, "web", hangar.ActionDelete); hangar.CodeOf(err) != hangar.CodeForbidden {
		t.Errorf("who may read may delete: %v", err)
	}
	// An App that was made again is another one, in spite of its name.
	if _, _, err := dir.AppFor(reader, hangar.ActionRead, hangar.MachineRef{App: "web", AppID: "a0"}); hangar.ReasonOf(err) != hangar.ReasonAppNotFound {
		t.Errorf("found by another id: %v", err)
	}
	if rec, err := dir.AppOf(t.Context(), "web", "a1"); err != nil || rec.OrgID != "o1" {
		t.Errorf("found %+v, %v", rec, err)
	}
	if _, err := dir.AppOf(t.Context(), "web", "a0"); hangar.ReasonOf(err) != hangar.ReasonAppNotFound {
		t.Errorf("found by another id: %v", err)
	}
	if _, err := tenants.Caller(as(t)); hangar.CodeOf(err) != hangar.CodeForbidden {
		t.Errorf("who is allowed nothing passes: %v", err)
	}
	if _, err := tenants.Caller(t.Context()); hangar.CodeOf(err) != hangar.CodeUnauthenticated {
		t.Errorf("a caller without a principal passes: %v", err)
	}
}

// TestNetworkNumbers: a network keeps its number, and no other gets it.
func TestNetworkNumbers(t *testing.T) {
	store := state.NewMemory()
	dir := tenants.NewDirectory(store)
	numbers := map[hangar.NetworkID]string{}
	for _, name := range []string{"default", "other"} {
		id, txn, err := dir.Network(t.Context(), "o1", name)
		if err != nil || numbers[id] != "" {
			t.Fatalf("network %s has number %d, as %q has: %v", name, id, numbers[id], err)
		}
		numbers[id] = name
		if _, err := store.Txn(t.Context(), txn); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Txn(t.Context(), txn); !errors.Is(err, state.ErrConflict) {
			t.Errorf("the number of network %s is bound twice: %v", name, err)
		}
		if again, txn, err := dir.Network(t.Context(), "o1", name); err != nil || again != id || len(txn.Then) > 0 {
			t.Errorf("network %s has number %d and then %d, %v", name, id, again, err)
		}
	}
}

func TestNames(t *testing.T) {
	for name, good := range map[string]bool{
		"web": true, "a": true, "web-1": true, strings.Repeat("a", 63): true,
		"": false, "-web": false, "web-": false, "Web": false, "we b": false, strings.Repeat("a", 64): false, "wéb": false,
	} {
		if fault := tenants.NameFault(name); (fault == "") != good {
			t.Errorf("%q: %q", name, fault)
		}
		if err := tenants.CheckAppName(hangar.AppName(name)); (err == nil) != good {
			t.Errorf("app %q: %v", name, err)
		}
	}
	for name, good := range map[string]bool{"default": true, "Blue-2": true, "2blue": false, "blue_2": false, strings.Repeat("a", 64): false} {
		if err := tenants.CheckNetworkName(name); (err == nil) != good {
			t.Errorf("network %q: %v", name, err)
		}
	}
	for title, good := range map[string]bool{"": true, "Acme GmbH": true, " x": false, "a\nb": false, "\xff": false, strings.Repeat("é", 100): true, strings.Repeat("é", 101): false} {
		if fault := tenants.TitleFault(title); (fault == "") != good {
			t.Errorf("%q: %q", title, fault)
		}
	}
}
