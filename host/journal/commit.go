package journal

import (
	"errors"
	"fmt"
	"slices"

	bolt "go.etcd.io/bbolt"

	"github.com/hangar-platform/hangar/internal/boltfile"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/machinejson"
)

// call is a Commit in progress.
type call struct {
	fn   func(tx *Tx) error
	pool *machinejson.Pool
	done chan struct{} // closed when err and panicked are final

	err      error
	panicked any
	wrote    bool // in the current transaction
	outbox   bool // wrote something to publish
	fed      bool // added to the feed
}

func (j *Journal) enqueue(c *call) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return ErrClosed
	}
	j.queue = append(j.queue, c)
	signal(j.wake)
	return nil
}

// take empties the queue. more is false after the journal was closed.
func (j *Journal) take() (batch []*call, acked []outboxKey, more bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	batch, j.queue = j.queue, nil
	// Forgetting published entries is not urgent. It is part of the next commit, and needs one of its
	// own only when there are many, or at the end.
	if len(batch) > 0 || len(j.acked) >= maxAcked || j.closed {
		for k := range j.acked {
			acked = append(acked, k)
		}
	}
	return batch, acked, !j.closed
}

// run is the committer.
func (j *Journal) run() {
	defer close(j.done)
	for range j.wake {
		batch, acked, more := j.take()
		j.commit(batch, acked)
		if !more {
			return
		}
	}
}

// commit applies a batch in one transaction. It removes a call that fails after it has written, and
// runs the others again; each round has one call less.
func (j *Journal) commit(batch []*call, acked []outboxKey) {
	if j.broken != nil {
		j.settle(batch, j.broken)
		return
	}
	for len(batch) > 0 || len(acked) > 0 {
		tx, err := j.db.Begin(true)
		if err != nil {
			j.settle(batch, fmt.Errorf("begin commit: %w", err))
			return
		}
		failed := -1
		err = boltfile.Guard(func() (err error) {
			failed, err = apply(tx, batch, acked)
			return err
		})
		if err != nil {
			_ = tx.Rollback() // cannot fail: the transaction is open
			j.settle(batch, j.ifDamaged(err))
			return
		}
		if failed >= 0 {
			_ = tx.Rollback()
			j.settle(batch[failed:failed+1], nil)
			batch = slices.Delete(batch, failed, failed+1)
			j.reruns.Add(uint64(failed))
			continue
		}
		j.conclude(tx, batch, acked)
		return
	}
}

// apply runs every call of the batch. failed is the index of a call that has written and then failed,
// which makes the transaction unusable; -1: none. A call that fails without writing keeps its error
// and has no effect on the others. err is a fault of the journal itself. It is called in
// boltfile.Guard.
func apply(tx *bolt.Tx, batch []*call, acked []outboxKey) (failed int, err error) {
	if err := forget(tx, acked); err != nil {
		return -1, fmt.Errorf("update outbox: %w", err)
	}
	for i, c := range batch {
		c.wrote, c.outbox, c.fed, c.err, c.panicked = false, false, false, nil, nil
		c.run(tx)
		if (c.err != nil || c.panicked != nil) && c.wrote {
			return i, nil
		}
	}
	return -1, nil
}

func (c *call) run(tx *bolt.Tx) {
	t := &Tx{tx: tx, call: c}
	defer func() {
		t.tx = nil // fn may have kept t, which must not reach a later transaction
		p := recover()
		if p == nil {
			return
		}
		c.wrote = true // the transaction may have half of a page in memory
		if fault, ok := p.(interface{ Addr() uintptr }); ok {
			c.err = fmt.Errorf("%w: %v", ErrFormat, fault) // the disk does not read a page, which others may not need
		} else {
			c.panicked = p
		}
	}()
	c.err = c.fn(t)
}

// conclude makes the transaction durable and answers the callers.
func (j *Journal) conclude(tx *bolt.Tx, batch []*call, acked []outboxKey) {
	wrote, outbox, fed := uint64(0), false, false
	for _, c := range batch {
		if c.wrote {
			wrote++
			outbox, fed = outbox || c.outbox, fed || c.fed
		}
	}
	if wrote == 0 && len(acked) == 0 {
		_ = tx.Rollback()
		j.settle(batch, nil)
		return
	}
	var number uint64
	err := boltfile.Guard(func() (err error) {
		if number, err = stamp(tx); err != nil {
			return err
		}
		return tx.Commit()
	})
	if err != nil {
		_ = tx.Rollback() // it does nothing after a failed Commit that has ended
		j.settle(batch, j.afterFailure(number, err))
		return
	}
	if j.transactions.Add(1)%roomEvery == 0 {
		j.takeRoom()
	}
	j.commits.Add(wrote)
	j.dropAcked(acked)
	if outbox {
		signal(j.changed)
	}
	if fed {
		signal(j.fed)
	}
	j.settle(batch, nil)
}

// afterFailure determines the state after a failed commit. bbolt detects a full disk before it
// switches the root of the tree: the old state is valid and the journal continues. If the new state
// is already visible, its flush failed, and it is unknown whether it is on disk. Another flush
// would be no proof, because the kernel reports a failed write-back only once.
func (j *Journal) afterFailure(number uint64, cause error) error {
	var seen uint64
	err := j.view(func(tx *bolt.Tx) error {
		seen = tx.Bucket(bucketTransactions).Sequence()
		return nil
	})
	if err == nil && seen < number {
		return j.ifDamaged(fmt.Errorf("commit: %w", diskspace.Explain(cause)))
	}
	return j.breaks(errors.Join(cause, err))
}

// ifDamaged returns err, and breaks the journal if it is the error of a damaged file.
func (j *Journal) ifDamaged(err error) error {
	if errors.Is(err, boltfile.ErrDamaged) {
		return j.breaks(err)
	}
	return err
}

// breaks refuses later commits and returns ErrBroken.
func (j *Journal) breaks(cause error) error {
	if j.broken == nil {
		close(j.fault)
	}
	j.broken = fmt.Errorf("%w: %w", ErrBroken, cause)
	return j.broken
}

// settle answers the callers. A call with an error of its own keeps it; err is an error of the
// journal.
func (j *Journal) settle(batch []*call, err error) {
	for _, c := range batch {
		if err != nil && c.err == nil && c.panicked == nil {
			c.err = err
			j.failures.Add(1)
		}
		close(c.done)
	}
}
