package replica_test

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/replica/mount"
)

// lockToWrite takes the lock that lets programs write on a replica. The returned function releases
// it.
func (n *testNode) lockToWrite(t *testing.T, db string) (func(), error) {
	t.Helper()
	f, err := os.OpenFile(n.path(db)+"-lock", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: mount.HaltByte, Len: 1}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLKW, &l); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// TestForward writes on a replica, under the halt lock: the primary gets the transactions, and no
// program writes there meanwhile.
func TestForward(t *testing.T) {
	for _, journal := range []string{"wal", "delete"} {
		t.Run(journal, func(t *testing.T) {
			c := newCluster(t, 0, "a", "b")
			name, primary := c.primary()
			primary.exec("app.db", journal, "CREATE TABLE t(v)", "INSERT INTO t VALUES(1)")
			c.connected(name)
			c.same("app.db")
			other := c.nodes[c.others(name)[0]]
			program := startWorker(t, workerJob{Path: primary.path("app.db"), Register: true})
			if got := program.ask("x"); !strings.HasPrefix(got, "acked") {
				t.Fatal(got)
			}
			write := func(n *testNode, text string) error {
				return workerJob{Path: n.path("app.db"), Statements: []string{"INSERT INTO t VALUES('" + text + "')"}}.inProcess(t)
			}
			if err := write(other, "early"); err == nil {
				t.Error("the replica took a write")
			}
			done, err := other.lockToWrite(t, "app.db")
			if err != nil {
				t.Fatal(err)
			}
			before := primary.Position("app.db")
			for _, text := range []string{"one", "two"} {
				if err := write(other, text); err != nil {
					t.Fatal(err)
				}
			}
			if got := primary.Position("app.db"); got != before+2 {
				t.Errorf("the primary is at %s, was at %s", got, before)
			}
			if got := program.ask("y"); !strings.HasPrefix(got, "refused") {
				t.Error("a program writes on the primary meanwhile: ", got)
			}
			done()
			eventually(t, "the lock to be released", func() bool { return strings.HasPrefix(program.ask("z"), "acked") })
			if err := write(other, "late"); err == nil {
				t.Error("the replica took a write")
			}
			c.same("app.db")
			if got := other.Info().Aside.Files; got != 0 {
				t.Errorf("%d files put aside", got)
			}
			// The primary cannot be reached when the transaction is committed.
			if done, err = other.lockToWrite(t, "app.db"); err != nil {
				t.Fatal(err)
			}
			c.net.separate([2]string{"a", "b"})
			if err := write(other, "lost"); err == nil && journal == "delete" {
				t.Error("a commit that the primary does not have succeeded")
			}
			done()
			c.net.separate()
			c.connected(name)
			c.same("app.db")
			rows := primary.rows("app.db")
			if rows != 5 { // 1, x, one, two, z
				t.Errorf("%d rows", rows)
			}
			if got := other.Info().Aside.Files; got == 0 {
				t.Error("what was committed on the replica alone was not put aside")
			}
		})
	}
}
