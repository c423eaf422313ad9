package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api"
	"github.com/hangar-platform/hangar/control/webhooks/delivery"
	"github.com/hangar-platform/hangar/edge"
	"github.com/hangar-platform/hangar/host/journal"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/finish"
)

// opening has what the parts of a daemon need to open.
type opening struct {
	cfg      Config
	options  Options
	log      *slog.Logger
	listener net.Listener // of the API
	space    *diskspace.Space
	counts   *prometheus.Registry
	late     late
	opened   closers
}

// late has parts that others receive before they are open, because of cycles between them.
type late struct {
	api        lateHandler   // the edge serves the API, which shows the edge
	identities *lateIdentity // Machines are taken up before control is open, which asks their host about them
	pushed     *latePushed   // images are opened before the other servers are known
}

// lateHandler is an http.Handler that is set before the first request.
type lateHandler struct{ http.Handler }

// parts are all parts of a daemon.
type parts struct {
	server   *server
	cluster  *cluster
	private  *private
	machines *machines
	edge     *edge.Edge
	ssh      *signIns
	servers  *servers
	control  *controlParts
	series   *series // nil: nothing is measured
	webhooks *delivery.Dispatcher
	doors    *doors
}

// serve opens the parts of a daemon in the order in which they need each other, runs them until
// ctx ends, and closes them in reverse. Machines outlive it.
func serve(ctx context.Context, cfg Config, o Options, listener net.Listener, space *diskspace.Space) (err error) {
	d := &opening{
		cfg: cfg, options: o, log: o.Log, listener: listener, space: space,
		counts: prometheus.NewRegistry(), late: late{identities: newLateIdentity(), pushed: &latePushed{}},
	}
	defer func() { err = errors.Join(err, d.opened.close()) }()
	var p parts
	certificate, err := d.openCertificate() // so that a wrong file is an error before anything runs
	if err != nil {
		return err
	}
	if p.server, err = d.openServer(ctx); err != nil {
		return err
	}
	if p.cluster, err = d.openCluster(ctx, p.server); err != nil {
		return err
	}
	// Opened before Machines are taken up, so that their queries are answered.
	if p.private, err = d.openPrivate(ctx, p.server, p.cluster); err != nil {
		return err
	}
	// Running Machines are taken back before the cluster state is needed.
	if p.machines, err = d.openMachines(ctx, p.server, p.cluster); err != nil {
		return err
	}
	if err := p.cluster.openMirror(ctx); err != nil {
		return err
	}
	if err := p.machines.images.Pushed().Publish(ctx); err != nil {
		return fmt.Errorf("publish images of the built-in registry: %w", err)
	}
	if p.ssh, err = d.openSSH(ctx, p.server, p.cluster, p.machines); err != nil {
		return err
	}
	if p.servers, err = d.openFleet(ctx, p.server, p.cluster, p.private, p.machines, p.ssh); err != nil {
		return err
	}
	if p.edge, err = d.openEdge(ctx, p.server, p.cluster, p.private, p.servers.hosts); err != nil {
		return err
	}
	if p.control, err = d.openControl(ctx, p.server, p.cluster, p.private, p.machines, p.servers, p.edge); err != nil {
		return err
	}
	if p.series, err = d.openSeries(ctx, p.server, p.cluster, p.machines, p.servers, p.edge); err != nil {
		return err
	}
	if p.webhooks, err = d.openWebhooks(ctx, p.cluster, p.machines, p.control.decide.ProviderRegistry); err != nil {
		return err
	}
	if p.doors, err = d.openDoors(ctx, certificate, p.server, p.machines, p.edge, p.servers, p.control, p.series, p.webhooks); err != nil {
		return err
	}
	if err := d.register(&p); err != nil {
		return err
	}
	return d.run(ctx, &p)
}

// register registers the metrics of the parts for operators. The agent has registered those of its
// Machines and volumes. docs/operations.md lists all of them.
func (d *opening) register(p *parts) error {
	// Only the heap in use after the last collection tells whether it grows.
	memory := collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(
		collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile("^/gc/heap/live:bytes$")}))
	process := collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})
	all := []prometheus.Collector{memory, process, d.space, p.server.records, p.machines.images, p.private.names, p.edge, p.doors.handler, p.webhooks}
	if p.series != nil {
		all = append(all, p.series.collectors...)
	}
	if p.private.mesh != nil {
		all = append(all, p.private.mesh)
	}
	var errs []error
	for _, c := range all {
		errs = append(errs, d.counts.Register(c))
	}
	return errors.Join(errs...)
}

// run runs the parts until ctx ends or one of them fails.
func (d *opening) run(ctx context.Context, p *parts) error {
	// Connections wait already, so a client that gets an answer finds the address written.
	address := d.listener.Addr().String()
	if err := writeAddress(filepath.Join(d.cfg.Dir, hangar.AddressFile), address); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	// What accepted requests of the edge need runs until the last of them is answered: routes
	// to Machines, the Machines' name server, tokens and API, the gateway of peers.
	lasting, answered := finish.Lifetime(ctx)
	defer answered()
	group.Go(func() error {
		defer answered()
		return p.edge.Run(ctx)
	})
	for _, run := range []func(context.Context) error{
		d.space.Run, p.cluster.machines.Run, p.private.gateway.Run, p.private.names.Run, p.private.runMesh(p.servers.fleet), p.servers.tokens.Run, p.servers.follow, p.control.issuer.Run,
		func(ctx context.Context) error { return p.machines.sockets.Run(ctx, api.Server(p.doors.handler)) },
	} {
		group.Go(func() error { return run(lasting) })
	}
	for _, run := range []func(context.Context) error{
		p.server.watchJournal, p.servers.fleet.Run, p.servers.backups.run, p.cluster.peers.run, p.control.decide.Run, p.servers.heals(p.cluster, p.control.decide), p.control.decide.Hostnames.Run, p.control.decide.Provisioner.Run, p.webhooks.Run, p.doors.run, p.doors.runInside, p.ssh.run,
		func(context.Context) error { return d.options.Ready(address) },
	} {
		group.Go(func() error { return run(ctx) })
	}
	if p.series != nil {
		group.Go(func() error { return p.series.run(ctx) })
	}
	if d.cfg.Snapshots != "" {
		group.Go(func() error { p.machines.agent.TryArchive(ctx); return nil })
	}
	if err := group.Wait(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// watchJournal ends the daemon when its journal cannot record any more, so that the next start reads
// what is really on the disk. Machines keep running.
func (s *server) watchJournal(ctx context.Context) error {
	select {
	case <-s.records.Broken():
		return journal.ErrBroken
	case <-ctx.Done():
		return nil
	}
}

// closers closes what was opened, in reverse order.
type closers []func() error

func (c *closers) add(f func() error) { *c = append(*c, f) }

func (c *closers) close() error {
	var errs []error
	for _, f := range slices.Backward(*c) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}
