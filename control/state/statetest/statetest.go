// Package statetest is the behaviour that every state.Store shares, as tests.
//
// Run proves what package state promises: linearizable transactions, lists of
// one revision, and watches that are ordered, whole and resumable. Each test gets
// a fresh store and leaves no goroutine behind. It does not prove durability,
// which needs the death of a process.
package statetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/hangar-platform/hangar/control/state"
)

// Store is a state.Store with what the tests need beside it.
type Store interface {
	state.Store
	Compact(ctx context.Context, revision state.Revision) error
	Close() error
}

// Run proves the store that open returns, which must be empty. The suite closes it.
func Run(t *testing.T, open func(t *testing.T) Store) {
	t.Helper()
	tests := []struct {
		name string
		test func(t *testing.T, s Store)
	}{
		{"GetPutDelete", getPutDelete},
		{"TxnCompares", txnCompares},
		{"TxnLimits", txnLimits},
		{"ListPages", listPages},
		{"ListAtRevision", listAtRevision},
		{"ValuesAreCopies", valuesAreCopies},
		{"WatchFollowsList", watchFollowsList},
		{"WatchKeepsTxnWhole", watchKeepsTxnWhole},
		{"WatchResumes", watchResumes},
		{"WatchPrefix", watchPrefix},
		{"WatchCompacted", watchCompacted},
		{"WatchEnds", watchEnds},
		{"ConcurrentCounter", concurrentCounter},
		{"Linearizable", linearizable},
		{"Leases", leases},
		{"CanceledContext", canceledContext},
		{"Closed", closed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := open(t)
			t.Cleanup(func() {
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
			tt.test(t, s)
		})
	}
}

// patience bounds waits that would otherwise hang; no test measures time.
const patience = 2 * time.Minute

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func put(t *testing.T, s state.Store, key, value string) state.Revision {
	t.Helper()
	r, err := s.Txn(bounded(t), state.Txn{Then: []state.Op{state.Put(key, []byte(value))}})
	if err != nil {
		t.Fatalf("put %s: %v", key, err)
	}
	return r
}

func get(t *testing.T, s state.Store, key string) state.Item {
	t.Helper()
	item, err := s.Get(bounded(t), key)
	if err != nil {
		t.Fatalf("get %s: %v", key, err)
	}
	return item
}

func getPutDelete(t *testing.T, s Store) {
	ctx := bounded(t)
	if _, err := s.Get(ctx, "/a"); !errors.Is(err, state.ErrNotFound) {
		t.Fatalf("get of nothing: %v, want ErrNotFound", err)
	}
	r1 := put(t, s, "/a", "one")
	if got := get(t, s, "/a"); string(got.Value) != "one" || got.Revision != r1 || got.Key != "/a" {
		t.Fatalf("got %+v, want one at %d", got, r1)
	}
	r2 := put(t, s, "/a", "")
	if r2 <= r1 {
		t.Fatalf("revision %d after %d", r2, r1)
	}
	if got := get(t, s, "/a"); len(got.Value) != 0 || got.Revision != r2 {
		t.Fatalf("got %+v, want empty at %d", got, r2)
	}
	r3, err := s.Txn(ctx, state.Txn{Then: []state.Op{state.Delete("/a")}})
	if err != nil || r3 <= r2 {
		t.Fatalf("delete: revision %d after %d, %v", r3, r2, err)
	}
	if _, err := s.Get(ctx, "/a"); !errors.Is(err, state.ErrNotFound) {
		t.Fatalf("get after delete: %v, want ErrNotFound", err)
	}
	r4, err := s.Txn(ctx, state.Txn{Then: []state.Op{state.Delete("/a")}})
	if err != nil || r4 != r3 {
		t.Fatalf("delete of nothing: revision %d, %v; want %d", r4, err, r3)
	}
}

func txnCompares(t *testing.T, s Store) {
	r1 := put(t, s, "/a", "1")
	tests := []struct {
		name string
		cond []state.Compare
		want error
	}{
		{"unchanged", []state.Compare{state.Unchanged(state.Item{Key: "/a", Revision: r1})}, nil},
		{"changed since", []state.Compare{state.Unchanged(state.Item{Key: "/a", Revision: r1})}, state.ErrConflict},
		{"absent", []state.Compare{state.Absent("/none")}, nil},
		{"not absent", []state.Compare{state.Absent("/a")}, state.ErrConflict},
		{"revision of a key that is not there", []state.Compare{state.Unchanged(state.Item{Key: "/none", Revision: r1})}, state.ErrConflict},
		{"one of two fails", []state.Compare{state.Absent("/none"), state.Absent("/a")}, state.ErrConflict},
		{"both hold", []state.Compare{state.Absent("/none"), state.Absent("/nor/this")}, nil},
	}
	for i, tt := range tests {
		before, beforeB := get(t, s, "/a"), fmt.Sprintf("/b/%d", i)
		_, err := s.Txn(bounded(t), state.Txn{If: tt.cond, Then: []state.Op{
			state.Put("/a", []byte(strconv.Itoa(i))), state.Put(beforeB, nil),
		}})
		if !errors.Is(err, tt.want) {
			t.Fatalf("%s: %v, want %v", tt.name, err, tt.want)
		}
		_, errB := s.Get(bounded(t), beforeB)
		if changed := get(t, s, "/a").Revision != before.Revision; changed != (err == nil) || (errB == nil) != (err == nil) {
			t.Fatalf("%s: a changed: %v, b there: %v; want both %v", tt.name, changed, errB == nil, err == nil)
		}
	}
}

func txnLimits(t *testing.T, s Store) {
	ops := func(n int) (ops []state.Op) {
		for i := range n {
			ops = append(ops, state.Put(fmt.Sprintf("/%03d", i), nil))
		}
		return ops
	}
	tests := []struct {
		name string
		txn  state.Txn
		want error
	}{
		{"as many as allowed", state.Txn{Then: ops(state.MaxTxnOps)}, nil},
		{"one more", state.Txn{Then: ops(state.MaxTxnOps + 1)}, state.ErrInvalid},
		{"as large as allowed", state.Txn{Then: []state.Op{state.Put("/big", make([]byte, state.MaxTxnBytes-4))}}, nil},
		{"one byte more", state.Txn{Then: []state.Op{state.Put("/big", make([]byte, state.MaxTxnBytes-3))}}, state.ErrInvalid},
		{"nothing", state.Txn{}, state.ErrInvalid},
		{"empty key", state.Txn{Then: []state.Op{state.Put("", nil)}}, state.ErrInvalid},
		{"empty key compared", state.Txn{If: []state.Compare{state.Absent("")}, Then: ops(1)}, state.ErrInvalid},
		{"put twice", state.Txn{Then: []state.Op{state.Put("/a", nil), state.Put("/a", nil)}}, state.ErrInvalid},
		{"put and deleted", state.Txn{Then: []state.Op{state.Put("/a", nil), state.Delete("/a")}}, state.ErrInvalid},
	}
	for _, tt := range tests {
		if _, err := s.Txn(bounded(t), tt.txn); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
	if got := get(t, s, "/big"); len(got.Value) != state.MaxTxnBytes-4 {
		t.Errorf("value of %d bytes came back", len(got.Value))
	}
	if _, err := s.Get(bounded(t), ""); !errors.Is(err, state.ErrInvalid) {
		t.Errorf("get of the empty key: %v, want ErrInvalid", err)
	}
}

func keys(items []state.Item) (keys []string) {
	for _, i := range items {
		keys = append(keys, i.Key)
	}
	return keys
}

func listPages(t *testing.T, s Store) {
	ctx := bounded(t)
	for _, k := range []string{"/b/2", "/a", "/b/1", "/b/3", "/c", "/b", "/b0"} {
		put(t, s, k, "v")
	}
	tests := []struct {
		name, prefix string
		o            state.ListOptions
		want         []string
		more         bool
	}{
		{"all", "", state.ListOptions{}, []string{"/a", "/b", "/b/1", "/b/2", "/b/3", "/b0", "/c"}, false},
		{"prefix", "/b/", state.ListOptions{}, []string{"/b/1", "/b/2", "/b/3"}, false},
		{"first page", "/b/", state.ListOptions{Limit: 2}, []string{"/b/1", "/b/2"}, true},
		{"second page", "/b/", state.ListOptions{Limit: 2, After: "/b/2"}, []string{"/b/3"}, false},
		{"full page", "/b/", state.ListOptions{Limit: 3}, []string{"/b/1", "/b/2", "/b/3"}, false},
		{"after the last", "/b/", state.ListOptions{After: "/b/3"}, nil, false},
		{"after sorts before the prefix", "/b/", state.ListOptions{After: "/a"}, []string{"/b/1", "/b/2", "/b/3"}, false},
		{"after sorts behind the prefix", "/b/", state.ListOptions{After: "/c"}, nil, false},
		{"after is the prefix", "/b", state.ListOptions{After: "/b"}, []string{"/b/1", "/b/2", "/b/3", "/b0"}, false},
		{"nothing", "/x", state.ListOptions{}, nil, false},
	}
	for _, tt := range tests {
		for _, keysOnly := range []bool{false, true} {
			tt.o.KeysOnly = keysOnly
			page, err := s.List(ctx, tt.prefix, tt.o)
			if err != nil {
				t.Fatalf("%s: %v", tt.name, err)
			}
			if got := keys(page.Items); !slices.Equal(got, tt.want) || page.More != tt.more {
				t.Errorf("%s: %v more=%v, want %v more=%v", tt.name, got, page.More, tt.want, tt.more)
			}
			for _, item := range page.Items {
				if (len(item.Value) == 0) != keysOnly || item.Revision == 0 {
					t.Errorf("%s: keys only %v yields %+v", tt.name, keysOnly, item)
				}
			}
		}
	}
	const many = state.MaxPage + 7
	for i := 0; i < many; i += 50 {
		var ops []state.Op
		for j := i; j < min(i+50, many); j++ {
			ops = append(ops, state.Put(fmt.Sprintf("/many/%05d", j), nil))
		}
		if _, err := s.Txn(ctx, state.Txn{Then: ops}); err != nil {
			t.Fatal(err)
		}
	}
	if page, err := s.List(ctx, "/many/", state.ListOptions{Limit: 10 * state.MaxPage}); err != nil || len(page.Items) != state.MaxPage || !page.More {
		t.Errorf("page of %d more=%v, %v; want %d", len(page.Items), page.More, err, state.MaxPage)
	}
	items, _, err := state.All(ctx, s, "/many/", true)
	if err != nil || len(items) != many || !slices.IsSorted(keys(items)) {
		t.Errorf("All yields %d items, %v; want %d, sorted", len(items), err, many)
	}
}

func listAtRevision(t *testing.T, s Store) {
	ctx := bounded(t)
	put(t, s, "/a", "old")
	r := put(t, s, "/b", "old")
	put(t, s, "/a", "new")
	put(t, s, "/c", "new")
	if _, err := s.Txn(ctx, state.Txn{Then: []state.Op{state.Delete("/b")}}); err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		page, err := s.List(ctx, "/", state.ListOptions{Revision: r})
		if err != nil || page.Revision != r || !slices.Equal(keys(page.Items), []string{"/a", "/b"}) || string(page.Items[0].Value) != "old" {
			t.Fatalf("%s, at %d: %+v, %v; want a and b, old", when, r, page, err)
		}
	}
	check("before compaction")
	if err := s.Compact(ctx, r); err != nil {
		t.Fatal(err)
	}
	check("after compaction up to it")
	now, err := s.List(ctx, "/", state.ListOptions{})
	if err != nil || !slices.Equal(keys(now.Items), []string{"/a", "/c"}) {
		t.Fatalf("now: %+v, %v; want a and c", now, err)
	}
	if _, err := s.List(ctx, "/", state.ListOptions{Revision: now.Revision + 100}); !errors.Is(err, state.ErrFutureRevision) {
		t.Errorf("list of the future: %v, want ErrFutureRevision", err)
	}
	if err := s.Compact(ctx, now.Revision); err != nil {
		t.Fatal(err)
	}
	if _, err := s.List(ctx, "/", state.ListOptions{Revision: r}); !errors.Is(err, state.ErrCompacted) {
		t.Errorf("list of the past: %v, want ErrCompacted", err)
	}
	if err := s.Compact(ctx, r); !errors.Is(err, state.ErrCompacted) {
		t.Errorf("compact twice: %v, want ErrCompacted", err)
	}
	if err := s.Compact(ctx, now.Revision+100); !errors.Is(err, state.ErrFutureRevision) {
		t.Errorf("compact the future: %v, want ErrFutureRevision", err)
	}
	if got := get(t, s, "/a"); string(got.Value) != "new" {
		t.Errorf("after compaction a is %q", got.Value)
	}
}

func valuesAreCopies(t *testing.T, s Store) {
	value := []byte("mine")
	if _, err := s.Txn(bounded(t), state.Txn{Then: []state.Op{state.Put("/a", value)}}); err != nil {
		t.Fatal(err)
	}
	value[0] = 'X'
	if got := get(t, s, "/a"); string(got.Value) != "mine" {
		t.Fatalf("value became %q by writing to the caller's slice", got.Value)
	}
}

// follow collects the changes of a prefix until there are n of them.
func follow(t *testing.T, s state.Store, prefix string, from state.Revision, n int) (changes []state.Change, next state.Revision) {
	t.Helper()
	ctx := bounded(t)
	for b, err := range s.Watch(ctx, prefix, from) {
		if err != nil {
			t.Fatalf("watch %s from %d: %v", prefix, from, err)
		}
		changes, next = append(changes, b.Changes...), b.Revision+1
		if n := len(b.Changes); n == 0 {
			continue // only reports progress
		} else if last := b.Changes[n-1].Revision; last != b.Revision {
			t.Fatalf("batch of revision %d ends with %d", b.Revision, last)
		}
		if len(changes) >= n {
			return changes, next
		}
	}
	t.Fatalf("watch ended after %d of %d changes", len(changes), n)
	return nil, 0
}

func watchFollowsList(t *testing.T, s Store) {
	ctx := bounded(t)
	const writers, each = 4, 50
	var wg sync.WaitGroup
	defer wg.Wait()
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				key := fmt.Sprintf("/k/%d", (w+i)%7)
				op := state.Put(key, fmt.Appendf(nil, "%d-%d", w, i))
				if _, err := s.Txn(ctx, state.Txn{Then: []state.Op{op, state.Put("/done", fmt.Append(nil, w, i))}}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	// A copy that is built from list and watch during concurrent writes ends in the store's state.
	items, revision, err := state.All(ctx, s, "/k/", false)
	if err != nil {
		t.Fatal(err)
	}
	view := map[string]string{}
	for _, i := range items {
		view[i.Key] = string(i.Value)
	}
	seen := int(revision) - 1 // every transaction is one revision
	if seen < writers*each {
		last := revision
		changes, _ := follow(t, s, "/k/", revision+1, writers*each-seen)
		for _, c := range changes {
			if c.Revision != last+1 {
				t.Fatalf("revision %d follows %d: something is missing, repeated or out of order", c.Revision, last)
			}
			last = c.Revision
			view[c.Key] = string(c.Value)
		}
	}
	wg.Wait()
	items, _, err = state.All(ctx, s, "/k/", false)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range items {
		if view[i.Key] != string(i.Value) {
			t.Errorf("%s is %q in the copy and %q in the store", i.Key, view[i.Key], i.Value)
		}
	}
	if len(view) != len(items) {
		t.Errorf("%d keys in the copy, %d in the store", len(view), len(items))
	}
}

func watchKeepsTxnWhole(t *testing.T, s Store) {
	ctx := bounded(t)
	var from state.Revision
	for i := range 20 {
		ops := []state.Op{state.Put("/z", nil)}
		for j := range 30 {
			ops = append(ops, state.Put(fmt.Sprintf("/k/%02d", j), fmt.Append(nil, i)))
		}
		r, err := s.Txn(ctx, state.Txn{Then: ops})
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			from = r
		}
	}
	count := map[state.Revision]int{}
	for b, err := range s.Watch(ctx, "/k/", from) {
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range b.Changes {
			count[c.Revision]++
		}
		for r, n := range count {
			if n != 30 {
				t.Fatalf("revision %d came with %d of 30 changes", r, n)
			}
		}
		if len(count) == 20 {
			return
		}
	}
	t.Fatalf("watch ended after %d transactions", len(count))
}

func watchResumes(t *testing.T, s Store) {
	var want []string
	from := state.Revision(1)
	for i := range 10 {
		put(t, s, "/k", strconv.Itoa(i))
		want = append(want, strconv.Itoa(i))
	}
	var got []string
	for len(got) < len(want) {
		var changes []state.Change
		changes, from = follow(t, s, "/k", from, 1)
		for _, c := range changes {
			got = append(got, string(c.Value))
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("resumed watch yields %v, want %v", got, want)
	}
	var wg sync.WaitGroup
	wg.Go(func() { put(t, s, "/k", "later") })
	changes, _ := follow(t, s, "/k", from, 1) // from a revision that may not exist yet
	wg.Wait()
	if len(changes) != 1 || string(changes[0].Value) != "later" {
		t.Fatalf("watch of later changes yields %+v", changes)
	}
}

func watchPrefix(t *testing.T, s Store) {
	from := put(t, s, "/k/1", "a")
	put(t, s, "/j", "no")
	put(t, s, "/l", "no")
	if _, err := s.Txn(bounded(t), state.Txn{Then: []state.Op{state.Delete("/k/1"), state.Put("/k", []byte("no"))}}); err != nil {
		t.Fatal(err)
	}
	last := put(t, s, "/k/2", "b")
	changes, _ := follow(t, s, "/k/", from, 3)
	if len(changes) != 3 || changes[0].Key != "/k/1" || changes[0].Deleted ||
		changes[1].Key != "/k/1" || !changes[1].Deleted || len(changes[1].Value) != 0 ||
		changes[2].Key != "/k/2" || changes[2].Revision != last {
		t.Fatalf("changes %+v", changes)
	}
}

func watchCompacted(t *testing.T, s Store) {
	ctx := bounded(t)
	from := put(t, s, "/k", "1")
	put(t, s, "/k", "2")
	last := put(t, s, "/k", "3")
	if err := s.Compact(ctx, last); err != nil {
		t.Fatal(err)
	}
	n := 0
	for b, err := range s.Watch(ctx, "/k", from) {
		if err == nil && len(b.Changes) == 0 {
			continue // only reports progress
		}
		if n++; !errors.Is(err, state.ErrCompacted) {
			t.Fatalf("watch from a compacted revision yields %v, want ErrCompacted", err)
		}
	}
	if n != 1 {
		t.Fatalf("watch yields %d times, want once", n)
	}
	put(t, s, "/k", "4")
	if changes, _ := follow(t, s, "/k", last+1, 1); string(changes[0].Value) != "4" {
		t.Fatalf("watch after the compacted revision yields %+v", changes)
	}
}

func watchEnds(t *testing.T, s Store) {
	from := put(t, s, "/k", "1")
	ctx, cancel := context.WithCancel(bounded(t))
	defer cancel()
	n := 0
	for _, err := range s.Watch(ctx, "/k", from) {
		if err != nil {
			t.Fatalf("watch whose context ended yields %v", err)
		}
		n++
		cancel()
	}
	if n != 1 {
		t.Fatalf("watch yields %d batches, want 1", n)
	}
	for _, err := range s.Watch(bounded(t), "/k", 0) {
		if !errors.Is(err, state.ErrInvalid) {
			t.Fatalf("watch from 0 yields %v, want ErrInvalid", err)
		}
	}
	started := make(chan struct{})
	start := sync.OnceFunc(func() { close(started) }) // a batch that only reports progress may repeat a revision
	ended := make(chan error, 1)
	go func() {
		var last error
		for b, err := range s.Watch(bounded(t), "/k", from) {
			if last = err; b.Revision == from {
				start()
			}
		}
		ended <- last
	}()
	<-started
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, state.ErrClosed) {
		t.Fatalf("watch of a store that was closed ends with %v, want ErrClosed", err)
	}
}

func concurrentCounter(t *testing.T, s Store) {
	ctx := bounded(t)
	const writers, each = 8, 25
	put(t, s, "/n", "0")
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for done := 0; done < each; {
				item, err := s.Get(ctx, "/n")
				if err != nil {
					t.Error(err)
					return
				}
				n, _ := strconv.Atoi(string(item.Value))
				_, err = s.Txn(ctx, state.Txn{
					If:   []state.Compare{state.Unchanged(item)},
					Then: []state.Op{state.Put("/n", strconv.AppendInt(nil, int64(n+1), 10))},
				})
				switch {
				case err == nil:
					done++
				case !errors.Is(err, state.ErrConflict):
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if got := string(get(t, s, "/n").Value); got != strconv.Itoa(writers*each) {
		t.Fatalf("counter is %s after %d increments", got, writers*each)
	}
}

// registers is the model of two keys that are read, written and swapped.
type (
	registers struct{ a, b int }
	operation struct {
		kind     string // "read", "write", "move"
		key      string
		value    int
		expected registers // move: what both keys must hold
	}
	outcome struct {
		value registers
		ok    bool
	}
)

func model() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return registers{} },
		Step: func(s, input, output any) (bool, any) {
			state, in, out := s.(registers), input.(operation), output.(outcome)
			switch in.kind {
			case "read":
				if in.key == "/a" {
					return out.value.a == state.a, state
				}
				return out.value.b == state.b, state
			case "write":
				if in.key == "/a" {
					state.a = in.value
				} else {
					state.b = in.value
				}
				return true, state
			default:
				if !out.ok {
					return state != in.expected, state
				}
				return state == in.expected, registers{a: state.b, b: in.value}
			}
		},
		DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v → %+v", in, out) },
	}
}

