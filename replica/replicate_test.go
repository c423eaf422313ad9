package replica_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/replica"
)

// same waits until a replica is at its primary's position, and compares their databases and events
// byte by byte.
func same(t *testing.T, primary, other *testNode, db string) {
	t.Helper()
	mustBeCaptured(t, primary, db)
	// An export may commit free pages that a rollback has left, so the position is known after it.
	mine, at := primary.export(db)
	eventually(t, "the replica to catch up", func() bool {
		copied := other.Find(db)
		return copied != nil && copied.Pos().String() == at
	})
	theirs, pos := other.export(db)
	if at != pos || !bytes.Equal(mine, theirs) {
		t.Errorf("primary has %d bytes at %s, replica %d bytes at %s", len(mine), at, len(theirs), pos)
	}
	integrity(t, other.path(db)+"?mode=ro")
}

// TestReplica: a replica follows a primary on which processes write, with readers that hold old
// snapshots, and everything is compared.
func TestReplica(t *testing.T) {
	for _, journal := range []string{"wal", "delete"} {
		t.Run(journal, func(t *testing.T) {
			seed := uint64(intEnv("REPLICA_SEED", int(time.Now().UnixNano()%1e9)))
			t.Logf("REPLICA_SEED=%d", seed)
			rng := rand.New(rand.NewPCG(seed, 2))
			primary := startNode(t, nodeConfig{})
			primary.ready()
			root := t.TempDir()
			other := startNode(t, nodeConfig{root: root, primary: primary.url})
			other.ready()
			first := record(t, primary.url+"/events")
			second := record(t, other.url+"/events")
			if e, text := second.first(); e.Data.IsPrimary || e.Data.Hostname != "primary" {
				t.Errorf("init of the replica: %s", text)
			}
			primary.exec("app.db", journal, "CREATE TABLE t(id INTEGER PRIMARY KEY, v BLOB)", "INSERT INTO t VALUES(1, 'first')")
			same(t, primary, other, "app.db")
			if journal == "wal" {
				// A reader that holds a snapshot does not block applying.
				reader, err := open(other.path("app.db")+"?mode=ro", "")
				if err != nil {
					t.Fatal(err)
				}
				defer reader.Close()
				tx, err := reader.Begin()
				if err != nil {
					t.Fatal(err)
				}
				defer tx.Rollback()
				var n int
				if err := tx.QueryRow("SELECT count(*) FROM t").Scan(&n); err != nil || n != 1 {
					t.Fatalf("%d rows, %v", n, err)
				}
				defer func() {
					if err := tx.QueryRow("SELECT count(*) FROM t").Scan(&n); err != nil || n != 1 {
						t.Errorf("the snapshot has %d rows now, %v", n, err)
					}
				}()
			}
			var workers []*worker
			for range 2 {
				workers = append(workers, startWorker(t, workerJob{Path: primary.path("app.db"), Journal: journal, Seed: rng.Uint64(), Ops: intEnv("REPLICA_OPS", 10), Vacuum: true}))
			}
			for _, w := range workers {
				if err := <-w.done; err != nil {
					t.Fatal("worker: ", err)
				}
			}
			same(t, primary, other, "app.db")
			all, copies := mustSettle(t, primary, first, "app.db"), mustSettle(t, other, second, "app.db")
			if len(all) != len(copies) {
				t.Errorf("%d events of the primary, %d of the replica", len(all), len(copies))
			}
			for i := range min(len(all), len(copies)) {
				if all[i].Data.TXID != copies[i].Data.TXID || all[i].Data.PostApplyChecksum != copies[i].Data.PostApplyChecksum ||
					!all[i].Data.Timestamp.Equal(copies[i].Data.Timestamp) {
					t.Fatalf("event %d: %+v, at the replica %+v", i, all[i].Data, copies[i].Data)
				}
			}
			if b, err := os.ReadFile(other.path("app.db-pos")); err != nil || string(b) != primary.Find("app.db").Pos().String()+"\n" {
				t.Errorf("position file: %q %v", b, err)
			}
			if b, err := os.ReadFile(other.path(".primary")); err != nil || string(b) != "primary\n" {
				t.Errorf(".primary: %q %v", b, err)
			}
			refused, err := open(other.path("app.db"), "")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := refused.Exec("INSERT INTO t(v) VALUES(1)"); err == nil {
				t.Error("the replica took a write")
			}
			refused.Close()
		})
	}
}

