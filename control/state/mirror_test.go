package state_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/state/statetest"
	"github.com/hangar-platform/hangar/internal/etcdtest"
	"github.com/hangar-platform/hangar/internal/pause"
)

// mirrored is a Mirror with its store, for the suite.
type mirrored struct {
	*state.Mirror
	store statetest.Store
}

func (m mirrored) Compact(ctx context.Context, r state.Revision) error {
	return m.store.Compact(ctx, r)
}

func (m mirrored) Close() error { return errors.Join(m.Mirror.Close(), m.store.Close()) }

func mirror(tb testing.TB, s statetest.Store, except ...string) mirrored {
	tb.Helper()
	m := state.NewMirror(state.MirrorConfig{Store: s, Except: except, Log: slog.New(slog.DiscardHandler)})
	if err := m.Open(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return mirrored{m, s}
}

func TestMirror(t *testing.T) {
	statetest.Run(t, func(t *testing.T) statetest.Store { return mirror(t, state.NewMemory()) })
}

func TestMirrorOfSlowStore(t *testing.T) {
	statetest.Run(t, func(t *testing.T) statetest.Store { return mirror(t, newSlow()) })
}

func TestMirrorOfWhatIsExcepted(t *testing.T) {
	statetest.Run(t, func(t *testing.T) statetest.Store { return mirror(t, state.NewMemory(), "/b/", "/many/") })
}

func TestMirrorOfEtcd(t *testing.T) {
	statetest.Run(t, func(t *testing.T) statetest.Store { return mirror(t, openEtcd(t, t.TempDir()), "/k/") })
}

func TestMirrorBeforeOpen(t *testing.T) {
	statetest.Run(t, func(*testing.T) statetest.Store {
		s := state.NewMemory()
		return mirrored{state.NewMirror(state.MirrorConfig{Store: s, Log: slog.New(slog.DiscardHandler)}), s}
	})
}

// slow is a store whose watches lag, and sometimes break.
type slow struct {
	statetest.Away // neither reads nor watches answer while it is lost

	memory *state.Memory
}

func newSlow() *slow {
	memory := state.NewMemory()
	return &slow{Away: statetest.Away{Store: memory}, memory: memory}
}

func (s *slow) Watch(ctx context.Context, prefix string, from state.Revision) iter.Seq2[state.Batch, error] {
	return func(yield func(state.Batch, error) bool) {
		if prefix != "/" || from < 1 { // not the mirror's own
			s.memory.Watch(ctx, prefix, from)(yield)
			return
		}
		for b, err := range s.memory.Watch(ctx, prefix, from) {
			_ = pause.For(ctx, time.Duration(rand.IntN(2000))*time.Microsecond)
			switch {
			case err == nil && (s.Lost.Load() || rand.IntN(200) == 0):
				yield(state.Batch{}, statetest.ErrLost)
				return
			case !yield(b, err):
				return
			}
		}
	}
}

// TestMirrorsOfOneStore lets two processes increment a counter: no increment is lost, and a
// process's reads never go back.
func TestMirrorsOfOneStore(t *testing.T) {
	s := newSlow()
	a, b := mirror(t, s), mirror(t, s)
	defer func() { _ = errors.Join(a.Close(), b.Close()) }()
	if _, err := a.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put("/n", []byte("0"))}}); err != nil {
		t.Fatal(err)
	}
	const writers, each = 3, 20
	var wg sync.WaitGroup
	for _, m := range []mirrored{a, b} {
		for range writers {
			wg.Go(func() {
				last := -1
				for done := 0; done < each; {
					item, err := m.Get(t.Context(), "/n")
					if errors.Is(err, state.ErrNotFound) && last < 0 {
						continue // the other process's write has not arrived yet
					}
					if err != nil {
						t.Error(err)
						return
					}
					n, _ := strconv.Atoi(string(item.Value))
					if n < last {
						t.Errorf("read %d after %d", n, last)
					}
					last = n
					_, err = m.Txn(t.Context(), state.Txn{
						If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{state.Put("/n", []byte(strconv.Itoa(n+1)))},
					})
					if err == nil {
						done++
						last++
					} else if !errors.Is(err, state.ErrConflict) {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	item, err := s.Get(t.Context(), "/n")
	if want := strconv.Itoa(2 * writers * each); err != nil || string(item.Value) != want {
		t.Errorf("counter is %s, %v; want %s", item.Value, err, want)
	}
}

// TestMirrorConflictIsFresh: after losing to another process, a caller sees the winning write at
// once.
func TestMirrorConflictIsFresh(t *testing.T) {
	s := newSlow()
	m := mirror(t, s)
	defer func() { _ = m.Close() }()
	for i := range 50 {
		key := fmt.Sprintf("/k/%d", i%5)
		if i%5 == 4 { // what is there vanishes
			_, _ = m.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put(key, []byte("mine"))}})
			item, err := m.Get(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Txn(t.Context(), state.Txn{Then: []state.Op{state.Delete(key)}}); err != nil {
				t.Fatal(err)
			}
			_, err = m.Txn(t.Context(), state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{state.Put("/other", nil)}})
			if _, gone := m.Get(t.Context(), key); !errors.Is(err, state.ErrConflict) || !errors.Is(gone, state.ErrNotFound) {
				t.Fatalf("%v, then %v", err, gone)
			}
			continue
		}
		want := strconv.Itoa(i)
		if _, err := s.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put(key, []byte(want))}}); err != nil {
			t.Fatal(err)
		}
		_, err := m.Txn(t.Context(), state.Txn{If: []state.Compare{state.Absent(key)}, Then: []state.Op{state.Put(key, nil)}})
		if !errors.Is(err, state.ErrConflict) {
			t.Fatalf("%v, want ErrConflict", err)
		}
		if item, err := m.Get(t.Context(), key); err != nil || string(item.Value) != want {
			t.Fatalf("after the conflict: %q, %v; want %s", item.Value, err, want)
		}
	}
}

