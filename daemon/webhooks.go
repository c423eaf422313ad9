package daemon

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/vault"
	"github.com/hangar-platform/hangar/control/webhooks"
	"github.com/hangar-platform/hangar/control/webhooks/delivery"
	"github.com/hangar-platform/hangar/internal/diskspace"
	"github.com/hangar-platform/hangar/internal/publicdial"
)

// dialTimeout bounds a connection to a receiver at a private address.
const dialTimeout = 10 * time.Second

// openWebhooks opens the delivery of events of Machines, to the webhooks of organizations and to
// others.
func (d *opening) openWebhooks(ctx context.Context, c *cluster, m *machines, others ...hangar.EventReceiverFeed) (*delivery.Dispatcher, error) {
	dialer, err := d.webhookDialer()
	if err != nil {
		return nil, err
	}
	kept := webhooks.NewFeed(c.mirror, vault.New(c.mirror, c.keys, d.log), d.log)
	dispatcher := delivery.New(delivery.Options{
		Dir: filepath.Join(d.cfg.Dir, "webhooks"), Feed: m.agent, Receivers: append([]hangar.EventReceiverFeed{kept}, others...),
		Dial: dialer.DialContext, DialPrivate: (&net.Dialer{Timeout: dialTimeout}).DialContext,
		Admit: func(bytes int64) error { return d.space.Admit(diskspace.SpoolEvents, bytes) }, NoSync: d.options.Around.NoSync, Log: d.log,
	})
	if err := dispatcher.Open(ctx); err != nil {
		return nil, fmt.Errorf("open the queues of webhooks: %w", err)
	}
	d.opened.add(dispatcher.Close)
	return dispatcher, nil
}

// webhookDialer dials the webhooks that tenants name, for alerts or events: on the public internet, or
// where the operator allows.
func (d *opening) webhookDialer() (*publicdial.Dialer, error) {
	pools, err := d.cfg.addressPools()
	if err != nil {
		return nil, err
	}
	allowed, err := d.cfg.webhookTargets()
	if err != nil {
		return nil, err
	}
	return publicdial.New(publicdial.Options{
		Allow: allowed, Own: func(a netip.Addr) bool { return pools.Contains(a) || publicdial.OnThisServer(a) },
	}), nil
}
