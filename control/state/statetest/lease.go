package statetest

import (
	"errors"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/control/state"
)

// leases: keys end with their leases, when one is revoked and when one is not renewed.
func leases(t *testing.T, s Store) {
	ctx := bounded(t)
	shortest, err := s.Grant(ctx, time.Millisecond)
	if err != nil || shortest.TTL < state.MinLease || shortest.ID == 0 {
		t.Fatalf("%+v, %v", shortest, err)
	}
	long, err := s.Grant(ctx, time.Hour)
	if err != nil || long.TTL < time.Hour {
		t.Fatalf("%+v, %v", long, err)
	}
	put := func(key string, id state.LeaseID) state.Op {
		op := state.Put(key, []byte("x"))
		op.Lease = id
		return op
	}
	if ttl, err := s.Renew(ctx, long.ID); err != nil || ttl < time.Hour {
		t.Errorf("renewed for %s, %v", ttl, err)
	}
	short, err := s.Grant(ctx, 3*time.Second) // for a slow disk to write what follows
	if err != nil {
		t.Fatal(err)
	}
	for _, ops := range [][]state.Op{
		{
			put("/l/short/a", short.ID), put("/l/short/b", short.ID), put("/l/short/kept", short.ID),
			put("/l/long/a", long.ID), put("/l/long/b", long.ID), put("/l/none", 0),
		},
		{put("/l/short/kept", 0)}, // the last write of a key determines its lease
	} {
		if _, err := s.Txn(ctx, state.Txn{Then: ops}); err != nil {
			t.Fatal(err)
		}
	}
	before := get(t, s, "/l/short/a").Revision
	gone := map[string]bool{}
	for batch, err := range s.Watch(ctx, "/l/short/", before) {
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range batch.Changes {
			if c.Deleted {
				gone[c.Key] = true
			}
		}
		if len(gone) > 0 {
			break
		}
	}
	if !gone["/l/short/a"] || !gone["/l/short/b"] || len(gone) != 2 {
		t.Errorf("with a lease, in one revision: %v", gone)
	}
	if _, err := s.Renew(ctx, short.ID); !errors.Is(err, state.ErrLeaseEnded) {
		t.Errorf("renew a lease that has ended: %v", err)
	}
	if _, err := s.Txn(ctx, state.Txn{Then: []state.Op{put("/l/late", short.ID)}}); !errors.Is(err, state.ErrLeaseEnded) {
		t.Errorf("put with a lease that has ended: %v", err)
	}
	if _, err := s.Revoke(ctx, long.ID); err != nil {
		t.Fatal(err)
	}
	page, err := s.List(ctx, "/l/long/", state.ListOptions{})
	if err != nil || len(page.Items) != 0 {
		t.Errorf("after the lease was revoked: %v, %v", keys(page.Items), err)
	}
	if _, err := s.Revoke(ctx, long.ID); !errors.Is(err, state.ErrLeaseEnded) {
		t.Errorf("revoke a lease again: %v", err)
	}
	get(t, s, "/l/none")
	get(t, s, "/l/short/kept")
}
