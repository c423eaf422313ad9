package lease_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/internal/etcdtest"
	"github.com/hangar-platform/hangar/replica/lease"
	"github.com/hangar-platform/hangar/replica/lease/etcd"
)

// alone is a member of a cluster of one.
type alone struct{}

func (alone) Identity() (uint64, string, uint64) { return 1, "LFSC1", 0 }
func (alone) Adopt(string) error                 { return nil }
func (alone) Marks() map[string]lease.Mark       { return nil }

// TestSleep puts the primary's machine to sleep: the lease is immediately invalid, and becomes
// valid again once etcd has renewed it, in the same term, because no other node held it meanwhile.
func TestSleep(t *testing.T) {
	s, err := etcd.New(etcd.Config{Endpoints: []string{etcdtest.Start(t)}})
	if err != nil {
		t.Fatal(err)
	}
	var slept atomic.Int64
	e := lease.NewElected(lease.Config{
		Store: s, Candidate: true, TTL: 5 * time.Second, LockDelay: time.Millisecond, Log: slog.New(slog.DiscardHandler),
		Wall: func() time.Time { return time.Now().Add(time.Duration(slept.Load())) },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx, alone{}) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	wait := func(what string, held bool) lease.Term {
		limit := time.After(time.Minute)
		for {
			term, changed := e.Term()
			if term.Held == held && e.Valid(term.Epoch) == held {
				return term
			}
			select {
			case <-changed:
			case <-time.After(time.Millisecond):
			case <-limit:
				t.Fatal("timed out: ", what)
			}
		}
	}
	before := wait("the lease", true)
	slept.Store(int64(time.Hour))
	if e.Valid(before.Epoch) {
		t.Error("the lease is valid after an hour of sleep")
	}
	if after := wait("the lease again", true); after.Epoch != before.Epoch {
		t.Errorf("epoch %d after %d", after.Epoch, before.Epoch)
	}
}
