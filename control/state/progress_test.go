package state

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
)

// TestProgressIsNotAhead: while a Mirror asks for progress all the time, neither it nor another watch that begins
// hears of a revision before the changes up to it.
func TestProgressIsNotAhead(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	s, err := OpenEtcd(t.Context(), EtcdConfig{Dir: t.TempDir(), NoSync: true, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	for n := range 25 {
		m := NewMirror(MirrorConfig{Store: s, Log: log})
		ctx, end := context.WithCancel(t.Context())
		var asking sync.WaitGroup
		asking.Go(func() {
			for ctx.Err() == nil {
				_ = s.progress(apart(ctx, m.stream))
			}
		})
		key := fmt.Sprintf("/k/%d", n)
		put := Txn{Then: []Op{Put(key, nil)}}
		var made Revision
		err := m.Open(t.Context())
		if err == nil {
			made, err = s.Txn(t.Context(), put)
		}
		if err != nil {
			t.Fatal(err)
		}
		for batch, err := range s.Watch(t.Context(), key, made) {
			if err != nil || len(batch.Changes) == 0 && batch.Revision >= made {
				t.Fatalf("instead of the change in revision %d, the watch yields revision %d, %v", made, batch.Revision, err)
			}
			if len(batch.Changes) > 0 {
				break
			}
		}
		if err := m.reach(t.Context(), made); err != nil {
			t.Fatal(err)
		}
		if _, ok := m.now.Load().items.Get(Item{Key: key}); !ok {
			t.Fatalf("the mirror is at revision %d and has no key that was made in %d", m.now.Load().revision, made)
		}
		end()
		asking.Wait()
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
