package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar/bench/harness"
	"github.com/hangar-platform/hangar/internal/pause"
)

// bench is one measuring.
type bench struct {
	options   options
	cleanup   harness.Undo
	dir       string // temporary
	guest     string // the program that Machines run, in dir
	stages    []*stage
	peers     []*row
	notes     []string
	waiting   *fanOut
	scattered *spread
	growth    float64 // see grown; 0: not measured
	churn     *churn  // instead of all else
	busy      float64 // share of the processors that others took before
}

// stage is what was measured with so many Machines.
type stage struct {
	machines    int
	rows        []*row
	rss, rested int64         // of the daemon: after it created them, and after a restart
	ready       time.Duration // after kill -9
	readyCost   time.Duration // processor time of the daemon until it was ready
}

// row is one kind of request under load.
type row struct {
	name    string
	clients int
	load    *load
	cost    time.Duration // processor time of the server for one request
}

// What is measured at every stage.
const (
	opCreate    = "create"
	opGet       = "get"
	opMetadata  = "set metadata"
	opFew       = "list 1,000"
	opFewShort  = "list 1,000, summary"
	opMany      = "list 10,000"
	opManyBrief = "list 10,000, summary"
)

func (b *bench) measure(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "hga") // short, because sockets live below it
	if err != nil {
		return err
	}
	b.dir = dir
	b.cleanup.Add(func() error { return os.RemoveAll(dir) })
	if b.busy, err = harness.Busy(ctx, time.Second); err != nil {
		return err
	}
	b.guest = filepath.Join(dir, "guest")
	if err := harness.Build(ctx, b.guest, "-trimpath", "-ldflags=-s -w", "./bench/guest"); err != nil {
		return err
	}
	if b.options.churn > 0 {
		return b.measureChurn(ctx)
	}
	d, p, err := b.begin(ctx)
	if err != nil {
		return err
	}
	for _, n := range b.options.machines {
		s := &stage{machines: n}
		b.stages = append(b.stages, s)
		if err := b.stage(ctx, d, p, s); err != nil {
			return fmt.Errorf("%d machines: %w", n, err)
		}
		if n != b.options.machines[0] {
			continue
		}
		// With few Machines, so that what they cost is not theirs.
		if err := b.compare(ctx, p); err != nil {
			return err
		}
		if !b.options.skip.Has(partWaiters) {
			if err := b.fan(ctx, d, p); err != nil {
				return fmt.Errorf("%d waiters: %w", b.options.waiters, err)
			}
		}
	}
	if !b.options.skip.Has(partWaiters) {
		if err := b.scatter(ctx, d, p); err != nil {
			return fmt.Errorf("%d scattered waiters: %w", b.options.waiters, err)
		}
	}
	return nil
}

// begin starts a daemon that has the image of the guest, and no Machines.
func (b *bench) begin(ctx context.Context) (*harness.Daemon, *platform, error) {
	d, err := startDaemon(ctx, filepath.Join(b.options.bin, "hangar"))
	if err != nil {
		return nil, nil, err
	}
	b.cleanup.Add(d.Down)
	token, err := d.Token()
	if err != nil {
		return nil, nil, err
	}
	image, err := d.Push(ctx, b.guest, "guest:bench")
	return d, &platform{addr: d.Addr, token: token, image: image, apps: map[string]bool{}}, err
}

// turns is how often two daemons are compared.
const turns = 7

// grown returns what a get costs a daemon, to what it costs one that has so few Machines
// and no past. They are asked in turns and the median counts, because what else a server
// does changes what the same work costs.
func (b *bench) grown(ctx context.Context, d *harness.Daemon, p *platform, machines int) (float64, error) {
	few, pFew, err := b.begin(ctx)
	if err != nil {
		return 0, err
	}
	if _, err := pFew.grow(ctx, machines, b.options.clients); err != nil {
		return 0, err
	}
	var ratios []float64
	for range turns {
		var costs []time.Duration
		for _, side := range []struct {
			daemon   *harness.Daemon
			platform *platform
		}{{few, pFew}, {d, p}} {
			get := side.platform.anyMachine(func(r ref) []byte { return side.platform.request(http.MethodGet, r.path(), nil) })
			r, err := cost(pids(side.daemon), func() (*load, error) {
				return drive(ctx, "tcp", side.platform.addr, b.options.clients, b.options.span/2, get)
			})
			if err != nil {
				return 0, err
			}
			r.name, r.clients = opGet, b.options.clients
			progress(r)
			costs = append(costs, max(1, r.cost))
		}
		ratios = append(ratios, float64(costs[1])/float64(costs[0]))
	}
	slices.Sort(ratios)
	return ratios[turns/2], nil
}