// linearizable checks a history of concurrent reads, writes and two-key
// transactions against the model. Values are unique, so that a compare of
// revisions is a compare of values.
func linearizable(t *testing.T, s Store) {
	ctx := bounded(t)
	put(t, s, "/a", "0")
	put(t, s, "/b", "0")
	const clients, each = 6, 40
	seed := rand.Uint64()
	start := time.Now()
	var mu sync.Mutex
	var history []porcupine.Operation
	unique := 0
	var wg sync.WaitGroup
	for client := range clients {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(client)))
			for range each {
				mu.Lock()
				unique++
				value := unique
				mu.Unlock()
				in := operation{kind: []string{"read", "write", "move"}[random.IntN(3)], key: []string{"/a", "/b"}[random.IntN(2)], value: value}
				var a, b state.Item
				if in.kind == "move" {
					// Both keys at one revision, read before the operation is called.
					page, err := s.List(ctx, "/", state.ListOptions{})
					if err != nil || len(page.Items) != 2 {
						t.Errorf("list: %d items, %v", len(page.Items), err)
						return
					}
					a, b = page.Items[0], page.Items[1]
					in.expected = registers{number(a), number(b)}
				}
				call := time.Since(start).Nanoseconds()
				out, err := apply(ctx, s, in, a, b)
				back := time.Since(start).Nanoseconds()
				if err != nil {
					t.Errorf("%+v: %v", in, err)
					return
				}
				mu.Lock()
				history = append(history, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: back})
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	if got := porcupine.CheckOperationsTimeout(model(), history, patience); got != porcupine.Ok {
		t.Fatalf("history of %d operations: %s (seed %d)", len(history), got, seed)
	}
}

