package replica_test

import (
	"bytes"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hangar-platform/hangar/replica"
)

// whole compares the export of a database with its log, and its checksum with a full scan.
func whole(t *testing.T, n *testNode, db string) {
	t.Helper()
	b, _ := n.export(db)
	last := n.Find(db).Last()
	if got := fullSum(b, last.PageSize); got != last.Pos.PostApplyChecksum {
		t.Errorf("a full scan has %s, the position %s", got, last.Pos.PostApplyChecksum)
	}
	if !bytes.Equal(b, n.replay(db)) {
		t.Error("log and export differ")
	}
}

// TestExclusive uses locking modes in which SQLite keeps its locks, and in WAL mode has no index
// file.
func TestExclusive(t *testing.T) {
	for _, journal := range []string{"wal", "delete", "truncate", "persist"} {
		t.Run(journal, func(t *testing.T) {
			n := startNode(t, nodeConfig{})
			n.ready()
			n.exec("app.db", "", "PRAGMA locking_mode=EXCLUSIVE", "PRAGMA journal_mode="+journal, "CREATE TABLE t(v)",
				"INSERT INTO t VALUES(1)", "INSERT INTO t VALUES(2)", "DELETE FROM t WHERE v=1", "PRAGMA wal_checkpoint(TRUNCATE)",
				"INSERT INTO t VALUES(randomblob(9000))")
			want := 5
			if journal == "wal" {
				want = 6 // and the change of mode
			}
			if got := int(n.Find("app.db").Pos().TXID); got != want {
				t.Errorf("%d transactions, not %d", got, want)
			}
			whole(t, n, "app.db")
		})
	}
}

// TestPageSize changes the size of the pages of a database, which a chain of transactions cannot do.
func TestPageSize(t *testing.T) {
	n := startNode(t, nodeConfig{})
	n.ready()
	other := startNode(t, nodeConfig{primary: n.url})
	other.ready()
	n.exec("app.db", "delete", "CREATE TABLE t(v)", "INSERT INTO t VALUES(randomblob(20000))")
	same(t, n, other, "app.db")
	events := record(t, n.url+"/events")
	n.exec("app.db", "delete", "PRAGMA page_size=1024", "VACUUM")
	all := mustSettle(t, n, events, "app.db")
	if len(all) != 2 || all[0].Data.Commit != 0 || all[0].Data.PostApplyChecksum != 1<<63 || all[1].Data.PageSize != 1024 {
		t.Errorf("events: %s", events.lines())
	}
	same(t, n, other, "app.db")
	whole(t, n, "app.db")
}

// TestLostLog loses the end of the log, as in a power failure, and all of it. Transactions in the
// WAL are captured again with the same numbers and checksums; otherwise the database becomes one
// transaction.
func TestLostLog(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, segment string, size int64){
		"end": func(t *testing.T, segment string, size int64) {
			if err := os.Truncate(segment, size-900); err != nil { // in the middle of a record
				t.Fatal(err)
			}
		},
		"all": func(t *testing.T, segment string, _ int64) {
			if err := os.Remove(segment); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			n := startNode(t, nodeConfig{root: root})
			n.ready()
			n.exec("app.db", "wal", "CREATE TABLE t(v)")
			// A program that is still running keeps the WAL.
			conn, err := open(n.path("app.db"), "wal")
			if err != nil {
				t.Fatal(err)
			}
			for i := range 20 {
				if _, err := conn.Exec(fmt.Sprintf("INSERT INTO t VALUES(randomblob(%d))", 500+i)); err != nil {
					t.Fatal(err)
				}
			}
			before := n.Find("app.db").Pos()
			n.stop()
			conn.Close()
			segment := filepath.Join(root, "data", "log", "app.db", "0000000000000001.seg")
			info, err := os.Stat(segment)
			if err != nil {
				t.Fatal(err)
			}
			lose(t, segment, info.Size())
			n = startNode(t, nodeConfig{root: root})
			n.ready()
			after := n.Find("app.db").Pos()
			if name == "end" && after != before || name == "all" && (after.TXID != 1 || after.PostApplyChecksum != before.PostApplyChecksum) {
				t.Errorf("position %s before, %s after", before, after)
			}
			n.exec("app.db", "", "INSERT INTO t VALUES(1)")
			whole(t, n, "app.db")
		})
	}
}

