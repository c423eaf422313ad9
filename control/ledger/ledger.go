// Package ledger counts what organizations use against their quotas.
//
// Promises. The usage of an organization is a record of the state, which is changed in the
// transaction that makes or removes what counts: so the two never differ, even after a crash, and
// no two transactions take the last of a quota, even of several daemons (docs/adr/0032-quotas.md).
// Nothing is ever summed up.
//
// Concurrency. A Ledger is safe for concurrent use. Each organization has its own queue, so that
// none waits for another; what is in a queue is committed as one transaction.
//
// It does not know what is counted: its callers give the amounts.
package ledger

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
)

// Defaults are the limits of organizations that have none of their own. What they do
// not name is not limited.
type Defaults struct {
	Org      hangar.Quotas
	Personal hangar.Quotas // of hangar.OrgPersonal
}

// limits are those of an organization.
func (d Defaults) limits(org *tenants.OrgRecord) hangar.Quotas {
	if org.Personal() {
		return d.Personal.With(org.Quotas)
	}
	return d.Org.With(org.Quotas)
}

// Ledger counts what organizations use. Until SetDefaults nothing can be charged.
type Ledger struct {
	store    state.Store
	defaults atomic.Pointer[Defaults] // nil: they are not known yet
	known    chan struct{}            // closed when they are
	set      sync.Once                // closes known

	mu     sync.Mutex
	queues map[hangar.OrgID][]*spending // guarded by mu: of those for whom commitAll runs
}

// New returns the Ledger of a state.
func New(store state.Store) *Ledger {
	return &Ledger{store: store, known: make(chan struct{}), queues: map[hangar.OrgID][]*spending{}}
}

// SetDefaults says what organizations may have that have no limits of their own.
func (l *Ledger) SetDefaults(defaults Defaults) {
	l.defaults.Store(&defaults)
	l.set.Do(func() { close(l.known) })
}

// Await returns once the defaults are set, for what may not fail because the server is starting.
func (l *Ledger) Await(ctx context.Context) error {
	select {
	case <-l.known:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Usage returns what an organization uses, and the condition that it stays that.
func (l *Ledger) Usage(ctx context.Context, org hangar.OrgID) (hangar.Quotas, state.Compare, error) {
	key := state.UsageKey(org)
	used, item, err := state.Read[hangar.Quotas](ctx, l.store, key)
	if errors.Is(err, state.ErrNotFound) {
		return hangar.Quotas{}, state.Absent(key), nil
	}
	return used, state.Unchanged(item), err
}

// Limits are those of an organization. It answers CodeUnavailable before SetDefaults.
func (l *Ledger) Limits(org *tenants.OrgRecord) (hangar.Quotas, error) {
	defaults := l.defaults.Load()
	if defaults == nil {
		return nil, hangar.Errorf(hangar.CodeUnavailable, "", "the server is starting: try again")
	}
	return defaults.limits(org), nil
}

// Charge adds to a transaction that an organization uses more, or less, of something. It
// answers CodeExhausted with ReasonQuota for what would grow beyond a limit. A caller whose
// transaction ends with state.ErrConflict calls it again.
func (l *Ledger) Charge(ctx context.Context, org *tenants.OrgRecord, change hangar.Quotas, txn *state.Txn) error {
	return l.book(ctx, org.ID, org, change, txn)
}

// Credit is Charge for what exists or existed, without regard to limits.
func (l *Ledger) Credit(ctx context.Context, org hangar.OrgID, change hangar.Quotas, txn *state.Txn) error {
	return l.book(ctx, org, nil, change, txn)
}

func (l *Ledger) book(ctx context.Context, owner hangar.OrgID, org *tenants.OrgRecord, change hangar.Quotas, txn *state.Txn) error {
	used, unchanged, err := l.Usage(ctx, owner)
	if err != nil {
		return err
	}
	next, err := l.changed(used, org, change)
	if err != nil {
		return err
	}
	return record(txn, owner, used, unchanged, next)
}

// changed returns what is used after a change. With an organization it refuses what would grow
// beyond a limit.
func (l *Ledger) changed(used hangar.Quotas, org *tenants.OrgRecord, change hangar.Quotas) (hangar.Quotas, error) {
	limits := hangar.Quotas{}
	if org != nil {
		var err error
		if limits, err = l.Limits(org); err != nil {
			return nil, err
		}
	}
	next := maps.Clone(used)
	for _, key := range slices.Sorted(maps.Keys(change)) {
		more := change[key]
		if limit, ok := limits.Limit(key); ok && more > 0 && used[key]+more > limit {
			return nil, hangar.QuotaExceeded(org.Slug, key, limit, used[key], more)
		}
		if next[key] = max(0, used[key]+more); next[key] == 0 {
			delete(next, key)
		}
	}
	return next, nil
}

// record adds the change of an organization's usage to a transaction.
func record(txn *state.Txn, org hangar.OrgID, used hangar.Quotas, unchanged state.Compare, next hangar.Quotas) error {
	if maps.Equal(next, used) {
		return nil
	}
	put, err := state.Write(state.UsageKey(org), next)
	if err != nil {
		return err
	}
	txn.If = append(txn.If, unchanged)
	txn.Then = append(txn.Then, put)
	return nil
}

// Negative is what takes amounts back.
func Negative(q hangar.Quotas) hangar.Quotas {
	less := make(hangar.Quotas, len(q))
	for key, n := range q {
		less[key] = -n
	}
	return less
}

// Counted are the records that count something for an organization.
type Counted interface {
	Counted() (hangar.OrgID, hangar.Quotas)
}

// Revise changes the record at a key as change says, and what its organization uses with it. With
// an organization growth is charged, without one it is credited, see Charge and Credit. change
// reports that nothing is to be done by changed, and removes the record by a nil next. Where
// there is no record, nothing is counted.
func Revise[T Counted](ctx context.Context, l *Ledger, key string, org *tenants.OrgRecord, change func(known T) (next *T, changed bool)) error {
	for {
		known, item, err := state.Read[T](ctx, l.store, key)
		if errors.Is(err, state.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		next, changed := change(known)
		if !changed {
			return nil
		}
		owner, before := known.Counted()
		op, after := state.Delete(key), hangar.Quotas(nil)
		if next != nil {
			_, after = (*next).Counted()
			if op, err = state.Write(key, *next); err != nil {
				return err
			}
		}
		txn := state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{op}}
		if _, err = l.Spend(ctx, owner, org, Sum(after, Negative(before)), txn); !errors.Is(err, state.ErrConflict) {
			return err
		}
	}
}

// Sum adds amounts.
func Sum(all ...hangar.Quotas) hangar.Quotas {
	total := hangar.Quotas{}
	for _, q := range all {
		for key, n := range q {
			total[key] += n
		}
	}
	return total
}
