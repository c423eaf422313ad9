package daemon

import (
	"context"
	"crypto/tls"
	"fmt"
	"iter"
	"math"
	"net"
	"net/http"
	"path/filepath"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	controlalerts "github.com/hangar-platform/hangar/control/alerts"
	"github.com/hangar-platform/hangar/control/state"
	"github.com/hangar-platform/hangar/control/tenants"
	"github.com/hangar-platform/hangar/control/vault"
	"github.com/hangar-platform/hangar/edge"
	"github.com/hangar-platform/hangar/edge/catalog"
	"github.com/hangar-platform/hangar/internal/certfile"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/hint"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/alerts"
	"github.com/hangar-platform/hangar/metrics/alerts/notify"
	"github.com/hangar-platform/hangar/metrics/alerts/states"
	"github.com/hangar-platform/hangar/metrics/builtin"
	"github.com/hangar-platform/hangar/metrics/gateway"
	"github.com/hangar-platform/hangar/metrics/program"
	"github.com/hangar-platform/hangar/metrics/remote"
	"github.com/hangar-platform/hangar/metrics/scrape"
	"github.com/hangar-platform/hangar/metrics/store"
)

// series has the parts for the series of organizations, which measure, store and answer queries.
type series struct {
	writer   *remote.Writer
	sampler  *builtin.Sampler
	scraper  *scrape.Scraper
	queries  hangar.SeriesQuerier
	alerts   hangar.AlertHost
	evaluate func(context.Context) error // evaluates the rules of alerts while this server has that duty

	collectors []prometheus.Collector // of these parts, for operators
}

// openSeries opens the series of organizations; nil: there are none. The store starts on first use.
func (d *opening) openSeries(ctx context.Context, s *server, c *cluster, m *machines, f *servers, public *edge.Edge) (*series, error) {
	shared, err := d.shareMetrics(ctx, s, c, f)
	if err != nil || d.cfg.MetricsURL == metricsOff {
		return nil, err
	}
	kept, err := d.openMetricsStore(ctx)
	if err != nil {
		return nil, err
	}
	dir := metricsDir(d.cfg)
	writer := remote.New(remote.Options{
		Store: shared.store(kept), Dir: filepath.Join(dir, "spool"), Log: d.log,
		Admit: func(bytes int64) error { return d.space.Admit(diskspace.SpoolMetrics, bytes) },
	})
	if err := writer.Open(); err != nil {
		return nil, fmt.Errorf("open the spool of metrics: %w", err)
	}
	d.opened.add(writer.Close)
	owners := &owners{routes: c.routes, orgs: c.mirror}
	prefixes := []string{hangar.MetricPrefixes.Neutral}
	if d.cfg.MetricsOriginal {
		prefixes = append(prefixes, hangar.MetricPrefixes.Original)
	}
	asked := &queries{gateway.New(gateway.Options{Store: kept, Log: d.log})}
	all := &series{
		writer: writer, queries: shared.queries(asked),
		sampler: builtin.New(builtin.Options{
			Sources: []hangar.MetricSource{public, m.agent}, Apps: func(id hangar.AppID) (hangar.AppName, metrics.Tenant, bool) { return owners.app(ctx, id) },
			Writer: writer, Region: d.cfg.Region, Host: s.self.ID, Prefixes: prefixes, Log: d.log,
		}),
	}
	evaluator, notifier, err := d.openAlerts(c, all.queries)
	if err != nil {
		return nil, err
	}
	all.alerts, all.evaluate = shared.alerts(evaluator), shared.evaluates(evaluator, kept)
	shared.serve(kept, asked, evaluator)
	host := metrics.HostLabelOf(s.self.ID)
	all.scraper = scrape.New(scrape.Options{
		Targets: func() iter.Seq[scrape.Target] {
			if s.network == nil { // nothing can be reached
				return func(func(scrape.Target) bool) {}
			}
			return targets(ctx, m.agent.MetricsEndpoints(), owners, host)
		},
		Dial: func(ctx context.Context, machine hangar.MachineRef, family string, port int) (net.Conn, error) {
			return s.network.DialFamily(ctx, machine.ID, family, port)
		},
		Writer: writer, Tell: m.agent.LogMetrics,
	})
	all.collectors = []prometheus.Collector{writer, all.scraper, asked.gateway, evaluator, notifier}
	if own, ok := kept.(*store.Store); ok {
		all.collectors = append(all.collectors, own)
	}
	return all, nil
}

// openAlerts opens the evaluator of the rules of organizations, and the notifier of their receivers.
func (d *opening) openAlerts(c *cluster, asked hangar.SeriesQuerier) (*alerts.Evaluator, *notify.Notifier, error) {
	dialer, err := d.webhookDialer()
	if err != nil {
		return nil, nil, err
	}
	mail, err := d.cfg.mail()
	if err != nil {
		return nil, nil, err
	}
	kept, err := states.Open(filepath.Join(metricsDir(d.cfg), "alerts.db"), d.log)
	if err != nil {
		return nil, nil, fmt.Errorf("open the states of alerts: %w", err)
	}
	d.opened.add(kept.Close)
	external := "https://" + string(hangar.PlatformAPI.Hostname(hangar.Hostname(d.cfg.Domain)))
	notifier := notify.New(notify.Options{Ledger: kept, Dial: dialer.DialContext, Mail: mail, ExternalURL: external, Log: d.log})
	return alerts.New(alerts.Options{
		Configs: controlalerts.NewFeed(c.mirror, vault.New(c.mirror, c.keys, d.log), d.log), Query: alerts.QueryBy(asked), States: kept,
		Notifier: notifier, ExternalURL: external, Log: d.log,
	}), notifier, nil
}

