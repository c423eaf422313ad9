package main

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar/bench/publish"
)

// The goals, on a server with two cores that the clients share.
const (
	goalGets   = 15_000 // a second
	goalGetP99 = 5 * time.Millisecond
	goalList   = 10 * time.Millisecond // of 1,000 Machines, median
	goalWrites = 1000                  // a second
	goalGrowth = 1.5                   // what a get costs with most Machines, to what it costs with fewest
	goalReady  = 2 * time.Second       // with as many as readyAt
	goalTold   = 5 * time.Millisecond  // from the answer of a start to that of the one wait for it, among all others
	goalWaits  = 200 << 20             // memory of all waits
	readyAt    = 10_000
)

// heading is where the results are in the file. Those with other numbers of Machines
// than usual have a place of their own.
func (o options) heading() string {
	if o.churn > 0 {
		return "## Churn: `go run ./bench/api -churn N`"
	}
	if slices.Equal(o.machines, usualMachines()) {
		return "## API: `make bench-api`"
	}
	var counts []string
	for _, n := range o.machines {
		counts = append(counts, count(n))
	}
	return "## API: " + strings.Join(counts, " and ") + " Machines"
}

// report prints what was measured, and puts it into the file of results.
func (b *bench) report(ctx context.Context) error {
	return publish.Section(b.options.out, b.markdown(ctx))
}

func (b *bench) markdown(ctx context.Context) string {
	var w strings.Builder
	fmt.Fprintf(&w, "%s\n\n`go run ./bench/api %s`\n\n", b.options.heading(), b.options)
	fmt.Fprintf(&w, "- %s\n", publish.Server())
	versions := []string{publish.Said(ctx, filepath.Join(b.options.bin, "hangar"), "version"), runtime.Version()}
	for _, p := range b.peers {
		flag := map[string]string{partNginx: "-v", partPodman: "--version"}[p.name]
		versions = append(versions, publish.Said(ctx, p.name, flag))
	}
	fmt.Fprintf(&w, "- %s\n", strings.Join(versions, "; "))
	fmt.Fprintf(&w, "- before it began, other work took %.0f%% of the processors\n", 100*b.busy)
	for _, n := range b.notes {
		fmt.Fprintf(&w, "- %s\n", n)
	}
	if b.churn != nil {
		b.writeChurn(&w)
		return w.String()
	}
	b.writeGoals(&w)
	b.writeRows(&w)
	b.writePeers(&w)
	b.writeDaemon(&w)
	b.writeWaits(&w)
	return w.String()
}

// row is the measurement with that name, or nil.
func (s *stage) row(name string) *row {
	for _, r := range s.rows {
		if r.name == name {
			return r
		}
	}
	return nil
}

// writeGoals judges the run with most Machines: all others are easier.
func (b *bench) writeGoals(w *strings.Builder) {
	fmt.Fprint(w, "\n### Goals\n\n| | | goal | |\n|---|--:|--:|---|\n")
	goal := func(name, got, want string, met bool) {
		fmt.Fprintf(w, "| %s | %s | %s | %s |\n", name, got, want, publish.Verdict(met))
	}
	first, last := b.stages[0], b.stages[len(b.stages)-1]
	of := fmt.Sprintf("%s Machines", count(last.machines))
	if r := last.row(opGet); r != nil {
		goal("get a Machine, of "+of, count(int(r.load.perSecond()))+"/s", "≥ "+count(goalGets)+"/s", r.load.perSecond() >= goalGets)
		goal("get a Machine, p99", ms(r.load.quantile(.99)), "≤ "+ms(goalGetP99), r.load.quantile(.99) <= goalGetP99)
	}
	if b.growth > 0 {
		goal(fmt.Sprintf("what a get costs the daemon, to one with %s Machines, in turns", count(first.machines)),
			fmt.Sprintf("%.2f×", b.growth), fmt.Sprintf("≤ %.1f×", goalGrowth), b.growth <= goalGrowth)
	}
	if r := last.row(opFew); r != nil {
		goal("list 1,000 Machines, median", ms(r.load.quantile(.5)), "≤ "+ms(goalList), r.load.quantile(.5) <= goalList)
	}
	if r := last.row(opMetadata); r != nil {
		goal(fmt.Sprintf("durable writes of metadata, %d clients", r.clients), count(int(r.load.perSecond()))+"/s",
			"≥ "+count(goalWrites)+"/s", r.load.perSecond() >= goalWrites)
	}
	for _, s := range b.stages {
		if s.machines == readyAt {
			goal(fmt.Sprintf("ready after kill -9, %s Machines", count(readyAt)), ms(s.ready), "≤ "+ms(goalReady), s.ready <= goalReady)
		}
	}
	if f, s := b.waiting, b.scattered; f != nil && s != nil {
		late := s.after[int(.99*float64(len(s.after)-1))]
		goal(fmt.Sprintf("a wait among %s, after the start was answered, p99", count(s.waiters)), ms(late), "≤ "+ms(goalTold), late <= goalTold)
		sum := max(f.bytes*int64(f.waiters), s.bytes*int64(s.waiters))
		goal(fmt.Sprintf("memory of %s waits", count(f.waiters)), fmt.Sprintf("%d MiB", sum>>20), fmt.Sprintf("≤ %d MiB", goalWaits>>20), sum <= goalWaits)
	}
}

