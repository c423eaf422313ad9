package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/hangar-platform/hangar"
)

// serveDatabase runs a PostgreSQL server whose cluster is on a volume, with checksums of
// its pages. With CHECK it reads all of a cluster that is shut down, and ends.
const serveDatabase = `
set -e
bin=$(echo /usr/lib/postgresql/*/bin)
data=` + onVolume + `/cluster
[ -z "$CHECK" ] || exec $bin/pg_checksums --check -D $data
if [ ! -e $data ]; then
	rm -rf $data.new
	$bin/initdb --data-checksums --auth=trust --username=postgres -D $data.new
	echo 'host all all all trust' >>$data.new/pg_hba.conf
	printf "listen_addresses = '*'\nlogging_collector = off\nmax_wal_size = 64MB\n" >>$data.new/postgresql.conf
	sync -f $data.new
	mv $data.new $data
fi
exec $bin/postgres -D $data
`

// TestPostgreSQLOnAVolume: what PostgreSQL committed survives the end of its Machine and is
// in a snapshot that was taken while it worked; neither is damaged.
func TestPostgreSQLOnAVolume(t *testing.T) {
	p := start(t)
	prog := postgres()
	img, err := mutate.Config(build(t, prog.recipe), v1.Config{
		Cmd: []string{"sh", "-c", serveDatabase}, Env: prog.recipe.Config.Env, User: "postgres", StopSignal: "SIGINT",
	})
	if err != nil {
		t.Fatal(err)
	}
	config := hangar.MachineConfig{Image: p.push(t, img, "postgres:1"), Guest: &hangar.Guest{MemoryMB: 512}}
	d := p.volume(t, hangar.VolumeCreate{})
	m := p.run(t, "database", d.mount(config))
	m.answersQueries(t)
	m.exec(t, "pg", "createdb", "bench")
	m.exec(t, "pg", "pgbench", "--quiet", "--initialize", "--scale", "2", "bench")
	m.query(t, "CREATE TABLE told (n int PRIMARY KEY)")

	load := make(chan string, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { // until it is killed with the Machine
		out, code, err := m.tryExec(ctx, "pg", "pgbench", "--client", "4", "--time", "600", "--no-vacuum", "bench")
		load <- fmt.Sprintf("exit code %d, %v: %s", code, err, out)
	}()
	told := m.tellDatabase(t)
	told.progress(t, 30)
	atSnapshot := told.last.Load()
	snapshot := d.snapshot(t)
	t.Logf("writers waited %s for the snapshot, which added %d of %d bytes", snapshot.Frozen, snapshot.Size, snapshot.VolumeSize)
	told.progress(t, 30)
	m.killSandbox(t)
	atKill := <-told.ended
	t.Logf("%d transactions told before the snapshot, %d before the kill", atSnapshot, atKill)
	m.wait(t, hangar.MachineStopped)
	cancel()
	t.Logf("pgbench ended: %.200s", <-load)
	m.start(t)
	t.Run("killed", func(t *testing.T) { m.mustBeSound(t, atKill) })

	restored := p.volume(t, hangar.VolumeCreate{Snapshot: snapshot.ID})
	n := p.run(t, "restored", restored.mount(config))
	t.Run("restored", func(t *testing.T) { n.mustBeSound(t, atSnapshot) })
}

// answersQueries waits until the database of the Machine does.
func (m *machine) answersQueries(t *testing.T) {
	t.Helper()
	until(t, "pg_isready", func() error {
		out, code, err := m.tryExec(t.Context(), "pg", "pg_isready")
		if err == nil && code != 0 {
			err = fmt.Errorf("exit code %d: %s", code, out)
		}
		return err
	})
}

func (m *machine) psql() []string {
	return []string{
		"psql", "--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--set", "ON_ERROR_STOP=1",
		"--host", m.ip, "--username", "postgres", "--dbname", "bench",
	}
}

func (m *machine) query(t *testing.T, text string) string {
	t.Helper()
	return strings.TrimSpace(local(t, append(m.psql(), "--command", text)...))
}

// told are numbers that were sent to a database one by one, and committed.
type told struct {
	last  atomic.Int64
	ended chan int64 // the last one, once there is no database any more
}

// progress waits until some more are committed.
func (n *told) progress(t *testing.T, more int64) {
	t.Helper()
	from := n.last.Load()
	until(t, "commits", func() error {
		if now := n.last.Load(); now < from+more {
			return fmt.Errorf("%d of %d", now-from, more)
		}
		return nil
	})
}

// tellDatabase inserts numbers from 1 on.
func (m *machine) tellDatabase(t *testing.T) *told {
	t.Helper()
	all := &told{ended: make(chan int64, 1)}
	s := newProgramSession(t, func(s *lineSession, n int) error {
		if err := s.send("INSERT INTO told VALUES (%d) RETURNING n;\n", n); err != nil {
			return err
		}
		if err := s.expect(strconv.Itoa(n)); err != nil {
			return err
		}
		all.last.Store(int64(n))
		return nil
	}, m.psql()...)
	go func() {
		for s.step() == nil {
		}
		all.ended <- all.last.Load()
	}()
	return all
}

// mustBeSound checks the database in every way that PostgreSQL has, and that all numbers
// up to one are there.
func (m *machine) mustBeSound(t *testing.T, last int64) {
	t.Helper()
	m.answersQueries(t)
	if got := m.query(t, fmt.Sprintf("SELECT count(*) FROM told WHERE n <= %d", last)); got != strconv.FormatInt(last, 10) {
		t.Errorf("of %d committed transactions %s are there", last, got)
	}
	if got := m.query(t, "SELECT max(n) = count(*) FROM told"); got != "t" {
		t.Error("there are gaps in what was committed")
	}
	sums := "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history) " +
		"AND (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT sum(bbalance) FROM pgbench_branches)"
	if got := m.query(t, sums); got != "t" {
		t.Errorf("the sums of the benchmark differ: %q", got)
	}
	m.exec(t, "pg", "pg_amcheck", "--install-missing", "--heapallindexed", "--parent-check", "--all")
	if got := m.query(t, "SELECT sum(checksum_failures), current_setting('data_checksums') FROM pg_stat_database"); got != "0|on" {
		t.Errorf("pages with a wrong checksum: %s", got)
	}
	m.stop(t)
	now, err := m.p.c.Machine(t.Context(), m.ref)
	if err != nil {
		t.Fatal(err)
	}
	config := now.Config
	config.Env = map[string]string{"CHECK": "1"}
	if _, err := m.p.c.UpdateMachine(t.Context(), m.ref, hangar.MachineUpdate{Config: config}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.p.c.StartMachine(t.Context(), m.ref); err != nil {
		t.Fatal(err)
	}
	until(t, "end of pg_checksums", func() error {
		if newest := m.events(t)[0]; newest.Type != hangar.EventExit {
			return fmt.Errorf("the newest event is %s/%s", newest.Type, newest.Status)
		}
		return nil
	})
	if exit := m.exit(t); exit.ExitCode != 0 {
		t.Errorf("pg_checksums ended with code %d\n%s", exit.ExitCode, m.p.d.Run("logs", string(app), string(m.ref.ID)))
	}
}

// tellSQLite commits numbers from 1 on in two databases, one with a log ahead and one with
// a journal to roll back, and prints each one when both have it.
const tellSQLite = `
import sqlite3
dbs = [sqlite3.connect("` + onVolume + `/%s.db" % mode, isolation_level=None) for mode in ("wal", "delete")]
for db, mode in zip(dbs, ("wal", "delete")):
    db.execute("PRAGMA journal_mode=%s" % mode)
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE IF NOT EXISTS told(n INTEGER PRIMARY KEY, filler BLOB)")
    db.execute("CREATE INDEX IF NOT EXISTS fillers ON told(filler)")
n = max(db.execute("SELECT coalesce(max(n), 0) FROM told").fetchone()[0] for db in dbs)
while True:
    n += 1
    for db in dbs:
        db.execute("INSERT OR IGNORE INTO told VALUES(?, randomblob(3000))", (n,))
    print(n, flush=True)
`

const checkSQLite = `
import sqlite3, sys
for mode in ("wal", "delete"):
    db = sqlite3.connect("` + onVolume + `/%s.db" % mode)
    print(db.execute("PRAGMA integrity_check").fetchone()[0], db.execute("SELECT count(*) FROM told WHERE n <= ?", (int(sys.argv[1]),)).fetchone()[0])
`

// TestSQLiteOnAVolume: the same for SQLite.
func TestSQLiteOnAVolume(t *testing.T) {
	p := start(t)
	prog := python()
	config := hangar.MachineConfig{Image: p.push(t, build(t, prog.recipe), "python:1"), Guest: &hangar.Guest{MemoryMB: 512}}
	d := p.volume(t, hangar.VolumeCreate{})
	m := p.run(t, "sqlite", d.mount(config))
	check := func(t *testing.T, m *machine, last int64) {
		t.Helper()
		want := fmt.Sprintf("ok %d\nok %d\n", last, last)
		if got := m.exec(t, "python3", "-c", checkSQLite, strconv.FormatInt(last, 10)); got != want {
			t.Errorf("SQLite says %q, not %q", got, want)
		}
	}
	for range times(5, 1) {
		all := m.tellSQLite(t)
		all.progress(t, 30)
		atSnapshot := all.last.Load()
		snapshot := d.snapshot(t)
		all.progress(t, 10)
		m.killSandbox(t)
		atKill := <-all.ended
		m.wait(t, hangar.MachineStopped)
		m.start(t)
		check(t, m, atKill)
		restored := p.volume(t, hangar.VolumeCreate{Snapshot: snapshot.ID})
		n := p.run(t, "", restored.mount(config))
		check(t, n, atSnapshot)
		n.destroy(t)
		t.Logf("%d commits before the snapshot, for which writers waited %s, %d before the kill", atSnapshot, snapshot.Frozen, atKill)
	}
}

// tellSQLite runs the program that inserts numbers.
func (m *machine) tellSQLite(t *testing.T) *told {
	t.Helper()
	all := &told{ended: make(chan int64, 1)}
	r, w := io.Pipe()
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		_, err := m.p.c.ExecMachine(ctx, m.ref, hangar.ExecRequest{Command: []string{"python3", "-c", tellSQLite}}, hangar.ExecStreams{Stdout: w, Stderr: w})
		w.CloseWithError(err)
	}()
	go func() {
		for lines := bufio.NewScanner(r); lines.Scan(); {
			n, err := strconv.ParseInt(lines.Text(), 10, 64)
			if err != nil {
				t.Errorf("SQLite: %s", lines.Text())
				break
			}
			all.last.Store(n)
		}
		all.ended <- all.last.Load()
		_, _ = io.Copy(io.Discard, r)
	}()
	return all
}
