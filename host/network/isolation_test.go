package network

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/ownhost"
)

// echoUDP answers every datagram with the address of its sender.
func echoUDP(tb testing.TB, at netip.AddrPort) {
	tb.Helper()
	server, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		tb.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 2048)
		for {
			_, from, err := server.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = server.WriteToUDPAddrPort([]byte(from.String()), from)
		}
	}()
	tb.Cleanup(func() {
		_ = server.Close()
		<-done
	})
}

// The platform's services can be reached at their own address and at the host's, from every
// network, and see the caller's address. Nothing else of the host can be reached.
func TestServices(t *testing.T) {
	n := open(t, "services")
	one := attach(t, n, endpointOf(5, 1))
	listenKernel(t, one)
	for _, at := range []netip.AddrPort{
		netip.AddrPortFrom(n.HostAddr6(), hangar.ServicesAPIPort),
		netip.AddrPortFrom(n.HostAddr6(), hangar.ServicesDNSPort),
		netip.AddrPortFrom(n.HostAddr4(), hangar.ServicesDNSPort),
		netip.AddrPortFrom(netip.IPv6Unspecified(), 22),
	} {
		l, err := net.Listen("tcp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		ownhost.Serve(t, l)
		echoUDP(t, at)
	}
	withNetwork := netip.MustParseAddr("fdaa:0:5::3")
	within(t, one, func() error {
		for _, to := range []netip.Addr{hangar.ServicesAddress, withNetwork, n.HostAddr6(), n.HostAddr4()} {
			from, err := reach(to, hangar.ServicesDNSPort)
			if id, network, ok := n.Owner(from); err != nil || !ok || id != endpointOf(5, 1).ID || network != 5 {
				t.Errorf("DNS at %s: called from %s, which is %s of network %d, %v", to, from, id, network, err)
			}
			if from, err := insist(ask, to, hangar.ServicesDNSPort); err != nil || from != one.IPv4 && from != one.IPv6 {
				t.Errorf("DNS by UDP at %s: called from %s, %v", to, from, err)
			}
			if _, err := call(to, 22); err == nil {
				t.Errorf("port 22 of %s is reached", to)
			}
			if to.Is4() {
				continue
			}
			if from, err := reach(to, hangar.ServicesAPIPort); err != nil || from != one.IPv6 {
				t.Errorf("API at %s: called from %s, %v", to, from, err)
			}
			if _, err := ask(to, hangar.ServicesAPIPort); err == nil {
				t.Errorf("UDP port 4280 of %s is reached", to)
			}
		}
		if _, err := (&net.Dialer{Timeout: patience}).DialContext(t.Context(), "tcp", "[fe80::1%eth0]:22"); err == nil {
			t.Error("the host's link-local address is reached")
		}
		return nil
	})
}

func TestOwner(t *testing.T) {
	n := open(t, "owner")
	one, two := attach(t, n, endpointOf(5, 1)), attach(t, n, endpointOf(6, 2))
	for addr, want := range map[netip.Addr]struct {
		id      hangar.MachineID
		network hangar.NetworkID
	}{
		one.IPv6:                          {endpointOf(5, 1).ID, 5},
		one.IPv6.Next():                   {endpointOf(5, 1).ID, 5},
		one.IPv4:                          {endpointOf(5, 1).ID, 5},
		netip.AddrFrom16(one.IPv4.As16()): {endpointOf(5, 1).ID, 5},
		two.IPv6:                          {endpointOf(6, 2).ID, 6},
		two.IPv4:                          {endpointOf(6, 2).ID, 6},
		Address(6, testHost, 1):           {},
		n.HostAddr4():                     {},
		n.HostAddr6():                     {},
		{}:                                {},
		netip.MustParseAddr("fe80::6d:ff:fe00:1"): {},
	} {
		if id, network, ok := n.Owner(addr); id != want.id || network != want.network || ok != (want.id != "") {
			t.Errorf("%s is of %q, network %d, %t", addr, id, network, ok)
		}
		in := slices.ContainsFunc(n.Ranges(), func(p netip.Prefix) bool { return p.Contains(addr.Unmap()) })
		if want.id != "" && !in {
			t.Errorf("%s is in none of the ranges %v", addr, n.Ranges())
		}
	}
	must(n.Detach(endpointOf(5, 1).ID))
	if id, _, ok := n.Owner(one.IPv6); ok {
		t.Errorf("a detached machine's address is of %s", id)
	}
}
