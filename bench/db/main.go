// Command db measures nodes of replicated databases, next to plain SQLite.
//
// It counts the transactions and reads of an SQLite program on a mount and where logs are read, and on the
// file system alone; and measures how soon a commit is an event at a replica, how long a replica takes to
// catch up and to copy a whole database while that is written, and what many subscribers cost.
//
// Nodes and programs are processes of their own on one server, with the directory for temporary files as
// their disk. Kinds take turns in an order that changes with each round, so the ratios say more than the
// numbers.
//
// The results go into bench/RESULTS.md. It is not a test: a goal that is missed is reported, not an
// error.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	_ "github.com/mattn/go-sqlite3" // the driver of the programs

	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/bench/publish"
)

// options say what is measured, and how much.
type options struct {
	out         string
	skip        string
	rounds      int
	time        time.Duration // of each measurement of a round
	commits     int           // whose delay is measured
	behind      int           // transactions that a replica catches up with
	size        int           // MB of the database that is copied
	subscribers int
}

// The rates of LiteFS: its commit a51e72d, on a server like the one of ADR 45, in transactions
// and reads a second.
const (
	referenceWrites = 372
	referenceReads  = 9300
)

// The goals, in ratios unless they say otherwise.
const (
	goalWrites     = 3 // of the reference
	goalReads      = 2 // of the reference
	goalTailReads  = 0.9
	goalEventDelay = 500 * time.Microsecond
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == workerFlag {
		harness.Main("db", func(ctx context.Context) error { return work(ctx, os.Args[2]) })
		return
	}
	harness.Main("db", run)
}

func run(ctx context.Context) (err error) {
	var o options
	flag.StringVar(&o.out, "out", "bench/RESULTS.md", "file to put the results into; empty: print them only")
	flag.StringVar(&o.skip, "skip", "", "parts that are not measured: delay, behind, copy, subscribers")
	flag.IntVar(&o.rounds, "rounds", 5, "how often writes and reads are measured")
	flag.DurationVar(&o.time, "time", 3*time.Second, "of each measurement of a round")
	flag.IntVar(&o.commits, "commits", 2000, "commits whose delay is measured, one every 5 ms")
	flag.IntVar(&o.behind, "behind", 100_000, "transactions that a replica catches up with")
	flag.IntVar(&o.size, "size", 1024, "MB of the database that is copied")
	flag.IntVar(&o.subscribers, "subscribers", 1000, "subscribers of events, over as many nodes as it takes")
	flag.Parse()
	skip, err := harness.ParseParts("skip", o.skip, "delay", "behind", "copy", "subscribers")
	if err != nil {
		return err
	}
	if err := harness.NeedRoot(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "hangar-bench-db-*")
	if err != nil {
		return err
	}
	var undo harness.Undo
	undo.Add(func() error { return os.RemoveAll(dir) })
	defer func() { err = errors.Join(err, undo.Run()) }()
	r := &results{o: o, dir: dir, program: filepath.Join(dir, "hangar-db"), undo: &undo, rates: map[string][]float64{}, delays: map[string][]time.Duration{}}
	if err := harness.Build(ctx, r.program, "-trimpath", "./cmd/hangar-db"); err != nil {
		return err
	}
	if err := r.throughput(ctx); err != nil {
		return err
	}
	for _, part := range []struct {
		name    string
		measure func(context.Context) error
	}{{"delay", r.delay}, {"behind", r.catchUp}, {"copy", r.copyWhole}, {"subscribers", r.subscribe}} {
		if skip.Has(part.name) {
			continue
		}
		fmt.Fprintln(os.Stderr, part.name)
		if err := part.measure(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return publish.Section(o.out, r.section())
}

// results are of all rounds.
type results struct {
	o            options
	dir, program string
	undo         *harness.Undo
	n            int // directories so far

	rates  map[string][]float64 // a second, by what and where
	delays map[string][]time.Duration

	behind        time.Duration // to catch up
	behindTx      uint64
	copied        time.Duration
	copiedMB      int64
	alone, during float64 // writes a second before and while a replica copies
	spread        []time.Duration
	nodes, cut    int
}

// The places of a database.
const (
	plain  = "plain"
	strict = "strict"
	tail   = "tail"
)

// throughput measures writes and reads in each place, in rounds.
func (r *results) throughput(ctx context.Context) error {
	for round := range r.o.rounds {
		places := []string{plain, strict, tail}
		if round%2 == 1 {
			slices.Reverse(places)
		}
		for _, place := range places {
			if err := r.place(ctx, place); err != nil {
				return fmt.Errorf("%s: %w", place, err)
			}
		}
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, r.o.rounds)
	}
	return nil
}

// place measures one round in one place.
func (r *results) place(ctx context.Context, place string) (err error) {
	path := filepath.Join(r.fresh(), "app.db")
	if place == plain {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
	} else {
		n, err := r.start(ctx, node{capture: place})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, n.stop()) }()
		path = n.path()
	}
	for _, j := range []job{
		{Kind: writing, Synchronous: "FULL"}, {Kind: writing, Synchronous: "NORMAL"}, {Kind: reading},
	} {
		j.Path, j.For = path, r.o.time
		done, err := j.run(ctx)
		if err != nil {
			return err
		}
		what := j.Kind + j.Synchronous + " " + place
		r.rates[what] = append(r.rates[what], float64(done.N)/done.Took.Seconds())
	}
	return nil
}

