package journal

import (
	"bytes"
	"encoding/binary"

	bolt "go.etcd.io/bbolt"

	"github.com/hangar-platform/hangar"
)

// Pending is a Machine whose latest change has not been published.
type Pending struct {
	ID      hangar.MachineID
	Seq     uint64 // of the commit that changed it last
	Deleted bool   // its row is to be retracted
}

// outboxKey names an entry of the outbox: one change of one Machine.
type outboxKey struct {
	id  hangar.MachineID
	seq uint64
}

// bytes order entries by commit.
func (k outboxKey) bytes() []byte {
	return append(binary.BigEndian.AppendUint64(nil, k.seq), k.id...)
}

// maxAcked is how many published entries may wait for a commit that forgets them.
// After a crash that many rows at most are published once more, which is harmless:
// their seq is not new.
const maxAcked = 256

// unpublished puts the Machine at the end of the outbox. A Machine has one entry,
// its latest: whoever publishes reads the record as it is then.
func (t *Tx) unpublished(id hangar.MachineID, seq uint64, deleted bool) error {
	entries, latest := t.tx.Bucket(bucketOutbox), t.tx.Bucket(bucketLatest)
	if old := latest.Get([]byte(id)); old != nil {
		if err := entries.Delete(append(bytes.Clone(old), id...)); err != nil {
			return err
		}
	}
	k := outboxKey{id, seq}.bytes()
	value := []byte{0}
	if deleted {
		value[0] = 1
	}
	if err := entries.Put(k, value); err != nil {
		return err
	}
	t.call.outbox = true
	return latest.Put([]byte(id), k[:8])
}

// forget removes entries that were published and not replaced since.
func forget(tx *bolt.Tx, keys []outboxKey) error {
	entries, latest := tx.Bucket(bucketOutbox), tx.Bucket(bucketLatest)
	for _, k := range keys {
		b := k.bytes()
		if entries.Get(b) == nil {
			continue
		}
		if err := entries.Delete(b); err != nil {
			return err
		}
		if err := latest.Delete([]byte(k.id)); err != nil {
			return err
		}
	}
	return nil
}

// Unpublished returns at most limit Machines that changed since they were last
// published, the one that has waited longest first; limit 0: all.
func (j *Journal) Unpublished(limit int) ([]Pending, error) {
	var items []Pending
	err := j.view(func(tx *bolt.Tx) error {
		// The acked set is read after the transaction began: an entry that leaves
		// the set leaves it only once its removal is committed, so one that this
		// transaction still shows and that is gone from the set was removed
		// later, and being named once more does no harm.
		j.mu.Lock()
		defer j.mu.Unlock()
		c := tx.Bucket(bucketOutbox).Cursor()
		for k, v := c.First(); k != nil; k, v = c.Next() {
			key := outboxKey{id: hangar.MachineID(k[8:]), seq: binary.BigEndian.Uint64(k)}
			if _, ok := j.acked[key]; ok {
				continue
			}
			items = append(items, Pending{ID: key.id, Seq: key.seq, Deleted: v[0] == 1})
			if len(items) == limit {
				return nil
			}
		}
		return nil
	})
	return items, err
}

// Published takes items off the outbox, save those that changed again since. It
// costs no flush of its own: the removal becomes durable with a later commit or
// with Close, and until then a crash brings items back.
func (j *Journal) Published(items []Pending) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return ErrClosed
	}
	for _, p := range items {
		j.acked[outboxKey{p.ID, p.Seq}] = struct{}{}
	}
	if len(j.acked) >= maxAcked {
		signal(j.wake)
	}
	return nil
}

// dropAcked forgets what a commit has made durable.
func (j *Journal) dropAcked(keys []outboxKey) {
	if len(keys) == 0 {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, k := range keys {
		delete(j.acked, k)
	}
}
