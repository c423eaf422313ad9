package replica_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/replica"
)

// intEnv is the length of a test: the usual bound, or the value of the environment variable.
func intEnv(name string, usual int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return usual
}

// TestExactlyOnce lets processes write to one database in every way that SQLite has, and compares
// their commits with the events: one for each commit, with consecutive IDs and the checksum of a
// full scan. REPLICA_WRITERS is the number of processes, REPLICA_OPS the number of operations of
// each, REPLICA_KILLS the number of kills, REPLICA_SEED repeats a run.
func TestExactlyOnce(t *testing.T) {
	type variant struct {
		journal  string
		pageSize int
		capture  replica.Capture
		slow     bool
		kills    int
	}
	ops, kills := intEnv("REPLICA_OPS", 8), intEnv("REPLICA_KILLS", 4)
	var variants []variant
	for i, journal := range []string{"wal", "delete", "truncate", "persist", "memory", "off"} {
		variants = append(variants, variant{journal, []int{4096, 512, 1024, 8192, 4096, 65536}[i], replica.Strict, false, 0})
	}
	variants = append(variants,
		variant{"wal", 1024, replica.Strict, true, 0},
		variant{"wal", 65536, replica.Strict, false, 0},
		variant{"wal", 4096, replica.Tail, false, 0},
		variant{"wal", 512, replica.Tail, false, kills},
		variant{"wal", 4096, replica.Strict, false, kills},
		variant{"delete", 4096, replica.Strict, false, kills},
		variant{"persist", 4096, replica.Strict, false, kills},
	)
	seed := uint64(intEnv("REPLICA_SEED", int(time.Now().UnixNano()%1e9)))
	for i, v := range variants {
		name := fmt.Sprintf("%s/%s-%d", v.capture, v.journal, v.pageSize)
		if v.slow {
			name += "-slow"
		}
		if v.kills > 0 {
			name += "-killed"
		}
		t.Run(name, func(t *testing.T) {
			t.Logf("REPLICA_SEED=%d", seed)
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			n := startNode(t, nodeConfig{capture: v.capture, slow: v.slow})
			n.ready()
			events := record(t, n.url+"/events")
			n.exec("app.db", v.journal, fmt.Sprintf("PRAGMA page_size=%d", v.pageSize), "PRAGMA journal_mode="+v.journal,
				"CREATE TABLE t(id INTEGER PRIMARY KEY, v BLOB)")
			// In tail, transactions before the attachment may be merged into one.
			mustBeCaptured(t, n, "app.db")
			created := len(mustSettle(t, n, events, "app.db"))
			committed, killed := 0, 0
			if v.kills == 0 {
				var workers []*worker
				for range intEnv("REPLICA_WRITERS", 3) {
					workers = append(workers, startWorker(t, workerJob{Path: n.path("app.db"), Journal: v.journal, Seed: rng.Uint64(), Ops: ops, Vacuum: true}))
				}
				for _, w := range workers {
					if err := <-w.done; err != nil {
						t.Fatal("worker: ", err)
					}
					committed += w.count()
				}
			} else {
				committed, killed = killWorkers(t, n, v.journal, v.kills, rng)
			}
			mustBeCaptured(t, n, "app.db")
			all := mustSettle(t, n, events, "app.db")
			if got := len(all) - created; got < committed || got > committed+killed {
				t.Errorf("%d events for %d commits, %d writers killed", got, committed, killed)
			}
			integrity(t, n.path("app.db"))
			// A rollback at the end may have left free pages, which the export commits as a
			// transaction.
			exported, pos := n.export("app.db")
			all = mustSettle(t, n, events, "app.db")
			consecutive(t, all, 1)
			last := all[len(all)-1].Data
			if want := last.TXID.String() + "/" + last.PostApplyChecksum.String(); pos != want {
				t.Errorf("position %s, last event %s", pos, want)
			}
			if got := fullSum(exported, last.PageSize); got != last.PostApplyChecksum {
				t.Errorf("a full scan has %s, the last event %s", got, last.PostApplyChecksum)
			}
			if replayed := n.replay("app.db"); !bytes.Equal(replayed, exported) {
				t.Errorf("the log leads to %d bytes, the export has %d, and they differ", len(replayed), len(exported))
			}
			t.Logf("%d commits, %d events, %d killed", committed, len(all)-created, killed)
			n.stop()
			notMounted(t, n.dir)
		})
	}
}

