package replica_test

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mattn/go-sqlite3"
	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/internal/mounttest"
	"github.com/hangar-platform/hangar/replica"
	"github.com/hangar-platform/hangar/replica/events"
	"github.com/hangar-platform/hangar/replica/lease"
	"github.com/hangar-platform/hangar/replica/sqlite"
	"github.com/hangar-platform/hangar/replica/txlog"
)

// workerEnv turns this program into a writer of a database: programs that are killed, or that lock
// a database against each other, have to be processes.
const workerEnv = "HANGAR_DB_TEST_WORKER"

func TestMain(m *testing.M) {
	if job := os.Getenv(workerEnv); job != "" {
		var j workerJob
		if err := json.Unmarshal([]byte(job), &j); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		if err := j.run(); err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(clerkEnv) != "" {
		serveJobs()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// workerJob is what a writer does.
type workerJob struct {
	Path    string
	Journal string
	Seed    uint64
	Ops     int
	Vacuum  bool

	Statements []string // what it does instead
	Integrity  bool     // what it checks instead
	Hold       bool     // it waits to be killed, after the statements
	Register   bool     // it swaps the value of a register for each line that it reads
	Reads      bool     // it counts the rows for each line that it reads
	Full       bool     // it syncs with each commit, also in WAL mode
}

// open opens a database as programs do.
func open(path, journal string) (*sql.DB, error) {
	path, query, _ := strings.Cut(path, "?")
	db, err := sql.Open("sqlite3", "file:"+path+"?_busy_timeout=30000&_txlock=immediate&"+query)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	if journal != "" {
		var mode string
		err := db.QueryRow("PRAGMA journal_mode=" + journal).Scan(&mode)
		if err == nil && mode != journal {
			err = fmt.Errorf("the journal mode is %s, not %s", mode, journal) // SQLite does not report that it is busy
		}
		if err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	return db, nil
}

// run writes, and prints a line after each commit that has changed something.
func (j workerJob) run() error {
	if j.Register {
		return j.swaps()
	}
	if j.Reads {
		return j.reads()
	}
	db, err := open(j.Path, j.Journal)
	if err != nil {
		return err
	}
	defer db.Close()
	if j.Integrity {
		var result string
		if err := db.QueryRow("PRAGMA integrity_check").Scan(&result); err != nil || result != "ok" {
			return fmt.Errorf("integrity: %s %w", result, err)
		}
		return nil
	}
	for _, s := range j.Statements {
		if _, err := db.Exec(s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	if j.Hold {
		fmt.Println("holding")
		_, err := io.Copy(io.Discard, os.Stdin) // it does not end before this process
		return err
	}
	if len(j.Statements) > 0 {
		return nil
	}
	if _, err := db.Exec("PRAGMA cache_size=20"); err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(j.Seed, 1))
	for range j.Ops {
		changed, err := j.op(db, rng)
		// In WAL mode a reader's snapshot may be too old to write, and no timeout helps.
		if e := (sqlite3.Error{}); errors.As(err, &e) && (e.Code == sqlite3.ErrBusy || e.Code == sqlite3.ErrLocked) {
			continue
		}
		if err != nil {
			return err
		}
		if changed {
			fmt.Println("committed")
		}
	}
	return nil
}

func (j workerJob) op(db *sql.DB, rng *rand.Rand) (bool, error) {
	blob := func(n int) string { return fmt.Sprintf("randomblob(%d)", 1+rng.IntN(n)) }
	switch n := rng.IntN(100); {
	case n < 45:
		_, err := db.Exec("INSERT INTO t(v) VALUES(" + blob(3000) + ")")
		return err == nil, err
	case n < 60:
		r, err := db.Exec("DELETE FROM t WHERE id IN (SELECT id FROM t ORDER BY random() LIMIT 20)")
		if err != nil {
			return false, err
		}
		count, err := r.RowsAffected()
		return count > 0, err
	case n < 70:
		r, err := db.Exec("UPDATE t SET v=" + blob(2000) + " WHERE id % 7 = " + fmt.Sprint(rng.IntN(7)))
		if err != nil {
			return false, err
		}
		count, err := r.RowsAffected()
		return count > 0, err
	case n < 90:
		return j.transaction(db, rng, blob)
	case n < 94 && j.Vacuum:
		_, err := db.Exec("VACUUM")
		return err == nil, err
	case j.Journal == "wal":
		kind := []string{"PASSIVE", "FULL", "RESTART", "TRUNCATE"}[rng.IntN(4)]
		_, err := db.Exec("PRAGMA wal_checkpoint(" + kind + ")")
		return false, err
	default:
		return false, nil
	}
}

// transaction spills its cache, returns to savepoints, and is sometimes rolled back.
func (j workerJob) transaction(db *sql.DB, rng *rand.Rand, blob func(int) string) (bool, error) {
	tx, err := db.Begin()
	if err != nil {
		return false, err
	}
	defer tx.Rollback()
	for i := range 2 + rng.IntN(60) {
		if _, err := tx.Exec("INSERT INTO t(v) VALUES(" + blob(3000) + ")"); err != nil {
			return false, err
		}
		if i%13 == 7 && j.Journal != "off" {
			if _, err := tx.Exec("SAVEPOINT s; INSERT INTO t(v) VALUES(" + blob(5000) + "); DELETE FROM t WHERE id % 5 = 1; ROLLBACK TO s; RELEASE s"); err != nil {
				return false, err
			}
		}
	}
	if rng.IntN(3) == 0 && j.Journal != "off" {
		return false, tx.Rollback()
	}
	err = tx.Commit()
	return err == nil, err
}

// worker is a writer that runs.
type worker struct {
	cmd       *exec.Cmd
	mu        sync.Mutex
	committed int
	done      chan error
	in        io.Writer
	lines     chan string // its answers
}

func startWorker(t *testing.T, j workerJob) *worker {
	t.Helper()
	b, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w := &worker{cmd: exec.Command(exe), done: make(chan error, 1), lines: make(chan string)}
	w.cmd.Env = append(os.Environ(), workerEnv+"="+string(b))
	w.cmd.Stderr = os.Stderr
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			w.mu.Lock()
			w.committed++
			w.mu.Unlock()
			if j.Register || j.Reads {
				w.lines <- lines.Text()
			}
		}
		close(w.lines)
		w.done <- w.cmd.Wait()
	}()
	t.Cleanup(func() { w.cmd.Process.Kill() })
	return w
}

func (w *worker) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.committed
}

// needsMount skips a test on a machine that cannot mount.
func needsMount(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("not root: the mount, its locks and its capture are not tested")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		tb.Skip("no /dev/fuse: the mount, its locks and its capture are not tested")
	}
}

// testNode is a node that runs.
type testNode struct {
	*replica.Node
	t   testing.TB
	dir string // of the databases
	url string

	stop func()
}

// nodeConfig configures a node.
type nodeConfig struct {
	root    string // data and mount are below; made if empty
	primary string // URL; empty for the primary itself
	capture replica.Capture
	slow    bool // no passthrough
	with    func(*replica.Config)
	lease   func(url string) lease.Lease // instead of a static one
}

func startNode(tb testing.TB, c nodeConfig) *testNode {
	tb.Helper()
	if c.capture != replica.Tail {
		needsMount(tb)
	}
	if c.root == "" {
		c.root = tb.TempDir()
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	n := &testNode{t: tb, dir: filepath.Join(c.root, "mnt"), url: "http://" + listener.Addr().String()}
	peer := lease.Peer{Hostname: "primary", URL: c.primary}
	config := replica.Config{
		Data: filepath.Join(c.root, "data"), Dir: n.dir, Hostname: "primary", Candidate: c.primary == "",
		Lease: lease.NewStatic(c.primary == "", peer), Capture: c.capture, NoPassthrough: c.slow,
		Log: slog.New(slog.NewTextHandler(testLog{tb}, nil)),
	}
	if c.primary != "" {
		config.Hostname = "replica"
	}
	if c.lease != nil {
		config.Lease = c.lease(n.url)
	}
	if c.with != nil {
		c.with(&config)
	}
	n.Node = replica.New(config)
	if err := n.Open(); err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	server := n.NewServer()
	if server.TLSConfig != nil {
		n.url = "https" + strings.TrimPrefix(n.url, "http")
		go server.ServeTLS(listener, "", "")
	} else {
		go server.Serve(listener)
	}
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			tb.Errorf("node ended: %v", err)
		}
		server.Close()
		if err := n.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	tb.Cleanup(n.stop)
	return n
}

type testLog struct{ t testing.TB }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

func (n *testNode) ready() {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := n.Ready(ctx); err != nil {
		n.t.Fatal("the node is not ready: ", err)
	}
}

func (n *testNode) path(db string) string { return filepath.Join(n.dir, db) }

// exec runs SQL on a database of the node in another process: this process serves the mount, and
// would deadlock on memory that is mapped from there.
func (n *testNode) exec(db, journal string, statements ...string) {
	n.t.Helper()
	if err := (workerJob{Path: n.path(db), Journal: journal, Statements: statements}).inProcess(n.t); err != nil {
		n.t.Fatal(err)
	}
}

// txEvent is an event of any type.
type txEvent struct {
	Type string
	DB   string
	Data struct {
		IsPrimary         bool
		Hostname          string
		TXID              ltx.TXID     `json:"txID"`
		PostApplyChecksum ltx.Checksum `json:"postApplyChecksum"`
		PageSize, Commit  uint32
		Timestamp         time.Time
		Positions         map[string]events.Position
	}
}

// recorder keeps the events of a node.
type recorder struct {
	mu     sync.Mutex
	all    []txEvent
	raw    []string
	done   chan struct{}
	cancel context.CancelFunc
	err    error
}

// record subscribes to /events and returns when the first event has arrived.
func record(t *testing.T, url string) *recorder {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", url, resp.Status)
	}
	r := &recorder{done: make(chan struct{}), cancel: cancel}
	first := make(chan struct{})
	go func() {
		defer close(r.done)
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		for n := 0; lines.Scan(); n++ {
			var e txEvent
			err := json.Unmarshal(lines.Bytes(), &e)
			r.mu.Lock()
			r.all = append(r.all, e)
			r.raw = append(r.raw, lines.Text())
			r.err = err
			r.mu.Unlock()
			if n == 0 {
				close(first)
			}
		}
		r.mu.Lock()
		r.err = errors.Join(r.err, lines.Err())
		r.mu.Unlock()
	}()
	t.Cleanup(func() { cancel(); <-r.done })
	select {
	case <-first:
	case <-time.After(time.Minute):
		t.Fatal("no first event")
	}
	return r
}

