package state

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// distant is a Store that is slow to return its revision, or never does.
type distant struct {
	*Memory

	asked  atomic.Int64
	away   atomic.Bool
	answer chan struct{} // each question takes one; nil: they are answered at once
}

func (d *distant) current(ctx context.Context) (Revision, error) {
	d.asked.Add(1)
	if d.answer != nil {
		select {
		case <-d.answer:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	if d.away.Load() {
		return 0, errors.New("away")
	}
	return d.Memory.current(ctx)
}

func openMirror(t *testing.T, s Store) *Mirror {
	t.Helper()
	m := NewMirror(MirrorConfig{Store: s, Log: slog.New(slog.DiscardHandler)})
	if err := m.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func TestMissFindsWhatAnotherHasMade(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // a miss waits for a second at most
		shared := NewMemory()
		a, b := openMirror(t, shared), openMirror(t, shared)
		for i := range 200 {
			key := "/k/" + strconv.Itoa(i)
			if _, err := a.Txn(t.Context(), Txn{If: []Compare{Absent(key)}, Then: []Op{Put(key, nil)}}); err != nil {
				t.Fatal(err)
			}
			if _, err := b.Get(t.Context(), key); err != nil {
				t.Fatalf("%s was made by another: %v", key, err)
			}
		}
		if _, err := b.Get(t.Context(), "/none"); !errors.Is(err, ErrNotFound) {
			t.Errorf("what no one has made: %v", err)
		}
	})
}

// TestMissesShareAQuestion: for any number of readers of missing keys, the Store gets one request
// at a time.
func TestMissesShareAQuestion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &distant{Memory: NewMemory(), answer: make(chan struct{})}
		m := openMirror(t, store)
		var all sync.WaitGroup
		miss := func() {
			if _, err := m.Get(t.Context(), "/none"); !errors.Is(err, ErrNotFound) {
				t.Error(err)
			}
		}
		all.Go(miss)
		synctest.Wait()
		for range 100 { // while the first question is under way, which may be too early for these
			all.Go(miss)
		}
		synctest.Wait()
		if n := store.asked.Load(); n != 1 {
			t.Errorf("%d questions are under way", n)
		}
		store.answer <- struct{}{}
		store.answer <- struct{}{}
		all.Wait()
		if n := store.asked.Load(); n != 2 {
			t.Errorf("%d questions for 101 misses", n)
		}
	})
}

// TestMissWhileTheStoreIsAway: while the Store is away, misses are answered from memory, nearly all
// without a wait.
func TestMissWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &distant{Memory: NewMemory()}
		m := openMirror(t, store)
		store.away.Store(true)
		for range 100 {
			if _, err := m.Get(t.Context(), "/none"); !errors.Is(err, ErrNotFound) {
				t.Fatal(err)
			}
		}
		if n := store.asked.Load(); n != 1 {
			t.Errorf("%d questions to a store that is away", n)
		}
		store.away.Store(false)
		if _, err := store.Txn(t.Context(), Txn{Then: []Op{Put("/other", nil)}}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*missPause)
		defer cancel()
		<-ctx.Done()
		if _, err := m.Get(t.Context(), "/none"); !errors.Is(err, ErrNotFound) || store.asked.Load() != 2 {
			t.Errorf("once it is back: %v, after %d questions", err, store.asked.Load())
		}
	})
}

// TestMissIsGivenUp: a cancelled caller gets that error, and not that the key is missing.
func TestMissIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &distant{Memory: NewMemory(), answer: make(chan struct{})}
		m := openMirror(t, store)
		ctx, cancel := context.WithTimeout(t.Context(), missPatience/2)
		defer cancel()
		if _, err := m.Get(ctx, "/none"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}
