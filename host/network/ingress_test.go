package network

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/ownhost"
)

// serveAt serves by TCP and UDP at an address that need not belong to a device, as the edge does.
func serveAt(t *testing.T, at netip.AddrPort) {
	t.Helper()
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_FREEBIND, 1) })
		if err != nil {
			return err
		}
		return failed
	}}
	l, err := config.Listen(t.Context(), "tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	ownhost.Serve(t, l)
	p, err := config.ListenPacket(t.Context(), "udp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 2048)
		for {
			_, from, err := p.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = p.WriteTo([]byte(from.String()), from)
		}
	}()
	t.Cleanup(func() {
		_ = p.Close()
		<-done
	})
}

// TestIngress: only members of an App's network reach its private address, and no program does after
// its removal.
func TestIngress(t *testing.T) {
	w := newWorldWithoutHost(t)
	inFive, inSix, unset := hangar.FlycastAddress(5, 7<<16|1), hangar.FlycastAddress(6, 1), hangar.FlycastAddress(5, 2)
	for _, a := range []netip.Addr{inFive, inSix, unset} {
		serveAt(t, netip.AddrPortFrom(a, probePort))
	}
	must(w.n.Ingress(t.Context(), []netip.Addr{inFive, inSix, w.stranger.IPv6, netip.MustParseAddr("2001:db8::5")}))
	// Ports that are open at all addresses are not open at private ones.
	must(w.n.OpenPorts(t.Context(), []OpenPort{
		{At: netip.AddrPortFrom(netip.IPv4Unspecified(), probePort)}, {At: netip.AddrPortFrom(netip.IPv6Unspecified(), probePort), UDP: true},
	}))
	for _, a := range []Attachment{w.net, w.lan} { // which would be forwarded to
		within(t, a, func() error {
			return netlink.RouteReplace(&netlink.Route{Dst: ipNet(Private), Gw: a.Gateway6.AsSlice()})
		})
	}
	expect := func(when string, may map[string]string) {
		t.Helper()
		var probes sync.WaitGroup
		for from, source := range map[string]Attachment{
			"one": w.one, "two": w.two, "stranger": w.stranger, "of2": w.of2, "internet": w.net, "lan": w.lan, "host": theHost(),
		} {
			for to, a := range map[string]netip.Addr{"five": inFive, "six": inSix, "unset": unset} {
				probes.Go(func() {
					name := from + " → " + to
					within(t, source, func() error {
						if got := answers(a, may[name]); got != may[name] {
							t.Errorf("%s, %s: answered %q, want %q", when, name, got, may[name])
						}
						return nil
					})
				})
			}
		}
		probes.Wait()
	}
	const served = "tcp udp"
	open := map[string]string{"one → five": served, "two → five": served, "stranger → six": served, "host → five": all, "host → six": all}
	expect("with both", open)
	within(t, w.one, func() error { // the caller's address is seen
		if from, err := reach(inFive, probePort); err != nil || from != w.one.IPv6 {
			t.Errorf("called from %s, %v", from, err)
		}
		return nil
	})

	// It survives the daemon and changes of the table.
	must(w.n.Close())
	must(w.n.Open(t.Context()))
	expect("after a restart", open)
	c, err := nftables.New()
	must(err)
	c.DelTable(w.n.table())
	must(c.Flush())
	must(w.n.Ingress(t.Context(), []netip.Addr{inFive}))
	delete(open, "stranger → six")
	delete(open, "host → six")
	expect("with one", open)
	must(w.n.Ingress(t.Context(), nil))
	expect("with none", nil)
	if left, err := w.n.locals(); err != nil || len(left) > 0 {
		t.Errorf("local routes %v, %v", left, err)
	}
}

// TestIngressHidesTheHost: listeners of the host at all of its addresses cannot be reached at an
// App's private address, unless they are open to Machines.
func TestIngressHidesTheHost(t *testing.T) {
	w := newWorldWithoutHost(t)
	at := hangar.FlycastAddress(5, 1)
	const others = probePort + 3
	serveAt(t, netip.AddrPortFrom(at, probePort))
	serveAt(t, netip.AddrPortFrom(netip.IPv6Unspecified(), others))
	must(w.n.Ingress(t.Context(), []netip.Addr{at}))
	expect := func(port uint16, want bool) {
		t.Helper()
		within(t, w.one, func() error {
			if _, err := reach(at, port); (err == nil) != want {
				t.Errorf("port %d: %v, is reached: %t", port, err, !want)
			}
			return nil
		})
	}
	expect(probePort, true)
	expect(others, false)
	must(w.n.OpenPorts(t.Context(), []OpenPort{{At: netip.AddrPortFrom(netip.IPv6Unspecified(), others)}}))
	expect(others, true)
}

