package replica_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/replica"
	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/events"
	"github.com/hangar-platform/hangar/replica/txlog"
)

// moment is what was promised after a number of operations had reached a disk.
type moment struct {
	ops    int
	acked  int                          // rows of t that were acknowledged to a program
	events map[ltx.TXID]events.Position // of transactions that were published
}

// promises are the moments of a recording, in order.
type promises struct {
	all  []moment
	now  moment
	seen events.Position
}

// note records what is promised from an operation on.
func (p *promises) note(ops int) {
	m := p.now
	m.ops, m.events = ops, maps.Clone(p.now.events)
	p.all = append(p.all, m)
}

// publishes returns a function that records, before each operation of the disk, the position that a
// node publishes for a database.
func (p *promises) publishes(n *testNode, db string) func(op int) {
	p.now.events = map[ltx.TXID]events.Position{}
	return func(op int) {
		s, err := n.Hub().Subscribe()
		if err != nil {
			return // the node is stopping
		}
		s.Cancel()
		if at := s.Positions[db]; at != p.seen && at.TXID > 0 {
			p.seen, p.now.events[at.TXID] = at, at
			p.note(op)
		}
	}
}

// during records a node's promises about a database while something writes to it, and stops the
// node. It returns the first operation of its disk to which they apply.
func (p *promises) during(d *disk, n *testNode, write func()) (from int) {
	d.mu.Lock()
	from = len(d.ops)
	d.before = p.publishes(n, "app.db")
	d.mu.Unlock()
	write()
	d.mu.Lock()
	d.before = nil
	p.note(len(d.ops))
	d.mu.Unlock()
	n.stop()
	return from
}

// at returns what was promised after a number of operations.
func (p *promises) at(ops int) moment {
	var m moment
	for _, next := range p.all {
		if next.ops > ops {
			break
		}
		m = next
	}
	return m
}

// writeWithPower has programs write to a database of a node, with transactions of all sizes, and
// records in p which rows were acknowledged. With full, SQLite syncs each commit.
func writeWithPower(t *testing.T, n *testNode, d *disk, p *promises, journal string, full bool) {
	t.Helper()
	db := "app.db" + (workerJob{Full: full}).query()
	n.exec(db, journal, "CREATE TABLE t(v)", "CREATE TABLE big(id INTEGER PRIMARY KEY, v)")
	insert := func(i int) { n.exec(db, "", "INSERT INTO t VALUES("+strconv.Itoa(i)+")") }
	if n.Info().Capture != string(replica.Tail) { // which has no NAME-synced files
		w := startWorker(t, workerJob{Path: n.path("app.db"), Register: true, Full: full})
		insert = func(i int) {
			if got := w.ask(strconv.Itoa(i)); !strings.HasPrefix(got, "acked") {
				t.Fatal(got)
			}
		}
	}
	for i := 1; i <= 24; i++ {
		insert(i)
		d.mu.Lock()
		p.now.acked = i
		p.note(len(d.ops))
		d.mu.Unlock()
		switch i % 8 {
		case 2:
			n.exec(db, "", "INSERT INTO big(v) SELECT randomblob(3000) FROM (SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4)")
		case 4:
			n.exec(db, "", "PRAGMA wal_checkpoint(RESTART)")
		case 5:
			n.exec(db, "", "UPDATE big SET v=randomblob(2500) WHERE id % 3 = 1", "DELETE FROM big WHERE id % 4 = 2")
		case 6:
			n.exec(db, "", "BEGIN", "INSERT INTO big(v) VALUES(randomblob(9000))", "ROLLBACK")
		case 7:
			n.exec(db, "", "PRAGMA wal_checkpoint(TRUNCATE)")
		}
	}
}

// recovered is a database that was opened after a power failure.
type recovered struct {
	t   *testing.T
	db  *database.DB
	dir string
}

