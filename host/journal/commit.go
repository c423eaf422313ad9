package journal

import (
	"errors"
	"fmt"
	"slices"

	bolt "go.etcd.io/bbolt"

	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/machinejson"
)

// call is one Commit on its way.
type call struct {
	fn   func(tx *Tx) error
	pool *machinejson.Pool
	done chan struct{} // closed when err and panicked are final

	err      error
	panicked any
	wrote    bool // in the transaction at hand
	outbox   bool // wrote something that wants publishing
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

// take empties the queue. more is false once the journal was closed.
func (j *Journal) take() (batch []*call, acked []outboxKey, more bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	batch, j.queue = j.queue, nil
	// Forgetting published entries is not urgent: it is part of the next commit and has one of its
	// own only when many have gathered, or at the end.
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

// commit applies a batch in one transaction. A call that fails is left out and the
// others run again; the loop ends because each round has a call less.
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
		failed, err := apply(tx, batch, acked)
		if err != nil {
			_ = tx.Rollback() // of an open transaction: cannot fail
			j.settle(batch, err)
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

// apply runs every call of the batch. failed is the index of one that has written
// and then failed, so that the transaction cannot be used; -1: none. Those that
// failed without writing keep their error and do no harm. err is a fault of the
// journal itself.
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
		t.tx = nil // a Tx that fn kept must not reach into a later transaction
		if p := recover(); p != nil {
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
	number, err := stamp(tx)
	if err != nil {
		_ = tx.Rollback()
		j.settle(batch, err)
		return
	}
	if err := tx.Commit(); err != nil {
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

// afterFailure finds out what a failed commit left behind. A full disk is noticed before the root
// of the tree is switched: the old state stands and the journal continues. When the new state is
// already visible, its flush failed, and whether it is on disk cannot be known any more: asking
// again would lie, because the kernel reports a failed write-back once.
func (j *Journal) afterFailure(number uint64, cause error) error {
	var seen uint64
	err := j.view(func(tx *bolt.Tx) error {
		seen = tx.Bucket(bucketTransactions).Sequence()
		return nil
	})
	if err == nil && seen < number {
		return fmt.Errorf("commit: %w", diskspace.Explain(cause))
	}
	if j.broken == nil {
		close(j.fault)
	}
	j.broken = fmt.Errorf("%w: %w", ErrBroken, errors.Join(cause, err))
	return j.broken
}

// settle answers callers. Each keeps an error of its own; err is one of the journal.
func (j *Journal) settle(batch []*call, err error) {
	for _, c := range batch {
		if err != nil && c.err == nil && c.panicked == nil {
			c.err = err
			j.failures.Add(1)
		}
		close(c.done)
	}
}
