// Command edge measures the public edge next to nginx, HAProxy and Caddy: what a request, a
// handshake, a byte and an idle connection cost, and how soon a Machine that is at rest
// answers.
//
// It runs a platform of its own with one Machine, and the other proxies in front of the same
// Machine, at its address in the private network. So all share the back end, and only what
// is theirs is counted: the processor time of the proxy's own processes. They take turns,
// in rounds.
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
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/bench/publish"
)

// settle is how long connections rest before what they hold is looked at.
const settle = 3 * time.Second

// options say what is measured, and how often.
type options struct {
	bin     string
	out     string
	skip    harness.Parts
	rounds  int
	seconds time.Duration
	clients int
	idle    int
	body    int64
	wakes   int
}

func main() { harness.Main("edge", run) }

func run(ctx context.Context) (err error) {
	var o options
	var skip string
	flag.StringVar(&o.bin, "bin", "bin", "directory of hangar, as `make build` leaves it")
	flag.StringVar(&o.out, "out", "bench/RESULTS.md", "file to put the results into; empty: print them only")
	flag.StringVar(&skip, "skip", "", "what to leave out, separated by commas: nginx, haproxy, caddy, load, idle, wake")
	flag.IntVar(&o.rounds, "rounds", 3, "how often everything is measured")
	flag.DurationVar(&o.seconds, "for", 3*time.Second, "how long each load lasts")
	flag.IntVar(&o.clients, "clients", 32, "how many connections ask at once")
	flag.IntVar(&o.idle, "idle", 2000, "how many connections rest while memory is measured")
	flag.Int64Var(&o.body, "body", 1<<30, "how many bytes are fetched in one body")
	flag.IntVar(&o.wakes, "wakes", 50, "how many Machines are woken at once, at most")
	flag.Parse()
	if o.skip, err = harness.ParseParts("skip", skip, "nginx", "haproxy", "caddy", "load", "idle", "wake"); err != nil {
		return err
	}
	if err := harness.NeedRoot(); err != nil {
		return err
	}
	if err := harness.AllowFiles(); err != nil {
		return err
	}
	var undo harness.Undo
	defer func() { err = errors.Join(err, undo.Run()) }()

	dir, err := os.MkdirTemp("", "hge")
	if err != nil {
		return err
	}
	undo.Add(func() error { return os.RemoveAll(dir) })
	guest := filepath.Join(dir, "guest")
	if err := harness.Build(ctx, guest, "./bench/edge/guest"); err != nil {
		return err
	}
	p, err := startPlatform(ctx, o.bin, guest, &undo)
	if err != nil {
		return err
	}
	r := newReport(o)
	if !o.skip.Has("load") {
		if err := r.proxies(ctx, p, dir, &undo); err != nil {
			return err
		}
	}
	if !o.skip.Has("wake") {
		if err := r.wakes(ctx, p); err != nil {
			return err
		}
	}
	section := r.section(publish.Server())
	return publish.Section(o.out, section)
}

// proxies measures all proxies in front of one Machine.
func (r *report) proxies(ctx context.Context, p *platform, dir string, undo *harness.Undo) error {
	direct, edge, to, err := p.front(ctx)
	if err != nil {
		return err
	}
	r.fronts = []*front{direct, edge}
	if err := makeCertificate(dir); err != nil {
		return err
	}
	for _, plan := range plans {
		if r.o.skip.Has(plan.name) {
			continue
		}
		f, err := startPeer(ctx, plan, dir, to, undo)
		if err != nil {
			return err
		}
		r.fronts = append(r.fronts, f)
	}
	// First, while none of them has memory left over from a load.
	if !r.o.skip.Has("idle") {
		for _, f := range r.fronts[1:] {
			if err := r.resting(ctx, f); err != nil {
				return err
			}
		}
	}
	for i := range r.o.rounds {
		order := slices.Clone(r.fronts)
		if i%2 == 1 {
			slices.Reverse(order)
		}
		for _, f := range order {
			if err := r.measure(ctx, f); err != nil {
				return err
			}
		}
		if err := r.atHalfLoad(ctx, order); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "round %d of %d\n", i+1, r.o.rounds)
	}
	return nil
}

// spent is the processor time that something costs a front.
func spent(f *front, do func() error) (cpu, wall time.Duration, err error) {
	var before, after time.Duration
	var pids []int
	if f.pids != nil {
		pids = f.pids()
		if before, err = harness.ProcessorTime(pids); err != nil {
			return 0, 0, err
		}
	}
	began := time.Now()
	err = do()
	wall = time.Since(began)
	if f.pids != nil && err == nil {
		after, err = harness.ProcessorTime(pids)
	}
	return after - before, wall, err
}

