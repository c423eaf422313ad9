package main_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/mattn/go-sqlite3"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/freeport"
	"github.com/hangar-platform/hangar/internal/gobuild"
)

// node is the program, on its way.
type node struct {
	t    *testing.T
	exe  string
	root string
	url  string
	cmd  *exec.Cmd
}

func newNode(t *testing.T) *node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root: the program, its end by kill -9 and its commands are not tested")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("no /dev/fuse: the program, its end by kill -9 and its commands are not tested")
	}
	n := &node{t: t, root: t.TempDir()}
	n.exe = filepath.Join(n.root, "hangar-db")
	if err := gobuild.Build(context.Background(), n.exe, "github.com/hangar-platform/hangar/cmd/hangar-db"); err != nil {
		t.Fatal(err)
	}
	address, err := freeport.Address(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	n.url = "http://" + address
	config := fmt.Sprintf("fuse: {dir: %q}\ndata: {dir: %q}\nhttp: {addr: %q}\nlease: {type: static, hostname: one, advertise-url: %q}\n",
		filepath.Join(n.root, "mnt"), filepath.Join(n.root, "data"), strings.TrimPrefix(n.url, "http://"), n.url)
	if err := os.WriteFile(filepath.Join(n.root, "litefs.yml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.kill()
		unix.Unmount(filepath.Join(n.root, "mnt"), unix.MNT_DETACH)
	})
	return n
}

// start starts the program and waits until it is the primary.
func (n *node) start() {
	n.t.Helper()
	n.cmd = exec.Command(n.exe, "mount", "--config", filepath.Join(n.root, "litefs.yml"))
	errs, err := n.cmd.StderrPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := n.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	lines := bufio.NewScanner(errs)
	for lines.Scan() {
		n.t.Log(lines.Text())
		if strings.Contains(lines.Text(), "msg=primary") {
			go func() {
				for lines.Scan() {
				}
			}()
			return
		}
	}
	n.t.Fatal("the node is not primary")
}

func (n *node) kill() {
	if n.cmd != nil {
		n.cmd.Process.Kill()
		n.cmd.Wait()
		n.cmd = nil
	}
}

func (n *node) run(args ...string) (string, error) {
	args = append(args[:1:1], append([]string{"--url", n.url}, args[1:]...)...)
	out, err := exec.Command(n.exe, args...).CombinedOutput()
	return string(out), err
}

func (n *node) exec(statements ...string) error {
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(n.root, "mnt", "app.db")+"?_busy_timeout=10000")
	if err != nil {
		return err
	}
	defer db.Close()
	for _, s := range statements {
		if _, err := db.Exec(s); err != nil {
			return err
		}
	}
	return nil
}

// firstEvent returns the first line of /events.
func (n *node) firstEvent() string {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.url+"/events", nil)
	if err != nil {
		n.t.Fatal(err)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if err != nil {
		n.t.Fatal(err)
	}
	return line
}

// TestProgram writes, kills the node with SIGKILL, sees that nobody can write then, and starts it again where
// it was. The commands of the program work on it, and an orderly end leaves nothing mounted.
func TestProgram(t *testing.T) {
	n := newNode(t)
	n.start()
	if err := n.exec("PRAGMA journal_mode=wal", "CREATE TABLE t(v)", "INSERT INTO t VALUES(1)"); err != nil {
		t.Fatal(err)
	}
	before := n.firstEvent()
	if !strings.Contains(before, `"app.db":{"txID":"0000000000000003"`) {
		t.Fatal(before)
	}
	n.kill()
	if err := n.exec("INSERT INTO t VALUES(2)"); err == nil {
		t.Error("a write while no node runs")
	}
	n.start()
	if after := n.firstEvent(); after != before {
		t.Errorf("before: %safter: %s", before, after)
	}
	if err := n.exec("INSERT INTO t VALUES(2)"); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(n.root, "copy.db")
	if out, err := n.run("export", "--name", "app.db", file); err != nil || !strings.Contains(out, "0000000000000004/") {
		t.Fatal(out, err)
	}
	if out, err := n.run("import", "--name", "other.db", file); err != nil || !strings.Contains(out, "0000000000000001/") {
		t.Fatal(out, err)
	}
	if out, err := n.run("status"); err != nil || !strings.Contains(out, `"capture": "strict"`) || !strings.Contains(out, `"name": "other.db"`) {
		t.Error(out, err)
	}
	if out, err := n.run("run", "--if-primary", "--", "sh", "-c", "echo ran; exit 7"); err == nil || out != "ran\n" {
		t.Error(out, err)
	}
	if out, err := n.run("export", "--name", "none", file+"2"); err == nil || !strings.Contains(out, "404") {
		t.Error(out, err)
	}
	if err := n.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := n.cmd.Wait(); err != nil {
		t.Error("end: ", err)
	}
	n.cmd = nil
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), n.root) {
		t.Error("still mounted ", err)
	}
}
