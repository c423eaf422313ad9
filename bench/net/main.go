// Command net measures the private network of Machines: what its rules cost, next to what
// a user could set up in their place.
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
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/hangar-platform/hangar/bench/publish"
)

// options say what is measured.
type options struct {
	out    string
	rounds int
	only   []string
}

// part is one thing to measure, with a section of its own in the results.
type part struct {
	name    string
	measure func(ctx context.Context, o options) (section string, err error)
}

var parts = []part{
	{partRules, measureRules},
}

func main() {
	run := run
	if len(os.Args) > 1 && os.Args[1] == rulesCommand {
		run = runRules
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench/net:", err)
		os.Exit(1)
	}
}

func run() error {
	o, err := parse(os.Args[1:])
	if err != nil {
		return err
	}
	// The first signal ends the measuring and lets it clean up.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	for _, p := range parts {
		if len(o.only) > 0 && !slices.Contains(o.only, p.name) {
			continue
		}
		section, err := p.measure(ctx, o)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		fmt.Print(section)
		if o.out == "" {
			continue
		}
		if err := publish.Section(o.out, section); err != nil {
			return err
		}
	}
	return nil
}

func parse(args []string) (options, error) {
	var o options
	var only string
	var quick bool
	f := flag.NewFlagSet("net", flag.ContinueOnError)
	f.StringVar(&o.out, "out", "bench/RESULTS.md", "file to put the results into; empty: print them only")
	f.IntVar(&o.rounds, "rounds", 5, "how often each thing is measured")
	f.StringVar(&only, "only", "", "parts to measure, separated by commas: rules")
	f.BoolVar(&quick, "quick", false, "a short run, to see that it works; printed only")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if quick {
		o.out, o.rounds = "", 1
	}
	o.only = strings.FieldsFunc(only, func(r rune) bool { return r == ',' || r == ' ' })
	for _, name := range o.only {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			return o, fmt.Errorf("-only %s: no such part", name)
		}
	}
	if o.rounds < 1 || f.NArg() > 0 {
		return o, errors.New("-rounds must be positive, and nothing may follow the flags")
	}
	return o, nil
}

// String is the flags that make the same run.
func (o options) String() string {
	text := fmt.Sprintf("-rounds %d", o.rounds)
	if len(o.only) > 0 {
		text += " -only " + strings.Join(o.only, ",")
	}
	return text
}
