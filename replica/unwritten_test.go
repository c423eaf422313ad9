package replica_test

import (
	"bytes"
	"errors"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/replica"
	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/txlog"
)

// fail makes a write to the file with a suffix fail, after a number of writes that succeed.
func (d *disk) fail(suffix string, spared int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full, d.spared = suffix, spared
}

// bound keeps the file with a suffix from growing, empty: none, and says how many bytes are free.
func (d *disk) bound(suffix string, free uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.small, d.free = suffix, free
}

// kept returns the files that have room beyond their end.
func (d *disk) kept() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.beyond))
}

// failed reports whether a write has failed since fail.
func (d *disk) failed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.full == ""
}

// postImport imports a file and returns the status.
func (n *testNode) postImport(db string, file []byte) int {
	n.t.Helper()
	resp, err := http.Post(n.url+"/import?name="+db, "", bytes.NewReader(file))
	if err != nil {
		n.t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		n.t.Fatal(err)
	}
	return resp.StatusCode
}

// TestDropUnderReader removes a database that a program on the replica has open, while the replica is connected and
// while it is not. All databases continue to arrive.
func TestDropUnderReader(t *testing.T) {
	for _, connected := range []bool{true, false} {
		name := map[bool]string{true: "connected", false: "resync"}[connected]
		t.Run(name, func(t *testing.T) {
			primary := startNode(t, nodeConfig{})
			primary.ready()
			other := startNode(t, nodeConfig{primary: primary.url})
			other.ready()
			for _, db := range []string{"a.db", "b.db"} {
				primary.exec(db, "wal", "CREATE TABLE t(v)", "INSERT INTO t VALUES(1)")
				same(t, primary, other, db)
			}
			reader := startWorker(t, workerJob{Path: other.path("a.db") + "?mode=ro", Statements: []string{"SELECT * FROM t"}, Hold: true})
			eventually(t, "the reader", func() bool { return reader.count() == 1 })
			if err := os.Remove(primary.path("a.db")); err != nil {
				t.Fatal(err)
			}
			if !connected {
				db := primary.Find("a.db")
				if err := db.Log().Reset(db.Pos(), 1); err != nil {
					t.Fatal(err)
				}
			}
			primary.exec("b.db", "", "INSERT INTO t VALUES(2)")
			same(t, primary, other, "b.db")
			eventually(t, "the drop", func() bool {
				_, err := os.Stat(other.path("a.db"))
				return os.IsNotExist(err)
			})
			for _, file := range []string{"a.db-wal", "a.db-shm"} { // of programs on the primary
				if err := os.Remove(primary.path(file)); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
			}
			primary.exec("a.db", "wal", "CREATE TABLE t(v)", "INSERT INTO t VALUES('new')")
			same(t, primary, other, "a.db")
		})
	}
}

// TestFullReplica: the disk of a replica is full when it writes a transaction that its log already has.
func TestFullReplica(t *testing.T) {
	for _, journal := range []string{"wal", "delete"} {
		t.Run(journal, func(t *testing.T) {
			n := startNode(t, nodeConfig{})
			n.ready()
			d := newDisk(t)
			other := startNode(t, nodeConfig{primary: n.url, slow: true, with: func(c *replica.Config) { c.Data = d.dir }})
			other.ready()
			n.exec("app.db", journal, "CREATE TABLE t(v)")
			same(t, n, other, "app.db")
			d.fail("files/app.db", 0)
			n.exec("app.db", journal, "INSERT INTO t VALUES(1)")
			eventually(t, "the failure", d.failed)
			n.exec("app.db", journal, "INSERT INTO t VALUES(2)")
			same(t, n, other, "app.db")
			if diverged, _ := other.Find("app.db").Diverged(); diverged {
				t.Error("still diverged")
			}
		})
	}
}