// TestHotJournal opens a database whose writer died in the middle of a transaction, together with
// the node.
func TestHotJournal(t *testing.T) {
	root := t.TempDir()
	n := startNode(t, nodeConfig{root: root})
	n.ready()
	n.exec("app.db", "delete", "CREATE TABLE t(v)",
		"WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM c WHERE i<200) INSERT INTO t SELECT randomblob(900) FROM c")
	conn, err := open(n.path("app.db"), "delete")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"PRAGMA cache_size=5", "BEGIN", "UPDATE t SET v=randomblob(800)"} { // spills
		if _, err := conn.Exec(s); err != nil {
			t.Fatal(err)
		}
	}
	before := n.Find("app.db").Pos()
	if info, err := os.Stat(filepath.Join(root, "data", "files", "app.db-journal")); err != nil || info.Size() < 1000 {
		t.Fatal("no journal: ", err)
	}
	n.stop()
	conn.Close()
	n = startNode(t, nodeConfig{root: root})
	n.ready()
	if after := n.Find("app.db").Pos(); after != before {
		t.Errorf("position %s before, %s after", before, after)
	}
	integrity(t, n.path("app.db"))
	whole(t, n, "app.db")
}

// TestTwoDatabases commits a transaction of two databases, which has a journal of its own.
func TestTwoDatabases(t *testing.T) {
	n := startNode(t, nodeConfig{})
	n.ready()
	for _, db := range []string{"a.db", "b.db"} {
		n.exec(db, "delete", "CREATE TABLE t(v)")
	}
	conn, err := sql.Open("sqlite3", "file:"+n.path("a.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetMaxOpenConns(1)
	for _, s := range []string{"ATTACH '" + n.path("b.db") + "' AS b", "BEGIN", "INSERT INTO main.t VALUES(1)", "INSERT INTO b.t VALUES(1)", "COMMIT"} {
		if _, err := conn.Exec(s); err != nil {
			t.Fatal(s, err)
		}
	}
	for _, db := range []string{"a.db", "b.db"} {
		if got := n.Find(db).Pos().TXID; got != 2 {
			t.Errorf("%s is at %s", db, got)
		}
		whole(t, n, db)
	}
}

// TestReplicaWithoutPassthrough: transactions wait until no program has the database open.
func TestReplicaWithoutPassthrough(t *testing.T) {
	n := startNode(t, nodeConfig{})
	n.ready()
	other := startNode(t, nodeConfig{primary: n.url, slow: true})
	other.ready()
	n.exec("app.db", "wal", "CREATE TABLE t(v)", "INSERT INTO t VALUES(1)")
	same(t, n, other, "app.db")
	n.exec("app.db", "wal", "INSERT INTO t VALUES(2)")
	same(t, n, other, "app.db")
	if got := other.Info().Capture; got != "strict, without passthrough" {
		t.Error(got)
	}
}

// TestTailReplica: a replica without a mount follows, with a reader of an old snapshot.
func TestTailReplica(t *testing.T) {
	n := startNode(t, nodeConfig{})
	n.ready()
	other := startNode(t, nodeConfig{primary: n.url, capture: replica.Tail})
	other.ready()
	n.exec("app.db", "wal", "CREATE TABLE t(v)", "INSERT INTO t VALUES(1)")
	same(t, n, other, "app.db")
	n.exec("app.db", "wal", "INSERT INTO t VALUES(2)", "VACUUM")
	same(t, n, other, "app.db")
}
