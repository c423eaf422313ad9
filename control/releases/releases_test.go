package releases_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/releases"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
)

// world is a state with the Apps web, of the organization acme, and shop, of the organization other.
func world(t *testing.T) (state.Store, *releases.Releases) {
	t.Helper()
	store := state.NewMemory()
	var txn state.Txn
	for key, record := range map[string]any{
		state.OrgKey("acme"):  tenants.OrgRecord{Org: hangar.Org{ID: "acmeacmeacmeacme", Slug: "acme"}},
		state.OrgKey("other"): tenants.OrgRecord{Org: hangar.Org{ID: "otherotherothero", Slug: "other"}},
		state.AppKey("web"):   tenants.AppRecord{ID: "webwebwebwebwebw", Name: "web", Org: "acme", OrgID: "acmeacmeacmeacme"},
		state.AppKey("shop"):  tenants.AppRecord{ID: "shopshopshopshop", Name: "shop", Org: "other", OrgID: "otherotherothero"},
	} {
		put, err := state.Write(key, record)
		if err != nil {
			t.Fatal(err)
		}
		txn.Then = append(txn.Then, put)
	}
	if _, err := store.Txn(t.Context(), txn); err != nil {
		t.Fatal(err)
	}
	now := func() time.Time { return time.Date(2026, 8, 14, 9, 57, 35, 7, time.UTC) }
	return store, releases.New(store, tenants.NewDirectory(store), slog.New(slog.DiscardHandler), now)
}

// as is the context of a caller that may do actions in an organization.
func as(t *testing.T, org hangar.OrgSlug, actions hangar.Action) context.Context {
	t.Helper()
	return hangar.WithPrincipal(t.Context(), hangar.Principal{
		Subject: "ann@example.com", User: "annannannannanna", Grants: []hangar.Grant{{Org: org, Actions: actions}},
	})
}