// killWorkers starts writers and kills them at random moments. It returns their reported commits,
// and how many may have made one more.
func killWorkers(t *testing.T, n *testNode, journal string, kills int, rng *rand.Rand) (committed, killed int) {
	t.Helper()
	steady := startWorker(t, workerJob{Path: n.path("app.db"), Journal: journal, Seed: rng.Uint64(), Ops: 15})
	for range kills {
		w := startWorker(t, workerJob{Path: n.path("app.db"), Journal: journal, Seed: rng.Uint64(), Ops: 1 << 20})
		eventually(t, "the writer to write", func() bool { return w.count() >= 1 })
		timer := time.NewTimer(time.Duration(rng.IntN(30)) * time.Millisecond)
		<-timer.C
		if err := w.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-w.done
		committed += w.count()
		killed++
	}
	if err := <-steady.done; err != nil {
		t.Fatal("steady writer: ", err)
	}
	// The next program cleans up after the last killed one.
	n.exec("app.db", journal, "INSERT INTO t(v) VALUES(1)")
	return committed + steady.count() + 1, killed
}

// mustBeCaptured waits until what programs have committed to a database is captured.
func mustBeCaptured(t *testing.T, n *testNode, db string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, _, err := n.Committed(ctx, db); err != nil {
		t.Fatal("transactions are not captured: ", err)
	}
}

// mustSettle waits until the last event has the position of the database, and returns all.
func mustSettle(t *testing.T, n *testNode, r *recorder, db string) []txEvent {
	t.Helper()
	var all []txEvent
	eventually(t, "the last event", func() bool {
		all = r.transactions(db)
		return n.Find(db) != nil && len(all) > 0 && all[len(all)-1].Data.TXID == n.Find(db).Pos().TXID
	})
	return all
}

// TestShrink: a database loses more than 256 pages in one transaction.
func TestShrink(t *testing.T) {
	for _, journal := range []string{"wal", "delete"} {
		t.Run(journal, func(t *testing.T) {
			n := startNode(t, nodeConfig{})
			n.ready()
			n.exec("app.db", journal, "CREATE TABLE t(v)",
				"WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM c WHERE i<3000) INSERT INTO t SELECT randomblob(1000) FROM c",
				"DELETE FROM t WHERE rowid > 10", "VACUUM", "INSERT INTO t VALUES(1)")
			want := 5
			if journal == "wal" {
				want = 6 // and the change of mode
			}
			last := n.Find("app.db").Last()
			if int(last.Pos.TXID) != want || last.Pages > 50 {
				t.Errorf("transaction %d, %d pages", last.Pos.TXID, last.Pages)
			}
			b, _ := n.export("app.db")
			if !bytes.Equal(b, n.replay("app.db")) {
				t.Error("log and export differ")
			}
		})
	}
}

// TestReopen: a node stops and starts, in order and by a kill, with a WAL that is not checkpointed.
func TestReopen(t *testing.T) {
	for _, journal := range []string{"wal", "delete"} {
		t.Run(journal, func(t *testing.T) {
			root := t.TempDir()
			n := startNode(t, nodeConfig{root: root})
			n.ready()
			n.exec("app.db", journal, "CREATE TABLE t(v)", "INSERT INTO t VALUES(1)")
			conn, err := open(n.path("app.db"), journal)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Exec("INSERT INTO t VALUES(2)"); err != nil {
				t.Fatal(err)
			}
			before := n.Find("app.db").Pos()
			n.stop() // while the program runs
			conn.Close()
			n = startNode(t, nodeConfig{root: root})
			n.ready()
			if after := n.Find("app.db").Pos(); after != before {
				t.Errorf("position %s before, %s after", before, after)
			}
			n.exec("app.db", journal, "INSERT INTO t VALUES(3)")
			if got := n.Find("app.db").Pos().TXID; got != before.TXID+1 {
				t.Errorf("transaction %s after %s", got, before.TXID)
			}
			b, _ := n.export("app.db")
			if !bytes.Equal(b, n.replay("app.db")) {
				t.Error("log and export differ")
			}
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			if err := n.Ready(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		})
	}
}
