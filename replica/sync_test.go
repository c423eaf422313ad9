package replica_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/replica"
	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/lease"
	"github.com/hangar-platform/hangar/replica/txlog"
)

// TestSync: commits wait for a replica. Without one they are not acknowledged: in rollback mode
// SQLite undoes the transaction, in WAL mode no other can begin. Once the replica is back, both
// continue.
func TestSync(t *testing.T) {
	for _, journal := range []string{"wal", "delete"} {
		t.Run(journal, func(t *testing.T) {
			c := newCluster(t, 1)
			c.timeout = 5 * time.Second
			for _, name := range []string{"a", "b"} {
				c.roots[name] = t.TempDir()
				c.start(name)
			}
			name, primary := c.primary()
			c.connected(name)
			other := c.others(name)[0]
			eventually(t, "the quorum", func() bool {
				return workerJob{Path: primary.path("app.db"), Journal: journal, Statements: []string{"CREATE TABLE IF NOT EXISTS t(v)"}}.inProcess(t) == nil &&
					!primary.Info().Databases[0].Late
			})
			program := startWorker(t, workerJob{Path: primary.path("app.db"), Register: true})
			eventually(t, "a commit", func() bool { return strings.HasPrefix(program.ask("one"), "acked") })
			acked := primary.Find("app.db").Pos().TXID
			if got := c.nodes[other].Position("app.db"); got < acked {
				t.Errorf("acknowledged %s, and the replica has %s", acked, got)
			}
			c.nodes[other].stop()
			if got := program.ask("two"); !strings.HasPrefix(got, "unknown") {
				t.Fatal("without the replica: ", got)
			}
			if !primary.Info().Databases[0].Late {
				t.Error("the database is not late")
			}
			if got := program.ask("three"); !strings.HasPrefix(got, "refused") {
				t.Error("while the database is late: ", got)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			if err := primary.WaitReplicas(ctx, "app.db", acked+1, 1); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			if b, err := os.ReadFile(primary.path("app.db-synced")); err != nil || !strings.HasPrefix(string(b), acked.String()+"/") {
				t.Errorf("synced %q, acknowledged %s: %v", b, acked, err)
			}
			c.start(other)
			want := map[string]string{"wal": "acked two", "delete": "acked one"}[journal]
			var got string
			eventually(t, "the replica to be there", func() bool { got = program.ask("four"); return !strings.HasPrefix(got, "refused") })
			if got != want {
				t.Errorf("with the replica again: %s, not %s", got, want)
			}
			if err := primary.WaitReplicas(context.Background(), "app.db", primary.Position("app.db"), 1); err != nil {
				t.Error(err)
			}
			c.same("app.db")
		})
	}
}

// TestDiverged: a primary commits what no other node gets, is cut off, and comes back. Its
// transactions are put aside, as transactions and as pages, and lead from the new content to the
// old.
func TestDiverged(t *testing.T) {
	c := newCluster(t, 0, "a", "b")
	name, primary := c.primary()
	primary.exec("app.db", "wal", "CREATE TABLE t(v)", "INSERT INTO t VALUES(1)")
	c.connected(name)
	c.same("app.db")
	other := c.others(name)[0]
	// Replicas are cut off first.
	c.net.separate([2]string{name, other})
	primary.exec("app.db", "wal", "INSERT INTO t VALUES('lost 1')", "INSERT INTO t VALUES(randomblob(9000))")
	old, at := primary.export("app.db")
	epoch := primary.Info().Epoch
	c.net.isolate(name, other, "etcd")
	_, second := c.primary(name)
	second.exec("app.db", "wal", "INSERT INTO t VALUES('kept')")
	fresh, freshAt := second.export("app.db")
	c.net.separate()
	c.connected(other)
	c.same("app.db")
	aside := primary.Info().Aside
	if aside.Files != 3 || aside.Bytes == 0 {
		t.Errorf("put aside: %+v", aside)
	}
	var names []string
	file, pages := fresh, 0
	err := filepath.WalkDir(aside.Path, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		names = append(names, e.Name())
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		tx, err := txlog.Decode(b)
		if err != nil {
			return err
		}
		if strings.Contains(e.Name(), "-pages-") {
			pages++
			if pre := (ltx.Pos{TXID: tx.MinTXID - 1, PostApplyChecksum: tx.PreApplyChecksum}).String(); pre != freshAt {
				t.Errorf("the pages follow %s, not %s", pre, freshAt)
			}
			file = apply(file, tx)
		}
		return nil
	})
	if err != nil || pages != 1 || string(file) != string(old) {
		t.Errorf("%v: the pages in %v do not lead to what was at %s", err, names, at)
	}
	resp, err := http.Get(primary.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(b), "\nhangar_db_aside_files 3\n") {
		t.Errorf("metrics: %s %v", b, err)
	}
	if epoch == 0 || second.Info().Aside.Files != 0 {
		t.Error("the new primary has put something aside")
	}
	primary.stop()
	primary = c.start(name)
	if again := primary.Info().Aside; again != aside {
		t.Errorf("after a restart %+v, before %+v", again, aside)
	}
}

