// Package net measures the private network of Machines: its rules and its name server, next to what
// a user could set up instead.
//
// Everything runs in the same run on the same server, so that the ratios hold on any. The
// results go into bench/RESULTS.md, next to the goals. All that it makes on the server is
// removed at the end, also when it is interrupted. It is not a test: a goal that is missed
// is reported, not an error.
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
	span   time.Duration // of one measurement of the name server in a round
	rounds int
	only   harness.Parts
	skip   harness.Parts // peers
}

// part is one thing to measure, with a section of its own in the results.
type part struct {
	name    string
	measure func(ctx context.Context, o options) (section string, err error)
}

var parts = []part{
	{partRules, measureRules},
	{partDNS, measureDNS},
}

func main() {
	run := run
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case rulesCommand:
			run = runRules
		case dnsServerCommand:
			run = runDNSServer
		}
	}
	harness.Main("net", run)
}

func run(ctx context.Context) error {
	o, err := parse(os.Args[1:])
	if err != nil {
		return err
	}
	for _, p := range parts {
		if len(o.only) > 0 && !o.only.Has(p.name) {
			continue
		}
		section, err := p.measure(ctx, o)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if err := publish.Section(o.out, section); err != nil {
			return err
		}
	}
	return nil
}

func parse(args []string) (options, error) {
	var o options
	var only, skip string
	var quick bool
	f := flag.NewFlagSet("net", flag.ContinueOnError)
	f.StringVar(&o.out, "out", "bench/RESULTS.md", "file to put the results into; empty: print them only")
	f.IntVar(&o.rounds, "rounds", 5, "how often each thing is measured")
	f.DurationVar(&o.span, "span", 2*time.Second, "how long the name server is measured in a round")
	f.StringVar(&only, "only", "", "parts to measure, separated by commas: rules, dns")
	f.StringVar(&skip, "skip", "", "peers to leave out, separated by commas: dnsmasq, unbound")
	f.BoolVar(&quick, "quick", false, "a short run, to see that it works; printed only")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if quick {
		o.out, o.span, o.rounds = "", time.Second, 1
	}
	var err error
	if o.only, err = harness.ParseParts("only", only, partRules, partDNS); err != nil {
		return o, err
	}
	if o.skip, err = harness.ParseParts("skip", skip, peerDnsmasq, peerUnbound); err != nil {
		return o, err
	}
	if o.span <= 0 || o.rounds < 1 || f.NArg() > 0 {
		return o, errors.New("-span and -rounds must be positive, and nothing may follow the flags")
	}
	return o, nil
}

// String is the flags that make the same run.
func (o options) String() string {
	text := fmt.Sprintf("-span %s -rounds %d", o.span, o.rounds)
	if len(o.only) > 0 {
		text += " -only " + strings.Join(o.only, ",")
	}
	if len(o.skip) > 0 {
		text += " -skip " + strings.Join(o.skip, ",")
	}
	return text
}
