// Command metrics measures the time series of organizations: how fast samples are written, what the
// gateway adds to queries, what scraping Machines costs, and how soon the store is back after a
// crash.
//
// Each is measured next to the bare store: the same process of VictoriaMetrics, asked and written
// over its own listener, without the gateway and without remote.Writer. Both take turns in the same
// run, so that the ratios hold on any server. The results go into bench/RESULTS.md, next to the
// goals. All that it makes on the server is removed at the end, also when it is interrupted. It is
// not a test: a goal that is missed is reported, not an error.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/bench/publish"
)

// options say what is measured.
type options struct {
	out    string
	rounds int
	series int           // of the queries, of all organizations together
	span   time.Duration // of light queries alone, and of those beside heavy ones, in a round
	only   harness.Parts
	quick  bool
}

// part is one thing to measure, with a section of its own in the results.
type part struct {
	name    string
	measure func(ctx context.Context, b *bench) (section string, err error)
}

var parts = []part{
	{"ingest", measureIngest},
	{"query", measureQueries},
	{"scrape", measureScraping},
	{"memory", measureMemory},
	{"recover", measureRecovery},
}

func main() {
	run := run
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case targetsCommand:
			run = runTargets
		case scraperCommand:
			run = runScraper
		}
	}
	harness.Main("metrics", run)
}

func run(ctx context.Context) (err error) {
	o, err := parse(os.Args[1:])
	if err != nil {
		return err
	}
	if err := harness.NeedRoot(); err != nil {
		return err
	}
	b, err := newBench(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.undo.Run()) }()
	for _, p := range parts {
		if len(o.only) > 0 && !o.only.Has(p.name) {
			continue
		}
		began := time.Now()
		section, err := p.measure(ctx, b)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if err := publish.Section(o.out, section); err != nil {
			return err
		}
		b.say("%s took %s", p.name, time.Since(began).Round(time.Second))
	}
	return nil
}

func parse(args []string) (options, error) {
	names := make([]string, len(parts))
	for i, p := range parts {
		names[i] = p.name
	}
	var o options
	var only string
	f := flag.NewFlagSet("metrics", flag.ContinueOnError)
	f.StringVar(&o.out, "out", "bench/RESULTS.md", "file to put the results into; empty: print them only")
	f.IntVar(&o.rounds, "rounds", 5, "how often each thing is measured")
	f.IntVar(&o.series, "series", 1_000_000, "how many series there are to query, of all organizations together")
	f.DurationVar(&o.span, "span", 5*time.Second, "how long light queries are asked in a round, alone and beside heavy ones")
	f.StringVar(&only, "only", "", "parts to measure, separated by commas: "+strings.Join(names, ", "))
	f.BoolVar(&o.quick, "quick", false, "a short run, to see that it works; printed only")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if o.quick {
		o.out, o.rounds, o.series, o.span = "", 1, 50_000, time.Second
	}
	var err error
	if o.only, err = harness.ParseParts("only", only, names...); err != nil {
		return o, err
	}
	if o.series < 1 || o.span <= 0 || o.rounds < 1 || f.NArg() > 0 {
		return o, errors.New("-series, -span and -rounds must be positive, and nothing may follow the flags")
	}
	return o, nil
}

// String is the flags that make the same run.
func (o options) String() string {
	text := fmt.Sprintf("-rounds %d -series %d -span %s", o.rounds, o.series, o.span)
	if len(o.only) > 0 {
		text += " -only " + strings.Join(o.only, ",")
	}
	return text
}