// apply applies a transaction to a database file.
func apply(file []byte, tx *txlog.Tx) []byte {
	size := int(tx.Commit) * int(tx.PageSize)
	next := make([]byte, size)
	copy(next, file)
	for _, p := range tx.Pages {
		copy(next[int(p.Number-1)*int(tx.PageSize):], p.Data)
	}
	return next
}

// TestOrphan: a program commits after its node has lost the lease. In rollback mode the commit
// fails; in WAL mode SQLite cannot handle an error, and the transaction is put aside.
func TestOrphan(t *testing.T) {
	for _, journal := range []string{"wal", "delete"} {
		t.Run(journal, func(t *testing.T) {
			c := newCluster(t, 0, "a", "b")
			name, primary := c.primary()
			primary.exec("app.db", journal, "CREATE TABLE t(v)", "INSERT INTO t VALUES(1)")
			c.connected(name)
			c.same("app.db")
			conn, err := open(primary.path("app.db"), "")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			tx, err := conn.Begin()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec("INSERT INTO t VALUES('orphan')"); err != nil {
				t.Fatal(err)
			}
			other := c.others(name)[0]
			c.net.isolate(name, other, "etcd")
			_, second := c.primary(name)
			err = tx.Commit()
			diverged, orphans := primary.Find("app.db").Diverged()
			if journal == "delete" && err == nil || journal == "wal" && (!diverged || orphans != 1) {
				t.Errorf("commit: %v, diverged %t, %d orphans", err, diverged, orphans)
			}
			second.exec("app.db", journal, "INSERT INTO t VALUES(2)")
			c.net.separate()
			c.connected(other)
			c.same("app.db")
			if got := primary.Info().Aside.Files; got == 0 && journal == "wal" {
				t.Error("nothing was put aside")
			}
			if got := second.rows("app.db"); got != 2 {
				t.Errorf("%d rows", got)
			}
		})
	}
}

// TestCutWriter loses the primary while a program is in the middle of a transaction, part of which
// is already in the database file, and then the program.
func TestCutWriter(t *testing.T) {
	for _, journal := range []string{"wal", "delete", "persist"} {
		t.Run(journal, func(t *testing.T) {
			c := newCluster(t, 0, "a", "b")
			name, primary := c.primary()
			primary.exec("app.db", journal, "CREATE TABLE t(v)",
				"WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM c WHERE i<200) INSERT INTO t SELECT randomblob(900) FROM c")
			c.connected(name)
			c.same("app.db")
			writer := startWorker(t, workerJob{
				Path: primary.path("app.db"), Journal: journal, Hold: true,
				Statements: []string{"PRAGMA cache_size=5", "BEGIN", "UPDATE t SET v=randomblob(800)"},
			})
			eventually(t, "the transaction", func() bool { return writer.count() > 0 })
			other := c.others(name)[0]
			c.net.isolate(name, other, "etcd")
			_, second := c.primary(name)
			second.exec("app.db", journal, "INSERT INTO t VALUES(2)")
			writer.cmd.Process.Kill()
			<-writer.done
			c.net.separate()
			c.connected(other)
			c.same("app.db")
			if got := second.rows("app.db"); got != 201 {
				t.Errorf("%d rows", got)
			}
		})
	}
}

// TestRoles requests role changes that must be refused.
func TestRoles(t *testing.T) {
	fixed := startNode(t, nodeConfig{})
	fixed.ready()
	follower := startNode(t, nodeConfig{primary: fixed.url, with: func(c *replica.Config) { c.Candidate = true }})
	follower.ready()
	never := startNode(t, nodeConfig{primary: fixed.url})
	never.ready()
	for _, c := range []struct {
		n    *testNode
		path string
		want int
	}{
		{fixed, "/handoff", 409},
		{fixed, "/promote", 200},
		{follower, "/handoff", 503},
		{follower, "/promote", 409},
		{never, "/promote", 409},
		{fixed, "/halt", 400},
		{fixed, "/halt?name=none&id=1", 404},
		{fixed, "/tx?name=none&lockID=1&epoch=1", 404},
		{fixed, "/tx?name=none", 400},
	} {
		if got, text := c.n.post(c.path); got != c.want {
			t.Errorf("%s: %d %s, want %d", c.path, got, text, c.want)
		}
	}
	lone := replica.New(replica.Config{
		Data: t.TempDir(), Dir: t.TempDir(), Lease: lease.NewStatic(true, lease.Peer{}), Capture: replica.Tail, Replicas: 1,
		Log: slog.New(slog.DiscardHandler),
	})
	if err := lone.Open(); err == nil {
		t.Error("a node with capture tail opens, although commits cannot wait")
	}
	if _, err := follower.Handoff(context.Background(), ""); !errors.Is(err, database.ErrFenced) {
		t.Error(err)
	}
}

func decode(t *testing.T, b []byte) *txlog.Tx {
	t.Helper()
	tx, err := txlog.DecodeMeta(b)
	if err != nil {
		t.Fatal(err)
	}
	return tx
}