// recoverFrom opens the database of a disk as a node does.
func recoverFrom(t *testing.T, root string) *recovered {
	t.Helper()
	for _, dir := range []string{"files", "log"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	db, err := database.Open(database.Config{
		Name: "app.db", Dir: filepath.Join(root, "files"), Log: filepath.Join(root, "log", "app.db"), Node: 1,
	})
	if err != nil {
		t.Fatal("open: ", err)
	}
	db.SetEpoch(1)
	return &recovered{t, db, root}
}

// rows reads the rows of table t, in order, and checks the whole database.
func (r *recovered) rows() []int {
	r.t.Helper()
	b := r.export()
	if last := r.db.Last(); last.Pages == 0 {
		return nil
	} else if got := fullSum(b, last.PageSize); got != last.Pos.PostApplyChecksum {
		r.t.Fatalf("a full scan has %s, the position %s", got, last.Pos)
	}
	// In rollback mode, so that no WAL is made beside it.
	b[18], b[19] = 1, 1
	file := filepath.Join(r.dir, "check.db")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		r.t.Fatal(err)
	}
	conn, err := sql.Open("sqlite3", "file:"+file)
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	var result string
	if err := conn.QueryRow("PRAGMA integrity_check").Scan(&result); err != nil || result != "ok" {
		r.t.Fatalf("integrity: %s %v", result, err)
	}
	found, err := conn.Query("SELECT v FROM t ORDER BY rowid")
	if err != nil {
		if strings.Contains(err.Error(), "no such table") {
			return nil
		}
		r.t.Fatal(err)
	}
	defer found.Close()
	var rows []int
	for found.Next() {
		var v int
		if err := found.Scan(&v); err != nil {
			r.t.Fatal(err)
		}
		rows = append(rows, v)
	}
	if err := found.Err(); err != nil {
		r.t.Fatal(err)
	}
	return rows
}

func (r *recovered) export() []byte {
	r.t.Helper()
	f, err := os.Create(filepath.Join(r.dir, "export"))
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	if _, err := r.db.Export(context.Background(), f); err != nil {
		r.t.Fatal("export: ", err)
	}
	b, err := os.ReadFile(f.Name())
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

// chain returns the checksums of the transactions in the log.
func (r *recovered) chain() map[ltx.TXID]ltx.Checksum {
	r.t.Helper()
	log := r.db.Log()
	sums := map[ltx.TXID]ltx.Checksum{log.Base().TXID: log.Base().PostApplyChecksum}
	reader, err := log.After(log.Base())
	if err != nil {
		r.t.Fatal(err)
	}
	defer reader.Close()
	for {
		b, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return sums
		}
		if err != nil {
			r.t.Fatal(err)
		}
		tx, err := txlog.Decode(b)
		if err != nil {
			r.t.Fatal(err)
		}
		sums[tx.MaxTXID] = tx.Post
	}
}

// keeps checks the promises: all acknowledged rows exist, in order, and the chain contains each
// event with its checksum.
func (r *recovered) keeps(m moment) {
	r.t.Helper()
	rows := r.rows()
	for i, v := range rows {
		if v != i+1 {
			r.t.Fatalf("rows %v", rows)
		}
	}
	if len(rows) < m.acked {
		r.t.Errorf("%d rows of %d that were acknowledged", len(rows), m.acked)
	}
	chain, pos := r.chain(), r.db.Pos()
	for id, event := range m.events {
		sum, ok := chain[id]
		if id > pos.TXID || ok && sum != event.Checksum || !ok && id == pos.TXID {
			r.t.Errorf("event %s/%s is not of the chain, which has %s there, and ends at %s", id, event.Checksum, sum, pos)
		}
	}
}

