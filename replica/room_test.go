package replica_test

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/replica"
	"github.com/hangar-platform/hangar/replica/database"
)

// TestImportThatDoesNotFit: an import for which the disk has no room changes nothing, anywhere, and takes no room.
func TestImportThatDoesNotFit(t *testing.T) {
	for name, c := range map[string]struct {
		pageSize string
		rigid    bool
		spare    uint64 // beside what the file needs to grow
	}{
		"logged":                  {pageSize: "4096"},
		"unlogged":                {pageSize: "8192"},
		"logged, not allocated":   {pageSize: "4096", rigid: true},
		"unlogged, not allocated": {pageSize: "8192", rigid: true},
		"room only without a log": {pageSize: "4096", rigid: true, spare: 10 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			d.rigid = c.rigid
			n := startNode(t, nodeConfig{with: func(c *replica.Config) { c.Data = d.dir }})
			n.ready()
			other := startNode(t, nodeConfig{primary: n.url})
			other.ready()
			n.exec("new.db", "delete", "PRAGMA page_size="+c.pageSize, "CREATE TABLE t(v)", "INSERT INTO t VALUES(randomblob(20000))")
			large, _ := n.export("new.db")
			n.exec("app.db", "delete", "CREATE TABLE t(v)", "INSERT INTO t VALUES(1)")
			before, at := n.export("app.db")
			free := uint64(len(large) - len(before) - 1)
			if c.spare > 0 {
				free += c.spare
			}
			d.bound("files/app.db", free)
			if got := n.postImport("app.db", large); got != http.StatusInternalServerError {
				t.Error("status ", got)
			}
			if diverged, _ := n.Find("app.db").Diverged(); diverged {
				t.Error("diverged")
			}
			if after, pos := n.export("app.db"); pos != at || !bytes.Equal(after, before) {
				t.Errorf("%d bytes at %s; they were %d at %s", len(after), pos, len(before), at)
			}
			if kept := d.kept(); len(kept) > 0 {
				t.Errorf("room is kept for %q", kept)
			}
			n.exec("app.db", "", "UPDATE t SET v=2")
			same(t, n, other, "app.db")
			d.bound("", 1<<30)
			if got := n.postImport("app.db", large); got != http.StatusOK {
				t.Error("status ", got)
			}
			same(t, n, other, "app.db")
			if b, _ := n.export("app.db"); !bytes.Equal(b, large) {
				t.Error("the import has other content")
			}
		})
	}
}

// TestLogThatDoesNotFit: the room of an import is free again when the log cannot have it.
func TestLogThatDoesNotFit(t *testing.T) {
	d := newDisk(t)
	n := startNode(t, nodeConfig{with: func(c *replica.Config) { c.Data = d.dir }})
	n.ready()
	n.exec("new.db", "delete", "CREATE TABLE t(v)", "INSERT INTO t VALUES(randomblob(20000))")
	large, _ := n.export("new.db")
	n.exec("app.db", "delete", "CREATE TABLE t(v)")
	before, at := n.export("app.db")
	d.fail(".seg", 0)
	if got := n.postImport("app.db", large); got != http.StatusInternalServerError {
		t.Error("status ", got)
	}
	if after, pos := n.export("app.db"); pos != at || !bytes.Equal(after, before) {
		t.Errorf("%d bytes at %s; they were %d at %s", len(after), pos, len(before), at)
	}
	if kept := d.kept(); len(kept) > 0 {
		t.Errorf("room is kept for %q", kept)
	}
}

// smallDisk mounts a disk of a size, which the kernel can map for programs.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	needsMount(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestLargeImportOnFullDisk: an import that is too large for the log does not fit into the WAL of a database that a
// program has open. No page of it counts, and programs continue to write.
func TestLargeImportOnFullDisk(t *testing.T) {
	dir := smallDisk(t, "100m")
	file := filepath.Join(t.TempDir(), "new.db")
	if err := (workerJob{Path: file, Statements: []string{"CREATE TABLE t(v)", "INSERT INTO t VALUES(zeroblob(66<<20))"}}).inProcess(t); err != nil {
		t.Fatal(err)
	}
	imported, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	n := startNode(t, nodeConfig{with: func(c *replica.Config) { c.Data = filepath.Join(dir, "data") }})
	n.ready()
	other := startNode(t, nodeConfig{primary: n.url})
	other.ready()
	n.exec("app.db", "wal", "CREATE TABLE t(v)")
	w := startWorker(t, workerJob{Path: n.path("app.db"), Journal: "wal", Hold: true, Statements: []string{"INSERT INTO t VALUES(1)"}})
	eventually(t, "the program", func() bool { return w.count() > 0 })
	if got := n.postImport("app.db", imported); got != http.StatusInternalServerError {
		t.Fatal("status ", got)
	}
	if database.Torn(n.Find("app.db")) {
		t.Fatal("torn")
	}
	n.exec("app.db", "", "UPDATE t SET v=2")
	same(t, n, other, "app.db")
	if got, _ := n.export("app.db"); len(got) > 1<<20 {
		t.Errorf("%d bytes", len(got))
	}
}

