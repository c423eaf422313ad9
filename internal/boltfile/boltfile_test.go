package boltfile_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/hangar-platform/hangar/internal/boltfile"
)

var name = []byte("bucket")

// fill makes a bucket with several pages.
func fill(tx *bolt.Tx) error {
	b, err := tx.CreateBucketIfNotExists(name)
	for i := 0; i < 50 && err == nil; i++ {
		err = b.Put([]byte{byte(i)}, make([]byte, 3000))
	}
	return err
}

// headers are the bytes of the pages that every transaction reads.
var headers = int64(2 * os.Getpagesize())

// cut makes all pages but some unreadable: touching one faults, as if the disk did not read it.
func cut(t *testing.T, path string, to int64) {
	t.Helper()
	if err := os.Truncate(path, to); err != nil {
		t.Fatal(err)
	}
}

func TestOpenReplaceable(t *testing.T) {
	empty := func(tx *bolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists([]byte("other"))
		return err
	}
	read := func(tx *bolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists(name)
		if err != nil {
			return err
		}
		return b.ForEach(func(_, v []byte) error { _ = bytes.Clone(v); return nil })
	}
	for what, c := range map[string]struct {
		to    int64
		setUp func(tx *bolt.Tx) error
	}{
		"the free pages are not readable": {headers, empty},
		"a value is not readable":         {30 * headers / 2, read},
	} {
		t.Run(what, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file.db")
			db, err := boltfile.OpenReplaceable(path, bolt.Options{}, fill, func(err error) { t.Error(err) })
			if err != nil {
				t.Fatal(err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			cut(t, path, c.to)
			var lost error
			db, err = boltfile.OpenReplaceable(path, bolt.Options{}, c.setUp, func(err error) { lost = err })
			if err != nil || !errors.Is(lost, boltfile.ErrDamaged) {
				t.Fatalf("%v; what was lost: %v", err, lost)
			}
			if info, err := os.Stat(path + ".damaged"); err != nil || info.Size() != c.to {
				t.Errorf("the damaged file is not put aside: %v", err)
			}
			if err := errors.Join(boltfile.Update(db, fill), db.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestTransactions: one that comes upon an unreadable page fails and changes nothing, and holds no lock.
func TestTransactions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file.db")
	db, err := boltfile.Open(path, bolt.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := boltfile.Update(db, fill); err != nil {
		t.Fatal(err)
	}
	get := func(tx *bolt.Tx) error { _ = bytes.Clone(tx.Bucket(name).Get([]byte{3})); return nil }
	if err := boltfile.View(db, get); err != nil {
		t.Fatal(err)
	}
	cut(t, path, headers)
	if err := boltfile.View(db, get); !errors.Is(err, boltfile.ErrDamaged) {
		t.Errorf("the read: %v", err)
	}
	for range 2 {
		if err := boltfile.Update(db, fill); !errors.Is(err, boltfile.ErrDamaged) {
			t.Errorf("the write: %v", err)
		}
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

func TestErrorsStay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file.db")
	db, err := boltfile.Open(path, bolt.Options{})
	if err != nil {
		t.Fatal(err)
	}
	refused := errors.New("refused")
	refuse := func(*bolt.Tx) error { return refused }
	for _, err := range []error{boltfile.View(db, refuse), boltfile.Update(db, refuse)} {
		if err != refused { //nolint:errorlint // as it is
			t.Error(err)
		}
	}
	err = boltfile.Update(db, func(tx *bolt.Tx) error { return errors.Join(fill(tx), refused) })
	if !errors.Is(err, refused) {
		t.Error(err)
	}
	if err := boltfile.View(db, func(tx *bolt.Tx) error {
		if tx.Bucket(name) != nil {
			t.Error("a write that failed is visible")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(path, []byte("no database"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := boltfile.Open(path, bolt.Options{}); !errors.Is(err, boltfile.ErrDamaged) {
		t.Error(err)
	}
}