// cut calls check with possible contents of a disk after power failures, at some moments.
// REPLICA_CUTS is the number of operations to try; 0: each. REPLICA_SEED repeats a run.
func (d *disk) cut(t *testing.T, from int, check func(t *testing.T, ops int, root string)) {
	t.Helper()
	seed := uint64(intEnv("REPLICA_SEED", int(time.Now().UnixNano()%1e9)))
	rng := rand.New(rand.NewPCG(seed, 5))
	d.mu.Lock()
	ops := slices.Clone(d.ops)
	d.mu.Unlock()
	usual := 12
	if testing.Short() {
		usual = 3
	}
	cuts := intEnv("REPLICA_CUTS", usual)
	t.Logf("REPLICA_SEED=%d, %d operations, cut after %d", seed, len(ops), cuts)
	p, tried := newPlatter(), 0
	for i, op := range ops {
		p.do(op)
		if i < from || cuts > 0 && rng.IntN(len(ops)-from) >= cuts {
			continue
		}
		for l := range lossesCount {
			tried++
			root := filepath.Join(t.TempDir(), "image")
			if err := p.after(l, rng, root); err != nil {
				t.Fatal(err)
			}
			t.Run(fmt.Sprintf("op%d-%d", i+1, l), func(t *testing.T) {
				check(t, i+1, root)
				if t.Failed() {
					for _, op := range ops[max(0, i-30) : i+1] {
						t.Logf("%d %s file %d %s %d+%d %d", op.kind, op.name, op.file, op.to, op.off, len(op.data), op.size)
					}
				}
			})
			if err := os.RemoveAll(root); err != nil {
				t.Fatal(err)
			}
			if t.Failed() {
				return
			}
		}
	}
	t.Logf("%d losses of power", tried)
}

// TestPowerLoss has the power of a primary fail after each write, sync and rename by it and SQLite,
// with all, some or none of the unsynced data on the disk. Commits are synced by SQLite, or else by
// the node. All acknowledged rows exist, and each event is in the chain.
func TestPowerLoss(t *testing.T) {
	for _, journal := range []string{"wal", "delete", "truncate", "persist"} {
		for _, durable := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,sync=%t", journal, durable), func(t *testing.T) {
				d := newDisk(t)
				n := startNode(t, nodeConfig{slow: true, with: func(c *replica.Config) { c.Data, c.Sync = d.dir, durable }})
				n.ready()
				var p promises
				from := p.during(d, n, func() { writeWithPower(t, n, d, &p, journal, !durable) })
				d.cut(t, from, func(t *testing.T, ops int, root string) {
					r := recoverFrom(t, root)
					if _, err := r.db.Reconcile(); err != nil {
						t.Fatal(err)
					}
					r.keeps(p.at(ops))
					want := r.export()
					if err := r.db.Close(); err != nil {
						t.Fatal(err)
					}
					// Again, from the result of the first recovery.
					r = recoverFrom(t, root)
					if _, err := r.db.Reconcile(); err != nil {
						t.Fatal(err)
					}
					if got := r.export(); !bytes.Equal(got, want) {
						t.Error("a second recovery has another content")
					}
					r.keeps(p.at(ops))
					if err := r.db.Close(); err != nil {
						t.Fatal(err)
					}
				})
			})
		}
	}
}

// TestTailPowerLoss has the power of a node with capture tail fail, and of programs that sync each
// commit.
func TestTailPowerLoss(t *testing.T) {
	tailOn := func(dir string) *testNode {
		n := startNode(t, nodeConfig{capture: replica.Tail, with: func(c *replica.Config) { c.Data, c.Dir = dir, filepath.Join(dir, "files") }})
		n.dir = filepath.Join(dir, "files")
		n.ready()
		return n
	}
	d := newDisk(t)
	n := tailOn(d.dir)
	var p promises
	from := p.during(d, n, func() { writeWithPower(t, n, d, &p, "wal", true) })
	d.cut(t, from, func(t *testing.T, ops int, root string) {
		n := tailOn(root)
		defer n.stop()
		m := p.at(ops)
		if _, _, err := n.Committed(t.Context(), "app.db"); err != nil {
			t.Fatal(err)
		}
		db := n.Find("app.db")
		if db == nil {
			if m.acked > 0 || len(m.events) > 0 {
				t.Errorf("there is no database of %d rows and %d events", m.acked, len(m.events))
			}
			return
		}
		(&recovered{t, db, root}).keeps(m)
	})
}

