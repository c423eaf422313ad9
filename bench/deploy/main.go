// Command deploy measures deploys: how long a rolling one and a blue-green one take, as multiples of what the engine
// takes to start one sandbox, how many requests fail meanwhile, and what GraphQL adds to a read.
//
// Deploys are made by bin/hangar on a platform of the benchmark's own, of real Machines. Users of the App call it
// by the edge, each over a connection of its own, for as long as a deploy takes. The engine's start is that of the
// unchanged runsc with the same program, measured before and after. Programs count as healthy when their check
// has passed; its interval is a second.
//
// The results go into bench/RESULTS.md. It is not a test: a goal that is missed is reported, not an error.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/bench/publish"
)

// options say what is measured, and how much.
type options struct {
	bin, out string
	rounds   int
	rolling  int // Machines of the rolling deploy
	green    int // Machines of the blue-green one
	users    int
	starts   int           // of the engine, before and after
	reads    time.Duration // for which each kind of reads is measured
}

func main() { harness.Main("deploy", run) }

func run(ctx context.Context) (err error) {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "directory of hangar")
	flag.StringVar(&o.out, "out", "bench/RESULTS.md", "file to put the results into; empty: print them only")
	flag.IntVar(&o.rounds, "rounds", 3, "deploys of each kind")
	flag.IntVar(&o.rolling, "rolling", 10, "Machines of the rolling deploy")
	flag.IntVar(&o.green, "bluegreen", 4, "Machines of the blue-green deploy")
	flag.IntVar(&o.users, "users", 4, "users who call the App meanwhile")
	flag.IntVar(&o.starts, "starts", 10, "starts of the engine, before and after")
	flag.DurationVar(&o.reads, "reads", 3*time.Second, "of each measurement of reads")
	flag.Parse()
	if err := harness.NeedRoot(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "hangar-bench-deploy-*")
	if err != nil {
		return err
	}
	var undo harness.Undo
	undo.Add(func() error { return os.RemoveAll(dir) })
	defer func() { err = errors.Join(err, undo.Run()) }()
	b := &bench{o: o, dir: dir, program: filepath.Join(o.bin, "hangar"), guest: filepath.Join(dir, "guest"), undo: &undo, deploys: map[string]*deploys{}}
	if err := b.measure(ctx); err != nil {
		return err
	}
	return publish.Section(o.out, b.section())
}

// section are the results as a part of a document.
func (b *bench) section() string {
	var s strings.Builder
	engine := harness.Median(b.engine)
	fmt.Fprintf(&s, "## `make bench-deploy`\n\n%s\n\n", publish.Server())
	fmt.Fprintf(&s, "The engine alone starts in %s (median of %d).\n\n", harness.Short(engine), len(b.engine))
	s.WriteString("| deploy | Machines | time, median | engine starts | the same of one Machine | requests | failed (goal 0) |\n|---|--:|--:|--:|--:|--:|---|\n")
	for _, name := range []string{rolling, bluegreen} {
		d := b.deploys[name]
		took := harness.Median(d.took)
		starts := float64(took) / float64(engine)
		fmt.Fprintf(&s, "| %s | %d | %s | %.0f | %.1f | %d | %d, %s |\n", name, d.machines, took.Round(time.Millisecond), starts, starts/float64(d.machines),
			d.requests, d.failed, publish.Verdict(d.failed == 0))
	}
	s.WriteString("\n| read of an App | a second | of REST |\n|---|--:|--:|\n")
	for _, name := range []string{"REST", "GraphQL"} {
		fmt.Fprintf(&s, "| %s | %.0f | %.2f |\n", name, b.reads[name], b.reads[name]/b.reads["REST"])
	}
	return s.String()
}
