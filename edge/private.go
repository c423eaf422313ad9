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

// privateRetry is how long to wait after the kernel has refused to lead private addresses to the
// edge.
const privateRetry = 5 * time.Second

// PrivateIngress leads Machines and WireGuard peers from their private networks to the edge. Both
// methods replace what an earlier call has set, and may be repeated.
type PrivateIngress interface {
	// OpenPorts sets which sockets of the edge Machines and peers may call.
	OpenPorts(ctx context.Context, sockets []listen.Socket) error
	// Ingress sets the private addresses that lead to this server.
	Ingress(ctx context.Context, addresses []netip.Addr) error
}

// followPrivate follows the routes and the sockets of the edge until ctx ends. Addresses that an
// earlier daemon has set stay until the first round.
func (e *Edge) followPrivate(ctx context.Context) error {
	if e.o.Private == nil {
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
		if err := e.applyPrivate(ctx); err != nil && ctx.Err() == nil {
			e.o.Log.WarnContext(ctx, "private addresses of apps do not lead to the edge yet", "error", err, "delay", privateRetry)
			again = time.After(privateRetry)
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

// applyPrivate sets the sockets and private addresses as they are now.
func (e *Edge) applyPrivate(ctx context.Context) error {
	e.applying.Lock()
	defer e.applying.Unlock()
	sockets, _ := e.listeners.Sockets()
	if err := e.o.Private.OpenPorts(ctx, publicSockets(sockets)); err != nil {
		return err
	}
	return e.o.Private.Ingress(ctx, e.routes.Private())
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