// TestCatchUp: a replica comes back after it was away for less than the log goes back, for more,
// and with content that the primary never had.
func TestCatchUp(t *testing.T) {
	primary := startNode(t, nodeConfig{})
	primary.ready()
	primary.exec("app.db", "wal", "CREATE TABLE t(v)", "INSERT INTO t VALUES(1)")
	root := t.TempDir()
	away := func(meanwhile func()) *testNode {
		t.Helper()
		n := startNode(t, nodeConfig{root: root, primary: primary.url})
		n.ready()
		same(t, primary, n, "app.db")
		n.stop()
		meanwhile()
		n = startNode(t, nodeConfig{root: root, primary: primary.url})
		n.ready()
		same(t, primary, n, "app.db")
		return n
	}
	away(func() { primary.exec("app.db", "wal", "INSERT INTO t VALUES(2)", "INSERT INTO t VALUES(3)") }).stop()
	away(func() {
		primary.exec("app.db", "wal", "INSERT INTO t VALUES(4)")
		db := primary.Find("app.db")
		if err := db.Log().Reset(db.Pos(), 1); err != nil {
			t.Fatal(err)
		}
	}).stop()
	n := away(func() {
		// As if the replica had been a primary without followers.
		lone := startNode(t, nodeConfig{root: root})
		lone.ready()
		lone.exec("app.db", "wal", "INSERT INTO t VALUES('orphan')", "CREATE TABLE u(v)")
		lone.stop()
		primary.exec("app.db", "wal", "INSERT INTO t VALUES(5)")
	})
	if diverged, _ := n.Find("app.db").Diverged(); diverged {
		t.Error("still diverged")
	}
	// A database that never existed here, and one that is dropped.
	primary.exec("new.db", "delete", "CREATE TABLE t(v)")
	same(t, primary, n, "new.db")
	if err := os.Remove(primary.path("new.db")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the drop", func() bool {
		_, err := os.Stat(n.path("new.db"))
		return os.IsNotExist(err)
	})
	eventually(t, "the lag to be small", func() bool { return n.Lag() < 3*time.Second })
}

