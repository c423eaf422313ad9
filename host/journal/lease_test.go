package journal_test

import (
	"path/filepath"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

func putLease(t *testing.T, j *journal.Journal, id hangar.MachineID, l *hangar.Lease) {
	t.Helper()
	if err := j.Commit(func(tx *journal.Tx) error { return tx.PutLease(id, l) }); err != nil {
		t.Fatal(err)
	}
}

func TestLease(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := reopen(t, path, journal.Options{})
	id := machineID(1)
	want := hangar.Lease{Nonce: "a1", Owner: "ada", Description: "mine", ExpiresAt: time.Date(2026, 8, 14, 9, 57, 35, 0, time.UTC)}
	putLease(t, j, id, &want)
	if pending, err := j.Unpublished(0); err != nil || len(pending) > 0 {
		t.Errorf("a lease is to be published: %v, %v", pending, err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = reopen(t, path, journal.Options{})
	if got, err := j.Lease(id); err != nil || got == nil || *got != want {
		t.Errorf("Lease = %+v, %v, want %+v", got, err, want)
	}
	putLease(t, j, id, nil)
	if got, err := j.Lease(id); err != nil || got != nil {
		t.Errorf("Lease = %+v, %v after its end", got, err)
	}
}

// TestJournalFromBeforeLeases opens it like any other; an unreadable lease counts as none.
func TestJournalFromBeforeLeases(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := reopen(t, path, journal.Options{})
	put(t, j, record(machineID(1), "m"))
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	alter(t, path, func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte("leases")) })
	j = reopen(t, path, journal.Options{})
	if got, err := j.Lease(machineID(1)); err != nil || got != nil || len(all(t, j)) != 1 {
		t.Errorf("Lease = %+v, %v, Machines = %v", got, err, all(t, j))
	}
	putLease(t, j, machineID(1), &hangar.Lease{Nonce: "a1"})
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	alter(t, path, func(tx *bolt.Tx) error { return tx.Bucket([]byte("leases")).Put([]byte(machineID(1)), []byte("{")) })
	j = reopen(t, path, journal.Options{})
	if got, err := j.Lease(machineID(1)); err != nil || got != nil || j.Stats().Unreadable != 1 {
		t.Errorf("Lease = %+v, %v, Unreadable = %d", got, err, j.Stats().Unreadable)
	}
}
