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

// dialTimeout bounds a connection to where an operator lets receivers be.
const dialTimeout = 10 * time.Second

// openWebhooks opens what delivers the events of Machines. More receivers than the webhooks of
// organizations are those of others.
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

// webhookDialer calls what tenants name as a webhook, of alerts or events: the public internet, and
// what the operator allows.
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
