// Command machine measures Machines: how long they take to start, suspend, resume,
// execute and go, and what the daemon costs while they are there.
//
// It runs a platform of its own and drives it through the public API. In the same
// run, in random order, the same program with the same files runs under the
// unchanged runsc that hangar's engine is made of, and under Podman with crun; so
// the ratios between them hold on any server, however fast and however busy.
//
// The results go into bench/RESULTS.md, next to the goals. What it makes on the server (processes,
// network namespaces, mounts, files) is removed at the end, also after an interrupt. One goroutine
// measures; it starts and awaits those of a crowd of instances.
//
// It is not a test: a goal that is missed is reported, not an error.
package main

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"runtime"
	"time"

	"github.com/hangar-platform/hangar/bench/harness"
)

// options say what is measured, and how often.
type options struct {
	bin    string
	out    string
	json   string
	runs   int
	quick  bool
	skip   harness.Parts
	cpus   int
	seed   uint64
	busyOK bool
}

// The parts that can be skipped, beside the systems.
const (
	partMemory    = "memory"
	partCrowd     = "crowd"
	partFootprint = "footprint"
)

func main() { harness.Main("machine", run) }

func run(ctx context.Context) error {
	o, err := parse(os.Args[1:])
	if err != nil {
		return err
	}
	if err := harness.NeedRoot(); err != nil {
		return err
	}
	b := &bench{options: o, results: newResults(), rng: rand.New(rand.NewPCG(o.seed, 0))} //nolint:gosec // an order of measuring is no secret
	err = b.measure(ctx)
	if err == nil {
		err = b.report()
	}
	return errors.Join(err, b.cleanup.Run())
}

func parse(args []string) (options, error) {
	var o options
	var skip string
	f := flag.NewFlagSet("machine", flag.ContinueOnError)
	f.StringVar(&o.bin, "bin", "bin", "directory of hangar, as `make build` leaves it")
	f.StringVar(&o.out, "out", "bench/RESULTS.md", "file to put the results into; empty: print them only")
	f.StringVar(&o.json, "json", "", "file to write everything to that was measured")
	f.IntVar(&o.runs, "runs", 30, "how often everything is measured")
	f.BoolVar(&o.quick, "quick", false, "a short run, to see that it works: 2 runs, small crowds, printed only")
	f.StringVar(&skip, "skip", "", "what to leave out, separated by commas: runsc, podman, memory, crowd, footprint")
	f.IntVar(&o.cpus, "cpus", runtime.NumCPU(), "cores of each Machine; the others have all of the server")
	f.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "of the random order")
	f.BoolVar(&o.busyOK, "busy", false, "do not wait for the server to be idle before each measurement")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	set := map[string]bool{}
	f.Visit(func(f *flag.Flag) { set[f.Name] = true })
	if o.quick {
		if !set["runs"] {
			o.runs = 2
		}
		if !set["out"] {
			o.out = ""
		}
	}
	var err error
	if o.skip, err = harness.ParseParts("skip", skip, nameRunsc, namePodman, partMemory, partCrowd, partFootprint); err != nil {
		return o, err
	}
	if o.runs < 1 || o.cpus < 1 || f.NArg() > 0 {
		return o, errors.New("-runs and -cpus must be positive, and nothing may follow the flags")
	}
	return o, nil
}
