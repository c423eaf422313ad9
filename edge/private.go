package edge

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/listen"
)

// leadRetry is how long to wait after the kernel has refused to lead private addresses to the
// edge.
const leadRetry = 5 * time.Second

// Ways lead Machines and peers from their private networks to the edge.
type Ways interface {
	// OpenPorts sets which sockets of the edge Machines and peers may call.
	OpenPorts(ctx context.Context, sockets []listen.Socket) error
	// Ingress sets the private addresses that lead to this server.
	Ingress(ctx context.Context, addresses []netip.Addr) error
}

// runWays follows the routes and the sockets of the edge until ctx ends. Addresses that an
// earlier daemon has led here stay until the first round.
func (e *Edge) runWays(ctx context.Context) error {
	if e.o.Ways == nil {
		return nil
	}
	select {
	case <-e.routes.Synced():
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		changed := e.routes.Changed()
		_, moved := e.listeners.Sockets()
		var again <-chan time.Time
		if err := e.lead(ctx); err != nil && ctx.Err() == nil {
			e.o.Log.WarnContext(ctx, "private addresses of apps do not lead to the edge yet", "error", err, "delay", leadRetry)
			again = time.After(leadRetry)
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

func (e *Edge) lead(ctx context.Context) error {
	e.leading.Lock()
	defer e.leading.Unlock()
	sockets, _ := e.listeners.Sockets()
	if err := e.o.Ways.OpenPorts(ctx, publicSockets(sockets)); err != nil {
		return err
	}
	return e.o.Ways.Ingress(ctx, e.routes.Private())
}

// publicSockets are those at which the public is served. Only this server calls a loopback
// address, and private ones are open to their networks alone.
func publicSockets(sockets []listen.Socket) []listen.Socket {
	return slices.DeleteFunc(slices.Clone(sockets), func(s listen.Socket) bool {
		return s.At.Addr().IsLoopback() || hangar.IsFlycast(s.At.Addr())
	})
}

// AppURL is where an App is served by HTTP under its name, or empty if that is reserved.
func (e *Edge) AppURL(app hangar.AppName) string {
	if app.Reserved() {
		return ""
	}
	const portHTTP = 80
	host := string(app.Hostname(e.o.Domain))
	if plain, _ := e.Addrs(); plain.Port() != portHTTP {
		host = net.JoinHostPort(host, strconv.Itoa(int(plain.Port())))
	}
	return "http://" + host
}
