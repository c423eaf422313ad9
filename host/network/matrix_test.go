package network

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/ownhost"
)

// probePort is the port at which every member of a matrix serves, by TCP and UDP.
const probePort = 9000

// openToAll removes the restrictions of a Machine's kernel on incoming packets, and starts servers.
func openToAll(tb testing.TB, a Attachment) {
	tb.Helper()
	at := netip.AddrPortFrom(netip.IPv6Unspecified(), probePort)
	within(tb, a, func() error {
		if c, err := nftables.New(); err == nil {
			c.DelTable(&nftables.Table{Name: "hangar", Family: nftables.TableFamilyNetdev})
			_ = c.Flush() // a namespace that is no Machine's has none
		}
		l, err := net.Listen("tcp", at.String())
		if err != nil {
			return err
		}
		ownhost.Serve(tb, l)
		echoUDP(tb, at)
		return nil
	})
}

// pings numbers the echoes that were asked for. Until a socket is connected it hears the
// answers to all others of its namespace; and to connection tracking echoes of one number
// between the same two are one connection, which a test without rules may have opened.
//
//nolint:gochecknoglobals // of the whole process, as namespaces are shared by tests
var pings atomic.Uint32

// ping asks for an echo.
func ping(to netip.Addr) error {
	network, request, reply := "ip4:icmp", byte(icmpEchoRequest), byte(0)
	if to.Is6() {
		network, request, reply = "ip6:ipv6-icmp", icmpv6EchoRequest, 129
	}
	c, err := net.Dial(network, to.String())
	if err != nil {
		return err
	}
	defer c.Close()
	message := []byte{request, 0, 0, 0, 0, 0, 0, 1}
	binary.BigEndian.PutUint16(message[4:], uint16(pings.Add(1)))
	if to.Is4() { // for IPv6 the kernel does it
		binary.BigEndian.PutUint16(message[2:], checksum(message))
	}
	if _, err := c.Write(message); err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	b := make([]byte, 100)
	for {
		size, _, err := c.(*net.IPConn).ReadFrom(b) // without the header of IPv4
		if err != nil {
			return err
		}
		if size == len(message) && b[0] == reply && bytes.Equal(b[4:size], message[4:]) {
			return nil
		}
	}
}

// checksum is the checksum of the internet protocols.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) > 0 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// protocols are what a matrix probes: whether an answer comes.
//
//nolint:gochecknoglobals // a constant
var protocols = []struct {
	name  string
	probe func(to netip.Addr) error
}{
	{"tcp", func(to netip.Addr) error { _, err := call(to, probePort); return err }},
	{"udp", func(to netip.Addr) error { _, err := ask(to, probePort); return err }},
	{"icmp", ping},
}

// answers lists the protocols by which an address answers. An expected answer is tried again, in
// case it is lost on a busy machine.
func answers(to netip.Addr, expected string) string {
	var got []string
	for _, p := range protocols {
		err := p.probe(to)
		for range 50 {
			if err == nil || !strings.Contains(expected, p.name) {
				break
			}
			err = p.probe(to)
		}
		if err == nil {
			got = append(got, p.name)
		}
	}
	return strings.Join(got, " ")
}

// world has two Machines in one network, one in another, one of another instance in a network of
// the same number, a server on the internet, and one in a private network beside the host.
type world struct {
	n, other                          *Network
	one, two, stranger, of2, net, lan Attachment
}

const otherHost hangar.HostID = "5eedbed5"

func newWorld(t *testing.T, allow ...netip.Prefix) *world {
	t.Helper()
	w := newWorldWithoutHost(t, allow...)
	openToAll(t, theHost())
	return w
}

// newWorldWithoutHost returns a world without servers on the host.
func newWorldWithoutHost(t *testing.T, allow ...netip.Prefix) *world {
	t.Helper()
	w := &world{n: newNetwork(t, "matrix"), other: newNetwork(t, "second")}
	w.n.allowed = allow
	w.other.host, w.other.gateway6 = otherHost, HostAddress(otherHost)
	openIt(t, w.n)
	openIt(t, w.other)
	w.one, w.two, w.stranger = attach(t, w.n, endpointOf(5, 1)), attach(t, w.n, endpointOf(5, 2)), attach(t, w.n, endpointOf(6, 3))
	w.of2 = attach(t, w.other, Endpoint{ID: "000000000000ff", IPv6: Address(5, otherHost, 1), Number: 1})
	w.net = beside(t, "uplink", netip.MustParsePrefix("198.51.100.1/24"), netip.MustParsePrefix("2001:db8::1/64"))
	w.lan = beside(t, "lan", netip.MustParsePrefix("192.168.7.1/24"), netip.MustParsePrefix("fd12:3456::1/64"))
	for _, a := range []Attachment{w.one, w.two, w.stranger, w.of2, w.net, w.lan} {
		openToAll(t, a)
	}
	return w
}

// theHost is the namespace of the tests. /proc/self is that of the first thread, which may be
// inside another namespace.
func theHost() Attachment { return Attachment{NetNS: fmt.Sprintf("/proc/self/fd/%d", home.Fd())} }

const all = "tcp udp icmp"

