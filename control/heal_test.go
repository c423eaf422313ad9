package control_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// TestLeftoversOfALostServer: a removal that a server has begun which is lost is finished by another one
// that looks for such things at intervals, once nothing has happened to it for a while.
func TestLeftoversOfALostServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t, state.NewMemory(), newFakeHost("aaaaaaaa", "loc"))
		ctx, cancel := context.WithCancel(admin(t))
		var running sync.WaitGroup
		defer func() { cancel(); running.Wait() }()
		running.Go(func() { _ = p.Run(ctx) })
		running.Go(func() { _ = p.HealEvery(ctx, 5*time.Minute) })
		p.org(t, "gone")
		item, err := p.store.Get(ctx, "/orgs/gone")
		if err != nil {
			t.Fatal(err)
		}
		marked := strings.Replace(string(item.Value), "{", `{"deleting":true,`, 1)
		if _, err := p.store.Txn(ctx, state.Txn{Then: []state.Op{state.Put(item.Key, []byte(marked))}}); err != nil {
			t.Fatal(err)
		}
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

// TestUnusedClaim: a claim is undone if its host is killed, or misses the answer, before it changes the volume.
func TestUnusedClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t, state.NewMemory())
		ctx, cancel := context.WithCancel(admin(t))
		var running sync.WaitGroup
		defer func() { cancel(); running.Wait() }()
		running.Go(func() { _ = p.Run(ctx) })
		running.Go(func() { _ = p.HealEvery(ctx, 5*time.Minute) })
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
