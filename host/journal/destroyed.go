package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/hangar-platform/hangar"
)

// The prefixes of keys in the index of destroyed Machines. Each Machine has one key of every kind,
// which ends with its id. The keys of all Machines, and those of an App, are sorted by time; the keys
// of an organization are sorted by id.
const (
	byTime byte = 't'
	byApp  byte = 'a'
	byOrg  byte = 'o'
)

// timeLen is the length of a time in a key.
const timeLen = 8

func appendTime(key []byte, t time.Time) []byte {
	return binary.BigEndian.AppendUint64(key, uint64(max(0, t.UnixNano())))
}

// ownerKey ends the owner with a zero byte, which no id contains.
func ownerKey(kind byte, owner string) []byte { return append(append([]byte{kind}, owner...), 0) }

func destroyedKeys(r *Record) [][]byte {
	keys := [][]byte{
		appendTime([]byte{byTime}, r.DestroyedAt), appendTime(ownerKey(byApp, string(r.Machine.AppID)), r.DestroyedAt), ownerKey(byOrg, string(r.OrgID)),
	}
	for i := range keys {
		keys[i] = append(keys[i], r.Machine.ID...)
	}
	return keys
}

// PutDestroyed moves the record of a destroyed Machine, with its events and versions, out of the list
// of Machines, and sets r.Seq to the number of this commit. It removes the Machine's lease, health,
// busy time and secrets, and marks a retraction as unpublished.
func (t *Tx) PutDestroyed(r *Record) error {
	if _, err := t.unindex(r.Machine.ID); err != nil {
		return err
	}
	seq, err := t.putRecord(bucketDestroyed, r)
	if err != nil {
		return err
	}
	key := []byte(r.Machine.ID)
	for _, name := range [][]byte{bucketMachines, bucketLeases, bucketHealth, bucketBusy} {
		if err := t.tx.Bucket(name).Delete(key); err != nil {
			return fmt.Errorf("delete %s of machine %s: %w", name, r.Machine.ID, err)
		}
	}
	if err := t.KeepSecrets(r.Machine.ID); err != nil {
		return err
	}
	index := t.tx.Bucket(bucketDestroyedIndex)
	for _, key := range destroyedKeys(r) {
		if err := index.Put(key, nil); err != nil {
			return fmt.Errorf("index destroyed machine %s: %w", r.Machine.ID, err)
		}
	}
	return t.unpublished(ofMachine, string(r.Machine.ID), seq, true, string(r.Machine.AppID))
}

// ForgetDestroyed removes the record, events and versions of a destroyed Machine. A missing record is
// not an error.
func (t *Tx) ForgetDestroyed(id hangar.MachineID) error {
	key, err := machineKey(id)
	if err != nil {
		return err
	}
	if _, err := t.begin(); err != nil {
		return err
	}
	if there, err := t.unindex(id); err != nil || !there {
		return err
	}
	if err := t.tx.Bucket(bucketDestroyed).Delete(key); err != nil {
		return fmt.Errorf("delete machine %s: %w", id, err)
	}
	for _, name := range [][]byte{bucketEvents, bucketVersions} {
		if err := (series{t.tx.Bucket(name), id}).clear(); err != nil {
			return fmt.Errorf("delete %s of machine %s: %w", name, id, err)
		}
	}
	return nil
}

// unindex removes a Machine from the index, and reports whether it was in it.
func (t *Tx) unindex(id hangar.MachineID) (bool, error) {
	if t.tx == nil {
		return false, errTxEnded
	}
	r, err := readRecord(t.tx.Bucket(bucketDestroyed), id, t.call.pool)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, key := range destroyedKeys(r) {
		if err := t.tx.Bucket(bucketDestroyedIndex).Delete(key); err != nil {
			return false, fmt.Errorf("delete the index of machine %s: %w", id, err)
		}
	}
	return true, nil
}

// Destroyed returns the record of a destroyed Machine, or ErrNotFound.
func (j *Journal) Destroyed(id hangar.MachineID) (*Record, error) {
	var r *Record
	err := j.view(func(tx *bolt.Tx) (err error) {
		r, err = readRecord(tx.Bucket(bucketDestroyed), id, &j.pool)
		return err
	})
	return r, err
}

// DestroyedOfApp returns at most limit destroyed Machines of an App, newest first. A record that does
// not parse is logged, counted and skipped.
func (j *Journal) DestroyedOfApp(app hangar.AppID, limit int) ([]*Record, error) {
	owner := ownerKey(byApp, string(app))
	var read []written
	err := j.view(func(tx *bolt.Tx) error {
		c, records := tx.Bucket(bucketDestroyedIndex).Cursor(), tx.Bucket(bucketDestroyed)
		k, _ := c.Seek(append(bytes.Clone(owner), 0xff)) // after every time
		if k == nil {
			k, _ = c.Last()
		} else {
			k, _ = c.Prev()
		}
		for ; bytes.HasPrefix(k, owner) && len(read) < limit; k, _ = c.Prev() {
			id := k[len(owner)+timeLen:]
			read = append(read, written{id: hangar.MachineID(id), record: bytes.Clone(records.Get(id))})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return j.parse(read), nil
}

// DestroyedOfOrg yields the destroyed Machines of an organization whose ids are greater than after,
// sorted by id, until there is an error. A record that does not parse is logged, counted and skipped.
// The Journal may be used meanwhile; later writes may or may not be seen.
func (j *Journal) DestroyedOfOrg(org hangar.OrgID, after hangar.MachineID) iter.Seq2[*Record, error] {
	owner := ownerKey(byOrg, string(org))
	return func(yield func(*Record, error) bool) {
		for more := true; more; {
			var read []written
			err := j.view(func(tx *bolt.Tx) error {
				c, records := tx.Bucket(bucketDestroyedIndex).Cursor(), tx.Bucket(bucketDestroyed)
				start := append(bytes.Clone(owner), after...)
				k, _ := c.Seek(start)
				if after != "" && bytes.Equal(k, start) {
					k, _ = c.Next()
				}
				for ; bytes.HasPrefix(k, owner) && len(read) < machinesPerRead; k, _ = c.Next() {
					id := k[len(owner):]
					read = append(read, written{id: hangar.MachineID(id), record: bytes.Clone(records.Get(id))})
				}
				more = bytes.HasPrefix(k, owner)
				return nil
			})
			if err != nil {
				yield(nil, err)
				return
			}
			for _, r := range j.parse(read) {
				if !yield(r, nil) {
					return
				}
			}
			if len(read) > 0 {
				after = read[len(read)-1].id
			}
		}
	}
}

// DestroyedBefore returns the Machines that were destroyed before a time, oldest first.
func (j *Journal) DestroyedBefore(t time.Time) ([]hangar.MachineID, error) {
	var ids []hangar.MachineID
	end := appendTime([]byte{byTime}, t)
	err := j.view(func(tx *bolt.Tx) error {
		c := tx.Bucket(bucketDestroyedIndex).Cursor()
		for k, _ := c.Seek([]byte{byTime}); k != nil && bytes.Compare(k, end) < 0; k, _ = c.Next() {
			ids = append(ids, hangar.MachineID(k[len(end):]))
		}
		return nil
	})
	return ids, err
}
