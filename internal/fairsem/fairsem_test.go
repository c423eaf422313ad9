package fairsem

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"
)

// call has a slot, or waits for one.
type call struct {
	key    string
	cancel context.CancelFunc
	done   chan struct{} // closed to give the slot back
	slot   bool
	err    error
}

// callers make calls, and record the order in which they get slots.
type callers struct {
	s *Semaphore[string]

	mu    sync.Mutex // against calls that get theirs at the same moment
	given []*call
}

// ask makes a call, and returns when the caller waits or has a slot.
func (c *callers) ask(ctx context.Context, key string) *call {
	ctx, cancel := context.WithCancel(ctx)
	a := &call{key: key, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer cancel()
		release, err := c.s.Acquire(ctx, key)
		if a.err = err; err != nil {
			return
		}
		a.slot = true
		c.mu.Lock()
		c.given = append(c.given, a)
		c.mu.Unlock()
		<-a.done
		release()
	}()
	synctest.Wait()
	return a
}

// One key asks a hundred times. Keys that ask later get the next slots, each in turn.
func TestGreedyKeyDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &callers{s: New[string](3)}
		all := make([]*call, 0, 104)
		for range 100 {
			all = append(all, c.ask(t.Context(), "greedy"))
		}
		if len(c.given) != 2 {
			t.Fatalf("one key holds %d of 3 slots, want 2", len(c.given))
		}
		if n := c.s.Waiting(); n != 98 {
			t.Errorf("%d calls wait, want 98", n)
		}
		for _, key := range []string{"b", "c", "b", "c"} {
			all = append(all, c.ask(t.Context(), key))
		}
		for i := range all {
			close(c.given[i].done)
			synctest.Wait()
		}
		var order []string
		for _, a := range c.given[:8] {
			order = append(order, a.key)
		}
		// The first release happens while "greedy" still has another slot, so "c" is next.
		if want := []string{"greedy", "greedy", "b", "c", "greedy", "b", "c", "greedy"}; !slices.Equal(order, want) {
			t.Errorf("slots were given to %q, want %q", order, want)
		}
		if n := c.s.Waiting(); n != 0 {
			t.Errorf("%d calls wait after all were served", n)
		}
	})
}

// Under any sequence of calls, releases and cancellations, slots are neither lost nor given
// twice, no key has all, none is free while a waiter may have it, and each key is served in its
// order.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(*testing.T) {
			n := rapid.IntRange(1, 4).Draw(rt, "slots")
			c := &callers{s: New[string](n)}
			var all []*call
			for range rapid.IntRange(1, 60).Draw(rt, "steps") {
				switch rapid.IntRange(0, 3).Draw(rt, "step") {
				case 0, 1:
					all = append(all, c.ask(context.Background(), rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "key")))
				case 2:
					if i := slices.IndexFunc(all, func(a *call) bool { return a.slot }); i >= 0 {
						close(all[i].done)
						all = slices.Delete(all, i, i+1)
					}
				default:
					if i := slices.IndexFunc(all, func(a *call) bool { return !a.slot }); i >= 0 {
						all[i].cancel()
						synctest.Wait()
						if !errors.Is(all[i].err, context.Canceled) {
							rt.Fatalf("a call that was given up returns %v", all[i].err)
						}
						all = slices.Delete(all, i, i+1)
					}
				}
				synctest.Wait()
				held, waits := map[string]int{}, map[string]bool{}
				total := 0
				for _, a := range all {
					if a.slot && waits[a.key] {
						rt.Fatalf("a later call of %q has a slot before an earlier one", a.key)
					}
					if a.slot {
						total++
						held[a.key]++
					} else {
						waits[a.key] = true
					}
				}
				for key, k := range held {
					if k > max(1, n-1) {
						rt.Fatalf("%q holds %d of %d slots", key, k, n)
					}
				}
				for key := range waits {
					if total < n && held[key] < max(1, n-1) {
						rt.Fatalf("%q waits while %d of %d slots are held", key, total, n)
					}
				}
				if total > n {
					rt.Fatalf("%d of %d slots are held", total, n)
				}
			}
			for _, a := range all {
				a.cancel()
				close(a.done)
			}
			synctest.Wait()
			if c.s.free != n || len(c.s.held)+len(c.s.waiting)+len(c.s.turns) != 0 {
				rt.Fatalf("in the end: %+v", c.s)
			}
		})
	})
}
