package main_test

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/internal/freeport"
	"github.com/hangar-platform/hangar/internal/gobuild"
)

// appNode is a node in a plain directory, with an App behind its proxy.
type appNode struct {
	t          *testing.T
	dir        string // of the databases
	url, proxy string
	cmd        *exec.Cmd
	app        *httptest.Server
}

// startAppNode starts the program with an App that inserts a row for each POST and counts them for each GET.
func startAppNode(t *testing.T, exe, backup, primary string) *appNode {
	t.Helper()
	root := t.TempDir()
	n := &appNode{t: t, dir: filepath.Join(root, "dir")}
	if err := os.Mkdir(n.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var addresses [2]string
	for i := range addresses {
		var err error
		if addresses[i], err = freeport.Address(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	n.url, n.proxy = "http://"+addresses[0], "http://"+addresses[1]
	n.app = httptest.NewServer(http.HandlerFunc(n.serve))
	t.Cleanup(n.app.Close)
	hostname, advertise := "one", n.url
	if primary != "" {
		hostname, advertise = "two", primary
	}
	config := fmt.Sprintf("fuse: {dir: %q}\ndata: {dir: %q}\nhttp: {addr: %q}\ncapture: tail\nlease: {type: static, hostname: %s, advertise-url: %q, candidate: %v}\n",
		n.dir, filepath.Join(root, "data"), addresses[0], hostname, advertise, primary == "")
	config += fmt.Sprintf("proxy: {addr: %q, target: %q, db: app.db, passthrough: ['/through']}\n", addresses[1], strings.TrimPrefix(n.app.URL, "http://"))
	if backup != "" {
		config += fmt.Sprintf("backup: {url: %q, delay: 5ms}\n", backup)
	}
	file := filepath.Join(root, "litefs.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	n.cmd = exec.Command(exe, "mount", "--config", file)
	errs, err := n.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	ready := make(chan struct{})
	reading.Go(func() {
		for lines := bufio.NewScanner(errs); lines.Scan(); {
			t.Log(hostname, lines.Text())
			if strings.Contains(lines.Text(), "msg=proxy") {
				close(ready)
			}
		}
	})
	t.Cleanup(func() {
		n.stop()
		reading.Wait()
	})
	<-ready
	return n
}

func (n *appNode) stop() {
	n.t.Helper()
	if n.cmd == nil {
		return
	}
	if err := n.cmd.Process.Signal(unix.SIGTERM); err != nil {
		n.t.Error(err)
	}
	if err := n.cmd.Wait(); err != nil {
		n.t.Error("the end of a node: ", err)
	}
	n.cmd = nil
}

func (n *appNode) serve(w http.ResponseWriter, r *http.Request) {
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(n.dir, "app.db")+"?_busy_timeout=10000&_journal_mode=WAL")
	if err != nil {
		n.t.Error(err)
		return
	}
	defer db.Close()
	count := 0
	if r.Method == http.MethodPost {
		_, err = db.Exec("CREATE TABLE IF NOT EXISTS t(v); INSERT INTO t VALUES(1)")
	} else {
		err = db.QueryRow("SELECT count(*) FROM t").Scan(&count)
	}
	if err != nil {
		n.t.Error(r.Method, err)
	}
	fmt.Fprint(w, count)
}

func (n *appNode) do(method, path, cookie string) (*http.Response, string) {
	n.t.Helper()
	req, err := http.NewRequestWithContext(n.t.Context(), method, path, http.NoBody)
	if err != nil {
		n.t.Fatal(err)
	}
	if cookie != "" {
		req.AddCookie(&http.Cookie{Name: "__txid", Value: cookie})
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return resp, string(b)
}

// TestProxyAndBackup: clients of two nodes read their own writes, and a backup restores all of them.
func TestProxyAndBackup(t *testing.T) {
	exe := filepath.Join(t.TempDir(), "hangar-db")
	if err := gobuild.Build(context.Background(), exe, "github.com/hangar-platform/hangar/cmd/hangar-db"); err != nil {
		t.Fatal(err)
	}
	store := "file://" + filepath.Join(t.TempDir(), "backup")
	one := startAppNode(t, exe, store, "")
	two := startAppNode(t, exe, "", one.url)
	last := ""
	var half time.Time
	for n := range 20 {
		resp, _ := one.do(http.MethodPost, one.proxy, "")
		id := ""
		for _, c := range resp.Cookies() {
			if c.Name == "__txid" {
				id = c.Value
			}
		}
		if id <= last {
			t.Errorf("write %d: position %s after %s", n, id, last)
		}
		last = id
		if resp, count := two.do(http.MethodGet, two.proxy, id); count != fmt.Sprint(n+1) {
			t.Errorf("write %d: the replica reads %s (%s)", n, count, resp.Status)
		}
		if n == 9 {
			half = time.Now()
			<-time.After(3 * time.Millisecond) // times are in milliseconds
		}
	}
	resp, body := two.do(http.MethodPost, two.proxy+"/x", "")
	if resp.Header.Get("Fly-Replay") != "instance=one" || body != "" {
		t.Error(resp.Status, resp.Header, body)
	}
	if resp, body := two.do(http.MethodGet, two.proxy+"/litefs/health", ""); resp.StatusCode != http.StatusOK {
		t.Error(resp.Status, body)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		_, text := one.do(http.MethodGet, one.url+"/metrics", "")
		if strings.Contains(text, `hangar_db_backup_behind_transactions{db="app.db"} 0`) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the backup stays behind:\n", text)
		}
	}
	export := filepath.Join(t.TempDir(), "export.db")
	run(t, exe, "export", "--url", one.url, "--name", "app.db", export)
	if out := run(t, exe, "restore", "--from", store, "--list"); !strings.Contains(out, "app.db  ") {
		t.Error(out)
	}
	newest := filepath.Join(t.TempDir(), "newest.db")
	if out := run(t, exe, "restore", "--from", store, "-o", newest); !strings.Contains(out, last+"/") {
		t.Errorf("%s, want %s", out, last)
	}
	want, err := os.ReadFile(export)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(newest); err != nil || !bytes.Equal(got, want) {
		t.Error("the backup of the newest state differs from the export: ", err)
	}
	// The earlier content is imported as another database, and over the existing one.
	for name, rows := range map[string]string{"old.db": "0000000000000001/", "app.db": ""} {
		out := run(t, exe, "restore", "--from", store, "--db", "app.db", "--at", half.UTC().Format(time.RFC3339Nano), "--import", name, "--url", one.url)
		if !strings.Contains(out, " as "+name+", which is now at "+rows) {
			t.Error(out)
		}
	}
	if _, count := one.do(http.MethodGet, one.proxy, ""); count != "10" {
		t.Errorf("%s rows after the restore", count)
	}
	one.stop()

	old := filepath.Join(t.TempDir(), "old.db")
	run(t, exe, "restore", "--from", store, "--db", "app.db", "--at", half.UTC().Format(time.RFC3339Nano), "-o", old)
	db, err := sql.Open("sqlite3", old)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	count := 0
	if err := db.QueryRow("SELECT count(*) FROM t").Scan(&count); err != nil || count != 10 {
		t.Error(count, err)
	}
	for _, args := range [][]string{
		{"restore", "--from", store, "-o", old},
		{"restore", "--from", store, "--db", "none", "-o", old + "2"},
		{"restore", "--from", store, "--at", "yesterday", "-o", old + "2"},
		{"restore", "--from", store, "--at", "2001-01-01T00:00:00Z", "-o", old + "2"},
		{"restore", "-o", old + "2"},
		{"restore", "--from", store},
		{"restore", "--from", "http://x", "--list"},
	} {
		if out, err := exec.Command(exe, args...).CombinedOutput(); err == nil {
			t.Errorf("%v: %s", args, out)
		}
	}
}

func run(t *testing.T, exe string, args ...string) string {
	t.Helper()
	out, err := exec.Command(exe, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
	return string(out)
}