// TestMirrorReadsWhatItsWatchYields: a caller that has seen a change, also of another process, reads it.
func TestMirrorReadsWhatItsWatchYields(t *testing.T) {
	s := newSlow()
	m := mirror(t, s)
	defer func() { _ = m.Close() }()
	first, err := m.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put("/k/1", nil)}})
	if err != nil {
		t.Fatal(err)
	}
	const changes = 100
	var writing sync.WaitGroup
	defer writing.Wait()
	writing.Go(func() {
		for range changes {
			if _, err := s.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put("/k/1", nil)}}); err != nil {
				t.Error(err)
			}
		}
	})
	for batch, err := range m.Watch(t.Context(), "/k/", first+1) {
		if err != nil {
			t.Fatal(err)
		}
		if read, err := m.Get(t.Context(), "/k/1"); err != nil || read.Revision < batch.Revision {
			t.Fatalf("after revision %d was seen, %d is read, %v", batch.Revision, read.Revision, err)
		}
		if batch.Revision == first+changes {
			break
		}
	}
}

// TestMirrorAnswersWhileTheStoreIsAway: it also catches up when the store is back, even if the
// changes meanwhile were compacted.
func TestMirrorAnswersWhileTheStoreIsAway(t *testing.T) {
	for _, compacted := range []bool{false, true} {
		t.Run(fmt.Sprintf("compacted=%v", compacted), func(t *testing.T) {
			s := newSlow()
			put := func(key, value string) state.Revision {
				r, err := s.memory.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put(key, []byte(value))}})
				if err != nil {
					t.Fatal(err)
				}
				return r
			}
			put("/a", "before")
			put("/gone", "before")
			put("/rows/1", "not kept")
			m := mirror(t, s, "/rows/")
			defer func() { _ = m.Close() }()
			s.Lost.Store(true)
			put("/a", "meanwhile")
			put("/b", "meanwhile")
			if _, err := s.memory.Txn(t.Context(), state.Txn{Then: []state.Op{state.Delete("/gone")}}); err != nil {
				t.Fatal(err)
			}
			if item, err := m.Get(t.Context(), "/a"); err != nil || string(item.Value) != "before" {
				t.Errorf("while the store is away: %q, %v", item.Value, err)
			}
			if page, err := m.List(t.Context(), "/g", state.ListOptions{}); err != nil || len(page.Items) != 1 {
				t.Errorf("while the store is away: %+v, %v", page, err)
			}
			if _, err := m.Get(t.Context(), "/rows/1"); !errors.Is(err, statetest.ErrLost) {
				t.Errorf("what is not kept: %v, want the store's error", err)
			}
			last := put("/c", "meanwhile")
			if compacted {
				if err := s.Compact(t.Context(), last); err != nil {
					t.Fatal(err)
				}
			}
			s.Lost.Store(false)
			// Its own write is seen, and so is all before it.
			if _, err := m.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put("/d", nil)}}); err != nil {
				t.Fatal(err)
			}
			items, _, err := state.All(t.Context(), m.Mirror, "/", true)
			var keys []string
			for _, item := range items {
				keys = append(keys, item.Key)
			}
			if want := []string{"/a", "/b", "/c", "/d", "/rows/1"}; err != nil || !slices.Equal(keys, want) {
				t.Errorf("afterwards: %v, %v; want %v", keys, err, want)
			}
		})
	}
}

