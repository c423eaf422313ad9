package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/metrics"
)

// What is scraped.
const (
	machineTargets  = 2000
	targetOrgs      = 100
	seriesPerTarget = 50
	scraped         = machineTargets * seriesPerTarget // samples in an interval
)

// goalScrape is the share of one core that scraping may take, that of the store included.
const goalScrape = 0.10

// daemonSide is a scraper in a process of its own, its Machines in another, and the store that it
// writes to.
type daemonSide struct {
	undo    harness.Undo
	kept    *kept
	scraper *process
	base    int64 // private memory of the scraper's process before it knew of any Machine, bytes
}

// startScraping starts all of them.
func startScraping(ctx context.Context, b *bench) (_ *daemonSide, err error) {
	d := &daemonSide{}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.undo.Run())
		}
	}()
	at := b.newStore()
	d.undo.Add(at.remove)
	if d.kept, err = at.open(ctx); err != nil {
		return nil, err
	}
	d.undo.Add(d.kept.Close)
	var address, ready string
	targets, err := begin(ctx, &address, targetsCommand)
	if err != nil {
		return nil, err
	}
	d.undo.Add(targets.end)
	if d.scraper, err = begin(ctx, &ready, scraperCommand, filepath.Join(at.dir, "metrics.sock"), address); err != nil {
		return nil, err
	}
	d.undo.Add(d.scraper.end)
	if d.base, err = harness.OwnMemory([]int{d.scraper.pid()}); err != nil {
		return nil, err
	}
	return d, d.scraper.say(lineScrape, new(counts))
}

// spent is the processor time of the scraper's process and of the store.
func (d *daemonSide) spent() (scraper, kept time.Duration, err error) {
	scraper, err = harness.ProcessorTime([]int{d.scraper.pid()})
	if err != nil {
		return 0, 0, err
	}
	kept, err = harness.ProcessorTime([]int{d.kept.PID()})
	return scraper, kept, err
}

// interval is what an interval took, and what was done in it.
type interval struct {
	scraper, kept time.Duration // processor time
	counts
}

// measure measures the interval that begins now. In any interval each Machine is asked once.
func (d *daemonSide) measure(ctx context.Context) (i interval, err error) {
	var before, after counts
	if err := d.scraper.say(lineCounts, &before); err != nil {
		return i, err
	}
	scraper, kept, err := d.spent()
	if err != nil {
		return i, err
	}
	if err := pause.For(ctx, metrics.Interval); err != nil {
		return i, err
	}
	if i.scraper, i.kept, err = d.spent(); err != nil {
		return i, err
	}
	i.scraper, i.kept = i.scraper-scraper, i.kept-kept
	if err := d.scraper.say(lineCounts, &after); err != nil {
		return i, err
	}
	i.counts = counts{after.Good - before.Good, after.Bad - before.Bad, after.Sent - before.Sent, after.Dropped - before.Dropped}
	return i, nil
}

// plainWrites measures the same samples as an interval's where no Machine has to be asked: one
// remote write for each organization, a few at a time and all at once.
func plainWrites(ctx context.Context, b *bench) (all []interval, err error) {
	var undo harness.Undo
	defer func() { err = errors.Join(err, undo.Run()) }()
	at := b.newStore()
	undo.Add(at.remove)
	k, err := at.open(ctx)
	if err != nil {
		return nil, err
	}
	undo.Add(k.Close)
	lists := make([][]metrics.Sample, targetOrgs)
	for i := range machineTargets {
		org := i % targetOrgs
		for s := range seriesPerTarget {
			lists[org] = append(lists[org], metrics.Sample{Value: float64(s), Labels: []metrics.Label{
				{Name: metrics.NameLabel, Value: "http_requests_total"},
				{Name: "app", Value: appName(i)},
				{Name: "code", Value: "200"},
				{Name: "host", Value: "0a7b"},
				{Name: "instance", Value: fmt.Sprintf("%014x", i)},
				{Name: "method", Value: "GET"},
				{Name: "path", Value: fmt.Sprintf("/api/v1/things/%d", s)},
				{Name: "region", Value: "ams"},
			}})
		}
	}
	self := []int{os.Getpid()}
	next := time.Now().Truncate(metrics.Interval).Add(-time.Hour)
	for round := range b.o.rounds + 1 { // series are new in the first, which is not measured
		if err := k.settled(ctx); err != nil {
			return nil, err
		}
		var before, after interval
		if before.scraper, err = harness.ProcessorTime(self); err != nil {
			return nil, err
		}
		if before.kept, err = harness.ProcessorTime([]int{k.PID()}); err != nil {
			return nil, err
		}
		err := eachOf(ctx, targetOrgs, func(ctx context.Context, org int) error {
			for i := range lists[org] {
				lists[org][i].Time = next.UnixMilli()
			}
			return k.bare.Write(ctx, tenant(org), lists[org])
		})
		if err != nil {
			return nil, err
		}
		next = next.Add(metrics.Interval)
		if err := pause.For(ctx, flushed); err != nil {
			return nil, err
		}
		if after.scraper, err = harness.ProcessorTime(self); err != nil {
			return nil, err
		}
		if after.kept, err = harness.ProcessorTime([]int{k.PID()}); err != nil {
			return nil, err
		}
		if round > 0 {
			all = append(all, interval{scraper: after.scraper - before.scraper, kept: after.kept - before.kept})
		}
	}
	return all, nil
}