// first returns the first event, and its text.
func (r *recorder) first() (txEvent, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[0], r.raw[0]
}

// lines returns the text of the events so far.
func (r *recorder) lines() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.raw)
}

// transactions returns the events of a database so far.
func (r *recorder) transactions(db string) []txEvent {
	r.mu.Lock()
	defer r.mu.Unlock()
	var of []txEvent
	for _, e := range r.all {
		if e.Type == "tx" && e.DB == db {
			of = append(of, e)
		}
	}
	return of
}

// eventually waits for a condition that another process or goroutine makes true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(90 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("timed out: ", what)
		}
	}
}

// export returns a database and its position from /export.
func (n *testNode) export(db string) ([]byte, string) {
	n.t.Helper()
	f, err := os.CreateTemp(n.t.TempDir(), "export")
	if err != nil {
		n.t.Fatal(err)
	}
	defer f.Close()
	change, err := n.Find(db).Export(context.Background(), f)
	if err != nil {
		n.t.Fatal(err)
	}
	b, err := os.ReadFile(f.Name())
	if err != nil {
		n.t.Fatal(err)
	}
	return b, change.Pos.String()
}

// fullSum computes the checksum of a database file.
func fullSum(b []byte, pageSize uint32) ltx.Checksum {
	sum := ltx.Checksum(0)
	for page := uint32(1); int64(page)*int64(pageSize) <= int64(len(b)); page++ {
		sum ^= sqlite.PageSum(page, b[int64(page-1)*int64(pageSize):][:pageSize])
	}
	return sum | ltx.ChecksumFlag
}

