// Command traffic measures what the private network costs: how much one Machine sends to
// another, and how long a byte takes there and back.
//
// It runs a platform of its own with two Machines in one network. In the same run, in turn, the
// same program runs in two sandboxes of the unchanged runsc that hangar's engine is made of, whose
// namespaces are joined directly by a pair of virtual devices: no routing, no rules, no connection
// tracking. So the ratio is the cost of those, on any server.
//
// The results go into bench/RESULTS.md. What it makes on the server is removed at the
// end, also when it is interrupted. It is not a test: a goal that is missed is reported,
// not an error.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/bench/publish"
)

// options say what is measured, and how often.
type options struct {
	bin     string
	out     string
	rounds  int
	seconds int
	pings   int
}

// system runs commands of the guest in one of two places that are joined.
type system interface {
	// run executes the guest in the first place, with the address of the second put
	// after the first argument, and returns what it prints.
	run(ctx context.Context, command string, n int) (string, error)
}

func main() { harness.Main("traffic", run) }

func run(ctx context.Context) (err error) {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "directory of hangar, as `make build` leaves it")
	flag.StringVar(&o.out, "out", "bench/RESULTS.md", "file to put the results into; empty: print them only")
	flag.IntVar(&o.rounds, "rounds", 10, "how often everything is measured")
	flag.IntVar(&o.seconds, "seconds", 3, "how long is sent each time")
	flag.IntVar(&o.pings, "pings", 3000, "how many bytes go there and back each time")
	flag.Parse()
	if err := harness.NeedRoot(); err != nil {
		return err
	}
	var undo harness.Undo
	defer func() { err = errors.Join(err, undo.Run()) }()

	programs, err := build(ctx, &undo)
	if err != nil {
		return err
	}
	machines, err := startMachines(ctx, filepath.Join(o.bin, "hangar"), programs.guest, &undo)
	if err != nil {
		return err
	}
	plain, err := startPlain(ctx, programs, &undo)
	if err != nil {
		return err
	}
	r := &results{}
	for i := range o.rounds {
		order := []int{0, 1}
		if i%2 == 1 {
			slices.Reverse(order)
		}
		for _, which := range order {
			if err := r.measure(ctx, o, which, []system{machines, plain}[which]); err != nil {
				return err
			}
		}
		fmt.Fprintf(os.Stderr, "round %d of %d: %.0f and %.0f MB/s\n", i+1, o.rounds, r.rates[0][i]/1e6, r.rates[1][i]/1e6)
	}
	section := r.section(o, publish.Server())
	return publish.Section(o.out, section)
}

// programs are what is built for a measuring.
type programs struct{ guest, runsc string }

func build(ctx context.Context, undo *harness.Undo) (programs, error) {
	dir, err := os.MkdirTemp("", "hgt")
	if err != nil {
		return programs{}, err
	}
	undo.Add(func() error { return os.RemoveAll(dir) })
	p := programs{guest: filepath.Join(dir, "guest"), runsc: filepath.Join(dir, "runsc")}
	if err := harness.Build(ctx, p.guest, "./bench/traffic/guest"); err != nil {
		return p, err
	}
	return p, harness.Build(ctx, p.runsc, "-tags", "runsc", "./bench/runsc")
}

// results are by system: Machines, and plain sandboxes.
type results struct {
	rates [2][]float64 // bytes per second
	trips [2][]float64 // nanoseconds, of all rounds
}

func (r *results) measure(ctx context.Context, o options, which int, s system) error {
	if _, err := harness.Quiet(ctx); err != nil {
		return err
	}
	out, err := s.run(ctx, "send", o.seconds)
	if err != nil {
		return err
	}
	rates, err := numbers(out)
	if err != nil || len(rates) != 1 {
		return fmt.Errorf("the sender printed %q: %w", out, err)
	}
	r.rates[which] = append(r.rates[which], rates[0])
	if out, err = s.run(ctx, "ping", o.pings); err != nil {
		return err
	}
	trips, err := numbers(out)
	if err != nil {
		return err
	}
	r.trips[which] = append(r.trips[which], trips...)
	return nil
}

func numbers(text string) ([]float64, error) {
	var all []float64
	for word := range strings.FieldsSeq(text) {
		n, err := strconv.ParseFloat(word, 64)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

// quantile is the nearest sample.
func quantile(samples []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// The goals: what the private network may cost.
const (
	leastRate = 0.8
	mostTrip  = 1.25
)

func (r *results) section(o options, server string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "## Traffic between Machines\n\n`go run ./bench/traffic -rounds %d -seconds %d -pings %d`\n\n- %s\n", o.rounds, o.seconds, o.pings, server)
	fmt.Fprintf(&b, "- %s at the end; a busy server disturbs both, and the best of all rounds least\n", harness.Load())
	b.WriteString("- TCP over IPv6 from one Machine to another, routed by the host under its rules; plain: unchanged runsc, two\n" +
		"  namespaces joined by a pair of virtual devices of the same MTU, without rules\n- medians over all rounds; the systems take turns\n\n")
	b.WriteString("| | Machines | plain runsc | ratio | goal | |\n|---|--:|--:|--:|--:|---|\n")
	rate, trip := ratio(r.rates, 0.5), ratio(r.trips, 0.5)
	fmt.Fprintf(&b, "| one connection, MB/s | %.0f | %.0f | %.2f | ≥ %.1f× | %s |\n", quantile(r.rates[0], 0.5)/1e6, quantile(r.rates[1], 0.5)/1e6,
		rate, leastRate, publish.Verdict(rate >= leastRate))
	fmt.Fprintf(&b, "| the same, best of all rounds | %.0f | %.0f | %.2f | | |\n", quantile(r.rates[0], 1)/1e6, quantile(r.rates[1], 1)/1e6, ratio(r.rates, 1))
	fmt.Fprintf(&b, "| a byte there and back, µs, median | %.0f | %.0f | %.2f | ≤ %.2f× | %s |\n", quantile(r.trips[0], 0.5)/1e3, quantile(r.trips[1], 0.5)/1e3,
		trip, mostTrip, publish.Verdict(trip <= mostTrip))
	fmt.Fprintf(&b, "| a byte there and back, µs, p10 | %.0f | %.0f | %.2f | | |\n", quantile(r.trips[0], 0.1)/1e3, quantile(r.trips[1], 0.1)/1e3, ratio(r.trips, 0.1))
	fmt.Fprintf(&b, "| a byte there and back, µs, p99 | %.0f | %.0f | %.2f | | |\n", quantile(r.trips[0], 0.99)/1e3, quantile(r.trips[1], 0.99)/1e3, ratio(r.trips, 0.99))
	return b.String()
}

func ratio(samples [2][]float64, q float64) float64 {
	return quantile(samples[0], q) / quantile(samples[1], q)
}
