package daemon

import (
	"context"
	"net/netip"
	"path/filepath"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/names"
	"github.com/hangar-platform/hangar/control/hostnames"
	"github.com/hangar-platform/hangar/edge"
	"github.com/hangar-platform/hangar/edge/listen"
	"github.com/hangar-platform/hangar/host/wireguard/carrier"
	"github.com/hangar-platform/hangar/internal/hint"
)

// The files that say where the edge serves.
const (
	httpFile  = "http.addr"
	httpsFile = "https.addr"
)

// openEdge opens the public edge. Connections wait until it runs.
func (d *opening) openEdge(ctx context.Context, s *server, c *cluster, n *private, hosts hangar.MachineGates) (*edge.Edge, error) {
	cfg, domain := d.cfg, hangar.Hostname(d.cfg.Domain)
	named, nameless := names.Handlers(ctx, domain, &d.late.api, carrier.New(n.gateway.ListensAt, carrier.Limits{}, d.log))
	roots, err := cfg.acmeRoots()
	if err != nil {
		return nil, err
	}
	o := edge.Options{
		Host: s.self.ID, Region: cfg.Region, Dir: filepath.Join(cfg.Dir, "edge"), HTTP: cfg.HTTP, HTTPS: cfg.HTTPS, HTTP3: cfg.HTTP3,
		Shared: cfg.sharedIPv4(), Domain: domain, Platform: named, Nameless: nameless,
		Machines: c.machines, Routes: c.routes, Certificates: hostnames.NewFeed(c.mirror, c.sealed, d.log),
		Orders: hostnames.NewOrders(c.mirror, c.sealed, hostnames.DefaultLockTTL, d.log),
		Gates:  hosts, Keeper: s.keeper, ACME: cfg.acmeDirectory(), ACMEEmail: cfg.ACMEEmail, ACMERoots: roots,
		Limits: listen.Limits{ClientConns: cfg.ClientConns, ClientRate: cfg.ClientHandshakes, NameRate: max(2*cfg.ClientHandshakes, listen.DefaultLimits().NameRate)},
		Drain:  cfg.Drain, ReplayBody: cfg.ReplayBody, Buckets: cfg.StaticsURL, Log: d.log,
	}
	if s.network != nil {
		o.Private = privateIngress{s.network}
	}
	e := edge.New(o)
	if err := e.Open(ctx); err != nil {
		return nil, hint.With(err, "give the edge other addresses with --http and --https")
	}
	d.opened.add(e.Close)
	plain, secure := e.Addrs()
	for name, addr := range map[string]netip.AddrPort{httpFile: plain, httpsFile: secure} {
		if err := writeAddress(filepath.Join(cfg.Dir, name), addr.String()); err != nil {
			return nil, err
		}
	}
	return e, nil
}