// A daemon counts as settled when, in so long a time, it uses less than a part of one processor:
// its deferred work, such as publishing Machines, is done. Then its memory is read.
const (
	settling   = 3 * time.Second
	restless   = settling / 20
	settleTime = 5 * time.Minute // at most
)

func (b *bench) stage(ctx context.Context, d *harness.Daemon, p *platform, s *stage) error {
	created, err := cost(pids(d), func() (*load, error) { return p.grow(ctx, s.machines, b.options.clients) })
	if err != nil {
		return err
	}
	created.name, created.clients = opCreate, b.options.clients
	s.rows = append(s.rows, created)
	progress(created)
	if s.rss, err = b.settled(ctx, d); err != nil {
		return err
	}
	many := func(name string, clients int, next request) error {
		return b.many(ctx, d, p, s, name, clients, next)
	}
	if err := many(opGet, b.options.clients, p.anyMachine(func(r ref) []byte { return p.request(http.MethodGet, r.path(), nil) })); err != nil {
		return err
	}
	if last := len(b.options.machines) - 1; last > 0 && s.machines == b.options.machines[last] {
		if b.growth, err = b.grown(ctx, d, p, b.options.machines[0]); err != nil {
			return err
		}
	}
	for _, list := range []struct {
		name, app, query string
		from             int
	}{
		{opFew, "listed-few", "", listedFew},
		{opFewShort, "listed-few", "?summary=true", listedFew},
		{opMany, "listed-many", "", 2 * listedMany},
		{opManyBrief, "listed-many", "?summary=true", 2 * listedMany},
	} {
		if s.machines < list.from {
			continue
		}
		raw := p.request(http.MethodGet, "/v1/apps/"+list.app+"/machines"+list.query, nil)
		if err := many(list.name, 1, func(int) []byte { return raw }); err != nil {
			return err
		}
	}
	var n atomic.Int64
	requests := p.anyMachine(func(r ref) []byte {
		return p.request(http.MethodPost, r.path()+"/metadata/bench", map[string]string{"value": strconv.FormatInt(n.Add(1), 10)})
	})
	if err := many(opMetadata, b.options.clients, requests); err != nil {
		return err
	}
	if s.ready, err = restart(ctx, d); err != nil {
		return err
	}
	if s.readyCost, err = harness.ProcessorTime([]int{d.PID()}); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "  ready after kill -9: %s, cpu %s\n", s.ready, s.readyCost)
	s.rested, err = b.settled(ctx, d)
	return err
}

// many puts load on the daemon and records a row.
func (b *bench) many(ctx context.Context, d *harness.Daemon, p *platform, s *stage, name string, clients int, next request) error {
	if _, err := drive(ctx, "tcp", p.addr, clients, b.options.span/5, next); err != nil { // warms up
		return err
	}
	r, err := cost(pids(d), func() (*load, error) { return drive(ctx, "tcp", p.addr, clients, b.options.span, next) })
	if err != nil {
		return err
	}
	r.name, r.clients = name, clients
	progress(r)
	if r.load.failed == 0 {
		s.rows = append(s.rows, r)
	}
	return nil
}

func progress(r *row) {
	fmt.Fprintf(os.Stderr, "  %-22s %9.0f/s  p50 %8s  p99 %8s  max %8s  cpu %8s  %d bytes  failed %d %s\n", r.name, r.load.perSecond(),
		r.load.quantile(.5).Round(time.Microsecond), r.load.quantile(.99).Round(time.Microsecond), r.load.quantile(1).Round(time.Microsecond),
		r.cost.Round(time.Microsecond), r.load.bytes/int64(max(1, len(r.load.took))), r.load.failed, r.load.first)
}

// cost measures a load together with what it costs the processes that serve it.
func cost(serve func() []int, do func() (*load, error)) (*row, error) {
	before, err := harness.ProcessorTime(serve())
	if err != nil {
		return nil, err
	}
	l, err := do()
	if err != nil {
		return nil, err
	}
	after, err := harness.ProcessorTime(serve())
	if err != nil {
		return nil, err
	}
	return &row{load: l, cost: (after - before) / time.Duration(max(1, len(l.took)))}, nil
}

// settled waits until a daemon is idle and returns its memory.
func (b *bench) settled(ctx context.Context, d *harness.Daemon) (int64, error) {
	for began := time.Now(); time.Since(began) < settleTime; {
		before, err := harness.ProcessorTime(pids(d)())
		if err != nil {
			return 0, err
		}
		if err := pause.For(ctx, settling); err != nil {
			return 0, err
		}
		after, err := harness.ProcessorTime(pids(d)())
		if err != nil {
			return 0, err
		}
		if after-before < restless {
			break
		}
	}
	rss, err := harness.Memory([]int{d.PID()})
	fmt.Fprintf(os.Stderr, "  rss %d MiB\n", rss>>20)
	return rss, err
}
