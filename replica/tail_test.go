package replica_test

import (
	"fmt"
	"os"
	"regexp"
	"syscall"
	"testing"

	"github.com/hangar-platform/hangar/replica"
	"github.com/hangar-platform/hangar/replica/sqlite"
)

// showsMember reports whether this process holds a lock of its own, as SQLite does and looks for, that says that an index is
// in use.
func showsMember(t *testing.T, shm string) bool {
	t.Helper()
	info, err := os.Stat(shm)
	if err != nil {
		return false // no program has made it yet
	}
	all, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Fatal(err)
	}
	lock := fmt.Sprintf(`(?m) POSIX +ADVISORY +READ +%d [0-9a-f]+:[0-9a-f]+:%d %[3]d %[3]d$`,
		os.Getpid(), info.Sys().(*syscall.Stat_t).Ino, sqlite.MemberByte)
	return regexp.MustCompile(lock).Match(all)
}

// TestTailMember has a node join a program that has the database open. gVisor shows SQLite no locks of open files, so the
// node has to hold one of its process, whether the program was there first or not, and to take it again where it is lost.
func TestTailMember(t *testing.T) {
	n := startNode(t, nodeConfig{capture: replica.Tail})
	n.ready()
	path := n.path("app.db")
	program := startWorker(t, workerJob{Path: path, Journal: "wal", Statements: []string{"CREATE TABLE t(v)"}, Hold: true})
	eventually(t, "the database to be captured", func() bool { return program.count() == 1 && n.Position("app.db") > 0 })
	shm := path + "-shm"
	eventually(t, "the lock of the process", func() bool { return showsMember(t, shm) })
	// It ends with any descriptor of the file.
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