// TestFinish: a node whose disk was full becomes the primary, and has the transaction that only its log had.
func TestFinish(t *testing.T) {
	n := startNode(t, nodeConfig{})
	n.ready()
	n.exec("app.db", "delete", "CREATE TABLE t(v)", "INSERT INTO t VALUES(randomblob(9000))")
	want, _ := n.export("app.db")
	_, db, pos := unfinished(t, n)
	if err := database.Finish(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if differed, err := db.Reconcile(); differed || err != nil {
		t.Error(differed, err)
	}
	if got := exported(t, db); db.Pos() != pos || !bytes.Equal(got, want) {
		t.Errorf("other content at %s", db.Pos())
	}
}

// TestFinishWithoutTheLog: if the log has lost the transaction that its files lack, the content counts, and becomes
// the next one.
func TestFinishWithoutTheLog(t *testing.T) {
	n := startNode(t, nodeConfig{})
	n.ready()
	n.exec("app.db", "delete", "CREATE TABLE t(v)", "INSERT INTO t VALUES(randomblob(9000))")
	d, db, pos := unfinished(t, n)
	logs, err := filepath.Glob(filepath.Join(d.dir, "log", "0*"))
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	damage(t, logs[len(logs)-1])
	if err := database.Finish(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	if differed, err := db.Reconcile(); !differed || err != nil || db.Pos().TXID != pos.TXID+1 {
		t.Error(differed, db.Pos(), err)
	}
}

// damage flips the last byte of a file.
func damage(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 0xff
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// unfinished returns a copy of the database of a node, on a disk of its own, whose files lack the last transaction,
// and the position after that.
func unfinished(t *testing.T, n *testNode) (*disk, *database.DB, ltx.Pos) {
	t.Helper()
	d := newDisk(t)
	db, err := database.Open(database.Config{Name: "app.db", Dir: d.dir, Log: filepath.Join(d.dir, "log")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	log := n.Find("app.db").Log()
	r, err := log.After(log.Base())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for db.Pos() != log.Pos() {
		b, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		tx, err := txlog.Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		last := tx.Pos() == log.Pos()
		if last {
			d.fail("app.db", 0)
		}
		if err := db.Apply(t.Context(), tx, b, r.Epoch()); err != nil != last {
			t.Fatal(tx.MinTXID, err)
		}
	}
	return d, db, log.Pos()
}

// TestFullImport: the disk is full during an import that the log already has. The next commit, or the next import,
// brings content and position together again.
func TestFullImport(t *testing.T) {
	for _, again := range []string{"commit", "import"} {
		t.Run(again, func(t *testing.T) {
			d := newDisk(t)
			n := startNode(t, nodeConfig{with: func(c *replica.Config) { c.Data = d.dir }})
			n.ready()
			other := startNode(t, nodeConfig{primary: n.url})
			other.ready()
			n.exec("app.db", "delete", "CREATE TABLE t(v)", "INSERT INTO t VALUES(randomblob(20000))")
			imported, _ := n.export("app.db")
			n.exec("app.db", "delete", "UPDATE t SET v=randomblob(20000)")
			same(t, n, other, "app.db")
			d.fail("files/app.db", 0)
			if got := n.postImport("app.db", imported); got != http.StatusInternalServerError {
				t.Error("status ", got)
			}
			if diverged, _ := n.Find("app.db").Diverged(); !diverged {
				t.Error("not known to differ")
			}
			if again == "commit" {
				n.exec("app.db", "", "INSERT INTO t VALUES(1)")
			} else if got := n.postImport("app.db", imported); got != http.StatusOK {
				t.Error("status ", got)
			} else if b, _ := n.export("app.db"); !bytes.Equal(b, imported) {
				t.Error("the import has other content")
			}
			same(t, n, other, "app.db")
			if diverged, _ := n.Find("app.db").Diverged(); diverged {
				t.Error("still diverged")
			}
		})
	}
}

// TestTornImport: an import fails when some of its pages are in the database file. No program makes a transaction of
// the mixture: the next commit follows the import, or, if the log does not have the import, the next import.
func TestTornImport(t *testing.T) {
	for name, pageSize := range map[string]string{"logged": "4096", "unlogged": "8192"} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			n := startNode(t, nodeConfig{with: func(c *replica.Config) { c.Data = d.dir }})
			n.ready()
			other := startNode(t, nodeConfig{primary: n.url})
			other.ready()
			n.exec("new.db", "delete", "PRAGMA page_size="+pageSize, "CREATE TABLE t(v)", "INSERT INTO t VALUES(randomblob(40000))")
			imported, _ := n.export("new.db")
			n.exec("app.db", "delete", "CREATE TABLE t(v)", "INSERT INTO t VALUES(randomblob(40000))")
			same(t, n, other, "app.db")
			d.fail("files/app.db", 3)
			if got := n.postImport("app.db", imported); got != http.StatusInternalServerError {
				t.Error("status ", got)
			}
			wrote := make(chan error, 1)
			go func() {
				wrote <- workerJob{Path: n.path("app.db"), Statements: []string{"PRAGMA user_version=7"}}.inProcess(t)
			}()
			if name == "unlogged" {
				select {
				case err := <-wrote:
					t.Fatal("a program has written: ", err)
				case <-time.After(time.Second):
				}
				if got := n.postImport("app.db", imported); got != http.StatusOK {
					t.Error("status ", got)
				}
			}
			if err := <-wrote; err != nil {
				t.Fatal(err)
			}
			same(t, n, other, "app.db")
			const blob = 12288 // both have it in the last pages
			if got, _ := n.export("app.db"); len(got) != len(imported) || !bytes.Equal(got[blob:], imported[blob:]) {
				t.Error("the import has other content")
			}
			if diverged, _ := n.Find("app.db").Diverged(); diverged {
				t.Error("still diverged")
			}
		})
	}
}

// TestUnwrittenImportInPlainDirectory: where logs are read, an import that the log has and the files do not is completed,
// and not undone by a transaction.
func TestUnwrittenImportInPlainDirectory(t *testing.T) {
	d := newDisk(t)
	n := startNode(t, nodeConfig{capture: replica.Tail, with: func(c *replica.Config) { c.Dir = d.dir }})
	n.dir = d.dir
	n.ready()
	n.exec("new.db", "wal", "CREATE TABLE t(v)", "INSERT INTO t VALUES(randomblob(40000))")
	mustBeCaptured(t, n, "new.db")
	imported, _ := n.export("new.db")
	n.exec("app.db", "wal", "CREATE TABLE t(v)", "INSERT INTO t VALUES(randomblob(40000))")
	mustBeCaptured(t, n, "app.db")
	d.fail("app.db-wal", 0)
	if got := n.postImport("app.db", imported); got != http.StatusInternalServerError {
		t.Error("status ", got)
	}
	eventually(t, "the import", func() bool {
		diverged, _ := n.Find("app.db").Diverged()
		return !diverged
	})
	if got, _ := n.export("app.db"); !bytes.Equal(got, imported) {
		t.Error("the import has other content")
	}
}

// TestRemoveTorn removes a database of which an import has written some pages.
func TestRemoveTorn(t *testing.T) {
	d := newDisk(t)
	n := startNode(t, nodeConfig{with: func(c *replica.Config) { c.Data = d.dir }})
	n.ready()
	n.exec("new.db", "delete", "PRAGMA page_size=8192", "CREATE TABLE t(v)", "INSERT INTO t VALUES(randomblob(40000))")
	imported, _ := n.export("new.db")
	n.exec("app.db", "delete", "CREATE TABLE t(v)", "INSERT INTO t VALUES(randomblob(40000))")
	d.fail("files/app.db", 3)
	if got := n.postImport("app.db", imported); got != http.StatusInternalServerError {
		t.Error("status ", got)
	}
	if err := os.Remove(n.path("app.db")); err != nil {
		t.Fatal(err)
	}
	n.exec("app.db", "delete", "CREATE TABLE other(v)")
	mustBeCaptured(t, n, "app.db")
}

func exported(t *testing.T, db *database.DB) []byte {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "export"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := db.Export(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return b
}
