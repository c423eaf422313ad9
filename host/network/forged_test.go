package network

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/pause"
)

// packet returns an IP packet with a UDP datagram that contains data. With port 0, data is an ICMP
// or ICMPv6 message instead.
func packet(from, to netip.AddrPort, data []byte) []byte {
	protocol, hops := byte(unix.IPPROTO_UDP), byte(64)
	body := data
	switch {
	case to.Port() != 0:
		body = binary.BigEndian.AppendUint16(nil, from.Port())
		body = binary.BigEndian.AppendUint16(body, to.Port())
		body = binary.BigEndian.AppendUint16(body, uint16(8+len(data)))
		body = append(append(body, 0, 0), data...)
	case to.Addr().Is4():
		protocol = unix.IPPROTO_ICMP
	default:
		protocol, hops = unix.IPPROTO_ICMPV6, 255 // what neighbour discovery wants
	}
	sumAt := map[byte]int{unix.IPPROTO_UDP: 6, unix.IPPROTO_ICMP: 2, unix.IPPROTO_ICMPV6: 2}[protocol]
	pseudo := slices.Concat(from.Addr().AsSlice(), to.Addr().AsSlice(), []byte{0, protocol, 0, byte(len(body))})
	if protocol == unix.IPPROTO_ICMP {
		pseudo = nil
	}
	body = slices.Clone(body)
	binary.BigEndian.PutUint16(body[sumAt:], 0)
	binary.BigEndian.PutUint16(body[sumAt:], checksum(append(pseudo, body...)))
	var header []byte
	if to.Addr().Is4() {
		header = []byte{0x45, 0, 0, byte(20 + len(body)), 0, 0, 0, 0, hops, protocol, 0, 0}
		header = slices.Concat(header, from.Addr().AsSlice(), to.Addr().AsSlice())
		binary.BigEndian.PutUint16(header[10:], checksum(header))
	} else {
		header = []byte{0x60, 0, 0, 0, 0, byte(len(body)), protocol, hops}
		header = slices.Concat(header, from.Addr().AsSlice(), to.Addr().AsSlice())
	}
	return append(header, body...)
}

// transmit sends a frame from an attachment to the host, whose end has the hardware address mac.
func transmit(tb testing.TB, a Attachment, mac net.HardwareAddr, etherType uint16, payload []byte) {
	tb.Helper()
	within(tb, a, func() error {
		eth, err := net.InterfaceByName(eth0)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		to := &unix.SockaddrLinklayer{Protocol: bits.ReverseBytes16(etherType), Ifindex: eth.Index, Halen: 6}
		copy(to.Addr[:], mac)
		return unix.Sendto(fd, payload, 0, to)
	})
}

// send transmits an IP packet of a Machine.
func send(tb testing.TB, a Attachment, p []byte) {
	tb.Helper()
	sendTo(tb, a, gatewayMAC(), p)
}

func sendTo(tb testing.TB, a Attachment, mac net.HardwareAddr, p []byte) {
	tb.Helper()
	transmit(tb, a, mac, map[byte]uint16{4: unix.ETH_P_IP, 6: unix.ETH_P_IPV6}[p[0]>>4], p)
}

// mailbox collects datagrams.
type mailbox struct{ *net.UDPConn }

func openMailbox(tb testing.TB, in Attachment, at netip.AddrPort) mailbox {
	tb.Helper()
	var m mailbox
	within(tb, in, func() (err error) {
		m.UDPConn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	})
	tb.Cleanup(func() { _ = m.Close() })
	return m
}

// until returns the datagrams up to the one that says last, as "words from address".
func (m mailbox) until(tb testing.TB, last string) (got []string) {
	tb.Helper()
	must(m.SetReadDeadline(time.Now().Add(time.Minute)))
	b := make([]byte, 200)
	for {
		size, from, err := m.ReadFromUDPAddrPort(b)
		if err != nil {
			tb.Fatalf("waiting for %q, after %q: %v", last, got, err)
		}
		if string(b[:size]) == last {
			return got
		}
		got = append(got, fmt.Sprintf("%s from %s", b[:size], from.Addr().Unmap()))
	}
}

