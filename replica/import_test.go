package replica_test

import (
	"bytes"
	"database/sql"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/locks"
	"github.com/hangar-platform/hangar/replica/sqlite"
	"github.com/hangar-platform/hangar/replica/tail"
)

// TestImportOverJournal imports a database whose writer died in the middle of a transaction.
func TestImportOverJournal(t *testing.T) {
	root := t.TempDir()
	n := startNode(t, nodeConfig{root: root})
	n.ready()
	n.exec("app.db", "delete", "CREATE TABLE t(v)",
		"WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM c WHERE i<200) INSERT INTO t SELECT randomblob(900) FROM c")
	imported, _ := n.export("app.db")
	n.exec("app.db", "delete", "UPDATE t SET v=randomblob(900) WHERE rowid<50")
	w := startWorker(t, workerJob{Path: n.path("app.db"), Journal: "delete", Hold: true, Statements: []string{
		"PRAGMA cache_size=5", "BEGIN", "UPDATE t SET v=randomblob(800)", // spills
	}})
	eventually(t, "the transaction", func() bool { return w.count() == 1 })
	if err := w.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-w.done
	file := filepath.Join(root, "data", "files", "app.db")
	if info, err := os.Stat(file + "-journal"); err != nil || info.Size() < 1000 {
		t.Fatal("no journal: ", err)
	}
	if got := n.postImport("app.db", imported); got != http.StatusOK {
		t.Fatal("status ", got)
	}
	integrity(t, n.path("app.db"))
	if b, err := os.ReadFile(file); err != nil || !bytes.Equal(b, imported) {
		t.Errorf("the file differs from the import: %v", err)
	}
	whole(t, n, "app.db")
	if diverged, _ := n.Find("app.db").Diverged(); diverged {
		t.Error("diverged")
	}
}

// TestImportOverCommits imports a database in a plain directory, in which a program has just committed.
func TestImportOverCommits(t *testing.T) {
	for _, closed := range []bool{false, true} {
		name := map[bool]string{false: "open", true: "closed"}[closed]
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "app.db")
			conn, err := open(path, "wal")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			exec := func(statement string) {
				t.Helper()
				if _, err := conn.Exec(statement); err != nil {
					t.Fatal(err)
				}
			}
			exec("CREATE TABLE t(v)")
			exec("INSERT INTO t VALUES(randomblob(9000))")
			files := tail.New(tail.Config{Dir: dir})
			defer files.Close()
			db, err := database.Open(database.Config{
				Name: "app.db", Dir: dir, Log: filepath.Join(t.TempDir(), "log"), Live: true,
				Locks:  func(f database.File) (locks.Ranges, error) { return files.Locks("app.db", f) },
				Shared: files.Shared, Gone: func(f database.File) { files.Gone("app.db", f) },
			})
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if _, err := db.Reconcile(); err != nil {
				t.Fatal(err)
			}
			imported := exported(t, db)
			exec("UPDATE t SET v=randomblob(9000)")
			if closed {
				if err := conn.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := db.Import(t.Context(), bytes.NewReader(imported)); err != nil {
				t.Fatal(err)
			}
			if err := db.CaptureWAL(true); err != nil {
				t.Fatal(err)
			}
			if got := exported(t, db); !bytes.Equal(got, imported) {
				t.Error("the import has other content")
			}
		})
	}
}

// oneOwner is a lock that does not exclude its owner from itself, like one of a process.
type oneOwner struct {
	held  atomic.Bool
	taken chan struct{}
}

func (o *oneOwner) Set(mode locks.Mode, start, _ uint64) error {
	if start == sqlite.SharedFirst {
		o.held.Store(mode == locks.Exclusive)
		o.taken <- struct{}{}
	} else if start == sqlite.PendingByte && mode == locks.None {
		o.held.Store(false)
	}
	return nil
}

// TestTwoImports imports a file while another import writes: each has the database locked until it has ended.
func TestTwoImports(t *testing.T) {
	dir := t.TempDir()
	conn, err := sql.Open("sqlite3", filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var files [2][]byte
	for i, statement := range []string{"CREATE TABLE t(v)", "INSERT INTO t VALUES(1)"} {
		if _, err := conn.Exec(statement); err != nil {
			t.Fatal(err)
		}
		if files[i], err = os.ReadFile(filepath.Join(dir, "file")); err != nil {
			t.Fatal(err)
		}
	}
	lock := &oneOwner{taken: make(chan struct{}, 10)}
	var db *database.DB
	second := make(chan error, 1)
	load := func(file []byte) error {
		_, err := db.Import(t.Context(), bytes.NewReader(file))
		return err
	}
	begin := sync.OnceFunc(func() {
		go func() { second <- load(files[1]) }()
		select {
		case <-lock.taken:
		case <-time.After(time.Second / 4):
		}
	})
	db, err = database.Open(database.Config{
		Name: "app.db", Dir: dir, Log: filepath.Join(dir, "log"),
		Locks: func(database.File) (locks.Ranges, error) { return lock, nil },
		Written: func(database.File, int64, int64) {
			if len(lock.taken) > 0 {
				<-lock.taken // of this import
			}
			begin()
			if !lock.held.Load() {
				t.Error("it writes without the lock")
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := load(files[0]); err != nil {
		t.Fatal(err)
	}
	if err := <-second; err != nil {
		t.Fatal(err)
	}
}