func (b *bench) writeRows(w *strings.Builder) {
	fmt.Fprint(w, "\n### Requests\n\nClients ask again as soon as they have an answer. \"cpu\" is the daemon's processor time for one request.\n\n"+
		"| | Machines | clients | per second | p50 | p99 | cpu | bytes |\n|---|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, name := range []string{opCreate, opGet, opMetadata, opFew, opFewShort, opMany, opManyBrief} {
		for _, s := range b.stages {
			if r := s.row(name); r != nil {
				fmt.Fprintf(w, "| %s | %s %s\n", name, count(s.machines), r.columns())
			}
		}
	}
}

// columns are the numbers of a row of a table.
func (r *row) columns() string {
	return fmt.Sprintf("| %d | %s | %s | %s | %s | %s |", r.clients, rate(r.load.perSecond()), ms(r.load.quantile(.5)), ms(r.load.quantile(.99)),
		micro(r.cost), count(int(r.load.bytes)/max(1, len(r.load.took))))
}

func (b *bench) writePeers(w *strings.Builder) {
	if len(b.peers) == 0 {
		return
	}
	fmt.Fprint(w, "\n### Others, in the same run\n\nnginx serves the answer of hangar as a file. Podman's service is asked for its only container, over its Unix socket.\n\n"+
		"| | clients | per second | p50 | p99 | cpu | bytes |\n|---|--:|--:|--:|--:|--:|--:|\n")
	if r := b.stages[0].row(opGet); r != nil {
		fmt.Fprintf(w, "| hangar, get of %s %s\n", count(b.stages[0].machines), r.columns())
	}
	for _, p := range b.peers {
		fmt.Fprintf(w, "| %s %s\n", p.name, p.columns())
	}
}

func (b *bench) writeDaemon(w *strings.Builder) {
	fmt.Fprint(w, "\n### The daemon\n\n| Machines | memory after creating them | memory after a restart | ready after kill -9 | processor time for it |\n|--:|--:|--:|--:|--:|\n")
	for _, s := range b.stages {
		fmt.Fprintf(w, "| %s | %d MiB | %d MiB | %s | %s |\n", count(s.machines), s.rss>>20, s.rested>>20, ms(s.ready), ms(s.readyCost))
	}
}

func (b *bench) writeWaits(w *strings.Builder) {
	f, s := b.waiting, b.scattered
	if f == nil || s == nil {
		return
	}
	quantile := func(sorted []time.Duration, q float64) string { return ms(sorted[int(q*float64(len(sorted)-1))]) }
	fmt.Fprintf(w, "\n### Waits\n\n%s connections wait for a Machine each, and %d Machines are started one by one. Clients' clock. The wait is for "+
		"a change that is committed at an unknown time before the start is answered: what a wait takes after its change lies between the last line and the second.\n\n| | median | p99 |\n|---|--:|--:|\n", count(s.waiters), len(s.told))
	for _, line := range []struct {
		what  string
		times []time.Duration
	}{{"start, until it is answered", s.started}, {"start, until the wait is answered", s.told}, {"from the one answer to the other", s.after}} {
		fmt.Fprintf(w, "| %s | %s | %s |\n", line.what, quantile(line.times, .5), quantile(line.times, .99))
	}
	fmt.Fprintf(w, "\n%s connections wait for one Machine, which is started. The program beside it only writes as many bytes to as many connections, "+
		"from a goroutine for each that waits for one channel to be closed.\n\n| | first | half | all |\n|---|--:|--:|--:|\n", count(f.waiters))
	for _, line := range []struct {
		what  string
		times []time.Duration
	}{{"start, until the waits are answered", f.took}, {"a program that does nothing else", f.bare}} {
		fmt.Fprintf(w, "| %s | %s | %s | %s |\n", line.what, quantile(line.times, 0), quantile(line.times, .5), quantile(line.times, 1))
	}
	fmt.Fprintf(w, "\nEach of them takes %s of the daemon's processor time and %.1f KiB of its memory; %.1f KiB where each waits for its own Machine.\n",
		micro(f.cost/time.Duration(f.waiters)), float64(f.bytes)/1024, float64(s.bytes)/1024)
}

func ms(d time.Duration) string {
	v := float64(d) / float64(time.Millisecond)
	switch {
	case v < 10:
		return fmt.Sprintf("%.2f ms", v)
	case v < 1000:
		return fmt.Sprintf("%.0f ms", v)
	default:
		return fmt.Sprintf("%.2f s", v/1000)
	}
}

func micro(d time.Duration) string {
	if d >= 10*time.Millisecond {
		return ms(d)
	}
	return fmt.Sprintf("%.0f µs", float64(d)/float64(time.Microsecond))
}

func rate(perSecond float64) string {
	if perSecond < 100 {
		return fmt.Sprintf("%.1f", perSecond)
	}
	return count(int(perSecond))
}

// count writes a number with a comma between thousands.
func count(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", count(n/1000), n%1000)
}
