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
