package replica_test

import (
	"path/filepath"
	"testing"

	"github.com/hangar-platform/hangar/replica"
)

// BenchmarkCommit measures transactions of one row, and BenchmarkRead reads of one row: on the file
// system itself, through the mount, and by reading the log.
func BenchmarkCommit(b *testing.B) {
	for _, mode := range []string{"wal-NORMAL", "wal-FULL", "delete-FULL"} {
		for _, where := range []string{"plain", "strict", "tail"} {
			journal, sync := mode[:len(mode)-len("-FULL")], "FULL"
			if mode == "wal-NORMAL" {
				journal, sync = "wal", "NORMAL"
			}
			if where == "tail" && journal != "wal" {
				continue
			}
			b.Run(mode+"/"+where, func(b *testing.B) {
				path := benchPath(b, where)
				db, err := open(path, journal)
				if err != nil {
					b.Fatal(err)
				}
				defer db.Close()
				for _, s := range []string{"PRAGMA synchronous=" + sync, "CREATE TABLE t(id INTEGER PRIMARY KEY, v)"} {
					if _, err := db.Exec(s); err != nil {
						b.Fatal(err)
					}
				}
				insert, err := db.Prepare("INSERT INTO t(v) VALUES(?)")
				if err != nil {
					b.Fatal(err)
				}
				defer insert.Close()
				for b.Loop() {
					if _, err := insert.Exec("some text of a row"); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tx/s")
			})
		}
	}
}

func BenchmarkRead(b *testing.B) {
	for _, where := range []string{"plain", "strict", "tail"} {
		b.Run(where, func(b *testing.B) {
			db, err := open(benchPath(b, where), "wal")
			if err != nil {
				b.Fatal(err)
			}
			defer db.Close()
			if _, err := db.Exec("CREATE TABLE t(id INTEGER PRIMARY KEY, v); INSERT INTO t VALUES(1, 'x')"); err != nil {
				b.Fatal(err)
			}
			query, err := db.Prepare("SELECT v FROM t WHERE id=1")
			if err != nil {
				b.Fatal(err)
			}
			defer query.Close()
			var v string
			for b.Loop() {
				if err := query.QueryRow().Scan(&v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func benchPath(b *testing.B, where string) string {
	b.Helper()
	if where == "plain" {
		return filepath.Join(b.TempDir(), "app.db")
	}
	n := startNode(b, nodeConfig{capture: replica.Capture(where)})
	n.ready()
	return n.path("app.db")
}
