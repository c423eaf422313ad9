package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/remote"
)

const (
	goalIngest = 200_000 // samples a second
	// series of the store, and of how many organizations.
	ingestSeries = 100_000
	ingestOrgs   = 50
	// inMemory bounds what waits in a Writer, in bytes: what an organization has there is sent
	// before its next samples come, and nothing is moved to the disk.
	inMemory = 4 << 20
)

// ingested is what was measured of one of both: the Writer, or plain remote writes.
type ingested struct {
	rates        []float64       // samples a second
	daemon, kept []time.Duration // processor time of this process and of the store for a sample
}

// ingest writes the series of all Apps again and again, each time for the next interval.
type ingest struct {
	b    *bench
	k    *kept
	apps *apps
	all  [][][]metrics.Label // by App
	next time.Time
}

func measureIngest(ctx context.Context, b *bench) (_ string, err error) {
	var undo harness.Undo
	defer func() { err = errors.Join(err, undo.Run()) }()
	at := b.newStore()
	undo.Add(at.remove)
	k, err := at.open(ctx)
	if err != nil {
		return "", err
	}
	undo.Add(k.Close)
	in := &ingest{b: b, k: k, apps: newApps(ingestSeries, ingestOrgs)}
	for app := range in.apps.count {
		in.all = append(in.all, in.apps.labels(app))
	}
	passes := 10
	if b.o.quick {
		passes = 2
	}
	in.next = time.Now().Truncate(metrics.Interval).Add(-metrics.Interval * time.Duration(2*passes*b.o.rounds+1))
	writer, stop, err := in.writer(ctx, filepath.Join(at.dir, "spool"))
	if err != nil {
		return "", err
	}
	undo.Add(stop)
	began := time.Now()
	if err := in.write(ctx, k.bare, 1); err != nil { // new series are not what is measured
		return "", err
	}
	fresh := time.Since(began)
	var both [2]ingested
	for round := range b.o.rounds {
		for n := range both {
			which := (n + round) % len(both)
			if err := k.settled(ctx); err != nil {
				return "", err
			}
			if err := in.measure(ctx, [2]metrics.Writer{writer, k.bare}[which], passes, &both[which]); err != nil {
				return "", err
			}
		}
		b.say("ingest: round %d of %d: %.0f and %.0f samples a second", round+1, b.o.rounds, both[0].rates[round], both[1].rates[round])
	}
	return in.markdown(both, passes, fresh), nil
}

// writer runs a Writer as the daemon does, until the returned function is called.
func (in *ingest) writer(ctx context.Context, dir string) (*remote.Writer, func() error, error) {
	w := remote.New(remote.Options{Store: in.k.Store, Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if err := w.Open(); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	return w, func() error { cancel(); running.Wait(); return w.Close() }, nil
}

// measure makes a round.
func (in *ingest) measure(ctx context.Context, to metrics.Writer, passes int, into *ingested) error {
	pids := [2][]int{{os.Getpid()}, {in.k.PID()}}
	var before, after [2]time.Duration
	var err error
	for i := range pids {
		if before[i], err = harness.ProcessorTime(pids[i]); err != nil {
			return err
		}
	}
	began := time.Now()
	if err := in.write(ctx, to, passes); err != nil {
		return err
	}
	took := time.Since(began)
	for i := range pids {
		if after[i], err = harness.ProcessorTime(pids[i]); err != nil {
			return err
		}
	}
	samples := passes * in.apps.series()
	into.rates = append(into.rates, float64(samples)/took.Seconds())
	into.daemon = append(into.daemon, (after[0]-before[0])/time.Duration(samples))
	into.kept = append(into.kept, (after[1]-before[1])/time.Duration(samples))
	return nil
}

// write writes all series a number of times, and returns when the store has acknowledged them.
func (in *ingest) write(ctx context.Context, to metrics.Writer, passes int) error {
	w, queued := to.(*remote.Writer)
	for range passes {
		at := in.next
		in.next = at.Add(metrics.Interval)
		err := eachOf(ctx, ingestOrgs, func(ctx context.Context, org int) error {
			var list []metrics.Sample
			for app := in.first(org); app < in.first(org+1); app++ {
				list = in.apps.samples(list, in.all[app], at)
			}
			if err := to.Write(ctx, tenant(org), list); err != nil || !queued {
				return err
			}
			return drained(ctx, w, inMemory)
		})
		if err != nil {
			return err
		}
	}
	if queued {
		return drained(ctx, w, 0)
	}
	return nil
}

// first is the first App of an organization.
func (in *ingest) first(org int) int {
	app := org * in.apps.count / ingestOrgs
	for app < in.apps.count && in.apps.org(app) < org {
		app++
	}
	return app
}

// drained waits until no more than so many bytes wait in a Writer.
func drained(ctx context.Context, w *remote.Writer, most int64) error {
	for {
		memory, disk := w.Waiting()
		if disk > 0 {
			return errors.New("samples were moved to the disk: the store does not take them")
		}
		if memory <= most {
			return nil
		}
		if err := pause.For(ctx, time.Millisecond); err != nil {
			return err
		}
	}
}

func (in *ingest) markdown(both [2]ingested, passes int, fresh time.Duration) string {
	var w strings.Builder
	heading(&w, "ingest", in.b.o)
	series := in.apps.series()
	fmt.Fprintf(&w, "- %s series of %d organizations, each written %d times in a round, %s samples at a time of one organization; the Writer and %d plain remote\n"+
		"  writes at a time take turns; medians of %d rounds\n- new series: %s a second, by plain remote writes\n",
		thousands(series), ingestOrgs, passes, thousands(series/ingestOrgs), concurrency, in.b.o.rounds, thousands(int(float64(series)/fresh.Seconds())))
	g := newGoals(&w)
	rate := median(both[0].rates)
	g.row("samples a second by remote.Writer", thousands(int(rate)), "≥ "+thousands(goalIngest), rate >= goalIngest)
	w.WriteString("\n| | samples a second | to plain writes | who writes, processor time of a sample | the store, likewise |\n|---|--:|--:|--:|--:|\n")
	for i, name := range []string{"remote.Writer", "plain remote writes"} {
		var ratios []float64
		for round := range both[i].rates {
			ratios = append(ratios, both[i].rates[round]/both[1].rates[round])
		}
		fmt.Fprintf(&w, "| %s | %s | %s | %.2f µs | %.2f µs |\n", name, thousands(int(median(both[i].rates))), times(median(ratios)),
			float64(median(both[i].daemon))/1e3, float64(median(both[i].kept))/1e3)
	}
	return w.String()
}