// flushed is how long after a write the store has put it onto the disk.
const flushed = 6 * time.Second

func measureScraping(ctx context.Context, b *bench) (_ string, err error) {
	plain, err := plainWrites(ctx, b)
	if err != nil {
		return "", err
	}
	d, err := startScraping(ctx, b)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, d.undo.Run()) }()
	b.say("scrape: an interval that is not measured: connections and series are new")
	if err := pause.For(ctx, metrics.Interval); err != nil {
		return "", err
	}
	var all []interval
	for round := range b.o.rounds {
		i, err := d.measure(ctx)
		if err != nil {
			return "", err
		}
		all = append(all, i)
		b.say("scrape: interval %d of %d: %s and %s of the store", round+1, b.o.rounds, i.scraper, i.kept)
	}
	return scrapingMarkdown(b.o, all, plain), nil
}

// processorTimes are those of intervals.
type processorTimes struct{ daemon, kept, both []time.Duration }

func timesOf(all []interval) (t processorTimes) {
	for _, i := range all {
		t.daemon, t.kept, t.both = append(t.daemon, i.scraper), append(t.kept, i.kept), append(t.both, i.scraper+i.kept)
	}
	return t
}

func scrapingMarkdown(o options, all, plain []interval) string {
	var w strings.Builder
	var sum counts
	for _, i := range all {
		sum = counts{sum.Good + i.Good, sum.Bad + i.Bad, sum.Sent + i.Sent, sum.Dropped + i.Dropped}
	}
	heading(&w, "scraping", o)
	fmt.Fprintf(&w, "- %s Machines of %d organizations with %d series each, in real time: medians of %d intervals of %s\n"+
		"- %s scrapes succeeded and %s failed; the store took %s samples, and %s were dropped\n"+
		"- plain writes: the same samples where no Machine is asked, by %d remote writes all at once; medians of %d\n",
		thousands(machineTargets), targetOrgs, seriesPerTarget, len(all), metrics.Interval,
		thousands(sum.Good), thousands(sum.Bad), thousands(sum.Sent), thousands(sum.Dropped), targetOrgs, len(plain))
	g := newGoals(&w)
	took, bare := timesOf(all), timesOf(plain)
	share := core(median(took.both))
	g.row("scraper, Writer and store, of one core", percent(share), "≤ "+percent(goalScrape), share <= goalScrape && sum.Bad+sum.Dropped == 0)
	w.WriteString("\n| | processor time in an interval | of one core | of a sample | plain writes | ratio |\n|---|--:|--:|--:|--:|--:|\n")
	for _, row := range []struct {
		name        string
		took, plain []time.Duration
	}{
		{"scraper and Writer, in a process of their own", took.daemon, bare.daemon},
		{"the store", took.kept, bare.kept},
		{"together", took.both, bare.both},
	} {
		took, plain := median(row.took), median(row.plain)
		fmt.Fprintf(&w, "| %s | %s | %s | %.2f µs | %s | %s |\n", row.name, brief(took), percent(core(took)), float64(took)/1e3/scraped,
			brief(plain), times(float64(took)/float64(max(1, plain))))
	}
	return w.String()
}

// core is the share of one core that a time in each interval is.
func core(took time.Duration) float64 { return float64(took) / float64(metrics.Interval) }

func percent(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }
