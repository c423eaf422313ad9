package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// workerFlag makes this program a client of a database: SQLite in the process of a mount would wait for
// itself.
const workerFlag = "-worker"

// The kinds of jobs.
const (
	writing = "write " // transactions of one row
	reading = "read"   // a row, each in a transaction
	pacing  = "pace"   // transactions of one row, one every 5 ms, each with its time
	filling = "fill"   // to a size
)

// job is what a client does.
type job struct {
	Path, Kind, Synchronous string
	For                     time.Duration // of writing and reading
	N                       int           // transactions, or MB of filling
}

// done is what it has done.
type done struct {
	N     int
	Took  time.Duration
	Times []int64 // nanoseconds since 1970 at which commits returned
}

// run does a job in a process of its own.
func (j job) run(ctx context.Context) (done, error) {
	text, err := encode(j)
	if err != nil {
		return done{}, err
	}
	exe, err := os.Executable()
	if err != nil {
		return done{}, err
	}
	cmd := exec.CommandContext(ctx, exe, workerFlag, text)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return done{}, fmt.Errorf("%s of %s: %w", j.Kind, j.Path, err)
	}
	var d done
	return d, json.Unmarshal(out, &d)
}

// work does the job of this process.
func work(ctx context.Context, text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	db, err := sql.Open("sqlite3", "file:"+j.Path+"?_busy_timeout=30000&_journal_mode=WAL")
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	if j.Synchronous != "" {
		if _, err := db.ExecContext(ctx, "PRAGMA synchronous="+j.Synchronous); err != nil {
			return err
		}
	}
	var d done
	if j.Kind != reading {
		if _, err := db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS t(id INTEGER PRIMARY KEY, v)"); err != nil {
			return err
		}
	}
	began := time.Now()
	switch j.Kind {
	case filling:
		err = j.fill(ctx, db, &d)
	case reading:
		err = j.repeat(ctx, db, "SELECT v FROM t WHERE id=1", &d)
	default:
		err = j.repeat(ctx, db, "INSERT INTO t(v) VALUES('some text of a row')", &d)
	}
	if err != nil {
		return err
	}
	d.Took = time.Since(began)
	return json.NewEncoder(os.Stdout).Encode(d)
}

// repeat executes a statement for a time, or so often.
func (j job) repeat(ctx context.Context, db *sql.DB, statement string, d *done) error {
	s, err := db.PrepareContext(ctx, statement)
	if err != nil {
		return err
	}
	defer s.Close()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	var v string
	for end := time.Now().Add(j.For); j.N > d.N || j.N == 0 && time.Now().Before(end); d.N++ {
		if j.Kind == pacing {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if j.Kind == reading {
			err = s.QueryRowContext(ctx).Scan(&v)
		} else {
			_, err = s.ExecContext(ctx)
		}
		if err != nil {
			return err
		}
		if j.Kind == pacing {
			d.Times = append(d.Times, time.Now().UnixNano())
		}
	}
	return nil
}

// fill writes MB of random content, in transactions of 16 MB.
func (j job) fill(ctx context.Context, db *sql.DB, d *done) error {
	for ; d.N < j.N; d.N += 16 {
		if _, err := db.ExecContext(ctx, "INSERT INTO t(v) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<4096) SELECT randomblob(4000) FROM n"); err != nil {
			return err
		}
	}
	return nil
}
