package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/hangar-platform/hangar"
)

// Tx writes to the journal. It is valid only while the function that received it runs.
type Tx struct {
	tx     *bolt.Tx // nil once the function has returned
	call   *call
	number uint64 // of this commit; 0 until something is written
}

var errTxEnded = errors.New("journal: use of a Tx after its commit")

// begin is called before every write. It returns the number of this commit.
func (t *Tx) begin() (uint64, error) {
	if t.tx == nil {
		return 0, errTxEnded
	}
	if t.number == 0 {
		n, err := t.tx.Bucket(bucketCommits).NextSequence()
		if err != nil {
			return 0, err
		}
		t.number = n
		t.call.wrote = true
	}
	return t.number, nil
}

// PutMachine writes r, sets r.Seq to the number of this commit and marks the Machine as unpublished.
// It does not store the events of r.Machine; see AppendEvent. It refuses a record that could not be
// read back.
func (t *Tx) PutMachine(r *Record) error {
	seq, err := t.putRecord(bucketMachines, r)
	if err != nil {
		return err
	}
	return t.unpublished(ofMachine, string(r.Machine.ID), seq, false, "")
}

// putRecord writes r and sets r.Seq to the number of this commit, which it returns.
func (t *Tx) putRecord(bucket []byte, r *Record) (seq uint64, err error) {
	key, err := machineKey(r.Machine.ID)
	if err != nil {
		return 0, err
	}
	if seq, err = t.begin(); err != nil {
		return 0, err
	}
	stored := *r
	stored.Seq = seq
	stored.Machine.Events, stored.Machine.Checks = nil, nil
	value, err := hangar.EncodeJSON(&stored)
	if err != nil {
		return 0, fmt.Errorf("encode machine %s: %w", r.Machine.ID, err)
	}
	// A record that cannot be read back would be lost at the next start, with everything that it owns.
	// So it is refused while a caller can still report the error.
	if _, err := decodeRecord(value, t.call.pool); err != nil {
		return 0, fmt.Errorf("record of machine %s does not survive encoding: %w", r.Machine.ID, err)
	}
	if err := t.tx.Bucket(bucket).Put(key, value); err != nil {
		return 0, fmt.Errorf("write machine %s: %w", r.Machine.ID, err)
	}
	r.Seq = seq
	return seq, nil
}

// PutLease writes the lease of a Machine; nil: no lease. It is not published.
func (t *Tx) PutLease(id hangar.MachineID, l *hangar.Lease) error {
	key, err := machineKey(id)
	if err != nil {
		return err
	}
	if _, err := t.begin(); err != nil {
		return err
	}
	b := t.tx.Bucket(bucketLeases)
	if l == nil {
		return b.Delete(key)
	}
	value, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("encode lease of machine %s: %w", id, err)
	}
	if err := b.Put(key, value); err != nil {
		return fmt.Errorf("write lease of machine %s: %w", id, err)
	}
	return nil
}

// PutBusy writes the time until which a Machine has declared itself busy; the zero time: it is not
// busy. It is not published.
func (t *Tx) PutBusy(id hangar.MachineID, until time.Time) error {
	key, err := machineKey(id)
	if err != nil {
		return err
	}
	if _, err := t.begin(); err != nil {
		return err
	}
	b := t.tx.Bucket(bucketBusy)
	if until.IsZero() {
		return b.Delete(key)
	}
	if err := b.Put(key, until.UTC().AppendFormat(nil, time.RFC3339Nano)); err != nil {
		return fmt.Errorf("write busy time of machine %s: %w", id, err)
	}
	return nil
}

