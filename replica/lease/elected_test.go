package lease_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
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

// small is a store that has room for some bytes of records, like an election of the platform.
type small struct {
	lease.Store

	size int
}

func (s small) Swap(ctx context.Context, c lease.Change) (int64, bool, error) {
	now, err := s.Read(ctx)
	if err != nil {
		return 0, false, err
	}
	for _, p := range c.Put {
		now.Records[p.Key] = lease.Record{Value: p.Value}
	}
	size := 0
	for key, r := range now.Records {
		size += len(key) + len(r.Value)
	}
	if size > s.size {
		return 0, false, errors.New("exhausted")
	}
	return s.Store.Swap(ctx, c)
}

// many is a member with many databases.
type many struct {
	id    uint64
	marks map[string]lease.Mark
}

func (m many) Identity() (uint64, string, uint64) { return m.id, "LFSC1", 0 }
func (many) Adopt(string) error                   { return nil }
func (m many) Marks() map[string]lease.Mark       { return m.marks }

// TestManyDatabases elects primaries of a cluster with more databases than a store has room for. The next primary knows
// whom it has to ask.
func TestManyDatabases(t *testing.T) {
	endpoint := etcdtest.Start(t)
	marks := map[string]lease.Mark{}
	for i := range 2000 {
		marks[fmt.Sprintf("customer-%d.db", i)] = lease.Mark{Epoch: 3, TXID: uint64(1000 + i)}
	}
	behind := maps.Clone(marks)
	behind["customer-7.db"] = lease.Mark{Epoch: 3, TXID: 1}
	start := func(m many, candidate bool) (*lease.Elected, context.CancelFunc) {
		s, err := etcd.New(etcd.Config{Endpoints: []string{endpoint}})
		if err != nil {
			t.Fatal(err)
		}
		e := lease.NewElected(lease.Config{
			Store: small{s, hangar.MaxElectionSize}, Candidate: candidate, TTL: 5 * time.Second, LockDelay: time.Millisecond, Log: slog.New(slog.DiscardHandler),
			Self: lease.Peer{Hostname: fmt.Sprint("n", m.id)},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- e.Run(ctx, m) }()
		stop := sync.OnceFunc(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		t.Cleanup(stop)
		return e, stop
	}
	wait := func(e *lease.Elected, what string, ok func(lease.Term) bool) lease.Term {
		limit := time.After(time.Minute)
		for {
			term, changed := e.Term()
			if ok(term) {
				return term
			}
			select {
			case <-changed:
			case <-limit:
				t.Fatal("timed out: ", what)
			}
		}
	}
	first, stop := start(many{1, marks}, true)
	wait(first, "a primary", func(t lease.Term) bool { return t.Held })
	second, _ := start(many{2, behind}, false)
	third, _ := start(many{3, marks}, true)
	for _, e := range []*lease.Elected{second, third} {
		wait(e, "to follow", func(t lease.Term) bool { return t.Primary.Node == 1 })
	}
	stop()
	term := wait(third, "the other candidate", func(t lease.Term) bool { return t.Held })
	for _, s := range term.Heard {
		if s.Unclear(marks) != (s.Node == 2) || s.Unclear(behind) {
			t.Errorf("node %d: %+v", s.Node, s.Summary)
		}
	}
}