// TestRenewOnFullDisk imports a file with another page size while a program has the database open, on a disk without
// room for the new file: the database stays as it is. With room, the program keeps the old file.
func TestRenewOnFullDisk(t *testing.T) {
	dir := smallDisk(t, "1m")
	source := startNode(t, nodeConfig{})
	source.ready()
	source.exec("new.db", "delete", "PRAGMA page_size=8192", "CREATE TABLE t(v)", "INSERT INTO t VALUES(randomblob(500000))")
	imported, _ := source.export("new.db")
	n := startNode(t, nodeConfig{with: func(c *replica.Config) { c.Data = filepath.Join(dir, "data") }})
	n.ready()
	other := startNode(t, nodeConfig{primary: n.url})
	other.ready()
	n.exec("app.db", "wal", "CREATE TABLE t(v)")
	w := startWorker(t, workerJob{Path: n.path("app.db"), Journal: "wal", Hold: true, Statements: []string{"INSERT INTO t VALUES(1)"}})
	eventually(t, "the program", func() bool { return w.count() > 0 })
	same(t, n, other, "app.db")
	before, at := n.export("app.db")
	if got := n.postImport("app.db", imported); got != http.StatusInternalServerError {
		t.Error("status ", got)
	}
	if diverged, _ := n.Find("app.db").Diverged(); diverged {
		t.Error("diverged")
	}
	if after, pos := n.export("app.db"); pos != at || !bytes.Equal(after, before) {
		t.Errorf("%d bytes at %s; they were %d at %s", len(after), pos, len(before), at)
	}
	n.exec("app.db", "", "UPDATE t SET v=2")
	same(t, n, other, "app.db")
	hidden, err := filepath.Glob(filepath.Join(dir, "data", "files", ".*"))
	if err != nil || len(hidden) != 0 {
		t.Errorf("left: %v, %v", hidden, err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, "size=8m"); err != nil {
		t.Fatal(err)
	}
	if got := n.postImport("app.db", imported); got != http.StatusOK {
		t.Error("status ", got)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "data", "files", "app.db")); err != nil || !bytes.Equal(got, imported) {
		t.Errorf("the file differs from the import: %v", err)
	}
	same(t, n, other, "app.db")
	n.exec("app.db", "wal", "UPDATE t SET v=3")
	same(t, n, other, "app.db")
}

// TestRoomOverWAL: an import gets the last room of the disk, and keeps it while the pages in the WAL of a program that
// was killed move to the database file.
func TestRoomOverWAL(t *testing.T) {
	d := newDisk(t)
	n := startNode(t, nodeConfig{with: func(c *replica.Config) { c.Data = d.dir }})
	n.ready()
	n.exec("new.db", "delete", "PRAGMA page_size=8192", "CREATE TABLE t(v)", "INSERT INTO t VALUES(randomblob(20000))")
	imported, _ := n.export("new.db")
	w := startWorker(t, workerJob{Path: n.path("app.db"), Journal: "wal", Hold: true, Statements: []string{"CREATE TABLE t(v)"}})
	eventually(t, "the program", func() bool { return w.count() > 0 })
	if err := w.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-w.done
	if info, err := os.Stat(filepath.Join(d.dir, "files", "app.db-wal")); err != nil || info.Size() == 0 {
		t.Fatal("no WAL: ", err)
	}
	d.last = "files/app.db"
	if got := n.postImport("app.db", imported); got != http.StatusOK {
		t.Error("status ", got)
	}
	if got, _ := n.export("app.db"); !bytes.Equal(got, imported) {
		t.Error("the import has other content")
	}
}
