// Command events measures the delivery of Machines' events: how many are delivered, next to a plain
// loop that posts the same bodies, how long one takes from its commit to its receiver, and what the
// feed adds to a commit.
//
// It has a journal and a delivery.Dispatcher of its own, on the disk of the directory for temporary
// files, and receivers in the same process on loopback. Plain posts and deliveries take turns, so
// the ratio is the cost of signing, queues on disk and ordering, on any server.
//
// The results go into bench/RESULTS.md. It is not a test: a goal that is missed is reported, not an
// error.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/bench/publish"
)

// options say what is measured, and how often.
type options struct {
	out       string
	rounds    int
	events    int // of a round
	receivers int
	single    int // events whose delay is measured
	commits   int // of either kind
}

// The goals.
const (
	goalRate  = 2000 // deliveries a second
	goalDelay = 20 * time.Millisecond
)

func main() { harness.Main("events", run) }

func run(ctx context.Context) error {
	var o options
	flag.StringVar(&o.out, "out", "bench/RESULTS.md", "file to put the results into; empty: print them only")
	flag.IntVar(&o.rounds, "rounds", 5, "how often throughput is measured")
	flag.IntVar(&o.events, "events", 2000, "events of a round")
	flag.IntVar(&o.receivers, "receivers", 10, "webhooks that get each of them")
	flag.IntVar(&o.single, "single", 2000, "events whose delay is measured, one every 5 ms")
	flag.IntVar(&o.commits, "commits", 3000, "commits with and without the feed")
	flag.Parse()
	var r results
	for i := range o.rounds {
		measures := []func(context.Context, options) error{r.deliver, r.post}
		if i%2 == 1 {
			slices.Reverse(measures)
		}
		for _, measure := range measures {
			if err := measure(ctx, o); err != nil {
				return err
			}
		}
		fmt.Fprintf(os.Stderr, "round %d of %d: %.0f deliveries and %.0f posts a second\n", i+1, o.rounds, r.delivered[i], r.posted[i])
	}
	if err := r.wait(ctx, o); err != nil {
		return err
	}
	if err := r.commit(ctx, o); err != nil {
		return err
	}
	return publish.Section(o.out, r.section(o))
}

// results are of all rounds.
type results struct {
	delivered, posted []float64                  // a second
	delays            map[string][]time.Duration // by what else happened
	with, without     []time.Duration            // commits
}

// section is the text of the results.
func (r *results) section(o options) string {
	var b strings.Builder
	fmt.Fprintf(&b, "## Events: `make bench-events`\n\n`go run ./bench/events -rounds %d -events %d -receivers %d -single %d -commits %d`\n\n- %s\n\n",
		o.rounds, o.events, o.receivers, o.single, o.commits, publish.Server())
	var ratios []float64
	for i, d := range r.delivered {
		ratios = append(ratios, d/r.posted[i])
	}
	rate, quiet := harness.Median(r.delivered), r.delays[alone]
	b.WriteString("### Goals\n\n| | goal | measured | |\n|---|--:|--:|---|\n")
	fmt.Fprintf(&b, "| deliveries a second, to %d receivers | ≥ %d | %.0f | %s |\n", o.receivers, goalRate, rate, publish.Verdict(rate >= goalRate))
	fmt.Fprintf(&b, "| from the commit to the receiver, p50 | ≤ %s | %s | %s |\n\n", goalDelay, harness.Short(harness.Quantile(quiet, .5)), publish.Verdict(harness.Quantile(quiet, .5) <= goalDelay))
	b.WriteString("### Throughput\n\n| | a second |\n|---|--:|\n")
	fmt.Fprintf(&b, "| deliveries, from the journal, signed, by queues on disk | %.0f |\n| plain posts of the same bodies | %.0f |\n| ratio, median of the rounds (least, most) | %.2f× (%.2f, %.2f) |\n\n",
		rate, harness.Median(r.posted), harness.Median(ratios), slices.Min(ratios), slices.Max(ratios))
	b.WriteString("Clients, receivers and disk share the processors of the server.\n\n### Delay\n\n| from the end of the commit to the receiver | p50 | p99 |\n|---|--:|--:|\n")
	for _, name := range []string{alone, several, hanging} {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", name, harness.Short(harness.Quantile(r.delays[name], .5)), harness.Short(harness.Quantile(r.delays[name], .99)))
	}
	b.WriteString("\n### A commit\n\n| commit of a record with an event | p50 | p99 |\n|---|--:|--:|\n")
	fmt.Fprintf(&b, "| without the feed | %s | %s |\n| with the feed | %s | %s |\n", harness.Short(harness.Quantile(r.without, .5)), harness.Short(harness.Quantile(r.without, .99)),
		harness.Short(harness.Quantile(r.with, .5)), harness.Short(harness.Quantile(r.with, .99)))
	fmt.Fprintf(&b, "| ratio | %.2f× | |\n", float64(harness.Quantile(r.with, .5))/float64(harness.Quantile(r.without, .5)))
	return b.String()
}