// TestReplicaPowerLoss has the power of a replica fail. Afterwards it is at a position of its
// primary, or knows that it has to request the differences. If it becomes the primary itself, it
// has a whole database, with a prefix of the rows.
func TestReplicaPowerLoss(t *testing.T) {
	for _, journal := range []string{"wal", "delete"} {
		for _, durable := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,sync=%t", journal, durable), func(t *testing.T) {
				n := startNode(t, nodeConfig{})
				n.ready()
				d := newDisk(t)
				other := startNode(t, nodeConfig{primary: n.url, slow: true, with: func(c *replica.Config) { c.Data, c.Sync = d.dir, durable }})
				other.ready()
				var p, unused promises
				from := p.during(d, other, func() {
					writeWithPower(t, n, newRecord(), &unused, journal, !durable)
					same(t, n, other, "app.db")
				})
				d.cut(t, from, func(t *testing.T, ops int, root string) {
					r := recoverFrom(t, root)
					defer r.db.Close()
					diverged, _ := r.db.Diverged()
					m := p.at(ops)
					if pos := r.db.Pos(); durable {
						for id := range m.events {
							if id > pos.TXID {
								t.Errorf("a replica that has synced %s is at %s", id, pos)
							}
						}
					}
					m.events = nil // unsynced ones may be gone
					if diverged {
						if _, err := r.db.Reconcile(); err != nil {
							t.Fatal(err)
						}
					}
					r.keeps(m)
				})
			})
		}
	}
}

// TestLogNotSynced: a sync of the log fails before a commit in rollback mode. The program gets the
// error, no event reports a commit, and the next commit is the one that follows.
func TestLogNotSynced(t *testing.T) {
	d := newDisk(t)
	n := startNode(t, nodeConfig{with: func(c *replica.Config) { c.Data = d.dir }})
	n.ready()
	n.exec("app.db", "delete", "CREATE TABLE t(v)")
	before := n.Position("app.db")
	breaks := func(suffix string) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.broken = suffix
	}
	breaks(".seg")
	insert := workerJob{Path: n.path("app.db"), Statements: []string{"INSERT INTO t VALUES(1)"}}
	if err := insert.inProcess(t); err == nil {
		t.Error("a commit that is not durable was acknowledged")
	}
	if at := n.Position("app.db"); at != before {
		t.Errorf("the position went from %s to %s", before, at)
	}
	breaks("")
	n.exec("app.db", "", "INSERT INTO t VALUES(2)")
	if at := n.Position("app.db"); at != before+1 {
		t.Errorf("the position is %s after %s", at, before)
	}
	b, _ := n.export("app.db")
	if got, want := fullSum(n.replay("app.db"), 4096), fullSum(b, 4096); got != want {
		t.Errorf("the log leads to %s, the database has %s", got, want)
	}
}

// TestSegmentNotSynced: the last segment of the log cannot be synced when the next one begins. Once it can be, the log
// continues.
func TestSegmentNotSynced(t *testing.T) {
	d := newDisk(t)
	n := startNode(t, nodeConfig{with: func(c *replica.Config) { c.Data = d.dir }})
	n.ready()
	n.exec("app.db", "delete", "CREATE TABLE t(v)")
	before := n.Position("app.db")
	breaks := func(suffix string) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.broken = suffix
	}
	n.Find("app.db").SetEpoch(2)
	breaks(".seg")
	insert := workerJob{Path: n.path("app.db"), Statements: []string{"INSERT INTO t VALUES(1)"}}
	if err := insert.inProcess(t); err == nil {
		t.Error("a commit that is not in the log was acknowledged")
	}
	breaks("")
	n.exec("app.db", "", "INSERT INTO t VALUES(2)")
	if at := n.Position("app.db"); at != before+1 {
		t.Errorf("the position is %s after %s", at, before)
	}
	whole(t, n, "app.db")
}

// newRecord is an unmounted disk, only for its count of operations.
func newRecord() *disk { return &disk{} }
