package daemon

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cluster/listener"
	"github.com/hangar-platform/hangar/control/fleet"
	"github.com/hangar-platform/hangar/host/remote"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/alerts"
	"github.com/hangar-platform/hangar/metrics/hosts"
	"github.com/hangar-platform/hangar/metrics/store"
)

// The duties that one server has for all: to keep the series and evaluate the rules of alerts or, where
// an operator runs the store, only to evaluate the rules.
const (
	dutyMetrics = "metrics"
	dutyAlerts  = "alerts"
)

// sharing is what the servers of a cluster leave to one of them about metrics. It is nil for a server
// that is alone.
type sharing struct {
	duty   *fleet.Duty
	client *hosts.Client
	door   *listener.Listener
	keeps  bool // that server keeps the series, too
	log    *slog.Logger
}

// shareMetrics joins the servers that keep their series where this one does. It gives up the duties
// that this server's config no longer has.
func (d *opening) shareMetrics(ctx context.Context, s *server, c *cluster, f *servers) (*sharing, error) {
	if c.peers == nil {
		return nil, nil //nolint:nilnil // its methods know
	}
	worth := cmp.Or(d.cfg.MetricsRetention, store.DefaultRetention)
	duties := map[string]*fleet.Duty{dutyMetrics: f.fleet.Duty(dutyMetrics, worth), dutyAlerts: f.fleet.Duty(dutyAlerts, worth)}
	own := dutyMetrics
	if d.cfg.MetricsURL != "" {
		own = dutyAlerts
	}
	for name, duty := range duties {
		if name == own && d.cfg.MetricsURL != metricsOff {
			continue
		}
		if err := duty.Resign(ctx); err != nil {
			return nil, err
		}
	}
	if d.cfg.MetricsURL == metricsOff {
		return nil, nil //nolint:nilnil // as above
	}
	duty := duties[own]
	client := hosts.NewClient(hosts.ClientConfig{
		Self: s.self.ID, Holder: duty.Holder,
		Transport: func(h hangar.Host) http.RoundTripper { return remote.Transport(c.peers.identity.ClientConfig(h.ID)) },
	})
	d.opened.add(func() error { client.Close(); return nil })
	return &sharing{duty: duty, client: client, door: c.peers.door, keeps: own == dutyMetrics, log: d.log}, nil
}

// store returns the store for samples: the store of all servers, or this server's own.
func (s *sharing) store(own metrics.Store) metrics.Store {
	if s == nil || !s.keeps {
		return own
	}
	return hosts.NewStore(own, s.client)
}

// queries returns the querier of all servers' series, or this server's own.
func (s *sharing) queries(own *queries) hangar.SeriesQuerier {
	if s == nil || !s.keeps {
		return own
	}
	return hosts.NewQueries(own, s.client, own.gateway.Refuse)
}

// alerts returns the states of alerts of all servers, or this server's own.
func (s *sharing) alerts(own *alerts.Evaluator) hangar.AlertHost {
	if s == nil {
		return own
	}
	return hosts.NewAlerts(own, s.client)
}

// evaluates returns the loop that runs the evaluator while this server has the duty. Its store rests
// while another server has it.
func (s *sharing) evaluates(own *alerts.Evaluator, kept metrics.Store) func(context.Context) error {
	if s == nil {
		return own.Run
	}
	rest := func() {
		if kept, ok := kept.(*store.Store); ok {
			kept.Rest()
		}
	}
	return func(ctx context.Context) error {
		return s.duty.Run(ctx, func(ctx context.Context) { _ = own.Run(ctx) }, rest) // it ends with ctx only
	}
}

// serve lets other servers use the store and the evaluator of this one while it has the duty.
func (s *sharing) serve(own metrics.Store, asked *queries, evaluator *alerts.Evaluator) {
	if s == nil {
		return
	}
	s.door.Handle(hosts.Path, hosts.NewHandler(hosts.HandlerConfig{Client: s.client, Own: own, Queries: asked, Alerts: evaluator, Log: s.log}))
}