// PutHealth writes the result of a Machine's health checks, sets h.Seq to the number of this commit
// and marks the Machine as unpublished. It does nothing for a Machine without a record.
func (t *Tx) PutHealth(id hangar.MachineID, h *Health) error {
	key, err := machineKey(id)
	if err != nil {
		return err
	}
	seq, err := t.begin()
	if err != nil {
		return err
	}
	if t.tx.Bucket(bucketMachines).Get(key) == nil {
		return nil
	}
	stored := *h
	stored.Seq = seq
	value, err := json.Marshal(&stored)
	if err != nil {
		return fmt.Errorf("encode health of machine %s: %w", id, err)
	}
	if err := t.tx.Bucket(bucketHealth).Put(key, value); err != nil {
		return fmt.Errorf("write health of machine %s: %w", id, err)
	}
	h.Seq = seq
	return t.unpublished(ofMachine, string(id), seq, false, "")
}

// AppendEvent adds the newest event of a Machine. It drops the oldest ones beyond MaxEvents.
func (t *Tx) AppendEvent(id hangar.MachineID, e hangar.Event) error {
	if _, err := machineKey(id); err != nil {
		return err
	}
	if _, err := t.begin(); err != nil {
		return err
	}
	value, err := json.Marshal(&e)
	if err != nil {
		return fmt.Errorf("encode event of machine %s: %w", id, err)
	}
	if err := (series{t.tx.Bucket(bucketEvents), id}).add(value, MaxEvents); err != nil {
		return fmt.Errorf("write event of machine %s: %w", id, err)
	}
	return nil
}

// PutVersion adds the newest version of a Machine, or replaces the config of the newest if it is that
// version. It drops the oldest ones beyond MaxVersions.
func (t *Tx) PutVersion(id hangar.MachineID, v hangar.MachineVersion) error {
	if _, err := machineKey(id); err != nil {
		return err
	}
	if _, err := t.begin(); err != nil {
		return err
	}
	value, err := hangar.EncodeJSON(&v)
	if err != nil {
		return fmt.Errorf("encode version of machine %s: %w", id, err)
	}
	s := series{t.tx.Bucket(bucketVersions), id}
	if key, newest := s.last(); key != nil {
		var have hangar.MachineVersion
		if err := json.Unmarshal(newest, &have); err == nil && have.Version == v.Version {
			return s.bucket.Put(key, value)
		}
	}
	if err := s.add(value, MaxVersions); err != nil {
		return fmt.Errorf("write version of machine %s: %w", id, err)
	}
	return nil
}

// NextNumber returns a number, from 1 on, that no earlier commit has returned. Numbers of failed
// commits are reused.
func (t *Tx) NextNumber() (uint64, error) {
	if _, err := t.begin(); err != nil {
		return 0, err
	}
	return t.tx.Bucket(bucketNumbers).NextSequence()
}

// SetSetting stores value under key; an empty value removes it.
func (t *Tx) SetSetting(key string, value []byte) error {
	if _, err := t.begin(); err != nil {
		return err
	}
	b := t.tx.Bucket(bucketSettings)
	if len(value) == 0 {
		return b.Delete([]byte(key))
	}
	return b.Put([]byte(key), value)
}

// Machine returns the record as this commit sees it, or ErrNotFound.
func (t *Tx) Machine(id hangar.MachineID) (*Record, error) {
	if t.tx == nil {
		return nil, errTxEnded
	}
	return readRecord(t.tx.Bucket(bucketMachines), id, t.call.pool)
}

// Setting returns the value under key as this commit sees it, or ErrNotFound.
func (t *Tx) Setting(key string) ([]byte, error) {
	if t.tx == nil {
		return nil, errTxEnded
	}
	return readSetting(t.tx, key)
}

func machineKey(id hangar.MachineID) ([]byte, error) { return keyOf("machine", string(id)) }

// keyOf checks that an id can be part of a key: some keys end an id with a zero byte.
func keyOf(what, id string) ([]byte, error) {
	if id == "" || len(id) > 64 {
		return nil, fmt.Errorf("journal: %s id %q is empty or too long", what, id)
	}
	if strings.Contains(id, "\x00") {
		return nil, fmt.Errorf("journal: %s id %q contains a zero byte", what, id)
	}
	return []byte(id), nil
}