// A Machine may send any packets. Those from an address that is not its own arrive nowhere; the
// addresses of its /112 are its own.
func TestForgedSources(t *testing.T) {
	w := newWorld(t)
	const port = 9999
	spare := netip.MustParseAddr("fdaa:0:5:a7b:7df0:0:1:77")
	sources := []netip.Addr{
		w.two.IPv6, w.stranger.IPv6, w.of2.IPv6, w.n.gateway6, w.other.gateway6, w.net.IPv6, w.net.Gateway6, w.lan.IPv6,
		hangar.ServicesAddress, netip.IPv6Loopback(), netip.IPv6Unspecified(), gatewayLinkLocal, netip.MustParseAddr("fe80::dead:1:2"), Address(5, testHost, 99),
		Address(6, testHost, 1),
		w.two.IPv4, w.stranger.IPv4, w.of2.IPv4, w.n.gateway4, w.other.gateway4, w.net.IPv4, w.net.Gateway4, w.lan.IPv4,
		netip.MustParseAddr("127.0.0.1"), netip.IPv4Unspecified(), netip.MustParseAddr("255.255.255.255"),
	}
	for name, c := range map[string]struct {
		in      Attachment
		at      netip.AddrPort
		genuine netip.Addr
		spare   bool // whether the other address is seen
	}{
		"a machine of the network": {w.two, netip.AddrPortFrom(w.two.IPv6, port), w.one.IPv6, true},
		"the host by IPv6":         {theHost(), netip.AddrPortFrom(w.n.gateway6, hangar.ServicesDNSPort), w.one.IPv6, true},
		"the host by IPv4":         {theHost(), netip.AddrPortFrom(w.n.gateway4, hangar.ServicesDNSPort), w.one.IPv4, false},
		"the internet by IPv6":     {w.net, netip.AddrPortFrom(w.net.IPv6, port), w.one.IPv6, false},
		"the internet by IPv4":     {w.net, netip.AddrPortFrom(w.net.IPv4, port), w.one.IPv4, false},
	} {
		t.Run(name, func(t *testing.T) {
			box := openMailbox(t, c.in, c.at)
			for _, s := range sources {
				if s.Is4() == c.at.Addr().Is4() {
					send(t, w.one, packet(netip.AddrPortFrom(s, 4000), c.at, []byte("forged as "+s.String())))
				}
			}
			var want []string
			if c.spare {
				send(t, w.one, packet(netip.AddrPortFrom(spare, 4000), c.at, []byte("spare")))
				want = append(want, "spare from "+spare.String())
			}
			// It takes the same path in order, so it arrives after the earlier frames.
			send(t, w.one, packet(netip.AddrPortFrom(c.genuine, 4001), c.at, []byte("last")))
			if got := box.until(t, "last"); !slices.Equal(got, want) {
				t.Errorf("arrived: %q, want %q", got, want)
			}
		})
	}
}

// A sender outside is never taken for a Machine or for the host itself.
func TestForgedFromOutside(t *testing.T) {
	w := newWorld(t)
	uplink, err := netlink.LinkByName("uplink")
	must(err)
	box := openMailbox(t, theHost(), netip.AddrPortFrom(netip.IPv6Unspecified(), 9999))
	mac := uplink.Attrs().HardwareAddr
	for _, p := range [][2]netip.Addr{
		{w.one.IPv4, w.net.Gateway4},
		{w.one.IPv6, w.net.Gateway6},
		{w.net.IPv4, w.n.gateway4},
		{w.net.IPv6, w.n.gateway6},
		{w.one.IPv4, w.n.gateway4},
		{w.one.IPv6, w.n.gateway6},
		{w.n.gateway6, w.net.Gateway6},
		{w.n.gateway4, w.net.Gateway4},
		{Address(5, testHost, 99), w.net.Gateway6},
	} {
		sendTo(t, w.net, mac, packet(netip.AddrPortFrom(p[0], 4000), netip.AddrPortFrom(p[1], 9999), []byte("as "+p[0].String())))
	}
	sendTo(t, w.net, mac, packet(netip.AddrPortFrom(w.net.IPv6, 4000), netip.AddrPortFrom(w.net.Gateway6, 9999), []byte("last")))
	if got := box.until(t, "last"); len(got) != 0 {
		t.Errorf("arrived: %q", got)
	}
}

