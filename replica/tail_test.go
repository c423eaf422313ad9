package replica_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/replica"
	"github.com/hangar-platform/hangar/replica/sqlite"
)

// showsMember reports whether this process holds a lock of its own, of the kind that SQLite takes
// and looks for, that marks an index as in use.
func showsMember(t *testing.T, shm string) bool {
	t.Helper()
	info, err := os.Stat(shm)
	if err != nil {
		return false // no program has created it yet
	}
	all, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Fatal(err)
	}
	lock := fmt.Sprintf(`(?m) POSIX +ADVISORY +READ +%d [0-9a-f]+:[0-9a-f]+:%d %[3]d %[3]d$`,
		os.Getpid(), info.Sys().(*syscall.Stat_t).Ino, sqlite.MemberByte)
	return regexp.MustCompile(lock).Match(all)
}

// TestTailMember: a node joins a program that has the database open. gVisor does not show SQLite
// locks of open files, so the node has to hold one of its process, whether the program was first or
// not, and to take it again if it is lost.
func TestTailMember(t *testing.T) {
	n := startNode(t, nodeConfig{capture: replica.Tail})
	n.ready()
	path := n.path("app.db")
	program := startWorker(t, workerJob{Path: path, Journal: "wal", Statements: []string{"CREATE TABLE t(v)"}, Hold: true})
	eventually(t, "the database to be captured", func() bool { return program.count() == 1 && n.Position("app.db") > 0 })
	shm := path + "-shm"
	eventually(t, "the lock of the process", func() bool { return showsMember(t, shm) })
	// Closing any descriptor of the file ends it.
	f, err := os.Open(shm)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	eventually(t, "the lock of the process again", func() bool { return showsMember(t, shm) })
	before := n.Position("app.db")
	n.exec("app.db", "wal", "INSERT INTO t VALUES(1)")
	eventually(t, "the database to be captured", func() bool { return n.Position("app.db") > before })
}

// TestTailOtherFiles: other files than databases in the directory are left alone, and the node starts again with them,
// also if a log has the name of one.
func TestTailOtherFiles(t *testing.T) {
	root := t.TempDir()
	dir, logs := filepath.Join(root, "mnt"), filepath.Join(root, "data", "log")
	if err := errors.Join(
		os.MkdirAll(filepath.Join(dir, "sub"), 0o700), os.MkdirAll(filepath.Join(dir, "old"), 0o700), os.MkdirAll(filepath.Join(logs, "old"), 0o700),
		unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600), os.WriteFile(filepath.Join(dir, "notes"), make([]byte, 4096), 0o600),
		os.WriteFile(filepath.Join(dir, "empty"), nil, 0o600),
	); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		n := startNode(t, nodeConfig{root: root, capture: replica.Tail})
		n.ready()
		if err := os.WriteFile(filepath.Join(dir, "later"), []byte("text"), 0o600); err != nil {
			t.Fatal(err)
		}
		before := n.Position("app.db")
		n.exec("app.db", "wal", "CREATE TABLE t"+strconv.Itoa(i)+"(v)")
		eventually(t, "the database to be captured", func() bool { return n.Position("app.db") > before })
		for _, db := range n.All() {
			if db.Name() != "app.db" {
				t.Error("a database: ", db.Name())
			}
		}
		n.stop()
	}
	entries, err := os.ReadDir(logs)
	if err != nil || len(entries) != 2 {
		t.Errorf("logs: %v, %v; want those of app.db and old", entries, err)
	}
}

// TestTailReaders: programs open a replica's database, read it and close it, as some do for each
// request, while transactions arrive. A program reads what was applied before it opened the
// database.
func TestTailReaders(t *testing.T) {
	primary := startNode(t, nodeConfig{capture: replica.Tail})
	primary.ready()
	other := startNode(t, nodeConfig{capture: replica.Tail, primary: primary.url})
	other.ready()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	exec := func(statement string) {
		t.Helper()
		primary.exec("app.db", "wal", statement)
		_, id, err := primary.Committed(ctx, "app.db")
		if err == nil {
			err = other.WaitTXID(ctx, "app.db", id)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	exec("CREATE TABLE t(v)")
	var applied atomic.Int64
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 3 {
		w := startWorker(t, workerJob{Path: other.path("app.db"), Reads: true})
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				least := applied.Load()
				answer := w.ask("count")
				if n, err := strconv.ParseInt(answer, 10, 64); err != nil || n < least {
					t.Errorf("after %d rows were applied, a program reads %s", least, answer)
					return
				}
			}
		})
	}
	for i := range intEnv("REPLICA_ROWS", 60) {
		exec("INSERT INTO t VALUES(randomblob(3000))")
		applied.Store(int64(i + 1))
		if t.Failed() {
			break
		}
	}
	close(done)
	readers.Wait()
	same(t, primary, other, "app.db")
}