// measure runs every load through one front.
func (r *report) measure(ctx context.Context, f *front) error {
	if _, err := harness.Quiet(ctx); err != nil {
		return err
	}
	counted := func(what string, do func() (int64, error)) error {
		var n int64
		cpu, wall, err := spent(f, func() (err error) { n, err = do(); return err })
		if err != nil {
			return fmt.Errorf("%s of %s: %w", what, f.name, err)
		}
		r.add(f, what, float64(n)/wall.Seconds())
		if cpu > 0 {
			r.add(f, what+perCPU, float64(n)/cpu.Seconds())
		}
		return nil
	}
	o := r.o
	if err := counted(keepAlive, func() (int64, error) { return saturate(ctx, f, f.http, false, o.clients, o.seconds) }); err != nil {
		return err
	}
	if err := counted(webSocket, func() (int64, error) { return echoes(ctx, f, o.clients, o.seconds) }); err != nil {
		return err
	}
	if f.https != "" {
		if err := counted(keepAliveTLS, func() (int64, error) { return saturate(ctx, f, f.https, true, o.clients, o.seconds) }); err != nil {
			return err
		}
		if err := counted(handshake, func() (int64, error) { return handshakes(ctx, f, 8, o.seconds) }); err != nil {
			return err
		}
	}
	if err := counted(body, func() (int64, error) { return o.body, download(ctx, f, o.body) }); err != nil {
		return err
	}
	if f.tcp == "" {
		return nil
	}
	return counted(through, func() (int64, error) { return o.body, passThrough(ctx, f, o.body) })
}

// atHalfLoad asks all fronts at one rate: half of what the slowest of them answers at most.
func (r *report) atHalfLoad(ctx context.Context, order []*front) error {
	rate := 0.0
	for _, f := range r.fronts {
		if most := slices.Max(r.of(f, keepAlive)); rate == 0 || most/2 < rate {
			rate = most / 2
		}
	}
	r.rate = rate
	for _, f := range order {
		if _, err := harness.Quiet(ctx); err != nil {
			return err
		}
		took, err := paced(ctx, f, f.http, r.o.clients, rate, r.o.seconds)
		if err != nil {
			return err
		}
		for what, q := range map[string]float64{latency50: 0.5, latency99: 0.99} {
			r.add(f, what, float64(took[int(q*float64(len(took)))].Microseconds()))
		}
	}
	return nil
}

// resting measures the memory of connections that do nothing: first without TLS, then with,
// each beside those that there were before.
func (r *report) resting(ctx context.Context, f *front) error {
	stop, err := idle(ctx, f, f.http, false, 32) // what a proxy makes once is there
	if err != nil {
		return err
	}
	defer stop()
	for _, kind := range []struct {
		what, address string
		secure        bool
	}{{idleMemory, f.http, false}, {idleMemoryTLS, f.https, true}} {
		before, err := harness.Memory(f.pids())
		if err != nil {
			return err
		}
		stop, err := idle(ctx, f, kind.address, kind.secure, r.o.idle)
		if err != nil {
			return err
		}
		defer stop()
		time.Sleep(settle)
		after, err := harness.Memory(f.pids())
		if err != nil {
			return err
		}
		r.add(f, kind.what, float64(after-before)/float64(r.o.idle)/1e3)
	}
	return nil
}

// wakes measures how soon Machines that are at rest answer, many at once.
func (r *report) wakes(ctx context.Context, p *platform) error {
	all, err := p.sleepers(ctx, r.o.wakes)
	if err != nil {
		return err
	}
	for _, state := range []hangar.MachineState{hangar.MachineStopped, hangar.MachineSuspended} {
		for _, n := range []int{1, 10, 50} {
			if n > len(all) {
				continue
			}
			for range r.o.rounds * max(1, 10/n) {
				for _, edge := range []bool{true, false} {
					if err := p.rest(ctx, all[:n], state); err != nil {
						return err
					}
					if _, err := harness.Quiet(ctx); err != nil {
						return err
					}
					took, err := p.wake(ctx, all[:n], edge)
					if err != nil {
						return err
					}
					r.woke(state, n, edge, took)
				}
			}
		}
		// The next state begins with Machines that run.
		if _, err := p.wake(ctx, all, true); err != nil {
			return err
		}
	}
	return nil
}
