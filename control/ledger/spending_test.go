package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
)

// counting counts the transactions that a state gets, and lets each wait.
type counting struct {
	state.Store
	begun atomic.Int32
	gate  chan struct{} // one value for each transaction, or closed
}

func (c *counting) Txn(ctx context.Context, txn state.Txn) (state.Revision, error) {
	c.begun.Add(1)
	select {
	case <-c.gate:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	return c.Store.Txn(ctx, txn)
}

const spender = hangar.OrgID("org_spender")

func newSpending(t *testing.T, limits hangar.Quotas) (*Ledger, *counting, *tenants.OrgRecord) {
	t.Helper()
	store := &counting{Store: state.NewMemory(), gate: make(chan struct{}, 1000)}
	l := New(store)
	l.SetDefaults(Defaults{Org: limits})
	return l, store, &tenants.OrgRecord{Org: hangar.Org{ID: spender, Slug: "spender"}}
}

// queue waits until so many wait behind the one that is being made.
func (l *Ledger) queue(n int) {
	for {
		l.mu.Lock()
		waiting := len(l.queues[spender])
		l.mu.Unlock()
		if waiting == n {
			return
		}
	}
}

func app(n int) state.Txn {
	key := fmt.Sprintf("/thing/%d", n)
	return state.Txn{If: []state.Compare{state.Absent(key)}, Then: []state.Op{state.Put(key, []byte("1"))}}
}

// TestSpendTogether: what waits while a transaction is made is made as one, up to the limit, and
// what is out of date fails alone.
func TestSpendTogether(t *testing.T) {
	l, store, org := newSpending(t, hangar.Quotas{hangar.QuotaApps: 14})
	one := hangar.Quotas{hangar.QuotaApps: 1}
	results := make([]error, 20)
	var all sync.WaitGroup
	spend := func(n int, txn state.Txn) {
		all.Go(func() { _, results[n] = l.SpendFor(t.Context(), org, one, txn) })
	}
	spend(0, app(0))
	for store.begun.Load() == 0 {
	}
	for n := 1; n < 10; n++ {
		spend(n, app(n))
	}
	l.queue(9)
	store.gate <- struct{}{}
	store.gate <- struct{}{}
	all.Wait()
	if err := errors.Join(results...); err != nil || store.begun.Load() != 2 {
		t.Fatalf("10 took %d transactions: %v", store.begun.Load(), err)
	}

	spend(10, app(10))
	for store.begun.Load() == 2 {
	}
	for n, txn := range []state.Txn{
		app(3),  // is there
		app(11), // two that make the same
		app(11),
		app(12),
		app(13), // beyond the limit, if all were made
		app(14),
	} {
		spend(11+n, txn)
		l.queue(n + 1)
	}
	close(store.gate)
	all.Wait()
	for n, want := range map[int]bool{10: true, 11: false, 12: true, 13: false, 14: true, 15: true, 16: false} {
		if (results[n] == nil) != want {
			t.Errorf("%d: %v", n, results[n])
		}
	}
	if !errors.Is(results[11], state.ErrConflict) || !errors.Is(results[13], state.ErrConflict) || hangar.ReasonOf(results[16]) != hangar.ReasonQuota {
		t.Errorf("what was there: %v; at once: %v; beyond the limit: %v", results[11], results[13], results[16])
	}
	if used := l.used(t); used[hangar.QuotaApps] != 14 {
		t.Errorf("used %v", used)
	}
	for range 14 {
		if _, err := l.GiveBack(t.Context(), spender, one, state.Txn{}); err != nil {
			t.Fatal(err)
		}
	}
	if used := l.used(t); len(used) != 0 {
		t.Errorf("used %v when all was given back", used)
	}
}

func (l *Ledger) used(t *testing.T) hangar.Quotas {
	t.Helper()
	used, _, err := l.Usage(t.Context(), spender)
	if err != nil {
		t.Fatal(err)
	}
	return used
}

// TestSpendIsWithdrawn: a caller that gives up while waiting has spent nothing, and one that
// gives up during the transaction delays and fails none of the others.
func TestSpendIsWithdrawn(t *testing.T) {
	l, store, org := newSpending(t, nil)
	one := hangar.Quotas{hangar.QuotaApps: 1}
	spend := func(ctx context.Context, n int) <-chan error {
		result := make(chan error, 1)
		go func() {
			_, err := l.SpendFor(ctx, org, one, app(n))
			result <- err
		}()
		return result
	}
	hurried, giveUp := context.WithCancel(t.Context())
	first := spend(hurried, 0)
	for store.begun.Load() == 0 {
	}
	second := spend(hurried, 1)
	l.queue(1)
	third := spend(t.Context(), 2)
	l.queue(2)
	giveUp()
	if err := <-second; !errors.Is(err, context.Canceled) {
		t.Errorf("who waited: %v", err)
	}
	store.gate <- struct{}{}
	store.gate <- struct{}{}
	if err := errors.Join(<-first, <-third); err != nil {
		t.Errorf("what was begun, and what another waited for: %v", err)
	}
	if _, err := store.Get(t.Context(), "/thing/1"); !errors.Is(err, state.ErrNotFound) || l.used(t)[hangar.QuotaApps] != 2 {
		t.Errorf("what was given up: %v, used %v", err, l.used(t))
	}
}

// TestSpendBesideAnother: another daemon's change of the usage between reading and writing is
// counted, too, and is no error.
func TestSpendBesideAnother(t *testing.T) {
	l, store, org := newSpending(t, nil)
	result := make(chan error, 1)
	go func() {
		_, err := l.SpendFor(t.Context(), org, hangar.Quotas{hangar.QuotaApps: 1}, app(0))
		result <- err
	}()
	for store.begun.Load() == 0 {
	}
	other, err := json.Marshal(hangar.Quotas{hangar.QuotaApps: 5})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Store.Txn(t.Context(), state.Txn{Then: []state.Op{state.Put(state.UsageKey(spender), other)}}); err != nil {
		t.Fatal(err)
	}
	store.gate <- struct{}{}
	store.gate <- struct{}{}
	if err := <-result; err != nil || l.used(t)[hangar.QuotaApps] != 6 {
		t.Errorf("%v, used %v", err, l.used(t))
	}
}
