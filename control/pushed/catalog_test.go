package pushed_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/pushed"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/state/statetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	one = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	two = "sha256:2222222222222222222222222222222222222222222222222222222222222222"

	app = "orgs/acme/app"
)

// world is a state, with the catalog of each host on its own memory of it.
func world(t *testing.T, hosts ...hangar.HostID) (*statetest.Away, map[hangar.HostID]*pushed.Catalog) {
	t.Helper()
	store := &statetest.Away{Store: state.NewMemory()}
	all := map[hangar.HostID]*pushed.Catalog{}
	for _, host := range hosts {
		mirror := state.NewMirror(state.MirrorConfig{Store: store, Log: slog.New(slog.DiscardHandler)})
		if err := mirror.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = mirror.Close() })
		all[host] = pushed.New(pushed.Config{Store: store, Memory: mirror, Host: host, Log: slog.New(slog.DiscardHandler), Now: time.Now})
	}
	return store, all
}

func push(t *testing.T, c *pushed.Catalog, repository, digest, tag string) {
	t.Helper()
	if err := c.Push(t.Context(), repository, hangar.PushedManifest{Digest: digest, MediaType: "image", Size: 7}, tag); err != nil {
		t.Fatal(err)
	}
}

func wantDigest(t *testing.T, c *pushed.Catalog, reference, digest string, hosts ...hangar.HostID) hangar.PushedManifest {
	t.Helper()
	m, err := c.Manifest(t.Context(), app, reference)
	if err != nil || m.Digest != digest || m.MediaType != "image" || m.Size != 7 || !slices.Equal(m.Hosts, hosts) {
		t.Errorf("%s is %+v %v", reference, m, err)
	}
	return m
}

func wantNone(t *testing.T, c *pushed.Catalog, reference string) {
	t.Helper()
	if m, err := c.Manifest(t.Context(), app, reference); hangar.CodeOf(err) != hangar.CodeNotFound || hangar.ReasonOf(err) != hangar.ReasonImageNotFound {
		t.Errorf("%s is %+v %v", reference, m, err)
	}
}

func TestLastPushCounts(t *testing.T) {
	_, hosts := world(t, "a", "b")
	a, b := hosts["a"], hosts["b"]
	wantNone(t, b, "v1")
	push(t, a, app, one, "v1")
	wantDigest(t, b, "v1", one, "a")
	push(t, b, app, two, "v1")
	wantDigest(t, a, "v1", two, "b")
	wantDigest(t, a, one, one, "a")
	push(t, b, app, one, "")
	wantDigest(t, a, one, one, "a", "b")
	push(t, a, app, one, "v2")
	wantDigest(t, b, one, one, "b", "a")
	all, err := b.Repository(t.Context(), app)
	if err != nil || len(all.Manifests) != 2 || fmt.Sprint(all.Tags) != fmt.Sprint(map[string]string{"v1": two, "v2": one}) {
		t.Errorf("the repository has %+v %v", all, err)
	}
	if holders, err := a.Holders(t.Context(), app); err != nil || !slices.Equal(holders, []hangar.HostID{"a", "b"}) {
		t.Errorf("holders are %v %v", holders, err)
	}
	push(t, a, "orgs/acme/team/deep", one, "")
	push(t, a, "orgs/acmeother/app", one, "")
	push(t, a, "server/base", one, "")
	if paths, err := b.Repositories(t.Context(), "orgs/acme"); err != nil || !slices.Equal(paths, []string{app, "orgs/acme/team/deep"}) {
		t.Errorf("repositories are %v %v", paths, err)
	}
	if paths, err := b.Repositories(t.Context(), "server"); err != nil || !slices.Equal(paths, []string{"server/base"}) {
		t.Errorf("repositories of the server are %v %v", paths, err)
	}
}

func TestDelete(t *testing.T) {
	_, hosts := world(t, "a", "b")
	a, b := hosts["a"], hosts["b"]
	for i := range 150 { // more than fit into one transaction
		push(t, a, app, one, fmt.Sprintf("v%d", i))
	}
	push(t, a, app, two, "other")
	if err := b.Delete(t.Context(), app, "v3"); err != nil {
		t.Fatal(err)
	}
	wantNone(t, a, "v3")
	wantDigest(t, a, "v4", one, "a")
	if err := b.Delete(t.Context(), app, one); err != nil {
		t.Fatal(err)
	}
	wantNone(t, a, one)
	all, err := a.Repository(t.Context(), app)
	if err != nil || len(all.Manifests) != 1 || len(all.Tags) != 1 {
		t.Errorf("the repository has %+v %v", all, err)
	}
	for _, reference := range []string{"v3", one} {
		if err := a.Delete(t.Context(), app, reference); hangar.CodeOf(err) != hangar.CodeNotFound {
			t.Errorf("delete %s again: %v", reference, err)
		}
	}
}