func apply(ctx context.Context, s state.Store, in operation, a, b state.Item) (outcome, error) {
	switch in.kind {
	case "read":
		item, err := s.Get(ctx, in.key)
		return outcome{value: registers{number(item), number(item)}}, err
	case "write":
		_, err := s.Txn(ctx, state.Txn{Then: []state.Op{state.Put(in.key, strconv.AppendInt(nil, int64(in.value), 10))}})
		return outcome{ok: true}, err
	default:
		_, err := s.Txn(ctx, state.Txn{
			If:   []state.Compare{state.Unchanged(a), state.Unchanged(b)},
			Then: []state.Op{state.Put("/a", b.Value), state.Put("/b", strconv.AppendInt(nil, int64(in.value), 10))},
		})
		if errors.Is(err, state.ErrConflict) {
			return outcome{}, nil
		}
		return outcome{ok: true}, err
	}
}

func number(i state.Item) int {
	n, _ := strconv.Atoi(string(i.Value))
	return n
}

func canceledContext(t *testing.T, s Store) {
	ctx, cancel := context.WithCancel(bounded(t))
	cancel()
	for range 100 { // a store might answer now and then
		if _, err := s.Txn(ctx, state.Txn{Then: []state.Op{state.Put("/a", nil)}}); !errors.Is(err, context.Canceled) {
			t.Fatalf("txn with a context that ended: %v", err)
		}
		if _, err := s.Get(ctx, "/a"); !errors.Is(err, context.Canceled) {
			t.Fatalf("get with a context that ended: %v", err)
		}
		if _, err := s.List(ctx, "/", state.ListOptions{}); !errors.Is(err, context.Canceled) {
			t.Fatalf("list with a context that ended: %v", err)
		}
	}
	for b, err := range s.Watch(ctx, "/", 1) {
		t.Errorf("watch with a context that ended yields %+v, %v", b, err)
	}
}

func closed(t *testing.T, s Store) {
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	ctx := bounded(t)
	if _, err := s.Get(ctx, "/a"); !errors.Is(err, state.ErrClosed) {
		t.Errorf("get: %v, want ErrClosed", err)
	}
	if _, err := s.List(ctx, "/", state.ListOptions{}); !errors.Is(err, state.ErrClosed) {
		t.Errorf("list: %v, want ErrClosed", err)
	}
	if _, err := s.Txn(ctx, state.Txn{Then: []state.Op{state.Put("/a", nil)}}); !errors.Is(err, state.ErrClosed) {
		t.Errorf("txn: %v, want ErrClosed", err)
	}
	if err := s.Compact(ctx, 1); !errors.Is(err, state.ErrClosed) {
		t.Errorf("compact: %v, want ErrClosed", err)
	}
	for _, err := range s.Watch(ctx, "/", 1) {
		if !errors.Is(err, state.ErrClosed) {
			t.Errorf("watch: %v, want ErrClosed", err)
		}
	}
}