// TestImport imports databases: a new one, one over an open one, and an invalid one.
func TestImport(t *testing.T) {
	primary := startNode(t, nodeConfig{})
	primary.ready()
	other := startNode(t, nodeConfig{primary: primary.url})
	other.ready()
	primary.exec("a.db", "wal", "CREATE TABLE t(v)", "INSERT INTO t VALUES(1)")
	b, _ := primary.export("a.db")
	post := func(n *testNode, name string, body []byte) int {
		resp, err := http.Post(n.url+"/import?name="+name, "", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	if got := post(primary, "b.db", b); got != http.StatusOK {
		t.Fatal("import: ", got)
	}
	same(t, primary, other, "b.db")
	primary.exec("b.db", "", "INSERT INTO t VALUES(2)")
	conn, err := open(primary.path("b.db"), "")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	count := func() (n int) {
		if err := conn.QueryRow("SELECT count(*) FROM t").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if count() != 2 {
		t.Error("rows: ", count())
	}
	before := primary.Find("b.db").Pos().TXID
	if got := post(primary, "b.db", b); got != http.StatusOK {
		t.Fatal("import over an open database: ", got)
	}
	if after := primary.Find("b.db").Pos().TXID; after != before+1 {
		t.Errorf("transaction %s after %s", after, before)
	}
	if count() != 1 {
		t.Error("rows after the import: ", count())
	}
	same(t, primary, other, "b.db")
	for name, want := range map[string]int{"": 400, "..": 400, "a.db-wal": 400, "c.db": 400} {
		if got := post(primary, name, []byte("no database")); got != want {
			t.Errorf("import of %q: %d", name, got)
		}
	}
	if got := post(other, "b.db", b); got != http.StatusServiceUnavailable {
		t.Error("import at a replica: ", got)
	}
}

// TestHTTP sends the requests that a client may send.
func TestHTTP(t *testing.T) {
	n := startNode(t, nodeConfig{with: func(c *replica.Config) { c.Candidate = true }})
	n.ready()
	n.exec("a.db", "delete", "CREATE TABLE t(v)")
	for _, c := range []struct {
		method, path string
		want         int
	}{
		{"POST", "/events", 405},
		{"POST", "/info", 405},
		{"GET", "/import?name=x", 405},
		{"POST", "/export?name=a.db", 405},
		{"GET", "/stream", 405},
		{"POST", "/stream", 426},
		{"GET", "/export", 400},
		{"GET", "/export?name=none", 404},
		{"GET", "/export?name=a.db", 200},
		{"GET", "/info", 200},
		{"GET", "/metrics", 200},
		{"GET", "/none", 404},
		{"GET", "/events?since=a.db", 400},
		{"GET", "/events?since=a.db:00000000000000ff", 410},
		{"GET", "/events?since=none:0000000000000001", 400},
	} {
		req, err := http.NewRequestWithContext(context.Background(), c.method, n.url+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("%s %s: %s", c.method, c.path, resp.Status)
		}
		if id := resp.Header.Get("Litefs-Id"); id != fmt.Sprintf("%016X", n.ID()) {
			t.Errorf("%s %s: Litefs-Id %q", c.method, c.path, id)
		}
		if id := resp.Header.Get("Litefs-Cluster-Id"); len(id) != 20 || id[:4] != "LFSC" {
			t.Errorf("%s %s: Litefs-Cluster-Id %q", c.method, c.path, id)
		}
	}
	n.exec("a.db", "delete", "INSERT INTO t VALUES(1)", "INSERT INTO t VALUES(2)")
	r := record(t, n.url+"/events?since=a.db:0000000000000001")
	n.exec("a.db", "delete", "INSERT INTO t VALUES(3)")
	all := mustSettle(t, n, r, "a.db")
	consecutive(t, all, 2)
	if e, _ := r.first(); len(all) != 3 || e.Type != "init" || e.Data.Positions["a.db"].TXID != 3 {
		t.Errorf("events: %s", r.lines())
	}
}

// TestRestarts writes at random while primary and replica are restarted and the primary's log is
// lost, and then compares primary, replica and export. REPLICA_ROUNDS is the number of rounds.
func TestRestarts(t *testing.T) {
	seed := uint64(intEnv("REPLICA_SEED", int(time.Now().UnixNano()%1e9)))
	t.Logf("REPLICA_SEED=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	roots := []string{t.TempDir(), t.TempDir()}
	primary := startNode(t, nodeConfig{root: roots[0]})
	primary.ready()
	modes := map[string]string{"wal.db": "wal", "delete.db": "delete", "persist.db": "persist"}
	for db, journal := range modes {
		primary.exec(db, journal, "CREATE TABLE t(id INTEGER PRIMARY KEY, v BLOB)")
	}
	other := startNode(t, nodeConfig{root: roots[1], primary: primary.url})
	for range intEnv("REPLICA_ROUNDS", 2) {
		var workers []*worker
		for db, journal := range modes {
			workers = append(workers, startWorker(t, workerJob{Path: primary.path(db), Journal: journal, Seed: rng.Uint64(), Ops: 10, Vacuum: true}))
		}
		if rng.IntN(2) == 0 { // in the middle
			other.stop()
			other = startNode(t, nodeConfig{root: roots[1], primary: primary.url})
		}
		for _, w := range workers {
			if err := <-w.done; err != nil {
				t.Fatal("worker: ", err)
			}
		}
		switch rng.IntN(3) {
		case 0:
			for db := range modes {
				log := primary.Find(db).Log()
				if err := log.Reset(log.Pos(), 1); err != nil {
					t.Fatal(err)
				}
			}
		case 1:
			other.stop()
			primary.stop()
			primary = startNode(t, nodeConfig{root: roots[0]})
			primary.ready()
			other = startNode(t, nodeConfig{root: roots[1], primary: primary.url})
		}
		for db := range modes {
			same(t, primary, other, db)
		}
	}
}
