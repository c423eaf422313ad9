package control_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// inBackground runs the work of a plane as an administrator until the test ends, and returns its context.
func inBackground(t *testing.T, work ...func(context.Context) error) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(admin(t))
	var running sync.WaitGroup
	for _, do := range work {
		running.Go(func() { _ = do(ctx) })
	}
	t.Cleanup(func() { cancel(); running.Wait() })
	return ctx
}

// TestLeftoversOfALostServer: a removal that a server has begun which is lost is finished by another one
// that looks for such things at intervals, once nothing has happened to it for a while.
func TestLeftoversOfALostServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t, state.NewMemory(), newFakeHost("aaaaaaaa", "loc"))
		ctx := inBackground(t, p.Run, func(ctx context.Context) error { return p.HealEvery(ctx, 5*time.Minute) })
		p.org(t, "gone")
		p.markDeleting(t, "gone")
		left := func() int { return len(p.records(t, "/orgs/gone")) }
		time.Sleep(7 * time.Minute)
		synctest.Wait()
		if left() == 0 {
			t.Error("a removal is finished by another server although it may be under way")
		}
		p.clock.advance(time.Hour)
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		if left() != 0 {
			t.Error("a removal that a lost server has begun is not finished")
		}
		p.org(t, "gone") // the name is free
		if _, err := p.Orgs().Org(ctx, hangar.OrgSlug("gone")); err != nil {
			t.Error(err)
		}
	})
}

// deafStore gets no answer to the transactions that lose selects. Only those that are written selects as well
// are committed.
type deafStore struct {
	state.Store

	lose, written func(state.Txn) bool
}

func (s *deafStore) Txn(ctx context.Context, txn state.Txn) (state.Revision, error) {
	if s.lose == nil || !s.lose(txn) {
		return s.Store.Txn(ctx, txn)
	}
	if s.written(txn) {
		if _, err := s.Store.Txn(ctx, txn); err != nil {
			return 0, err
		}
	}
	return 0, errors.New("no answer")
}

// TestReservationOfUnknownOutcome: a creation that does not learn whether its reservation was written, or
// confirmed, has it settled soon, without waiting for the search at intervals.
func TestReservationOfUnknownOutcome(t *testing.T) {
	const confirmed = `"confirmed":true`
	for what, confirms := range map[string]bool{"made": false, "confirmed": true} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &deafStore{Store: state.NewMemory(), written: func(state.Txn) bool { return !confirms }}
				p := newPlane(t, store)
				p.app(t, "web")
				ctx := inBackground(t, p.Run)
				lost := false
				store.lose = func(txn state.Txn) bool {
					now := !lost && slices.ContainsFunc(txn.Then, func(o state.Op) bool {
						return strings.HasPrefix(o.Key, "/machines/") && strings.Contains(string(o.Value), confirmed) == confirms
					})
					lost = lost || now
					return now
				}
				_, err := p.Machines().CreateMachine(ctx, "web", wish("a"))
				wantError(t, err, hangar.CodeUnavailable, "")
				if found := p.records(t, "/machines/"); !lost || len(found) != 1 {
					t.Fatalf("lost %t, reservations %v", lost, found)
				}
				p.clock.advance(time.Minute)
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				left := p.items(t, "/machines/")
				if want := len(p.hosts[0].alive()); len(left) != want {
					t.Errorf("%d reservations of %d machines", len(left), want)
				}
				for _, item := range left {
					if !strings.Contains(string(item.Value), confirmed) {
						t.Errorf("reservation %s", item.Value)
					}
				}
			})
		})
	}
}

// markDeleting marks an organization, as the deletion does that a server begins and is lost.
func (p *plane) markDeleting(t *testing.T, slug hangar.OrgSlug) {
	t.Helper()
	item, err := p.store.Get(t.Context(), state.OrgKey(slug))
	if err != nil {
		t.Fatal(err)
	}
	marked := strings.Replace(string(item.Value), "{", `{"deleting":true,`, 1)
	if _, err := p.store.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put(item.Key, []byte(marked))}}); err != nil {
		t.Fatal(err)
	}
}

// TestRemovalThatNoOneContinues: an organization whose removal another server has taken over, which is then lost, is
// removed soon, although the caller has left.
func TestRemovalThatNoOneContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t, state.NewMemory())
		p.org(t, "gone")
		ctx, leave := context.WithCancel(inBackground(t, p.Run))
		p.hosts[0].onRemoveOrg = func(context.Context, hangar.OrgID) error {
			p.hosts[0].onRemoveOrg = nil
			p.markDeleting(t, "gone")
			leave()
			return nil
		}
		if err := p.Orgs().DeleteOrg(ctx, "gone"); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		for range 2 { // it is first seen, and then removed if nothing has happened to it
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			p.clock.advance(time.Minute)
		}
		if left := p.records(t, state.OrgsPrefix+"gone"); len(left) > 0 {
			t.Errorf("left %v", left)
		}
	})
}

