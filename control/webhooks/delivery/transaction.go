package delivery

import (
	"encoding/binary"
	"encoding/json"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/hangar-platform/hangar"
)

// transaction is a transaction of a store. The store takes over its results once it is committed.
type transaction struct {
	store   *store
	tx      *bolt.Tx
	metas   map[string]meta   // of receivers that it has changed
	total   int64             // bytes that wait
	evicted map[string]uint64 // by receiver: the number of the last removed entry
	deaths  []hangar.DeathReason
}

// apply writes outcomes, then ingested events.
func (t *transaction) apply(in *ingestion, outcomes []outcome) error {
	t.evicted, t.deaths = map[string]uint64{}, nil
	for i := range outcomes {
		if err := t.settle(&outcomes[i]); err != nil {
			return err
		}
	}
	if in != nil {
		if err := t.ingest(in); err != nil {
			return err
		}
	}
	return t.conclude()
}

// conclude writes the totals of the changed receivers.
func (t *transaction) conclude() error {
	for id, m := range t.metas {
		raw, err := json.Marshal(m)
		if err != nil {
			return err
		}
		if b := t.own(id); b != nil {
			if err := b.Put(keyMeta, raw); err != nil {
				return err
			}
		}
	}
	return nil
}

// own returns the bucket of a receiver, or nil.
func (t *transaction) own(id string) *bolt.Bucket {
	return t.tx.Bucket(bucketReceivers).Bucket([]byte(id))
}

// meta returns the totals of a receiver, with the changes of this transaction.
func (t *transaction) meta(id string) meta {
	if m, ok := t.metas[id]; ok {
		return m
	}
	return t.store.meta(id)
}

// open returns the bucket of a receiver, making it if necessary.
func (t *transaction) open(id string, org hangar.OrgID) (*bolt.Bucket, error) {
	if b := t.own(id); b != nil {
		return b, nil
	}
	b, err := t.tx.Bucket(bucketReceivers).CreateBucket([]byte(id))
	if err != nil {
		return nil, err
	}
	for _, name := range [][]byte{bucketQueue, bucketDead, bucketLog} {
		if _, err := b.CreateBucket(name); err != nil {
			return nil, err
		}
	}
	t.metas[id] = meta{Org: org}
	return b, nil
}

func (t *transaction) ingest(in *ingestion) error {
	for i := range in.inserts {
		one := &in.inserts[i]
		if err := t.enqueue(one.receiver, one.org, &one.entry); err != nil {
			return fmt.Errorf("queue of receiver %s: %w", one.receiver, err)
		}
	}
	if err := t.bound(in.inserts); err != nil {
		return err
	}
	return t.tx.Bucket(bucketCursor).Put(keyCursor, numberKey(in.cursor))
}

// enqueue puts an entry at the end of a queue.
func (t *transaction) enqueue(id string, org hangar.OrgID, e *entry) error {
	raw, err := e.encode()
	if err != nil {
		return err
	}
	if err := t.store.o.admit(int64(len(raw))); err != nil {
		return err
	}
	own, err := t.open(id, org)
	if err != nil {
		return err
	}
	queue := own.Bucket(bucketQueue)
	number, err := queue.NextSequence()
	if err != nil {
		return err
	}
	m := t.meta(id)
	m.Waiting++
	m.Bytes += int64(len(raw))
	t.total += int64(len(raw))
	t.metas[id] = m
	return queue.Put(numberKey(number), raw)
}

// bound gives up the oldest entries of queues that have become too long.
func (t *transaction) bound(inserts []insert) error {
	limits := t.store.o.limits
	orgs := map[hangar.OrgID]bool{}
	for i := range inserts {
		one := &inserts[i]
		if m := t.meta(one.receiver); m.Bytes > limits.ReceiverBytes {
			if err := t.evict(one.receiver, m.Bytes-limits.ReceiverBytes); err != nil {
				return err
			}
		}
		orgs[one.org] = one.org != ""
	}
	for org, bounded := range orgs {
		for bounded {
			longest, sum := t.longest(func(m meta) bool { return m.Org == org })
			if sum <= limits.OrgBytes {
				break
			}
			if err := t.evict(longest, t.part(longest)); err != nil {
				return err
			}
		}
	}
	for t.total > limits.TotalBytes {
		longest, _ := t.longest(func(meta) bool { return true })
		if err := t.evict(longest, t.part(longest)); err != nil {
			return err
		}
	}
	return nil
}

// longest returns the receiver with the most waiting bytes among those that of selects, and the
// bytes of all of these.
func (t *transaction) longest(of func(meta) bool) (id string, sum int64) {
	most := int64(-1)
	look := func(one string, m meta) {
		if !of(m) {
			return
		}
		if sum += m.Bytes; m.Bytes > most {
			id, most = one, m.Bytes
		}
	}
	for one, m := range t.metas {
		look(one, m)
	}
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	for one, m := range t.store.metas {
		if _, touched := t.metas[one]; !touched {
			look(one, m)
		}
	}
	return id, sum
}

