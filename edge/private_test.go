package edge_test

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge"
	"github.com/hangar-platform/hangar/edge/catalog"
	"github.com/hangar-platform/hangar/edge/edgetest"
	"github.com/hangar-platform/hangar/edge/listen"
)

// private is an App with an address in a private network.
type private struct {
	world
	refuses bool
	opened  []listen.Socket
	led     []netip.Addr
}

var flycast = hangar.FlycastAddress(1, 1)

func (p *private) OpenPorts(_ context.Context, sockets []listen.Socket) error {
	p.opened = sockets
	return nil
}

func (p *private) Ingress(_ context.Context, addresses []netip.Addr) error {
	p.led = addresses
	if p.refuses {
		return errors.New("the kernel refuses")
	}
	return nil
}

// TestAwaitRouteLeads: a caller that has waited for a private address reaches the edge at it, and
// sockets of the loopback are opened to no network.
func TestAwaitRouteLeads(t *testing.T) {
	t.Parallel()
	p := &private{refuses: true}
	feed := edgetest.NewFeed()
	feed.PutRoute(hangar.AppRoute{
		ID: "shop", App: "shop", Org: "org", Addresses: []hangar.Address{{IP: flycast, Kind: hangar.AddressPrivateV6, App: "shop"}},
	})
	machines, routes := catalog.New(feed, nil), catalog.NewRoutes(feed, "apps.test", nil)
	e := edge.New(edge.Options{
		Host: "0badcafe", Dir: t.TempDir(), HTTP: "127.0.0.1:0", HTTPS: "127.0.0.1:0", Domain: "apps.test", Region: "loc",
		Machines: machines, Routes: routes, Gates: p, Private: p, Log: slog.New(slog.DiscardHandler),
	})
	if err := e.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	go func() { _ = machines.Run(ctx) }()
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	if err := e.AwaitRoute(ctx, "shop", 1); err == nil {
		t.Error("it waits for no way")
	}
	end()
	<-ended
	if len(p.opened) > 0 || !slices.Equal(p.led, []netip.Addr{flycast}) {
		t.Errorf("%v lead to %v", p.led, p.opened)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}