func create(t *testing.T, s *releases.Releases, app hangar.AppName, in hangar.ReleaseCreate) *hangar.Release {
	t.Helper()
	org := hangar.OrgSlug("acme")
	if app == "shop" {
		org = "other"
	}
	made, err := s.CreateRelease(as(t, org, hangar.ActionAll), app, in)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func update(t *testing.T, s *releases.Releases, id hangar.ReleaseID, status hangar.ReleaseStatus) {
	t.Helper()
	if _, err := s.UpdateRelease(as(t, "acme", hangar.ActionAll), id, hangar.ReleaseUpdate{Status: status}); err != nil {
		t.Fatal(err)
	}
}

func all(t *testing.T, s *releases.Releases, app hangar.AppName, org hangar.OrgSlug) []*hangar.Release {
	t.Helper()
	list, err := s.Releases(as(t, org, hangar.ActionRead), app, 0)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestLifeOfARelease(t *testing.T) {
	_, s := world(t)
	read := as(t, "acme", hangar.ActionRead)
	if _, err := s.CurrentRelease(read, "web"); hangar.ReasonOf(err) != hangar.ReasonReleaseNotFound {
		t.Fatalf("current of none: %v", err)
	}
	first := create(t, s, "web", hangar.ReleaseCreate{Image: "web:1", Definition: json.RawMessage(` { "app" : "web" } `)})
	want := hangar.Release{
		ID: "webwebwebwebwebw-1", App: "web", Version: 1, Status: hangar.ReleasePending, Strategy: hangar.StrategyRolling, Image: "web:1",
		Definition: json.RawMessage(`{"app":"web"}`), User: "ann@example.com", UserID: "annannannannanna",
		CreatedAt: time.Date(2026, 8, 14, 9, 57, 35, 0, time.UTC), UpdatedAt: time.Date(2026, 8, 14, 9, 57, 35, 0, time.UTC),
	}
	if got, wanted := fmt.Sprintf("%+v", *first), fmt.Sprintf("%+v", want); got != wanted {
		t.Errorf("got %s, want %s", got, wanted)
	}
	update(t, s, first.ID, hangar.ReleaseRunning)
	update(t, s, first.ID, hangar.ReleaseComplete)
	update(t, s, first.ID, hangar.ReleaseComplete) // may be repeated
	_, err := s.UpdateRelease(as(t, "acme", hangar.ActionAll), first.ID, hangar.ReleaseUpdate{Status: hangar.ReleaseFailed})
	if hangar.CodeOf(err) != hangar.CodeFailedPrecondition {
		t.Errorf("another end: %v", err)
	}
	second := create(t, s, "web", hangar.ReleaseCreate{Image: "web:2", Strategy: hangar.StrategyCanary})
	update(t, s, second.ID, hangar.ReleaseFailed)
	if now, err := s.CurrentRelease(read, "web"); err != nil || now.Version != 1 {
		t.Errorf("current is %+v, %v, want the one that is complete", now, err)
	}
	back := create(t, s, "web", hangar.ReleaseCreate{Rollback: 1, Reason: "rollback"})
	if back.Version != 3 || back.Image != "web:1" || string(back.Definition) != `{"app":"web"}` {
		t.Errorf("back to the first is %+v", back)
	}
	if list := all(t, s, "web", "acme"); len(list) != 3 || list[0].Version != 3 || list[2].Version != 1 {
		t.Errorf("listed %+v", list)
	}
	if list, err := s.Releases(read, "web", 1); err != nil || len(list) != 1 || list[0].Version != 3 {
		t.Errorf("the newest: %+v, %v", list, err)
	}
}

func TestRefused(t *testing.T) {
	_, s := world(t)
	made := create(t, s, "web", hangar.ReleaseCreate{})
	write := as(t, "acme", hangar.ActionAll)
	for name, in := range map[string]hangar.ReleaseCreate{
		"strategy":               {Strategy: "sideways"},
		"definition is a list":   {Definition: json.RawMessage(`[]`)},
		"definition is too much": {Definition: json.RawMessage(`{"a":"` + strings.Repeat("x", hangar.MaxReleaseDefinition) + `"}`)},
		"image":                  {Image: strings.Repeat("x", 300)},
		"back to minus one":      {Rollback: -1},
		"back to another image":  {Rollback: 1, Image: "web:2"},
	} {
		if _, err := s.CreateRelease(write, "web", in); hangar.CodeOf(err) != hangar.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.CreateRelease(write, "web", hangar.ReleaseCreate{Rollback: 7}); hangar.ReasonOf(err) != hangar.ReasonReleaseNotFound {
		t.Errorf("back to none: %v", err)
	}
	for _, id := range []hangar.ReleaseID{"", "webwebwebwebwebw", "webwebwebwebwebw-2", "webwebwebwebwebw-01", "webwebwebwebwebw--1", "../x-1"} {
		if _, err := s.UpdateRelease(write, id, hangar.ReleaseUpdate{Status: hangar.ReleaseRunning}); hangar.ReasonOf(err) != hangar.ReasonReleaseNotFound {
			t.Errorf("update of %q: %v", id, err)
		}
	}
	if _, err := s.UpdateRelease(write, made.ID, hangar.ReleaseUpdate{Status: "perfect"}); hangar.CodeOf(err) != hangar.CodeInvalid {
		t.Errorf("status: %v", err)
	}
	// Strangers learn of a release what they learn of none.
	_, there := s.UpdateRelease(as(t, "other", hangar.ActionAll), made.ID, hangar.ReleaseUpdate{Status: hangar.ReleaseRunning})
	_, missing := s.UpdateRelease(as(t, "other", hangar.ActionAll), "zzzzzzzzzzzzzzzz-1", hangar.ReleaseUpdate{Status: hangar.ReleaseRunning})
	if there == nil || missing == nil || there.Error() != missing.Error() {
		t.Errorf("a stranger is answered %v, and %v for none", there, missing)
	}
	if _, err := s.CreateRelease(as(t, "acme", hangar.ActionRead), "web", hangar.ReleaseCreate{}); hangar.CodeOf(err) != hangar.CodeForbidden {
		t.Errorf("a reader creates: %v", err)
	}
}

// TestThirdPartiesLearnNoNames has it that a client that acts for a user sees releases without who made
// them.
func TestThirdPartiesLearnNoNames(t *testing.T) {
	_, s := world(t)
	create(t, s, "web", hangar.ReleaseCreate{})
	ctx := hangar.WithPrincipal(t.Context(), hangar.Principal{Client: "vendor", Grants: []hangar.Grant{{Org: "acme", Actions: hangar.ActionRead}}})
	list, err := s.Releases(ctx, "web", 0)
	if err != nil || len(list) != 1 || list[0].User != "" {
		t.Errorf("listed %+v, %v", list, err)
	}
}

// TestUnreadableRelease: an App whose newest release cannot be read gets the next one.
func TestUnreadableRelease(t *testing.T) {
	store, s := world(t)
	create(t, s, "web", hangar.ReleaseCreate{})
	create(t, s, "web", hangar.ReleaseCreate{})
	items, _, err := state.All(t.Context(), store, state.ReleasesPrefix, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put(items[1].Key, []byte("no release"))}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(as(t, "acme", hangar.ActionAll), 10*time.Second)
	defer cancel()
	made, err := s.CreateRelease(ctx, "web", hangar.ReleaseCreate{})
	if err != nil || made.Version != 3 {
		t.Errorf("made %+v, %v, want v3", made, err)
	}
	if list := all(t, s, "web", "acme"); len(list) != 2 || list[1].Version != 1 {
		t.Errorf("listed %+v", list)
	}
}

// TestOneAppBoundsItself has one App make far more than it may keep: what it keeps is bounded, its
// current release stays, versions go on, and the App of another organization loses nothing.
func TestOneAppBoundsItself(t *testing.T) {
	store, s := world(t)
	other := create(t, s, "shop", hangar.ReleaseCreate{Definition: json.RawMessage(`{"app":"shop"}`)})
	kept := create(t, s, "web", hangar.ReleaseCreate{Image: "good", Definition: json.RawMessage(`{"good":true}`)})
	update(t, s, kept.ID, hangar.ReleaseComplete)
	large := json.RawMessage(`{"a":"` + strings.Repeat("x", hangar.MaxReleaseDefinition-100) + `"}`)
	const many = hangar.MaxReleases + 10
	for i := range many {
		in := hangar.ReleaseCreate{}
		if i < 3 || i > many-10 {
			in.Definition = large
		}
		create(t, s, "web", in)
	}
	list := all(t, s, "web", "acme")
	if len(list) > hangar.MaxReleases+1 || list[0].Version != many+1 {
		t.Errorf("%d are kept, the newest is v%d", len(list), list[0].Version)
	}
	bytes := 0
	for _, r := range list {
		bytes += len(r.Definition)
	}
	if bytes > hangar.MaxReleaseDocuments+len(kept.Definition) || list[0].Definition == nil {
		t.Errorf("definitions of %d bytes are kept", bytes)
	}
	now, err := s.CurrentRelease(as(t, "acme", hangar.ActionRead), "web")
	if err != nil || now.ID != kept.ID || string(now.Definition) != `{"good":true}` {
		t.Errorf("current is %+v, %v", now, err)
	}
	if list := all(t, s, "shop", "other"); len(list) != 1 || list[0].ID != other.ID || list[0].Definition == nil {
		t.Errorf("the other organization has %+v", list)
	}
	marked, err := store.Get(t.Context(), state.AppKey("web"))
	if err != nil {
		t.Fatal(err)
	}
	if err := releases.NewUpkeep(store).Forget(t.Context(), "webwebwebwebwebw", marked); err != nil {
		t.Fatal(err)
	}
	items, _, err := state.All(t.Context(), store, state.ReleasesPrefix, true)
	if err != nil || len(items) != 1 {
		t.Errorf("%d records are left, %v, want that of the other App", len(items), err)
	}
}

// TestVersionsAreGivenOnce has several deployers create at the same time.
func TestVersionsAreGivenOnce(t *testing.T) {
	_, s := world(t)
	var group sync.WaitGroup
	ctx := as(t, "acme", hangar.ActionAll)
	for range 8 {
		group.Go(func() {
			for range 5 {
				if _, err := s.CreateRelease(ctx, "web", hangar.ReleaseCreate{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	for i, r := range all(t, s, "web", "acme") {
		if r.Version != 40-i {
			t.Fatalf("the release at place %d is v%d", i, r.Version)
		}
	}
}

// TestARecordThatCannotBeRead concerns nothing but itself.
func TestARecordThatCannotBeRead(t *testing.T) {
	store, s := world(t)
	create(t, s, "web", hangar.ReleaseCreate{})
	if _, err := store.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put(state.ReleasesPrefix+"webwebwebwebwebw/0000000000", []byte("?"))}}); err != nil {
		t.Fatal(err)
	}
	if list := all(t, s, "web", "acme"); len(list) != 1 {
		t.Errorf("listed %+v", list)
	}
}