// TestOpenPorts: Machines reach the open ports of the host at their addresses.
func TestOpenPorts(t *testing.T) {
	w := newWorld(t)
	at := map[string]netip.Addr{"4": w.net.Gateway4, "6": w.net.Gateway6, "lan4": w.lan.Gateway4, "lan6": w.lan.Gateway6}
	for _, c := range []struct {
		open []OpenPort
		want []string
	}{
		{nil, nil},
		{[]OpenPort{{At: netip.AddrPortFrom(w.net.Gateway4, probePort)}}, []string{"4"}},
		{[]OpenPort{{At: netip.AddrPortFrom(w.net.Gateway6, probePort)}, {At: netip.AddrPortFrom(w.lan.Gateway4, probePort)}}, []string{"6", "lan4"}},
		{[]OpenPort{{At: netip.AddrPortFrom(netip.IPv4Unspecified(), probePort)}}, []string{"4", "6", "lan4", "lan6"}},
		{[]OpenPort{{At: netip.AddrPortFrom(netip.IPv6Unspecified(), probePort+1)}, {UDP: true, At: netip.AddrPortFrom(w.net.Gateway4, probePort)}}, nil},
		{nil, nil},
	} {
		must(w.n.OpenPorts(t.Context(), c.open))
		for name, a := range at {
			within(t, w.one, func() error {
				expected, probe := slices.Contains(c.want, name), call
				if expected {
					probe = reach
				}
				if _, err := probe(a, probePort); (err == nil) != expected {
					t.Errorf("with %v open: %s: %v, want it reached: %t", c.open, name, err, expected)
				}
				return nil
			})
		}
	}
}

// TestOwnPrefixes: a network prefix that is made local to the host stays so until the instance
// leaves the host, and no other instance removes it.
func TestOwnPrefixes(t *testing.T) {
	mine, other := netip.MustParsePrefix("fd77:1::/64"), netip.MustParsePrefix("fd77:2::/64")
	n := New(Options{Instance: "own", Host: testHost, Log: newNetwork(t, "own").log, RunDir: runDir(t), Own: []netip.Prefix{mine, other}})
	openIt(t, n)
	second := open(t, "second")
	serveAt(t, netip.AddrPortFrom(netip.MustParseAddr("fd77:1::beef"), probePort))
	if _, err := reach(netip.MustParseAddr("fd77:1::beef"), probePort); err != nil {
		t.Error(err)
	}
	must(n.Close())
	n.own = n.own[:1]
	must(n.Open(t.Context()))
	must(second.Remove(t.Context()))
	if left, err := n.locals(); err != nil || len(left) != 1 || left[0] != mine {
		t.Errorf("local routes %v, %v", left, err)
	}
	must(n.Remove(context.WithoutCancel(t.Context())))
	if left, err := netlink.RouteListFiltered(unix.AF_INET6, &netlink.Route{Table: unix.RT_TABLE_LOCAL, Protocol: localProtocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL); err != nil || len(left) > 0 {
		t.Errorf("local routes %v, %v", left, err)
	}
	bad := New(Options{Instance: "own", Host: testHost, Own: []netip.Prefix{netip.MustParsePrefix("fdaa:5::/64")}})
	if err := bad.check(); err == nil || !strings.Contains(err.Error(), "own network") {
		t.Errorf("a private network as the host's own: %v", err)
	}
}

// TestRulesDoNotGrowWithAddresses: the number of rules does not depend on how many addresses there are.
func TestRulesDoNotGrowWithAddresses(t *testing.T) {
	n := open(t, "rules")
	count := func() int {
		c, err := nftables.New()
		must(err)
		chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
		must(err)
		rules := 0
		for _, chain := range chains {
			some, err := c.GetRules(n.table(), chain)
			must(err)
			rules += len(some)
		}
		return rules
	}
	before := count()
	t.Logf("%d rules", before)
	var many []netip.Addr
	for i := range 2000 {
		many = append(many, hangar.FlycastAddress(hangar.NetworkID(1+i%7), uint64(1+i)))
	}
	must(n.Ingress(t.Context(), many))
	must(n.OpenPorts(t.Context(), []OpenPort{{At: netip.MustParseAddrPort("192.0.2.1:80")}, {At: netip.MustParseAddrPort("[2001:db8::1]:80")}}))
	if after := count(); after != before {
		t.Errorf("%d rules became %d", before, after)
	}
	must(n.installRules())
	must(n.Close())
	must(n.Open(t.Context()))
	if len(n.ingress) != len(many) {
		t.Errorf("%d addresses were found again, want %d", len(n.ingress), len(many))
	}
}