// reaches returns which members of the world may get an answer from which others, and by which
// protocols. All other pairs may not.
func (w *world) reaches() map[string]string {
	may := map[string]string{
		"one → two by IPv6": all, "two → one by IPv6": all,
		"host → internet by IPv4": all, "host → internet by IPv6": all, "host → lan by IPv4": all, "host → lan by IPv6": all,
		// The host forwards packets that are unrelated to hangar.
		"internet → lan by IPv4": all, "internet → lan by IPv6": all, "lan → internet by IPv4": all, "lan → internet by IPv6": all,
	}
	for _, m := range []string{"one", "two", "stranger", "of2"} {
		may["host → "+m+" by IPv4"], may["host → "+m+" by IPv6"] = all, all
		may[m+" → internet by IPv4"], may[m+" → internet by IPv6"] = all, all
		may[m+" → "+m+" by IPv4"], may[m+" → "+m+" by IPv6"] = all, all
		if m != "of2" {
			may[m+" → gateway by IPv4"], may[m+" → gateway by IPv6"] = "icmp", "icmp"
		}
	}
	may["of2 → other gateway by IPv4"], may["of2 → other gateway by IPv6"] = "icmp", "icmp"
	return may
}

// probe compares the actual answers with the allowed ones.
func (w *world) probe(t *testing.T, may map[string]string) {
	t.Helper()
	sources := map[string]Attachment{
		"one": w.one, "two": w.two, "stranger": w.stranger, "of2": w.of2, "internet": w.net, "lan": w.lan,
		"host": theHost(),
	}
	destinations := map[string][2]netip.Addr{
		"one": {w.one.IPv4, w.one.IPv6}, "two": {w.two.IPv4, w.two.IPv6}, "stranger": {w.stranger.IPv4, w.stranger.IPv6},
		"of2": {w.of2.IPv4, w.of2.IPv6}, "internet": {w.net.IPv4, w.net.IPv6}, "lan": {w.lan.IPv4, w.lan.IPv6},
		"gateway": {w.n.gateway4, w.n.gateway6}, "other gateway": {w.other.gateway4, w.other.gateway6},
		"uplink": {w.net.Gateway4, w.net.Gateway6},
	}
	machine := func(a Attachment) bool { return a.Gateway6 == gatewayLinkLocal }
	var probes sync.WaitGroup
	atOnce := make(chan struct{}, 32)
	for from, source := range sources {
		for to, addrs := range destinations {
			if !machine(source) && (from == to || to == "uplink" || from == "host" && strings.HasSuffix(to, "gateway")) {
				continue // itself, or nothing of ours
			}
			for i, family := range []string{"IPv4", "IPv6"} {
				probes.Go(func() {
					atOnce <- struct{}{}
					defer func() { <-atOnce }()
					name := fmt.Sprintf("%s → %s by %s", from, to, family)
					within(t, source, func() error {
						if got := answers(addrs[i], may[name]); got != may[name] {
							t.Errorf("%s: answered %q, want %q", name, got, may[name])
						}
						return nil
					})
				})
			}
		}
	}
	probes.Wait()
}

// All pairs of members, by every protocol.
func TestMatrix(t *testing.T) {
	w := newWorld(t)
	w.probe(t, w.reaches())
}

// The egress that the operator allows is open, for both families, and nothing else is.
func TestAllowedEgress(t *testing.T) {
	t.Run("a network", func(t *testing.T) {
		w := newWorld(t, netip.MustParsePrefix("192.168.7.0/24"))
		may := w.reaches()
		for _, m := range []string{"one", "two", "stranger"} {
			may[m+" → lan by IPv4"] = all
		}
		w.probe(t, may)
	})
	t.Run("everything", func(t *testing.T) {
		w := newWorld(t, netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0"))
		may := w.reaches()
		for _, m := range []string{"one", "two", "stranger"} {
			may[m+" → lan by IPv4"], may[m+" → lan by IPv6"] = all, all
		}
		w.probe(t, may)
	})
}

// Without the rules the probes do arrive, so the matrix proves the rules.
func TestMatrixWithoutRules(t *testing.T) {
	w := newWorld(t)
	for _, n := range []*Network{w.n, w.other} {
		n.firewall.stopWatching()
		must(n.removeRules())
	}
	for name, p := range map[string]struct {
		from Attachment
		to   netip.Addr
	}{
		"another network":                {w.one, w.stranger.IPv6},
		"by IPv4":                        {w.one, w.stranger.IPv4},
		"another instance":               {w.one, w.of2.IPv6},
		"another instance, by IPv4":      {w.one, w.of2.IPv4},
		"the host":                       {w.one, w.n.gateway6},
		"the host's own address":         {w.one, w.net.Gateway4},
		"a private network":              {w.lan, w.one.IPv4},
		"from a private network by IPv6": {w.lan, w.one.IPv6},
	} {
		within(t, p.from, func() error {
			// UDP is answered from another address of the host.
			if got := answers(p.to, all); !strings.HasPrefix(got, "tcp") || !strings.HasSuffix(got, "icmp") {
				t.Errorf("%s: answered %q", name, got)
			}
			return nil
		})
	}
}