// neighbours returns all tables of the host that messages from a device may change.
func neighbours(tb testing.TB) string {
	tb.Helper()
	var lines []string
	neighs, err := netlink.NeighList(0, unix.AF_UNSPEC)
	must(err)
	for _, n := range neighs {
		lines = append(lines, fmt.Sprint("neighbour ", n.LinkIndex, n.IP, n.HardwareAddr, n.State))
	}
	routes, err := netlink.RouteListFiltered(unix.AF_UNSPEC, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	must(err)
	for _, r := range routes {
		lines = append(lines, fmt.Sprint("route ", r))
	}
	addrs, err := netlink.AddrList(nil, unix.AF_UNSPEC)
	must(err)
	for _, a := range addrs {
		lines = append(lines, fmt.Sprint("address ", a.IPNet, a.LinkIndex))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// arp returns a message that announces an address, or asks for one.
func arp(operation byte, hardware net.HardwareAddr, sender, target netip.Addr) []byte {
	return slices.Concat([]byte{0, 1, 8, 0, 6, 4, 0, operation}, hardware, sender.AsSlice(), make([]byte, 6), target.AsSlice())
}

// A Machine's neighbour announcements and redirects change nothing.
func TestNeighbourTricks(t *testing.T) {
	n := open(t, "tricks")
	one, two := attach(t, n, endpointOf(5, 1)), attach(t, n, endpointOf(5, 2))
	listenKernel(t, one)
	port := listenKernel(t, two)
	mac := machineMAC(1)
	own := linkLocal(mac)
	// The kernel adds its local routes to the addresses of a new link in the background.
	before := neighbours(t)
	for links := strings.Count(before, "address fe80::1/64"); strings.Count(before, "Dst: fe80::1/128") < links || strings.Count(before, "Dst: fe80::/128") < links; {
		must(pause.For(t.Context(), time.Millisecond))
		before = neighbours(t)
	}
	toAll := netip.MustParseAddr("ff02::1")
	icmp6 := func(from, to netip.Addr, message ...[]byte) {
		send(t, one, packet(netip.AddrPortFrom(from, 0), netip.AddrPortFrom(to, 0), slices.Concat(message...)))
	}
	option := func(kind byte) []byte { return append([]byte{kind, 1}, mac...) }
	for _, victim := range []netip.Addr{two.IPv6, n.gateway6, gatewayLinkLocal, linkLocal(machineMAC(2)), hangar.ServicesAddress} {
		for _, to := range []netip.Addr{gatewayLinkLocal, toAll} {
			// Neighbour advertisement that overrides, and solicitation from the victim.
			icmp6(victim, to, []byte{136, 0, 0, 0, 0x20, 0, 0, 0}, victim.AsSlice(), option(2))
			icmp6(own, to, []byte{136, 0, 0, 0, 0x20, 0, 0, 0}, victim.AsSlice(), option(2))
			icmp6(victim, to, []byte{135, 0, 0, 0, 0, 0, 0, 0}, gatewayLinkLocal.AsSlice(), option(1))
			// Redirects the victim's packets.
			icmp6(own, to, []byte{137, 0, 0, 0, 0, 0, 0, 0}, own.AsSlice(), victim.AsSlice(), option(2))
		}
	}
	for i := range byte(200) { // would fill a table of neighbours
		icmp6(own, gatewayLinkLocal, []byte{135, 0, 0, 0, 0, 0, 0, 0}, gatewayLinkLocal.AsSlice(), option(1))
		made := netip.AddrFrom4([4]byte{172, 31, 9, i})
		transmit(t, one, gatewayMAC(), unix.ETH_P_ARP, arp(1, mac, made, n.gateway4))
		transmit(t, one, gatewayMAC(), unix.ETH_P_ARP, arp(2, mac, made, made))
	}
	// Router advertisement, with a route and a prefix.
	icmp6(own, toAll, []byte{134, 0, 0, 0, 64, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0}, option(1),
		[]byte{3, 4, 64, 0xc0, 0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff, 0, 0, 0, 0}, netip.MustParseAddr("2001:db8:bad::").AsSlice())
	for _, victim := range []netip.Addr{two.IPv4, n.gateway4, netip.MustParseAddr("198.51.100.2")} {
		transmit(t, one, gatewayMAC(), unix.ETH_P_ARP, arp(2, mac, victim, victim)) // gratuitous
		transmit(t, one, gatewayMAC(), unix.ETH_P_ARP, arp(1, mac, victim, n.gateway4))
		quoted := packet(netip.AddrPortFrom(n.gateway4, 4000), netip.AddrPortFrom(victim, 53), make([]byte, 8))
		send(t, one, packet(netip.AddrPortFrom(one.IPv4, 0), netip.AddrPortFrom(n.gateway4, 0),
			slices.Concat([]byte{icmpRedirect, 1, 0, 0}, one.IPv4.AsSlice(), quoted)))
	}
	// When the host answers a later echo, it has received all of these.
	within(t, one, func() error {
		for _, to := range []netip.Addr{n.gateway4, n.gateway6} {
			err := ping(to)
			for range 20 {
				if err == nil {
					break
				}
				err = ping(to)
			}
			if err != nil {
				t.Errorf("%s does not answer: %v", to, err)
			}
		}
		return nil
	})
	if after := neighbours(t); after != before {
		t.Errorf("the host's tables were\n%s\nand are\n%s", before, after)
	}
	for _, to := range []netip.Addr{two.IPv4, two.IPv6} {
		if _, err := reach(to, port); err != nil {
			t.Errorf("the host does not reach %s: %v", to, err)
		}
	}
}
