// Command api measures the API of a platform with a growing number of Machines: how many
// requests it answers in a second, how long they take, what they cost the daemon, and
// how that grows with the number of Machines.
//
// It runs a platform of its own with a driver that pretends, creates the Machines
// through the public API and drives it from this process, over loopback. In the same
// run, the same clients ask Podman's API for a container and nginx for the same bytes
// as a file, so that the ratios hold on any server.
//
// The results go into bench/RESULTS.md, next to the goals. All that it makes on the server is
// removed at the end, also after an interrupt. It is not a test: a missed goal is reported, not an
// error.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar/bench/harness"
)

// options say what is measured.
type options struct {
	bin      string
	out      string
	machines []int // how many there are in turn, ascending
	clients  int
	waiters  int
	span     time.Duration // of one measurement
	skip     harness.Parts
	churn    int // how many Machines come and go, instead of all else; 0: none
	bare     int // not to measure, but to be the bare program for so many; see bare
}

// The parts that can be left out.
const (
	partPodman  = "podman"
	partNginx   = "nginx"
	partWaiters = "waiters"
)

func main() { harness.Main("api", run) }

func run(ctx context.Context) error {
	o, err := parse(os.Args[1:])
	if err != nil {
		return err
	}
	if o.bare > 0 {
		return serveBare(ctx, o.bare, os.Stdin, os.Stdout)
	}
	b := &bench{options: o}
	err = b.measure(ctx)
	if err == nil {
		err = b.report(ctx)
	}
	return errors.Join(err, b.cleanup.Run())
}

func parse(args []string) (options, error) {
	var o options
	var machines, skip string
	var quick bool
	f := flag.NewFlagSet("api", flag.ContinueOnError)
	f.StringVar(&o.bin, "bin", "bin", "directory of hangar, as `make build` leaves it")
	f.StringVar(&o.out, "out", "bench/RESULTS.md", "file to put the results into; empty: print them only")
	f.StringVar(&machines, "machines", commas(usualMachines()), "how many Machines there are in turn, ascending")
	f.IntVar(&o.clients, "clients", 32, "connections that ask at once")
	f.IntVar(&o.waiters, "waiters", 10_000, "connections that wait for one Machine")
	f.DurationVar(&o.span, "span", 8*time.Second, "how long each thing is measured")
	f.StringVar(&skip, "skip", "", "what to leave out, separated by commas: podman, nginx, waiters")
	f.IntVar(&o.churn, "churn", 0, "create and destroy so many Machines, and measure only what that leaves")
	f.IntVar(&o.bare, "bare", 0, "for the program itself: answer so many connections at once, and do nothing else")
	f.BoolVar(&quick, "quick", false, "a short run, to see that it works: 100 and 1,000 Machines, printed only")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	set := map[string]bool{}
	f.Visit(func(f *flag.Flag) { set[f.Name] = true })
	if quick {
		for name, short := range map[string]string{"out": "", "machines": "100,1000", "waiters": "500", "span": "1s"} {
			if !set[name] {
				if err := f.Set(name, short); err != nil {
					return o, err
				}
			}
		}
	}
	for word := range strings.SplitSeq(machines, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 {
			return o, fmt.Errorf("-machines %s: must be numbers", machines)
		}
		o.machines = append(o.machines, n)
	}
	var err error
	if o.skip, err = harness.ParseParts("skip", skip, partPodman, partNginx, partWaiters); err != nil {
		return o, err
	}
	if o.clients < 1 || o.waiters < 1 || o.churn < 0 || o.span <= 0 || f.NArg() > 0 || !slices.IsSorted(o.machines) {
		return o, errors.New("numbers must be positive, -machines ascending, and nothing may follow the flags")
	}
	return o, nil
}

// usualMachines are how many Machines there are unless asked.
func usualMachines() []int { return []int{100, 1000, 10_000} }

func commas(numbers []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(numbers), " ", ","), "[]")
}

// String is the flags that make the same run.
func (o options) String() string {
	text := fmt.Sprintf("-machines %s -clients %d -waiters %d -span %s", commas(o.machines), o.clients, o.waiters, o.span)
	if o.churn > 0 {
		return fmt.Sprintf("-churn %d -clients %d -span %s", o.churn, o.clients, o.span)
	}
	if len(o.skip) > 0 {
		text += " -skip " + strings.Join(o.skip, ",")
	}
	return text
}