// TestMirrorParsesOnce, until the value changes.
func TestMirrorParsesOnce(t *testing.T) {
	m := mirror(t, state.NewMemory())
	defer func() { _ = m.Close() }()
	times := 0
	parse := func(key string) (n int, err error) {
		item, err := m.Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		return state.Parse(item, func(b []byte) (int, error) { times++; return strconv.Atoi(string(b)) })
	}
	for i, value := range []string{"1", "2", "x", "3"} {
		if _, err := m.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put("/n", []byte(value))}}); err != nil {
			t.Fatal(err)
		}
		want, wantErr := strconv.Atoi(value)
		for range 3 {
			if got, err := parse("/n"); got != want || (err == nil) != (wantErr == nil) {
				t.Errorf("%d, %v; want %d", got, err, want)
			}
		}
		if i == 1 && times != 2 {
			t.Errorf("parsed %d times, want twice", times)
		}
	}
	if times != 6 { // what cannot be parsed is tried each time
		t.Errorf("parsed %d times, want 6", times)
	}
}

// TestMirrorOfSharedEtcd: other users of an etcd make revisions that our watches do not report.
func TestMirrorOfSharedEtcd(t *testing.T) {
	endpoint := etcdtest.Start(t)
	s, err := state.OpenEtcd(t.Context(), state.EtcdConfig{Endpoints: []string{endpoint}, Prefix: "/mine", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	m := mirror(t, s)
	defer func() { _ = m.Close() }()
	other, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	if _, err := m.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put("/a", nil)}}); err != nil {
		t.Fatal(err)
	}
	fastest := time.Hour
	for range 10 {
		if _, err := other.Put(t.Context(), "/theirs", "x"); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := m.Txn(t.Context(), state.Txn{If: []state.Compare{state.Absent("/a")}, Then: []state.Op{state.Put("/b", nil)}}); !errors.Is(err, state.ErrConflict) {
			t.Fatalf("%v, want ErrConflict", err)
		}
		if _, err := m.Txn(t.Context(), state.Txn{Then: []state.Op{state.Delete("/never")}}); err != nil {
			t.Fatal(err)
		}
		fastest = min(fastest, time.Since(began))
	}
	if fastest > 5*time.Second {
		t.Errorf("the fastest conflict took %s", fastest)
	}
}

func BenchmarkMirror(b *testing.B) {
	for _, n := range []int{100, 100_000} {
		s := state.NewMemory()
		var ops []state.Op
		for i := range n {
			ops = append(ops, state.Put(fmt.Sprintf("/machines/app/%08d", i), make([]byte, 120)))
			if len(ops) == state.MaxTxnOps || i == n-1 {
				if _, err := s.Txn(b.Context(), state.Txn{Then: ops}); err != nil {
					b.Fatal(err)
				}
				ops = nil
			}
		}
		m := mirror(b, s)
		b.Run(fmt.Sprintf("Get/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, err := m.Get(b.Context(), fmt.Sprintf("/machines/app/%08d", i*7919%n)); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("All/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if items, _, err := state.All(b.Context(), m, "/machines/", false); err != nil || len(items) != n {
					b.Fatal(len(items), err)
				}
			}
		})
		_ = m.Close()
	}
	m := mirror(b, openEtcd(b, b.TempDir()))
	defer func() { _ = m.Close() }()
	b.Run("PutEtcd", func(b *testing.B) {
		for b.Loop() {
			if _, err := m.Txn(b.Context(), state.Txn{Then: []state.Op{state.Put("/k", make([]byte, 2048))}}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