// TestSlowRemovalHoldsUpNoOther: an organization whose content a host is slow to remove holds up the removal of no
// other one.
func TestSlowRemovalHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t, state.NewMemory())
		var both sync.WaitGroup
		for _, slug := range []hangar.OrgSlug{"one", "other"} {
			p.org(t, slug)
			p.markDeleting(t, slug)
			both.Add(1)
		}
		p.hosts[0].onRemoveOrg = func(ctx context.Context, _ hangar.OrgID) error {
			both.Done()
			all := make(chan struct{})
			go func() { both.Wait(); close(all) }()
			select {
			case <-all:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		p.restart(t)
		if left := p.records(t, state.OrgsPrefix); len(left) != 1 {
			t.Errorf("left %v", left)
		}
	})
}

// TestMarkOfUnknownOutcome: what is marked to be removed, without the answer, is removed soon.
func TestMarkOfUnknownOutcome(t *testing.T) {
	for key, remove := range map[string]func(ctx context.Context, p *plane) error{
		state.AppKey("web"):  func(ctx context.Context, p *plane) error { return p.Apps().DestroyApp(ctx, "web", false) },
		state.OrgKey("gone"): func(ctx context.Context, p *plane) error { return p.Orgs().DeleteOrg(ctx, "gone") },
	} {
		t.Run(key, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &deafStore{Store: state.NewMemory(), written: func(state.Txn) bool { return true }}
				p := newPlane(t, store)
				p.app(t, "web")
				p.org(t, "gone")
				ctx := inBackground(t, p.Run)
				lost := false
				store.lose = func(txn state.Txn) bool {
					now := !lost && txn.Then[0].Key == key
					lost = lost || now
					return now
				}
				wantError(t, remove(ctx, p), hangar.CodeUnavailable, "")
				for range 2 { // an organization is first seen, and then removed if nothing has happened to it
					time.Sleep(2 * time.Minute)
					synctest.Wait()
					p.clock.advance(time.Minute)
				}
				if left := p.records(t, key); !lost || len(left) > 0 {
					t.Errorf("lost %t, left %v", lost, left)
				}
			})
		})
	}
}

// TestUnreadableAppHoldsUpNoOther: the record of an App that cannot be read keeps no daemon from starting, and volumes
// of Apps that are missing are destroyed nevertheless.
func TestUnreadableAppHoldsUpNoOther(t *testing.T) {
	p := newPlane(t, state.NewMemory())
	volumes := map[hangar.AppName]*hangar.Volume{"unreadable": nil, "missing": nil}
	for app := range volumes {
		p.app(t, app)
		v, err := p.Volumes().CreateVolume(admin(t), app, hangar.VolumeCreate{Name: "data", SizeGB: 2})
		if err != nil {
			t.Fatal(err)
		}
		volumes[app] = v
	}
	if _, err := p.store.Txn(t.Context(), state.Txn{Then: []state.Op{
		state.Put(state.AppKey("unreadable"), []byte("{")), state.Delete(state.AppKey("missing")),
	}}); err != nil {
		t.Fatal(err)
	}
	p.clock.advance(time.Hour)
	p.restart(t)
	for app, v := range volumes {
		row, err := p.hosts[0].VolumeRow(t.Context(), v.Ref())
		if gone := hangar.CodeOf(err) == hangar.CodeNotFound || err == nil && row.Volume.State.Gone(); gone != (app == "missing") {
			t.Errorf("the volume of the App %s: gone %t, %v", app, gone, err)
		}
	}
}

// TestUnusedClaim: a claim is undone if its host is killed, or misses the answer, before it changes the volume.
func TestUnusedClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t, state.NewMemory())
		ctx := inBackground(t, p.Run, func(ctx context.Context) error { return p.HealEvery(ctx, 5*time.Minute) })
		p.orgWithApp(t, "acme")
		v, err := p.Volumes().CreateVolume(ctx, "acme", hangar.VolumeCreate{Name: "data", SizeGB: 2})
		if err != nil {
			t.Fatal(err)
		}
		counts := func(want int64) {
			t.Helper()
			p.clock.advance(time.Hour)
			time.Sleep(6 * time.Minute)
			synctest.Wait()
			if got := p.used(t, "acme", hangar.QuotaVolumeGB); got != want {
				t.Errorf("%d GB are counted, want %d", got, want)
			}
		}
		row, err := p.hosts[0].VolumeRow(ctx, v.Ref())
		if err != nil {
			t.Fatal(err)
		}
		row.Volume.SizeGB = 5
		if err := p.rows.ClaimVolume(ctx, *row); err != nil {
			t.Fatal(err)
		}
		counts(5) // it was just made
		counts(2)
		row.Seq++ // it is used after all
		if err := p.rows.PublishVolume(ctx, *row); err != nil {
			t.Fatal(err)
		}
		counts(5)
		counts(5)
	})
}
