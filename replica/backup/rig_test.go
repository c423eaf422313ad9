package backup

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/mattn/go-sqlite3"
	"github.com/superfly/ltx"

	"github.com/hangar-platform/hangar/replica/database"
	"github.com/hangar-platform/hangar/replica/sqlite"
)

// clock is a time that tests set.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// committed is one state of a database that a test remembers.
type committed struct {
	Pos   ltx.Pos
	Stamp int64
}

// source is a primary with one database, whose transactions are imports of a file.
type source struct {
	dir     string
	db      *database.DB
	file    *sql.DB
	path    string
	history []committed

	mu      sync.Mutex
	cluster string
	epoch   uint64
	over    chan struct{} // nil while another node is the primary
}

func (s *source) All() []*database.DB { return []*database.DB{s.db} }

func (s *source) Leading() (string, uint64, <-chan struct{}, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cluster, s.epoch, s.over, s.over != nil
}

func openSource(dir string, now func() time.Time) (*source, error) {
	s := &source{dir: dir, cluster: "LFSC1", epoch: 1, over: make(chan struct{}), path: filepath.Join(dir, "work.db")}
	files := filepath.Join(dir, "files")
	if err := os.MkdirAll(files, 0o700); err != nil {
		return nil, err
	}
	var err error
	s.db, err = database.Open(database.Config{Name: "app.db", Dir: files, Log: filepath.Join(dir, "log"), Node: 1, Now: now})
	if err != nil {
		return nil, err
	}
	if s.file, err = sql.Open("sqlite3", "file:"+s.path); err != nil {
		return nil, err
	}
	s.file.SetMaxOpenConns(1)
	_, err = s.file.Exec("CREATE TABLE IF NOT EXISTS t(id INTEGER PRIMARY KEY, v)")
	return s, err
}

func (s *source) close() error { return errors.Join(s.file.Close(), s.db.Close()) }

// write changes the file and imports it.
func (s *source) write(rng *rand.Rand, rare string) error {
	statements := []string{
		fmt.Sprintf("INSERT INTO t(v) VALUES(randomblob(%d))", 1+rng.IntN(2000)),
		fmt.Sprintf("INSERT INTO t(v) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<%d) SELECT randomblob(400) FROM n", 1+rng.IntN(12)),
		"DELETE FROM t WHERE id IN (SELECT id FROM t ORDER BY random() LIMIT 15)",
		"UPDATE t SET v=randomblob(700) WHERE id % 5 = 1",
	}
	statement := statements[rng.IntN(len(statements))]
	if rare != "" {
		statement = rare
	}
	if _, err := s.file.Exec(statement); err != nil {
		return err
	}
	f, err := os.Open(s.path)
	if err != nil {
		return err
	}
	defer f.Close()
	change, err := s.db.Import(context.Background(), f)
	if err != nil {
		return err
	}
	s.history = append(s.history, committed{change.Pos, change.Timestamp})
	return nil
}

// at returns the state of the database at a time.
func (s *source) at(stamp int64) committed {
	var last committed
	for _, c := range s.history {
		if c.Stamp <= stamp {
			last = c
		}
	}
	return last
}

// tempDir is t.TempDir in memory, because these tests sync a lot and do not test syncing.
func tempDir(t *testing.T) string {
	t.Helper()
	const memory = "/dev/shm"
	if info, err := os.Stat(memory); err != nil || !info.IsDir() {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp(memory, "hangar-db-*") //nolint:usetesting // t.TempDir is on a disk
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return dir
}

// must fails a test on an error.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func newSource(t *testing.T, c *clock) *source {
	t.Helper()
	s, err := openSource(tempDir(t), c.Now)
	must(t, err)
	t.Cleanup(func() { must(t, s.close()) })
	return s
}

// exact is the Options.Exact of newBackup.
const exact = 24 * time.Hour

func newBackup(t *testing.T, s *source, store Store, c *clock) *Backup {
	t.Helper()
	return New(Options{
		Node: s, Store: store, Dir: tempDir(t), Delay: time.Millisecond, Now: c.Now, Log: slog.New(slog.NewTextHandler(testLog{t}, nil)),
		SnapshotInterval: 24 * time.Hour, Exact: exact, Retention: 30 * 24 * time.Hour,
	})
}

type testLog struct{ testing.TB }

func (l testLog) Write(b []byte) (int, error) {
	l.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

// round does one round of what Run repeats, in a term of its own if first.
func (b *Backup) round(ctx context.Context, first, tidy bool) error {
	cluster, epoch, _, _ := b.o.Node.Leading()
	if first {
		clear(b.states)
		if err := b.claim(ctx, cluster); err != nil {
			return err
		}
	}
	t := &term{b, epoch}
	err := errors.Join(t.pass(ctx), t.snapshots(ctx), t.pass(ctx))
	if err == nil && tidy {
		err = t.tidy(ctx)
	}
	return err
}

// restored restores a database and checks its file.
func restored(t *testing.T, store Store, stamp int64) (Restored, error) {
	t.Helper()
	path := filepath.Join(tempDir(t), "restored.db")
	var when time.Time
	if stamp != 0 {
		when = at(stamp)
	}
	r, err := Restore(t.Context(), store, "app.db", when, path)
	if err != nil {
		if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*")); len(left) > 0 {
			t.Errorf("a restore that failed leaves %v", left)
		}
		return r, err
	}
	b, err := os.ReadFile(path)
	must(t, err)
	h, err := sqlite.ParseHeader(b)
	must(t, err)
	sum := ltx.Checksum(0)
	for page := uint32(1); int64(page)*int64(h.PageSize) <= int64(len(b)); page++ {
		sum ^= sqlite.PageSum(page, b[int64(page-1)*int64(h.PageSize):][:h.PageSize])
	}
	if sum|ltx.ChecksumFlag != r.Pos.PostApplyChecksum || r.Size != int64(len(b)) {
		t.Errorf("the file has checksum %s and %d bytes: %+v", sum|ltx.ChecksumFlag, len(b), r)
	}
	return r, nil
}

// exact checks that the restored state of a time is exact.
func (s *source) exact(t *testing.T, store Store, stamp int64) {
	t.Helper()
	r, err := restored(t, store, stamp)
	if want := s.at(stamp); err != nil || r.Pos != want.Pos || r.Time.UnixMilli() != want.Stamp {
		t.Fatalf("at %s: %+v, %v; it was %s of %s", at(stamp), r, err, want.Pos, at(want.Stamp))
	}
}

// openDirectory opens a Store in a directory of the test.
func openDirectory(t *testing.T) (Store, string) {
	t.Helper()
	dir := filepath.Join(tempDir(t), "backup")
	s, err := OpenStore("file://"+dir, Credentials{})
	must(t, err)
	return s, dir
}

// names lists a store.
func names(t *testing.T, s Store) []string {
	t.Helper()
	var all []string
	must(t, s.List(t.Context(), "", func(name string, _ int64) error {
		all = append(all, name)
		return nil
	}))
	return all
}

// printJSON writes a line for the process that started this one.
func printJSON(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(b))
}
