package journal_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/hangar-platform/hangar/host/journal"
)

func TestUnreadableRecordHarmsNoOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := reopen(t, path, journal.Options{})
	for i := range 3 {
		put(t, j, record(machineID(i), "m"))
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	alter(t, path, func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("machines")).Put([]byte(machineID(1)), []byte(`{"machine":`))
	})
	j = reopen(t, path, journal.Options{})
	if got := all(t, j); len(got) != 2 || got[machineID(1)] != nil {
		t.Errorf("Machines = %v", got)
	}
	if n := j.Stats().Unreadable; n != 1 {
		t.Errorf("Unreadable = %d", n)
	}
	if _, err := j.Machine(machineID(1)); !errors.Is(err, journal.ErrNotFound) {
		t.Errorf("Machine = %v", err)
	}
	ids, err := j.IDs()
	if err != nil || len(ids) != 3 {
		t.Errorf("IDs = %v, %v: what it holds is still claimed", ids, err)
	}
}

func alter(t *testing.T, path string, fn func(tx *bolt.Tx) error) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Update(fn), db.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	valid := func(t *testing.T, path string) {
		t.Helper()
		j := reopen(t, path, journal.Options{NoSync: true})
		for i := range 200 {
			put(t, j, record(machineID(i), strings.Repeat("n", 500)))
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	write := func(t *testing.T, path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cut := func(size int64) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			t.Helper()
			valid(t, path)
			if err := os.Truncate(path, size); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		make func(t *testing.T, path string)
		text string
	}{
		"empty":         {func(t *testing.T, p string) { t.Helper(); write(t, p, "") }, "no database header"},
		"text":          {func(t *testing.T, p string) { t.Helper(); write(t, p, strings.Repeat("not a database\n", 5000)) }, "no database header"},
		"directory":     {func(t *testing.T, p string) { t.Helper(); _ = os.Mkdir(p, 0o700) }, "no regular file"},
		"cut to a page": {cut(4096), "cut off"},
		"cut in half":   {cut(64 << 10), "cut off"},
		"other program": {func(t *testing.T, p string) {
			t.Helper()
			alter(t, p, func(tx *bolt.Tx) error {
				_, err := tx.CreateBucket([]byte("etcd"))
				return err
			})
		}, "another program"},
		"newer format": {func(t *testing.T, p string) {
			t.Helper()
			valid(t, p)
			alter(t, p, func(tx *bolt.Tx) error {
				return tx.Bucket([]byte("hangar journal")).Put([]byte("version"), []byte("2"))
			})
		}, "has format 2"},
		"bucket lost": {func(t *testing.T, p string) {
			t.Helper()
			valid(t, p)
			alter(t, p, func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte("outbox")) })
		}, `"outbox" is missing`},
		"both headers damaged": {func(t *testing.T, p string) {
			t.Helper()
			valid(t, p)
			f, err := os.OpenFile(p, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			_, err = f.WriteAt(make([]byte, 8192), 0)
			if err := errors.Join(err, f.Close()); err != nil {
				t.Fatal(err)
			}
		}, "no database header"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "journal")
			c.make(t, path)
			before, _ := os.ReadFile(path)
			j, err := journal.Open(path, journal.Options{})
			if err == nil {
				t.Fatal(errors.Join(errors.New("it was opened"), j.Close()))
			}
			if !errors.Is(err, journal.ErrFormat) || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), path) {
				t.Errorf("error %q: want ErrFormat, %q and the path", err, c.text)
			}
			if after, _ := os.ReadFile(path); string(after) != string(before) {
				t.Error("the file was altered")
			}
		})
	}
}

// TestDamagedPages overwrites pages that the header still refers to: the damage causes an error and
// does not end the process.
func TestDamagedPages(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := reopen(t, path, journal.Options{NoSync: true})
	for i := range 300 {
		put(t, j, record(machineID(i), strings.Repeat("n", 300)))
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	page := os.Getpagesize()
	write := func(b []byte, n int) {
		t.Helper()
		if _, err := f.WriteAt(b, int64(n*page)); err != nil {
			t.Fatal(err)
		}
	}
	refused := 0
	for n := 2; n*page < min(len(good), 120*page); n++ {
		write(bytes.Repeat([]byte{0xA5}, page), n)
		j, err := journal.Open(path, journal.Options{LockTimeout: time.Second})
		if err == nil {
			err = errors.Join(j.Machines(func(*journal.Record) error { return nil }), second(j.IDs()))
			if cerr := j.Close(); cerr != nil {
				t.Error(cerr)
			}
		}
		if err != nil {
			refused++
			if !errors.Is(err, journal.ErrFormat) {
				t.Errorf("page %d: %v", n, err)
			}
		}
		write(good[n*page:(n+1)*page], n)
	}
	if refused == 0 {
		t.Error("no damage was noticed")
	}
}

// unread makes all pages but the headers unreadable: touching one faults, as if the disk did not read it.
func unread(t *testing.T, path string) {
	t.Helper()
	if err := os.Truncate(path, int64(2*os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
}

// TestCommitThatReadsABadSector fails, and no other commit in the transaction.
func TestCommitThatReadsABadSector(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := reopen(t, path, journal.Options{})
	put(t, j, record(machineID(1), "m"))
	release := hold(t, j)
	errs := make(chan error, 2)
	go func() { errs <- j.Commit(func(*journal.Tx) error { return nil }) }()
	queued(j, 1)
	go func() { errs <- j.Commit(func(tx *journal.Tx) error { return second(tx.Machine(machineID(1))) }) }()
	queued(j, 2)
	unread(t, path)
	release()
	err := errors.Join(<-errs, <-errs)
	if !errors.Is(err, journal.ErrFormat) || errors.Is(err, journal.ErrBroken) || strings.Contains(err.Error(), "\n") {
		t.Errorf("the commits: %v", err)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}

// TestBadSectorDuringACommit breaks the journal.
func TestBadSectorDuringACommit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j := reopen(t, path, journal.Options{})
	put(t, j, record(machineID(1), "m"))
	err := j.Commit(func(tx *journal.Tx) error {
		defer unread(t, path)
		return tx.PutMachine(record(machineID(2), "m"))
	})
	if !errors.Is(err, journal.ErrBroken) {
		t.Errorf("the commit: %v", err)
	}
	<-j.Broken()
	if err := j.Commit(func(*journal.Tx) error { return nil }); !errors.Is(err, journal.ErrBroken) {
		t.Errorf("the next commit: %v", err)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}

func TestOneHeaderDamagedIsSurvived(t *testing.T) {
	for _, page := range []int64{0, 1} {
		path := filepath.Join(t.TempDir(), "journal")
		j := reopen(t, path, journal.Options{})
		put(t, j, record(machineID(1), "first"))
		put(t, j, record(machineID(2), "second"))
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteAt(make([]byte, 100), page*int64(os.Getpagesize()))
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		j = reopen(t, path, journal.Options{})
		if got := all(t, j); got[machineID(1)] == nil {
			t.Errorf("header %d damaged: %v", page, got)
		}
	}
}

func TestHalfMadeJournalIsMadeAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	if err := os.WriteFile(path+".new", []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	j := reopen(t, path, journal.Options{})
	put(t, j, record(machineID(1), "m"))
	if _, err := os.Stat(path + ".new"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the draft is still there: %v", err)
	}
}
