package journal

import (
	"bytes"
	"encoding/binary"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
)

// Pending is a Machine whose latest change has not been published.
type Pending struct {
	ID      hangar.MachineID
	Seq     uint64       // of the commit that last changed it
	Deleted bool         // retract its row
	AppID   hangar.AppID // of a deleted Machine; empty if an earlier version of hangar deleted it
}

// PendingVolume is a volume whose latest change has not been published.
type PendingVolume struct {
	Ref     hangar.VolumeRef
	Seq     uint64 // of the commit that last changed it
	Deleted bool   // retract its row
}

// kind is the kind of an outbox entry. Each kind has buckets of its own.
type kind byte

const (
	ofMachine kind = iota
	ofVolume
)

func kinds() []kind { return []kind{ofMachine, ofVolume} }

// outbox returns the bucket of a kind's entries, and the bucket that names the latest entry of each
// id.
func (k kind) outbox(tx *bolt.Tx) (entries, latest *bolt.Bucket) {
	if k == ofVolume {
		return tx.Bucket(bucketVolumeOutbox), tx.Bucket(bucketVolumeLatest)
	}
	return tx.Bucket(bucketOutbox), tx.Bucket(bucketLatest)
}

// outboxKey names an entry of the outbox: one change of a Machine or volume.
type outboxKey struct {
	kind kind
	id   string
	seq  uint64
}

// bytes returns the key in the file, which sorts entries by commit.
func (k outboxKey) bytes() []byte {
	return append(binary.BigEndian.AppendUint64(nil, k.seq), k.id...)
}

// maxAcked is how many published entries may wait for the commit that forgets them. After a crash at
// most that many rows are published again, which is harmless, because their seq is not new.
const maxAcked = 256

// unpublished puts a record at the end of the outbox. A record has only one entry, because the
// publisher reads its latest content. more is what the publisher needs to retract a deleted record.
func (t *Tx) unpublished(of kind, id string, seq uint64, deleted bool, more string) error {
	entries, latest := of.outbox(t.tx)
	if old := latest.Get([]byte(id)); old != nil {
		if err := entries.Delete(append(bytes.Clone(old), id...)); err != nil {
			return err
		}
	}
	k := outboxKey{of, id, seq}.bytes()
	value := []byte{0}
	if deleted {
		value[0] = 1
	}
	if err := entries.Put(k, append(value, more...)); err != nil {
		return err
	}
	t.call.outbox = true
	return latest.Put([]byte(id), k[:8])
}

// forget removes published entries, unless a later change has replaced them.
func forget(tx *bolt.Tx, keys []outboxKey) error {
	for _, k := range keys {
		entries, latest := k.kind.outbox(tx)
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

// lagging reports whether anything is unpublished.
func lagging(tx *bolt.Tx) bool {
	for _, of := range kinds() {
		entries, _ := of.outbox(tx)
		if entries == nil {
			continue // the journal is older than this kind
		}
		if k, _ := entries.Cursor().First(); k != nil {
			return true
		}
	}
	return false
}

// Unpublished returns at most limit Machines that have changed since they were last published, those
// that have waited longest first; limit 0: all.
func (j *Journal) Unpublished(limit int) ([]Pending, error) {
	var items []Pending
	err := j.waiting(ofMachine, limit, func(k outboxKey, deleted bool, app string) {
		items = append(items, Pending{ID: hangar.MachineID(k.id), Seq: k.seq, Deleted: deleted, AppID: hangar.AppID(app)})
	})
	return items, err
}

// UnpublishedVolumes is Unpublished for volumes.
func (j *Journal) UnpublishedVolumes(limit int) ([]PendingVolume, error) {
	var items []PendingVolume
	err := j.waiting(ofVolume, limit, func(k outboxKey, deleted bool, app string) {
		ref := hangar.VolumeRef{AppID: hangar.AppID(app), ID: hangar.VolumeID(k.id)}
		items = append(items, PendingVolume{Ref: ref, Seq: k.seq, Deleted: deleted})
	})
	return items, err
}

// waiting yields the oldest entries of a kind.
func (j *Journal) waiting(of kind, limit int, yield func(k outboxKey, deleted bool, more string)) error {
	return j.view(func(tx *bolt.Tx) error {
		// The acked set is read after the transaction began. An entry leaves the set only after its
		// removal was committed. So this transaction may still show an entry that has just left the
		// set; returning it again does no harm.
		j.mu.Lock()
		defer j.mu.Unlock()
		entries, _ := of.outbox(tx)
		n := 0
		c := entries.Cursor()
		for k, v := c.First(); k != nil; k, v = c.Next() {
			key := outboxKey{kind: of, id: string(k[8:]), seq: binary.BigEndian.Uint64(k)}
			if _, ok := j.acked[key]; ok {
				continue
			}
			yield(key, v[0] == 1, string(v[1:]))
			if n++; n == limit {
				return nil
			}
		}
		return nil
	})
}

// PublishSome publishes the oldest items of an outbox, each of another Machine or volume, and returns how many. The
// other functions are those of the Journal, for one kind.
func PublishSome[P any](unpublished func(limit int) ([]P, error), published func([]P) error, publish func(P) error) (int, error) {
	const batch, parallel = 256, 16
	items, err := unpublished(batch)
	if err != nil || len(items) == 0 {
		return 0, err
	}
	var group errgroup.Group
	group.SetLimit(parallel)
	for _, p := range items {
		group.Go(func() error { return publish(p) })
	}
	if err := group.Wait(); err != nil {
		return 0, err
	}
	return len(items), published(items)
}

// Published removes items from the outbox, except those that have changed again since. It costs no
// flush of its own: the removal becomes durable with a later commit or with Close, and a crash before
// that restores the items.
func (j *Journal) Published(items []Pending) error {
	keys := make([]outboxKey, 0, len(items))
	for _, p := range items {
		keys = append(keys, outboxKey{ofMachine, string(p.ID), p.Seq})
	}
	return j.ack(keys)
}

// PublishedVolumes is Published for volumes.
func (j *Journal) PublishedVolumes(items []PendingVolume) error {
	keys := make([]outboxKey, 0, len(items))
	for _, p := range items {
		keys = append(keys, outboxKey{ofVolume, string(p.Ref.ID), p.Seq})
	}
	return j.ack(keys)
}

func (j *Journal) ack(keys []outboxKey) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return ErrClosed
	}
	for _, k := range keys {
		j.acked[k] = struct{}{}
	}
	if len(j.acked) >= maxAcked {
		signal(j.wake)
	}
	return nil
}

// dropAcked drops entries from acked after a commit has made their removal durable.
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
