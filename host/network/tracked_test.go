package network

import (
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/ownhost"
)

// The kernel tracks all connections of a server in one table. A Machine that opens more and more
// connections gets no more than its share, whether by IPv4, by IPv6 with all of its addresses, or
// to the host's services, and others can still connect. Closed connections free their share.
func TestConnectionsAreBounded(t *testing.T) {
	const most = 20
	n := openIt(t, New(Options{
		Instance: "bounded", Host: testHost, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), RunDir: runDir(t), MaxConnections: most,
	}))
	server4, server6, port := internet(t, n)
	at := netip.AddrPortFrom(n.HostAddr6(), hangar.ServicesAPIPort)
	l, err := net.Listen("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	ownhost.Serve(t, l)
	greedy, modest := attach(t, n, endpointOf(5, 1)), attach(t, n, endpointOf(6, 2))
	openToAll(t, greedy)
	openToAll(t, modest)

	// hold opens all permitted connections, and more if it can, and returns the open ones. The
	// kernel may count closed connections for another moment.
	hold := func(to netip.AddrPort) (held []net.Conn) {
		t.Helper()
		within(t, greedy, func() error {
			open := func() {
				if c, err := net.DialTimeout("tcp", to.String(), patience); err == nil {
					held = append(held, c)
				}
			}
			for deadline := time.Now().Add(time.Minute); len(held) < most && time.Now().Before(deadline); {
				open()
			}
			for range 5 {
				open()
			}
			return nil
		})
		return held
	}
	release := func(held []net.Conn) {
		t.Helper()
		for _, c := range held {
			must(c.(*net.TCPConn).SetLinger(0)) // a reset closes it for the kernel at once
			must(c.Close())
		}
	}
	for _, to := range []netip.AddrPort{netip.AddrPortFrom(server4, port), netip.AddrPortFrom(server6, port), at} {
		held := hold(to)
		if len(held) != most {
			t.Errorf("%d connections to %s, want %d", len(held), to, most)
		}
		within(t, modest, func() error {
			for _, to := range []netip.Addr{server4, server6} {
				if _, err := reach(to, port); err != nil {
					t.Errorf("the other Machine does not reach %s: %v", to, err)
				}
			}
			return nil
		})
		release(held)
	}
}