// openMetricsStore opens the store of series: a child of this process, or a cluster.
func (d *opening) openMetricsStore(ctx context.Context) (metrics.Store, error) {
	if d.cfg.MetricsURL != "" {
		writes := d.cfg.MetricsWriteURL
		if writes == "" {
			writes = d.cfg.MetricsURL
		}
		client, err := d.metricsClient()
		if err != nil {
			return nil, err
		}
		return store.NewCluster(d.cfg.MetricsURL, writes, client)
	}
	find := d.options.Around.MetricsProgram
	if find == nil {
		find = func(context.Context) (string, error) { return program.Locate(d.cfg.Dir) }
	}
	dir := metricsDir(d.cfg)
	kept, err := store.Open(ctx, store.Options{
		Dir: filepath.Join(dir, "data"), Run: dir, Group: metricsGroup(d.cfg), Retention: d.cfg.MetricsRetention, Log: d.log, Program: find,
	})
	if err != nil {
		return nil, err
	}
	d.opened.add(kept.Close)
	return kept, nil
}

// metricsClient returns the client for a store of metrics that an operator runs.
func (d *opening) metricsClient() (*http.Client, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if d.cfg.MetricsCA != "" {
		var err error
		if config.RootCAs, err = readRoots("--metrics-ca", d.cfg.MetricsCA); err != nil {
			return nil, hint.With(err, "give --metrics-ca a file with certificates")
		}
	}
	if d.cfg.MetricsCert != "" {
		pair, err := certfile.Open(d.cfg.MetricsCert, d.cfg.MetricsKey, d.log)
		if err != nil {
			return nil, fmt.Errorf("--metrics-cert: %w", err)
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair.Get(nil) }
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = config
	d.opened.add(func() error { transport.CloseIdleConnections(); return nil })
	return &http.Client{Transport: transport}, nil
}

func metricsDir(cfg Config) string { return filepath.Join(cfg.Dir, "metrics") }

// metricsGroup names the control group of the store of metrics. A daemon with the fake driver has none,
// because it needs no root.
func metricsGroup(cfg Config) string {
	if cfg.Driver == DriverFake {
		return ""
	}
	return "hangar-" + instance(cfg.Dir) + "-metrics"
}

// run measures and sends until ctx ends. The measuring parts end first, then the writer, which keeps
// unsent samples for the next daemon.
func (s *series) run(ctx context.Context) error {
	sending, sent := finish.Lifetime(ctx)
	defer sent()
	var writing errgroup.Group
	writing.Go(func() error { s.writer.Run(sending); return nil })
	var measuring errgroup.Group
	measuring.Go(func() error { return s.sampler.Run(ctx) })
	measuring.Go(func() error { return s.evaluate(ctx) })
	measuring.Go(func() error { s.scraper.Run(ctx); return nil })
	err := measuring.Wait()
	sent()
	_ = writing.Wait()
	return err
}

// targets yields the Machines to scrape. It leaves out those whose organization is not known yet.
func targets(ctx context.Context, endpoints iter.Seq[hangar.MetricsEndpoint], owners *owners, host string) iter.Seq[scrape.Target] {
	return func(yield func(scrape.Target) bool) {
		for e := range endpoints {
			tenant, ok := owners.tenant(ctx, e.Org)
			if ok && !yield(scrape.Target{
				Machine: e.Machine, Tenant: tenant, Region: e.Region, Host: host,
				Port: e.Metrics.Port, Path: e.Metrics.Path, HTTPS: e.Metrics.HTTPS, Generation: e.Boot,
			}) {
				return
			}
		}
	}
}

// owners finds the tenants of Apps and Machines.
type owners struct {
	routes *catalog.Routes
	orgs   state.Store

	mu    sync.Mutex
	known map[hangar.OrgID]tenants.OrgRecord // guarded by mu
}

// app returns the name and the tenant of an App.
func (o *owners) app(ctx context.Context, id hangar.AppID) (hangar.AppName, metrics.Tenant, bool) {
	route, ok := o.routes.App(id)
	if !ok {
		return "", metrics.Tenant{}, false
	}
	tenant, ok := o.tenant(ctx, route.Org)
	return route.App, tenant, ok
}

// tenant returns the tenant of an organization, if there is one.
func (o *owners) tenant(ctx context.Context, org hangar.OrgID) (metrics.Tenant, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	rec, ok := o.known[org]
	if !ok {
		fresh, err := tenants.OrgsByID(ctx, o.orgs, func(state.Item, error) {})
		if err != nil {
			return metrics.Tenant{}, false
		}
		o.known = fresh
		rec, ok = fresh[org]
	}
	return metrics.Tenant{Org: org, Number: uint32(rec.NumericID)}, ok && rec.NumericID <= math.MaxUint32
}

// queries answers queries of series.
type queries struct{ gateway *gateway.Gateway }

// QuerySeries implements hangar.SeriesQuerier.
func (q *queries) QuerySeries(w http.ResponseWriter, r *http.Request, scope hangar.MetricsScope, path string) {
	tenant := metrics.Tenant{Org: scope.Org, Number: uint32(scope.Number)}
	q.gateway.Serve(w, r, tenant, gateway.Scope{Apps: scope.Apps}, path)
}
