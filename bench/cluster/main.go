// Command cluster measures the cost of a request to a server for a Machine on another one:
// requests by its edge, creating, waking, being found after a start, queries of metrics that another
// server keeps, and the throughput of the mesh next to that of plain WireGuard.
//
// It runs the servers of examples/cluster.sh on this machine, with real Machines. Near and far
// are measured in turns, so that other work affects both alike: compare the ratios. The servers
// share the processors of this machine, and a network without delay.
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
	servers  int
	requests int // of each kind
	creates  int
	wakes    int
	starts   int
	queries  int
	pours    int
}

func main() { harness.Main("cluster", run) }

func run(ctx context.Context) (err error) {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "directory of hangar")
	flag.StringVar(&o.out, "out", "bench/RESULTS.md", "file to put the results into; empty: print them only")
	flag.IntVar(&o.servers, "servers", 3, "servers of the platform")
	flag.IntVar(&o.requests, "requests", 3000, "requests to the Machine of each server")
	flag.IntVar(&o.creates, "creates", 200, "Machines that are created")
	flag.IntVar(&o.wakes, "wakes", 30, "wakes by the edge of each of two servers")
	flag.IntVar(&o.starts, "starts", 60, "Machines that are started and looked for by the edges of two servers")
	flag.IntVar(&o.queries, "queries", 500, "queries of metrics by each of two servers")
	flag.IntVar(&o.pours, "pours", 5, "measurements of the throughput of the mesh")
	flag.Parse()
	if err := harness.NeedRoot(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "hgb") // short, because sockets live below it
	if err != nil {
		return err
	}
	var undo harness.Undo
	undo.Add(func() error { return os.RemoveAll(dir) })
	defer func() { err = errors.Join(err, undo.Run()) }()
	b := &bench{o: o, dir: dir, program: filepath.Join(o.bin, "hangar"), undo: &undo}
	if err := b.measure(ctx); err != nil {
		return err
	}
	return publish.Section(o.out, b.section())
}

// section are the results as a part of a document.
func (b *bench) section() string {
	var s strings.Builder
	fmt.Fprintf(&s, "## `make bench-cluster`\n\n- %s\n- %d servers, each in a network namespace of this machine\n\n", publish.Server(), b.o.servers)
	s.WriteString("| | n | here, p50 | p99 | at another server, p50 | p99 | ratio of p50 | added | goal | |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|---|\n")
	for _, p := range b.pairs {
		near, far := harness.Median(p.near), harness.Median(p.far)
		goal, verdict := "-", ""
		if p.goal > 0 {
			goal, verdict = "≤ "+harness.Short(p.goal), publish.Verdict(far-near <= p.goal)
		}
		fmt.Fprintf(&s, "| %s | %d, %d | %s | %s | %s | %s | %.2f | %s | %s | %s |\n", p.name, len(p.near), len(p.far), harness.Short(near), harness.Short(harness.Quantile(p.near, .99)),
			harness.Short(far), harness.Short(harness.Quantile(p.far, .99)), float64(far)/float64(near), harness.Short(far-near), goal, verdict)
	}
	return s.String() + b.meshSection()
}

// pair is how long the same took here and at another server.
type pair struct {
	name      string
	goal      time.Duration // of what is added; 0: there is none
	near, far []time.Duration
}

func (p *pair) add(far bool, took time.Duration) {
	if far {
		p.far = append(p.far, took)
	} else {
		p.near = append(p.near, took)
	}
}