// replay applies the log of a database to an empty one. It checks that each transaction leads to
// its checksum, and returns the database.
func (n *testNode) replay(db string) []byte {
	n.t.Helper()
	log := n.Find(db).Log()
	if base := log.Base(); base.TXID != 0 {
		n.t.Fatalf("the log begins after %s", base)
	}
	r, err := log.After(log.Base())
	if err != nil {
		n.t.Fatal(err)
	}
	defer r.Close()
	var file []byte
	for {
		b, err := r.Next()
		if err != nil {
			if r.Close(); err.Error() != "EOF" {
				n.t.Fatal(err)
			}
			return file
		}
		tx, err := txlog.Decode(b)
		if err != nil {
			n.t.Fatal(err)
		}
		size := int(tx.Commit) * int(tx.PageSize)
		if size > len(file) {
			file = append(file, make([]byte, size-len(file))...)
		}
		file = file[:size]
		for _, p := range tx.Pages {
			copy(file[int(p.Number-1)*int(tx.PageSize):], p.Data)
		}
		if got := fullSum(file, tx.PageSize); got != tx.Post {
			n.t.Fatalf("transaction %s leads to %s, and says %s", tx.MinTXID, got, tx.Post)
		}
	}
}

// consecutive checks that events have all IDs from the first one on, each once.
func consecutive(t *testing.T, events []txEvent, first ltx.TXID) {
	t.Helper()
	for i, e := range events {
		if want := first + ltx.TXID(i); e.Data.TXID != want {
			t.Fatalf("event %d has ID %s, not %s", i, e.Data.TXID, want)
		}
	}
}

func integrity(t *testing.T, path string) {
	t.Helper()
	if err := (workerJob{Path: path, Integrity: true}).inProcess(t); err != nil {
		t.Fatal(path, ": ", err)
	}
}

// notMounted checks that a test leaves nothing.
func notMounted(t *testing.T, dir string) {
	t.Helper()
	left, err := mounttest.Mentioning(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left mounted: %v %v", left, err)
	}
}
