package ledger

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/internal/finish"
)

const (
	// maxTogether bounds how many transactions are made as one.
	maxTogether = 32
	// commitPatience bounds how long the state may take for them.
	commitPatience = 10 * time.Second
)

// spending is a transaction that waits to be made, with what it counts.
type spending struct {
	org    *tenants.OrgRecord // whose limits hold; nil: none do
	change hangar.Quotas
	txn    state.Txn

	done     chan struct{} // closed when the result is known, which follows
	revision state.Revision
	err      error
}

func (s *spending) finish(revision state.Revision, err error) {
	s.revision, s.err = revision, err
	close(s.done)
}

// SpendFor makes a transaction with a charge.
func (l *Ledger) SpendFor(ctx context.Context, org *tenants.OrgRecord, change hangar.Quotas, txn state.Txn) (state.Revision, error) {
	return l.Spend(ctx, org.ID, org, change, txn)
}

// GiveBack makes a transaction with a credit of what is not used any more.
func (l *Ledger) GiveBack(ctx context.Context, org hangar.OrgID, amounts hangar.Quotas, txn state.Txn) (state.Revision, error) {
	return l.Spend(ctx, org, nil, Negative(amounts), txn)
}

// Spend makes a transaction that changes what an organization uses: with its record that is a
// charge, without it a credit. What comes at once to this process is made as one transaction of
// the state, instead of conflicting about the usage, and other daemons' changes of that are tried
// again here: state.ErrConflict is about what the caller compares.
func (l *Ledger) Spend(
	ctx context.Context, owner hangar.OrgID, org *tenants.OrgRecord, change hangar.Quotas, txn state.Txn,
) (state.Revision, error) {
	s := &spending{org: org, change: change, txn: txn, done: make(chan struct{})}
	l.mu.Lock()
	queue, busy := l.queues[owner]
	l.queues[owner] = append(queue, s)
	l.mu.Unlock()
	if !busy {
		go l.commitAll(ctx, owner)
	}
	select {
	case <-s.done:
	case <-ctx.Done():
		if l.withdraw(owner, s) {
			return 0, ctx.Err()
		}
		<-s.done
	}
	return s.revision, s.err
}

// withdraw reports whether a transaction has not been begun, and will not be.
func (l *Ledger) withdraw(owner hangar.OrgID, s *spending) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := slices.Index(l.queues[owner], s)
	if at >= 0 {
		l.queues[owner] = slices.Delete(l.queues[owner], at, at+1)
	}
	return at >= 0
}

// commitAll makes the transactions of an organization until none waits.
func (l *Ledger) commitAll(ctx context.Context, owner hangar.OrgID) {
	for waiting := l.queued(owner, nil); len(waiting) > 0; waiting = l.queued(owner, waiting) {
		waiting = l.commit(ctx, owner, waiting, maxTogether)
	}
}

// queued returns what waits and what has come since. When that is nothing, commitAll ends.
func (l *Ledger) queued(owner hangar.OrgID, waiting []*spending) []*spending {
	l.mu.Lock()
	defer l.mu.Unlock()
	waiting = append(waiting, l.queues[owner]...)
	if len(waiting) == 0 {
		delete(l.queues, owner)
	} else {
		l.queues[owner] = nil
	}
	return waiting
}

// commit commits as many transactions as fit together, and returns the rest.
func (l *Ledger) commit(ctx context.Context, owner hangar.OrgID, waiting []*spending, most int) (rest []*spending) {
	ctx, cancel := finish.Within(ctx, commitPatience)
	defer cancel()
	used, unchanged, err := l.Usage(ctx, owner)
	if err != nil {
		for _, s := range waiting {
			s.finish(0, err)
		}
		return nil
	}
	var together []*spending
	var txn state.Txn
	next := used
	for _, s := range waiting {
		if len(together) == most || !fits(&txn, &s.txn) {
			rest = append(rest, s)
			continue
		}
		after, err := l.changed(next, s.org, s.change)
		switch {
		case err != nil && len(together) == 0:
			s.finish(0, err)
		case err != nil:
			rest = append(rest, s)
		default:
			next, together = after, append(together, s)
			txn.If, txn.Then = append(txn.If, s.txn.If...), append(txn.Then, s.txn.Then...)
		}
	}
	if len(together) == 0 {
		return rest
	}
	var revision state.Revision
	if err = record(&txn, owner, used, unchanged, next); err == nil {
		revision, err = l.store.Txn(ctx, txn)
	}
	if errors.Is(err, state.ErrConflict) {
		_, now, lookErr := l.Usage(ctx, owner)
		switch {
		case lookErr != nil:
			err = lookErr
		case now != unchanged: // another daemon was first
			return append(together, rest...)
		case len(together) > 1: // one of them is out of date
			for _, s := range together {
				for alone := []*spending{s}; len(alone) > 0; {
					alone = l.commit(ctx, owner, alone, 1)
				}
			}
			return rest
		}
	}
	for _, s := range together {
		s.finish(revision, err)
	}
	return rest
}

// fits reports whether a transaction can be made together with others: it concerns none of the
// keys that they write, and they write none that it concerns.
func fits(others, txn *state.Txn) bool {
	if len(others.If) == 0 && len(others.Then) == 0 {
		return true
	}
	if max(len(others.If)+len(txn.If), len(others.Then)+len(txn.Then)) >= state.MaxTxnOps {
		return false
	}
	return !overlap(others.Then, txn) && !overlap(txn.Then, others)
}

// overlap reports whether a transaction compares or writes what others write.
func overlap(written []state.Op, txn *state.Txn) bool {
	return slices.ContainsFunc(written, func(w state.Op) bool {
		return slices.ContainsFunc(txn.If, func(c state.Compare) bool { return c.Key == w.Key }) ||
			slices.ContainsFunc(txn.Then, func(o state.Op) bool { return o.Key == w.Key })
	})
}