// part is how many bytes of the longest queue are given up before the longest is determined again.
func (t *transaction) part(id string) int64 { return t.meta(id).Bytes/8 + 1 }

// evict gives up the oldest entries of a queue until size bytes are freed.
func (t *transaction) evict(id string, size int64) error {
	queue := t.own(id).Bucket(bucketQueue)
	var numbers []uint64
	var entries [][]byte
	c := queue.Cursor()
	for k, v := c.First(); k != nil && size > 0; k, v = c.Next() {
		size -= int64(len(v))
		numbers, entries = append(numbers, binary.BigEndian.Uint64(k)), append(entries, v)
	}
	for i, number := range numbers {
		e, err := decodeEntry(entries[i])
		if err != nil {
			e = entry{}
		}
		e.Reason = hangar.DeathQueueFull
		if err := t.dequeue(id, number, int64(len(entries[i]))); err != nil {
			return err
		}
		if err := t.addDeadLetter(id, number, &e); err != nil {
			return err
		}
		t.evicted[id] = number
	}
	return nil
}

// dequeue removes an entry of a size from a queue.
func (t *transaction) dequeue(id string, number uint64, size int64) error {
	m := t.meta(id)
	m.Waiting--
	m.Bytes -= size
	t.total -= size
	t.metas[id] = m
	return t.own(id).Bucket(bucketQueue).Delete(numberKey(number))
}

// addDeadLetter adds a dead letter under its number in the queue, and drops the oldest beyond the limits.
func (t *transaction) addDeadLetter(id string, number uint64, e *entry) error {
	raw, err := e.encode()
	if err != nil {
		return err
	}
	t.deaths = append(t.deaths, e.Reason)
	dead := t.own(id).Bucket(bucketDead)
	if err := dead.Put(numberKey(number), raw); err != nil {
		return err
	}
	m := t.meta(id)
	m.Dead++
	m.DeadBytes += int64(len(raw))
	for m.Dead > t.store.o.limits.Dead || m.DeadBytes > t.store.o.limits.DeadBytes {
		k, v := dead.Cursor().First()
		if k == nil {
			break
		}
		m.Dead--
		m.DeadBytes -= int64(len(v))
		m.Dropped++
		if err := dead.Delete(append([]byte(nil), k...)); err != nil {
			return err
		}
	}
	t.metas[id] = m
	return nil
}

// settle writes an outcome.
func (t *transaction) settle(o *outcome) error {
	own := t.own(o.receiver)
	if own == nil {
		return nil // the receiver was removed meanwhile
	}
	queue, key := own.Bucket(bucketQueue), numberKey(o.number)
	was := queue.Get(key)
	if was == nil {
		if o.result == delivered { // it was given up while it was in flight
			if err := t.removeDeadLetter(o.receiver, key); err != nil {
				return err
			}
			return t.record(o.receiver, &o.entry)
		}
		return nil
	}
	size := int64(len(was))
	switch o.result {
	case retried:
		raw, err := o.entry.encode()
		if err != nil {
			return err
		}
		m := t.meta(o.receiver)
		m.Bytes += int64(len(raw)) - size
		t.total += int64(len(raw)) - size
		t.metas[o.receiver] = m
		return queue.Put(key, raw)
	case givenUp:
		if err := t.dequeue(o.receiver, o.number, size); err != nil {
			return err
		}
		return t.addDeadLetter(o.receiver, o.number, &o.entry)
	case delivered:
		if err := t.dequeue(o.receiver, o.number, size); err != nil {
			return err
		}
		return t.record(o.receiver, &o.entry)
	default:
		return t.dequeue(o.receiver, o.number, size)
	}
}

// removeDeadLetter removes a dead letter.
func (t *transaction) removeDeadLetter(id string, key []byte) error {
	dead := t.own(id).Bucket(bucketDead)
	was := dead.Get(key)
	if was == nil {
		return nil
	}
	m := t.meta(id)
	m.Dead--
	m.DeadBytes -= int64(len(was))
	t.metas[id] = m
	return dead.Delete(key)
}

// record adds an entry to the log, and drops the oldest beyond the limit.
func (t *transaction) record(id string, e *entry) error {
	raw, err := e.encode()
	if err != nil {
		return err
	}
	log := t.own(id).Bucket(bucketLog)
	number, err := log.NextSequence()
	if err != nil {
		return err
	}
	if err := log.Put(numberKey(number), raw); err != nil {
		return err
	}
	m := t.meta(id)
	m.Logged++
	for m.Logged > t.store.o.limits.Log {
		k, _ := log.Cursor().First()
		if k == nil {
			break
		}
		m.Logged--
		if err := log.Delete(append([]byte(nil), k...)); err != nil {
			return err
		}
	}
	t.metas[id] = m
	return nil
}
