package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"syscall"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/network"
)

// lateIdentity issues identity tokens once there is who does: the host takes its
// Machines up before control is there.
type lateIdentity struct {
	ready  chan struct{} // closed by set
	issuer hangar.IdentityService
}

func newLateIdentity() *lateIdentity { return &lateIdentity{ready: make(chan struct{})} }

func (l *lateIdentity) set(issuer hangar.IdentityService) {
	l.issuer = issuer
	close(l.ready)
}

// IssueIdentityToken implements hangar.IdentityService.
func (l *lateIdentity) IssueIdentityToken(ctx context.Context, ref hangar.MachineRef, in hangar.IdentityTokenRequest) (string, error) {
	select {
	case <-l.ready:
		return l.issuer.IssueIdentityToken(ctx, ref, in)
	case <-ctx.Done():
		return "", hangar.Errorf(hangar.CodeUnavailable, "", "nobody issues identity tokens yet")
	}
}

// somewhere is an address of the internet (RFC 9637). Nothing is sent to it.
const somewhere = "[3fff::1]:9"

// publicAddress is this server's address on the internet over IPv6, or the zero Addr.
func publicAddress(ctx context.Context) netip.Addr {
	c, err := (&net.Dialer{}).DialContext(ctx, "udp6", somewhere)
	if err != nil {
		return netip.Addr{}
	}
	defer c.Close()
	local, ok := c.LocalAddr().(*net.UDPAddr)
	if !ok {
		return netip.Addr{}
	}
	addr := local.AddrPort().Addr().WithZone("")
	if !addr.IsGlobalUnicast() || addr.IsPrivate() {
		return netip.Addr{}
	}
	return addr
}

// listenInside listens where Machines find the API in their private network: the network
// leads hangar.ServicesAddress there. It returns nil where there is no network, where the
// API, at served, is on all addresses, and where another program is.
func listenInside(ctx context.Context, wires *network.Network, served net.Addr, log *slog.Logger) (net.Listener, error) {
	if wires == nil {
		return nil, nil //nolint:nilnil // it is asked for once
	}
	if api, err := netip.ParseAddrPort(served.String()); err == nil && api.Addr() == netip.IPv6Unspecified() && api.Port() == hangar.ServicesAPIPort {
		return nil, nil //nolint:nilnil // as above
	}
	addr := netip.AddrPortFrom(wires.HostAddr6(), hangar.ServicesAPIPort)
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp6", addr.String())
	if errors.Is(err, syscall.EADDRINUSE) {
		log.Warn("another program listens on the port of the API inside private networks: Machines reach it over their local socket alone",
			"address", addr)
		return nil, nil //nolint:nilnil // as above
	}
	return l, err
}
