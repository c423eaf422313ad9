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

	"github.com/hangar-platform/hangar/internal/etcdtest"
	"github.com/hangar-platform/hangar/internal/freeport"
	"github.com/hangar-platform/hangar/internal/gobuild"
)

// node is a running program.
type node struct {
	t    *testing.T
	exe  string
	root string
	url  string
	cmd  *exec.Cmd
	path string // of the database

	rest chan string // receives the log after the line that startUntil waited for, once the program has ended
}

func newNode(t *testing.T) *node {
	t.Helper()
	needsMount(t)
	root := t.TempDir()
	return newNodeOf(t, root, build(t, root), "one", "type: static")
}

// build builds the program.
func build(t *testing.T, dir string) string {
	t.Helper()
	exe := filepath.Join(dir, "hangar-db")
	if err := gobuild.Build(context.Background(), exe, "github.com/hangar-platform/hangar/cmd/hangar-db"); err != nil {
		t.Fatal(err)
	}
	return exe
}

func needsMount(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root: the program, its end by kill -9 and its commands are not tested")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("no /dev/fuse: the program, its end by kill -9 and its commands are not tested")
	}
}

// newNodeOf returns a node with a name and a configuration of its lease.
func newNodeOf(t *testing.T, root, exe, name, keys string) *node {
	t.Helper()
	n := &node{t: t, root: root, exe: exe, path: filepath.Join(root, "mnt", "app.db")}
	address, err := freeport.Address(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	n.url = "http://" + address
	config := fmt.Sprintf("fuse: {dir: %q}\ndata: {dir: %q}\nhttp: {addr: %q}\nlease: {%s, hostname: %s, advertise-url: %q}\n",
		filepath.Join(n.root, "mnt"), filepath.Join(n.root, "data"), strings.TrimPrefix(n.url, "http://"), keys, name, n.url)
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
	n.startUntil("msg=primary")
}

// startUntil starts the program and waits for a line of its log.
func (n *node) startUntil(text string) {
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
		if strings.Contains(lines.Text(), text) {
			said := make(chan string, 1)
			n.rest = said
			go func() {
				var rest strings.Builder
				for lines.Scan() {
					fmt.Fprintln(&rest, lines.Text())
				}
				said <- rest.String()
			}()
			return
		}
	}
	n.t.Fatal("the node has ended")
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
	db, err := sql.Open("sqlite3", "file:"+n.path+"?_busy_timeout=10000")
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
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
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

// TestProgram kills a node with SIGKILL, checks that writes then fail, and starts the node again. It runs the
// commands of the program, and checks that an orderly end leaves nothing mounted.
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

// TestElection elects a primary of several programs. A primary hands over on request and when it is stopped, and
// another one takes over when it is killed.
func TestElection(t *testing.T) {
	needsMount(t)
	dir := t.TempDir()
	exe := build(t, dir)
	keys := fmt.Sprintf("type: etcd, etcd: {endpoints: [%q], ttl: 5s, lock-delay: 50ms}", etcdtest.Start(t))
	a := newNodeOf(t, t.TempDir(), exe, "a", keys)
	b := newNodeOf(t, t.TempDir(), exe, "b", keys)
	a.start()
	b.startUntil("capture is strict")
	if err := a.exec("PRAGMA journal_mode=wal", "CREATE TABLE t(v)", "INSERT INTO t VALUES(1)"); err != nil {
		t.Fatal(err)
	}
	// A node can hand over only to one that follows it.
	until(t, "a hand-off", func() bool {
		out, err := a.run("handoff")
		t.Log(out)
		return err == nil && out == "b is the primary\n"
	})
	until(t, "a write", func() bool { return b.exec("INSERT INTO t VALUES(2)") == nil })
	if err := a.exec("INSERT INTO t VALUES(3)"); err == nil {
		t.Error("the replica took a write")
	}
	until(t, "a to follow", func() bool {
		out, err := b.run("status")
		return err == nil && strings.Contains(out, `"hostname": "a"`)
	})
	if out, err := a.run("promote"); err != nil || out != "a is the primary\n" {
		t.Fatal(out, err)
	}
	if err := a.exec("INSERT INTO t VALUES(3)"); err != nil {
		t.Fatal(err)
	}
	// With the halt lock, programs on the replica may write.
	committed := 5
	write := fmt.Sprintf("sqlite3 %s 'PRAGMA busy_timeout=5000; INSERT INTO t VALUES(9)'", b.path)
	if _, err := exec.LookPath("sqlite3"); err == nil {
		until(t, "b to follow", func() bool {
			out, err := a.run("status")
			return err == nil && strings.Contains(out, `"hostname": "b"`)
		})
		if out, err := b.run("run", "--with-halt-lock-on", "app.db", "--", "sh", "-c", write); err != nil {
			t.Error(out, err)
		}
		committed++
	}
	until(t, "b to follow", func() bool {
		out, err := a.run("status")
		return err == nil && strings.Contains(out, `"hostname": "b"`)
	})
	if err := a.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if said := <-a.rest; !strings.Contains(said, `msg="handed over" to=b`) { // no node waited for the lease to expire
		t.Errorf("the primary has not handed over before its end:\n%s", said)
	}
	if err := a.cmd.Wait(); err != nil {
		t.Error("end: ", err)
	}
	a.cmd = nil
	var line string
	until(t, "b to be the primary", func() bool {
		line = b.firstEvent()
		return strings.Contains(line, `"isPrimary":true`)
	})
	if !strings.Contains(line, fmt.Sprintf(`"app.db":{"txID":"%016x"`, committed)) {
		t.Errorf("a committed row is missing: %s", line)
	}
	a.startUntil("capture is strict")
	until(t, "a to follow", func() bool {
		out, err := b.run("status")
		return err == nil && strings.Contains(out, `"hostname": "a"`)
	})
	b.kill()
	until(t, "a write", func() bool { return a.exec("INSERT INTO t VALUES(4)") == nil })
	if out, err := a.run("handoff", "b"); err == nil || !strings.Contains(out, "409") {
		t.Error(out, err)
	}
}

// until waits for a condition that depends on another process.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !ok() {
		select {
		case <-deadline:
			t.Fatal("timed out waiting for: ", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
