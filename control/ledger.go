package control

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

// QuotaDefaults are the limits of organizations that have none of their own. What they do
// not name is not limited.
type QuotaDefaults struct {
	Org      hangar.Quotas
	Personal hangar.Quotas // of hangar.OrgPersonal
}

// limits are those of an organization.
func (d QuotaDefaults) limits(org *orgRecord) hangar.Quotas {
	if org.Personal() {
		return d.Personal.With(org.Quotas)
	}
	return d.Org.With(org.Quotas)
}

// ledger counts what organizations use against their quotas. The usage of one is a record of
// the state, which is changed in the transaction that makes or removes what counts: so the
// two never differ, whatever crashes, and however many daemons share the state, no two
// transactions take the last of a quota (docs/adr/0032-quotas.md). Nothing is ever summed up.
type ledger struct {
	store    state.Store
	defaults atomic.Pointer[QuotaDefaults] // nil: they are not known yet

	mu     sync.Mutex
	queues map[hangar.OrgID][]*spending // guarded by mu: of those for whom commitAll runs
}

func newLedger(store state.Store) *ledger {
	return &ledger{store: store, queues: map[hangar.OrgID][]*spending{}}
}

func usageKey(org hangar.OrgID) string { return usagePrefix + string(org) }

// usage returns what an organization uses, and the condition that it stays that.
func (l *ledger) usage(ctx context.Context, org hangar.OrgID) (hangar.Quotas, state.Compare, error) {
	key := usageKey(org)
	used, item, err := read[hangar.Quotas](ctx, l.store, key)
	if errors.Is(err, state.ErrNotFound) {
		return hangar.Quotas{}, state.Absent(key), nil
	}
	return used, state.Unchanged(item), err
}

// limits are those of an organization.
func (l *ledger) limits(org *orgRecord) (hangar.Quotas, error) {
	defaults := l.defaults.Load()
	if defaults == nil {
		return nil, hangar.Errorf(hangar.CodeUnavailable, "", "the server is starting: try again")
	}
	return defaults.limits(org), nil
}

// charge adds to a transaction that an organization uses more, or less, of something. It
// answers CodeExhausted with ReasonQuota for what would grow beyond a limit. A caller whose
// transaction ends with state.ErrConflict calls it again.
func (l *ledger) charge(ctx context.Context, org *orgRecord, change hangar.Quotas, txn *state.Txn) error {
	return l.book(ctx, org.ID, org, change, txn)
}

// credit is charge for what is there, or was, whatever the limits say.
func (l *ledger) credit(ctx context.Context, org hangar.OrgID, change hangar.Quotas, txn *state.Txn) error {
	return l.book(ctx, org, nil, change, txn)
}

func (l *ledger) book(ctx context.Context, owner hangar.OrgID, org *orgRecord, change hangar.Quotas, txn *state.Txn) error {
	used, unchanged, err := l.usage(ctx, owner)
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
func (l *ledger) changed(used hangar.Quotas, org *orgRecord, change hangar.Quotas) (hangar.Quotas, error) {
	limits := hangar.Quotas{}
	if org != nil {
		var err error
		if limits, err = l.limits(org); err != nil {
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

// record adds to a transaction that what an organization uses changes from what it was.
func record(txn *state.Txn, org hangar.OrgID, used hangar.Quotas, unchanged state.Compare, next hangar.Quotas) error {
	if maps.Equal(next, used) {
		return nil
	}
	put, err := write(usageKey(org), next)
	if err != nil {
		return err
	}
	txn.If = append(txn.If, unchanged)
	txn.Then = append(txn.Then, put)
	return nil
}

// negative is what takes amounts back.
func negative(q hangar.Quotas) hangar.Quotas {
	less := make(hangar.Quotas, len(q))
	for key, n := range q {
		less[key] = -n
	}
	return less
}

// counted are the records that count something for an organization.
type counted interface {
	counted() (hangar.OrgID, hangar.Quotas)
}

// revise changes the record at a key as change says, and what its organization uses with it. With
// an organization growth is charged, without one it is credited, see charge and credit. change
// reports that nothing is to be done by changed, and removes the record by a nil next. Where
// there is no record, nothing is counted.
func revise[T counted](ctx context.Context, l *ledger, key string, org *orgRecord, change func(known T) (next *T, changed bool)) error {
	for {
		known, item, err := read[T](ctx, l.store, key)
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
		owner, before := known.counted()
		op, after := state.Delete(key), hangar.Quotas(nil)
		if next != nil {
			_, after = (*next).counted()
			if op, err = write(key, *next); err != nil {
				return err
			}
		}
		txn := state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{op}}
		if _, err = l.spend(ctx, owner, org, sum(after, negative(before)), txn); !errors.Is(err, state.ErrConflict) {
			return err
		}
	}
}