// TestRelease: a host that frees a manifest does so only if no one has pushed or tagged it since.
func TestRelease(t *testing.T) {
	_, hosts := world(t, "a", "b")
	a, b := hosts["a"], hosts["b"]
	release := func(c *pushed.Catalog, m hangar.PushedManifest, want bool) {
		t.Helper()
		if got, err := c.Release(t.Context(), app, m); err != nil || got != want {
			t.Errorf("released %v %v, want %v", got, err, want)
		}
	}
	push(t, a, app, one, "v1")
	release(a, wantDigest(t, a, one, one, "a"), false)
	seen := wantDigest(t, a, one, one, "a")
	push(t, b, app, one, "")
	if err := b.Delete(t.Context(), app, "v1"); err != nil {
		t.Fatal(err)
	}
	release(a, seen, false)
	release(a, wantDigest(t, a, one, one, "a", "b"), true)
	release(b, wantDigest(t, b, one, one, "b"), true)
	wantNone(t, a, one)
	release(b, seen, true)
}

// TestPushBesideDelete: during concurrent pushes and deletions, a tag always names an existing
// manifest.
func TestPushBesideDelete(t *testing.T) {
	_, hosts := world(t, "a", "b")
	var work sync.WaitGroup
	for range 20 {
		work.Go(func() { push(t, hosts["a"], app, one, "v1") })
		work.Go(func() {
			if err := hosts["b"].Delete(t.Context(), app, one); err != nil && hangar.CodeOf(err) != hangar.CodeNotFound {
				t.Error(err)
			}
		})
	}
	work.Wait()
	all, err := hosts["a"].Repository(t.Context(), app)
	if err != nil || len(all.Tags) != len(all.Manifests) {
		t.Errorf("the repository has %+v %v", all, err)
	}
}

// TestStateIsAway: what was known last is answered, and nothing is changed.
func TestStateIsAway(t *testing.T) {
	store, hosts := world(t, "a", "b")
	push(t, hosts["a"], app, one, "v1")
	push(t, hosts["b"], app, two, "v2") // so that both memories have seen the first
	store.Lost.Store(true)
	wantDigest(t, hosts["b"], "v1", one, "a")
	wantDigest(t, hosts["b"], one, one, "a")
	for what, err := range map[string]error{
		"push":   hosts["b"].Push(t.Context(), app, hangar.PushedManifest{Digest: two}, "v1"),
		"delete": hosts["b"].Delete(t.Context(), app, one),
	} {
		if hangar.CodeOf(err) != hangar.CodeUnavailable || strings.Contains(hangar.MessageOf(err), "quorum") {
			t.Errorf("%s: %v", what, err)
		}
	}
	store.Lost.Store(false)
	wantDigest(t, hosts["a"], "v1", one, "a")
}

// TestBound: one organization that pushes without end is refused, and no other.
func TestBound(t *testing.T) {
	store, hosts := world(t, "a")
	a := hosts["a"]
	push(t, a, app, one, "v1")
	for first := 0; first < hangar.MaxPushed; first += 100 {
		var txn state.Txn
		for i := range 100 {
			txn.Then = append(txn.Then, state.Put(fmt.Sprintf("%sorgs/acme/many/_/tags/v%d", state.PushedPrefix, first+i), []byte(`{"digest":"`+one+`"}`)))
		}
		if _, err := store.Txn(t.Context(), txn); err != nil {
			t.Fatal(err)
		}
	}
	push(t, a, "server/base", two, "") // its memory has seen what was before
	refused := func(digest, tag string) {
		t.Helper()
		err := a.Push(t.Context(), app, hangar.PushedManifest{Digest: digest}, tag)
		if hangar.CodeOf(err) != hangar.CodeExhausted || hangar.ReasonOf(err) != hangar.ReasonQuota {
			t.Errorf("push of %s as %q: %v", digest, tag, err)
		}
	}
	refused(two, "")
	refused(one, "v2")
	push(t, a, app, one, "v1") // which is there
	push(t, a, "orgs/other/app", two, "v1")
	push(t, a, "server/app", two, "v1")
}

func TestRemoveAll(t *testing.T) {
	store, hosts := world(t, "a")
	for i := range 100 {
		push(t, hosts["a"], app, one, fmt.Sprintf("v%d", i))
	}
	push(t, hosts["a"], "orgs/acmeother/app", one, "v1")
	if err := pushed.RemoveAll(t.Context(), store, "orgs/acme", state.Absent("/orgs/acme")); err != nil {
		t.Fatal(err)
	}
	left, _, err := state.All(t.Context(), store, state.PushedPrefix, true)
	if err != nil || len(left) != 3 {
		t.Errorf("%d keys are left: %v", len(left), err)
	}
	if err := pushed.RemoveAll(t.Context(), store, "orgs/acmeother", state.Compare{Key: "/orgs/acme", Revision: 1}); !errors.Is(err, state.ErrConflict) {
		t.Errorf("removal beside a change: %v", err)
	}
}
