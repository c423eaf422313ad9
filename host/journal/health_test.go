package journal_test

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// TestHealthIsReadWithTheRecord and has a part in its Seq.
func TestHealthIsReadWithTheRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := reopen(t, path, journal.Options{})
	since := time.Now()
	rec := record("a", "one")
	rec.Since = since
	put(t, j, rec)
	h := &journal.Health{Since: since, Checks: []hangar.MachineCheck{{Name: "c", Status: hangar.CheckPassing, Output: "ok", UpdatedAt: since}}}
	commit(t, j, func(tx *journal.Tx) error { return tx.PutHealth("a", h) })
	if h.Seq <= rec.Seq {
		t.Errorf("health has seq %d after the record's %d", h.Seq, rec.Seq)
	}
	if items := unpublished(t, j, 0); len(items) != 1 || items[0].Seq != h.Seq {
		t.Errorf("Unpublished = %+v, want seq %d", items, h.Seq)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j = reopen(t, path, journal.Options{})
	got, err := j.Machine("a")
	if err != nil {
		t.Fatal(err)
	}
	if got.Seq != h.Seq || got.Health == nil || !got.Health.Since.Equal(got.Since) || len(got.Health.Checks) != 1 || got.Health.Checks[0].Output != "ok" {
		t.Errorf("read back %+v with health %+v", got, got.Health)
	}
	// A change of the record does not repeat the health, and has a Seq of its own.
	got.Machine.Checks = got.Health.Checks
	put(t, j, got)
	if next := all(t, j)["a"]; next.Seq <= h.Seq || next.Health.Seq != h.Seq || next.Machine.Checks != nil {
		t.Errorf("after the next commit of the record: %+v, health %+v", next, next.Health)
	}
	commit(t, j, func(tx *journal.Tx) error { return tx.PutDestroyed(record("a", "m")) })
	commit(t, j, func(tx *journal.Tx) error { return tx.PutHealth("a", h) }) // came too late
	if _, err := j.Machine("a"); !errors.Is(err, journal.ErrNotFound) {
		t.Errorf("Machine = %v", err)
	}
	put(t, j, record("a", "again"))
	if got := all(t, j)["a"]; got.Health != nil {
		t.Errorf("a new record has the health of a deleted one: %+v", got.Health)
	}
}

func TestUnreadableHealthIsSkipped(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := reopen(t, path, journal.Options{})
	put(t, j, record("a", "one"))
	commit(t, j, func(tx *journal.Tx) error { return tx.PutHealth("a", &journal.Health{}) })
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(db.Update(func(tx *bolt.Tx) error { return tx.Bucket([]byte("health")).Put([]byte("a"), []byte("{")) }), db.Close())
	if err != nil {
		t.Fatal(err)
	}
	j = reopen(t, path, journal.Options{})
	if got, err := j.Machine("a"); err != nil || got.Health != nil || j.Stats().Unreadable != 1 {
		t.Errorf("Machine = %+v, %v; %d unreadable", got, err, j.Stats().Unreadable)
	}
}
