package replica_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/internal/freeport"
)

// referenceVersion is the release of LiteFS whose event stream this package implements.
const referenceVersion = "github.com/superfly/litefs/cmd/litefs@v0.5.14"

// reference is LiteFS with a mount of its own.
type reference struct{ url, dir string }

// startReference builds LiteFS and runs it as a static primary.
func startReference(t *testing.T) *reference {
	t.Helper()
	needsMount(t)
	if testing.Short() {
		t.Skip("it takes a minute to compile: LiteFS is not compared")
	}
	if _, err := exec.LookPath("fusermount3"); err != nil {
		t.Skip("LiteFS needs fusermount3, of Debian's fuse3: it is not compared")
	}
	bin, root := t.TempDir(), t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "install", referenceVersion)
	build.Dir = root // outside of this module
	build.Env = append(os.Environ(), "GOBIN="+bin, "CGO_ENABLED=1", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Skipf("LiteFS cannot be built, and is not compared: %v: %.500s", err, out)
	}
	address, err := freeport.Address(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := &reference{url: "http://" + address, dir: filepath.Join(root, "mnt")}
	file := filepath.Join(root, "litefs.yml")
	config := fmt.Sprintf("fuse: {dir: %q}\ndata: {dir: %q}\nhttp: {addr: %q}\nlease: {type: static, candidate: true, hostname: primary, advertise-url: %q}\n",
		r.dir, filepath.Join(root, "data"), address, r.url)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command(filepath.Join(bin, "litefs"), "mount", "-config", file)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // Wait shows whether it has ended
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
		if t.Failed() {
			t.Logf("LiteFS: %.4000s", log.String())
		}
		_ = syscall.Unmount(r.dir, syscall.MNT_DETACH) // in case it did not
		notMounted(t, r.dir)
	})
	eventually(t, "the mount of LiteFS", func() bool {
		mounted, err := os.ReadFile("/proc/mounts")
		return err == nil && strings.Contains(string(mounted), " "+r.dir+" ")
	})
	return r
}

// TestReference has a program do the same on a mount of LiteFS and on one of ours: the transactions
// have the same IDs, checksums and sizes, and the events are the same.
func TestReference(t *testing.T) {
	ref := startReference(t)
	n := startNode(t, nodeConfig{})
	n.ready()
	ours, theirs := record(t, n.url+"/events"), record(t, ref.url+"/events")
	for i, c := range []struct {
		journal  string
		pageSize int
	}{{"wal", 4096}, {"delete", 4096}, {"truncate", 1024}, {"persist", 8192}, {"wal", 512}} {
		db := fmt.Sprintf("%s%d.db", c.journal, i)
		statements := []string{
			fmt.Sprintf("PRAGMA page_size=%d", c.pageSize), "PRAGMA journal_mode=" + c.journal,
			"CREATE TABLE t(id INTEGER PRIMARY KEY, v)", "CREATE INDEX i ON t(v)",
		}
		for row := range 20 {
			statements = append(statements, fmt.Sprintf("INSERT INTO t(v) VALUES(%d || hex(zeroblob(%d)))", row, row*row*10))
		}
		statements = append(statements,
			"BEGIN; UPDATE t SET v = 'x' || v WHERE id % 3 = 1; DELETE FROM t WHERE id % 5 = 2; COMMIT",
			"BEGIN; INSERT INTO t(v) VALUES('not kept'); ROLLBACK", "DROP INDEX i", "DELETE FROM t WHERE id > 10", "INSERT INTO t(v) VALUES('last')")
		for _, dir := range []string{n.dir, ref.dir} {
			if err := (workerJob{Path: filepath.Join(dir, db), Statements: statements}).inProcess(t); err != nil {
				t.Fatal(dir, ": ", err)
			}
		}
		position := func(dir string) string {
			b, err := os.ReadFile(filepath.Join(dir, db+"-pos"))
			if err != nil {
				t.Fatal(err)
			}
			return strings.TrimSpace(string(b))
		}
		if got, want := position(n.dir), position(ref.dir); got != want {
			t.Errorf("%s: position %s, of LiteFS %s", db, got, want)
		}
		eventually(t, "the events of "+db, func() bool {
			all := theirs.transactions(db)
			return len(all) > 0 && len(ours.transactions(db)) >= len(all) && strings.HasPrefix(position(ref.dir), all[len(all)-1].Data.TXID.String())
		})
		all := ours.transactions(db)
		for i, want := range theirs.transactions(db) {
			if got := all[i]; got.Data.TXID != want.Data.TXID || got.Data.PostApplyChecksum != want.Data.PostApplyChecksum ||
				got.Data.PageSize != want.Data.PageSize || got.Data.Commit != want.Data.Commit {
				t.Errorf("%s: event %+v, of LiteFS %+v", db, got.Data, want.Data)
			}
		}
		t.Logf("%s: %d transactions, %s", db, len(all), position(n.dir))
	}
}
