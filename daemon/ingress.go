package daemon

import (
	"context"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge"
	"github.com/hangar-platform/hangar/edge/catalog"
	"github.com/hangar-platform/hangar/host/network"
)

// ingressRetry is how long to wait after the kernel has refused to lead private addresses
// to the edge.
const ingressRetry = 5 * time.Second

// ingress leads Machines and peers to the edge: to the private addresses of Apps, which
// follow the routes, and to the ports at which the public is served. It is the edge as
// control waits for it.
type ingress struct {
	*edge.Edge
	routes *catalog.Routes
	wires  *network.Network // nil: there are no private networks
	log    *slog.Logger

	leading sync.Mutex // so that what was read last is what is led here last
}

func newIngress(public *edge.Edge, routes *catalog.Routes, wires *network.Network, log *slog.Logger) *ingress {
	return &ingress{Edge: public, routes: routes, wires: wires, log: log}
}

// AwaitRoute implements hangar.RouteHost.
func (i *ingress) AwaitRoute(ctx context.Context, app hangar.AppID, seq uint64) error {
	if err := i.Edge.AwaitRoute(ctx, app, seq); err != nil || i.wires == nil {
		return err
	}
	return i.lead(ctx)
}

// run follows the routes and the sockets of the edge until ctx ends. What a daemon before this one has led here stays
// until it is known what there is.
func (i *ingress) run(ctx context.Context) error {
	if i.wires == nil {
		return nil
	}
	select {
	case <-i.routes.Synced():
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		changed := i.routes.Changed()
		_, moved := i.Sockets()
		var again <-chan time.Time
		if err := i.lead(ctx); err != nil && ctx.Err() == nil {
			i.log.WarnContext(ctx, "private addresses of apps do not lead to the edge yet", "error", err, "delay", ingressRetry)
			again = time.After(ingressRetry)
		}
		select {
		case <-changed:
		case <-moved:
		case <-again:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (i *ingress) lead(ctx context.Context) error {
	i.leading.Lock()
	defer i.leading.Unlock()
	if err := i.wires.OpenPorts(ctx, i.ports()); err != nil {
		return err
	}
	return i.wires.Ingress(ctx, i.routes.Private())
}

// ports are those at which the public is served. Nobody else calls a loopback address, and
// private ones are open to their networks alone.
func (i *ingress) ports() []network.OpenPort {
	sockets, _ := i.Sockets()
	ports := make([]network.OpenPort, 0, len(sockets))
	for _, s := range sockets {
		if a := s.At.Addr(); !a.IsLoopback() && !hangar.IsFlycast(a) {
			ports = append(ports, network.OpenPort{UDP: s.UDP, At: s.At})
		}
	}
	return ports
}

// appURL is where an App is served by HTTP under its name, or empty if that is reserved.
func (i *ingress) appURL(app hangar.AppName) string {
	if app.Reserved() {
		return ""
	}
	host := string(app.Hostname(i.Domain()))
	if http, _ := i.Addrs(); http.Port() != portHTTP {
		host = net.JoinHostPort(host, strconv.Itoa(int(http.Port())))
	}
	return "http://" + host
}
