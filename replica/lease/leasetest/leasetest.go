// Package leasetest tests the behaviour that every lease.Store shares.
//
// Run tests what package lease requires of a store: sessions end, changes are atomic and happen once,
// and watches miss nothing. Elections tests that an election works with a store, also while nodes
// cannot reach it.
package leasetest

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/replica/lease"
)

// patience bounds waits that would otherwise hang.
const patience = time.Minute

// Run tests the stores that open returns. Each call of open is for a new cluster without records; the returned
// function opens another client of it.
func Run(t *testing.T, open func(t *testing.T) func() lease.Store) {
	t.Helper()
	for name, test := range map[string]func(context.Context, *testing.T, func() lease.Store){
		"sessions": sessions, "changes": changes, "watch": watch, "race": race,
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			test(ctx, t, open(t))
		})
	}
}

func begin(ctx context.Context, t *testing.T, s lease.Store, ttl time.Duration) string {
	t.Helper()
	id, granted, err := s.Open(ctx, ttl)
	if err != nil || granted < ttl || id == "" {
		t.Fatalf("session %q of %s, %v", id, granted, err)
	}
	return id
}

func swap(ctx context.Context, t *testing.T, s lease.Store, c lease.Change) int64 {
	t.Helper()
	revision, done, err := s.Swap(ctx, c)
	if err != nil || !done {
		t.Fatalf("%+v: %t, %v", c, done, err)
	}
	return revision
}

func read(ctx context.Context, t *testing.T, s lease.Store) lease.Snapshot {
	t.Helper()
	now, err := s.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// sessions: records end with their sessions.
func sessions(ctx context.Context, t *testing.T, open func() lease.Store) {
	s, other := open(), open()
	short, long := begin(ctx, t, s, 3*time.Second), begin(ctx, t, other, time.Minute)
	before := read(ctx, t, other)
	swap(ctx, t, s, lease.Change{Put: []lease.Put{{Key: "a", Value: "1", Session: short}, {Key: "b", Value: "2", Session: long}, {Key: "c", Value: "3"}}})
	if granted, err := other.Renew(ctx, long); err != nil || granted < time.Minute {
		t.Errorf("renewed for %s, %v", granted, err)
	}
	// A watch reports that the short session has expired.
	var now lease.Snapshot
	var err error
	for now, err = range other.Watch(ctx, before) {
		if err != nil {
			t.Fatal(err)
		}
		if _, there := now.Records["a"]; !there && len(now.Records) == 2 {
			break
		}
	}
	if now.Records["b"].Session != long || now.Records["c"].Session != "" {
		t.Errorf("%+v", now.Records)
	}
	for what, err := range map[string]error{
		"renew": second(s.Renew(ctx, short)),
		"put": func() error {
			_, _, err := s.Swap(ctx, lease.Change{Put: []lease.Put{{Key: "late", Session: short}}})
			return err
		}(),
	} {
		if !errors.Is(err, lease.ErrSessionEnded) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := s.End(ctx, long); err != nil {
		t.Fatal(err)
	}
	if now := read(ctx, t, s); len(now.Records) != 1 || now.Records["c"].Value != "3" {
		t.Errorf("%+v", now.Records)
	}
}

func second[T any](_ T, err error) error { return err }

// changes are atomic, and conditional.
func changes(ctx context.Context, t *testing.T, open func() lease.Store) {
	s := open()
	first := swap(ctx, t, s, lease.Change{If: []lease.Condition{{Key: "a"}}, Put: []lease.Put{{Key: "a", Value: `{"é":"\u0000"}`}, {Key: "node/0f", Value: ""}}})
	for _, c := range []lease.Change{
		{If: []lease.Condition{{Key: "a"}}, Put: []lease.Put{{Key: "a", Value: "no"}}},
		{If: []lease.Condition{{Key: "a", Revision: first}, {Key: "none", Revision: first}}, Delete: []string{"a"}},
		{If: []lease.Condition{{Key: "a", Revision: first + 1}}, Delete: []string{"a"}},
	} {
		if _, done, err := s.Swap(ctx, c); err != nil || done {
			t.Errorf("%+v: %t, %v", c, done, err)
		}
	}
	now := read(ctx, t, s)
	want := map[string]lease.Record{"a": {Value: `{"é":"\u0000"}`, Revision: first}, "node/0f": {Revision: first}}
	if !maps.Equal(now.Records, want) || now.Revision < first {
		t.Errorf("%+v", now)
	}
	last := swap(ctx, t, s, lease.Change{If: []lease.Condition{{Key: "a", Revision: first}, {Key: "none"}}, Delete: []string{"a", "none"}, Put: []lease.Put{{Key: "b", Value: "1"}}})
	now = read(ctx, t, s)
	if last <= first || now.Revision < last || len(now.Records) != 2 || now.Records["b"].Revision != last {
		t.Errorf("%d after %d: %+v", last, first, now)
	}
}

// watch follows what another client does, and ends with its context.
func watch(ctx context.Context, t *testing.T, open func() lease.Store) {
	s, other := open(), open()
	before := read(ctx, t, s)
	const n = 20
	var group sync.WaitGroup
	group.Go(func() {
		for i := range n {
			if _, _, err := other.Swap(ctx, lease.Change{Put: []lease.Put{{Key: "n", Value: strconv.Itoa(i)}}}); err != nil {
				t.Error(err)
			}
		}
	})
	watching, stop := context.WithCancel(ctx)
	last := int64(0)
	for now, err := range s.Watch(watching, before) {
		if watching.Err() != nil {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if r := now.Records["n"]; r.Revision < last {
			t.Errorf("revision %d after %d", r.Revision, last)
		} else {
			last = r.Revision
		}
		if now.Records["n"].Value == strconv.Itoa(n-1) {
			stop()
		}
	}
	stop()
	group.Wait()
	if ctx.Err() != nil {
		t.Error("timed out")
	}
}

// race has many clients create the same key: one succeeds.
func race(ctx context.Context, t *testing.T, open func() lease.Store) {
	var group sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for i := range 8 {
		s := open()
		group.Go(func() {
			_, done, err := s.Swap(ctx, lease.Change{If: []lease.Condition{{Key: "a"}}, Put: []lease.Put{{Key: "a", Value: strconv.Itoa(i)}}})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			if done {
				won++
			}
		})
	}
	group.Wait()
	if won != 1 {
		t.Errorf("%d have taken it", won)
	}
}