// fresh names a directory that is not there yet.
func (r *results) fresh() string {
	r.n++
	return filepath.Join(r.dir, fmt.Sprint("d", r.n))
}

// rate is the median of what was measured.
func (r *results) rate(what, place string) float64 { return harness.Median(r.rates[what+" "+place]) }

// section is the text of the results.
func (r *results) section() string {
	var b strings.Builder
	o := r.o
	fmt.Fprintf(&b, "## Replicated databases: `make bench-db`\n\n`go run ./bench/db -rounds %d -time %s -commits %d -behind %d -size %d -subscribers %d`\n\n- %s\n\n",
		o.rounds, o.time, o.commits, o.behind, o.size, o.subscribers, publish.Server())
	full, reads := writing+"FULL", reading
	b.WriteString("### Goals\n\n| | goal | measured | |\n|---|--:|--:|---|\n")
	row := func(what, goal, measured string, met bool) {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", what, goal, measured, publish.Verdict(met))
	}
	write, read := r.rate(full, strict), r.rate(reads, strict)
	row("writes on the mount, a second", fmt.Sprintf("≥ %d", goalWrites*referenceWrites), fmt.Sprintf("%.0f", write), write >= goalWrites*referenceWrites)
	row("reads on the mount, a second", fmt.Sprintf("≥ %d", goalReads*referenceReads), fmt.Sprintf("%.0f", read), read >= goalReads*referenceReads)
	ratio := r.rate(reads, tail) / r.rate(reads, plain)
	row("reads where logs are read, of those without a node", fmt.Sprintf("≥ %.1f×", goalTailReads), fmt.Sprintf("%.2f×", ratio), ratio >= goalTailReads)
	if d := r.delays[strict]; d != nil {
		row("from the end of a commit to its event at a replica, p50", "≤ "+goalEventDelay.String(), harness.Short(harness.Quantile(d, .5)), harness.Quantile(d, .5) <= goalEventDelay)
	}
	b.WriteString("\n### Throughput\n\n| a second | plain | mount | | logs are read | |\n|---|--:|--:|--:|--:|--:|\n")
	for _, line := range []struct{ text, what string }{
		{"transactions of one row, `synchronous=FULL`", full},
		{"transactions of one row, `synchronous=NORMAL`", writing + "NORMAL"},
		{"reads of one row", reads},
	} {
		of := r.rate(line.what, plain)
		fmt.Fprintf(&b, "| %s | %.0f |", line.text, of)
		for _, place := range []string{strict, tail} {
			fmt.Fprintf(&b, " %.0f | %.2f× |", r.rate(line.what, place), r.rate(line.what, place)/of)
		}
		b.WriteString("\n")
	}
	if len(r.delays) > 0 {
		b.WriteString("\n### Delay\n\n| from the end of a commit to its event at a replica | p50 | p99 |\n|---|--:|--:|\n")
		for _, place := range []string{strict, tail} {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", place, harness.Short(harness.Quantile(r.delays[place], .5)), harness.Short(harness.Quantile(r.delays[place], .99)))
		}
	}
	b.WriteString("\n### Replicas\n\n| | |\n|---|--:|\n")
	if r.behind > 0 {
		fmt.Fprintf(&b, "| a replica catches up with %d transactions | %s |\n", r.behindTx, r.behind.Round(time.Millisecond))
	}
	if r.copied > 0 {
		fmt.Fprintf(&b, "| a new replica copies %d MB while they are written | %s |\n| transactions a second before that | %.0f |\n| transactions a second meanwhile | %.0f |\n",
			r.copiedMB, r.copied.Round(time.Millisecond), r.alone, r.during)
	}
	if len(r.spread) > 0 {
		fmt.Fprintf(&b, "| from a commit until all %d subscribers of %d nodes have it, p50 | %s |\n| the same, p99 | %s |\n| subscribers that were cut off | %d |\n",
			r.o.subscribers, r.nodes, harness.Short(harness.Quantile(r.spread, .5)), harness.Short(harness.Quantile(r.spread, .99)), r.cut)
	}
	return b.String()
}

func encode(v any) (string, error) {
	b, err := json.Marshal(v)
	return string(b), err
}
