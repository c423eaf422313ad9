package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/mounttest"
	"github.com/hangar-platform/hangar/internal/ownhost"
)

// home is the namespace that serves as the host in tests.
var home *os.File

func TestMain(m *testing.M) {
	ownhost.Main(m, func() (err error) {
		home, err = os.Open(threadNetNS)
		return err
	})
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

const testHost hangar.HostID = "0a7b7df0"

func newNetwork(tb testing.TB, instance string) *Network {
	tb.Helper()
	return New(Options{Instance: instance, Host: testHost, Log: slog.New(slog.NewTextHandler(tb.Output(), nil)), RunDir: runDir(tb)})
}

// runDirs are shared by all Networks of one test, as they are on a host.
var runDirs sync.Map

func runDir(tb testing.TB) string {
	tb.Helper()
	dir, known := runDirs.LoadOrStore(tb.Name(), tb.TempDir())
	if !known {
		tb.Cleanup(func() { runDirs.Delete(tb.Name()) }) // another run of the test has one of its own
	}
	return dir.(string)
}

func open(tb testing.TB, instance string) *Network {
	tb.Helper()
	return openIt(tb, newNetwork(tb, instance))
}

func openIt(tb testing.TB, n *Network) *Network {
	tb.Helper()
	if err := n.Open(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := n.Remove(context.Background()); err != nil {
			tb.Error(err)
		}
		if err := n.Close(); err != nil {
			tb.Error(err)
		}
	})
	return n
}

func endpointOf(network hangar.NetworkID, number uint64) Endpoint {
	return Endpoint{
		ID:     hangar.MachineID(fmt.Sprintf("%014x", number)),
		IPv6:   Address(network, testHost, number),
		Number: number,
	}
}

func attach(tb testing.TB, n *Network, e Endpoint) Attachment {
	tb.Helper()
	a, err := n.Attach(tb.Context(), e)
	if err != nil {
		tb.Fatal(err)
	}
	return a
}

// within runs f in the namespace of a. Sockets that f opens stay in that namespace.
func within(tb testing.TB, a Attachment, f func() error) {
	tb.Helper()
	ns, err := openNetNS(a.NetNS)
	if err != nil {
		tb.Fatal(err)
	}
	defer ns.Close()
	err = onThread(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// listenKernel lets the kernel of a's namespace answer, as a sandbox would, and serves there; the
// returned function returns the address of the last caller.
func listenKernel(tb testing.TB, a Attachment) (port uint16) {
	tb.Helper()
	within(tb, a, func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		c.DelTable(&nftables.Table{Name: "hangar", Family: nftables.TableFamilyNetdev})
		return c.Flush()
	})
	var l net.Listener
	within(tb, a, func() (err error) {
		l, err = net.Listen("tcp", ":0")
		return err
	})
	ownhost.Serve(tb, l)
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

// call returns the address of the caller that the server at a:port reports.
func call(a netip.Addr, port uint16) (netip.Addr, error) {
	c, err := net.DialTimeout("tcp", netip.AddrPortFrom(a, port).String(), patience)
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	b, err := io.ReadAll(c)
	if err != nil {
		return netip.Addr{}, err
	}
	p, err := netip.ParseAddrPort(string(b))
	return p.Addr().Unmap(), err
}

// patience is how long one attempt waits for an answer. It is short because a test waits that long
// for answers that must not arrive; answers that must arrive are tried again.
const patience = 200 * time.Millisecond

// ask is call by UDP.
func ask(a netip.Addr, port uint16) (netip.Addr, error) {
	c, err := net.Dial("udp", netip.AddrPortFrom(a, port).String())
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	if _, err := io.WriteString(c, "who am I?"); err != nil {
		return netip.Addr{}, err
	}
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return netip.Addr{}, err
	}
	b := make([]byte, 100)
	size, err := c.Read(b)
	if err != nil {
		return netip.Addr{}, err
	}
	p, err := netip.ParseAddrPort(string(b[:size]))
	return p.Addr().Unmap(), err
}

// reach is call for an expected answer, however busy the machine is.
func reach(a netip.Addr, port uint16) (netip.Addr, error) { return insist(call, a, port) }

// insist repeats call or ask until it does not time out.
func insist(try func(netip.Addr, uint16) (netip.Addr, error), a netip.Addr, port uint16) (from netip.Addr, err error) {
	for range 50 {
		if from, err = try(a, port); !timedOut(err) {
			break
		}
	}
	return from, err
}

func timedOut(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}

func TestInvalidOptions(t *testing.T) {
	for name, o := range map[string]Options{
		"no instance":    {Host: testHost},
		"long instance":  {Instance: "abcdefghi", Host: testHost},
		"upper case":     {Instance: "ABC", Host: testHost},
		"dash":           {Instance: "a-b", Host: testHost},
		"bad host":       {Instance: "abc", Host: "host"},
		"IPv6 pool":      {Instance: "abc", Host: testHost, IPv4Pool: netip.MustParsePrefix("fd00::/16")},
		"small pool":     {Instance: "abc", Host: testHost, IPv4Pool: netip.MustParsePrefix("10.0.0.0/25")},
		"unaligned pool": {Instance: "abc", Host: testHost, IPv4Pool: netip.MustParsePrefix("10.0.0.1/16")},
	} {
		t.Run(name, func(t *testing.T) {
			o.RunDir, o.Log = t.TempDir(), slog.New(slog.DiscardHandler)
			if err := New(o).Open(t.Context()); err == nil {
				t.Error("opened")
			}
		})
	}
}

func TestReach(t *testing.T) {
	n := open(t, "reach")
	one, two := attach(t, n, endpointOf(5, 1)), attach(t, n, endpointOf(5, 2))
	portOne, portTwo := listenKernel(t, one), listenKernel(t, two)

	for name, to := range map[string]netip.AddrPort{
		"IPv6": netip.AddrPortFrom(one.IPv6, portOne),
		"IPv4": netip.AddrPortFrom(one.IPv4, portOne),
	} {
		from, err := reach(to.Addr(), to.Port())
		if err != nil {
			t.Errorf("host to machine by %s: %v", name, err)
		} else if from != n.gateway6 && from != one.Gateway4 {
			t.Errorf("host to machine by %s comes from %s", name, from)
		}
	}
	within(t, one, func() error {
		from, err := reach(two.IPv6, portTwo)
		if err != nil || from != one.IPv6 {
			t.Errorf("machine to machine: from %s, %v; want from %s", from, err, one.IPv6)
		}
		if _, err := call(two.IPv4, portTwo); err == nil {
			t.Error("machine reached machine by IPv4")
		}
		return nil
	})
}

func TestAbsentMachineIsRefusedAtOnce(t *testing.T) {
	n := open(t, "absent")
	// With a default route, the host might send the packets there and wait for an answer.
	internet(t, n)
	one := attach(t, n, endpointOf(5, 1))
	listenKernel(t, one)
	// The kernel may overlook the first refusal while it still sends, and is refused
	// again when it repeats, after a second.
	to := netip.AddrPortFrom(Address(5, testHost, 99), 80).String()
	if _, err := net.DialTimeout("tcp", to, time.Minute); err == nil || timedOut(err) {
		t.Errorf("from the host: %v", err)
	}
	within(t, one, func() error {
		if _, err := net.DialTimeout("tcp", to, time.Minute); err == nil || timedOut(err) {
			t.Errorf("from a machine: %v", err)
		}
		return nil
	})
}

// internet makes a namespace behind the host's default routes and serves in it.
func internet(tb testing.TB, n *Network) (server4, server6 netip.Addr, port uint16) {
	tb.Helper()
	there := beside(tb, "uplink", netip.MustParsePrefix("198.51.100.1/24"), netip.MustParsePrefix("2001:db8::1/64"))
	for _, gw := range []netip.Addr{there.IPv4, there.IPv6} {
		everything := netip.PrefixFrom(map[bool]netip.Addr{true: netip.IPv4Unspecified(), false: netip.IPv6Unspecified()}[gw.Is4()], 0)
		must(netlink.RouteAdd(&netlink.Route{Gw: gw.AsSlice(), Dst: ipNet(everything)}))
	}
	var l net.Listener
	within(tb, there, func() (err error) {
		l, err = net.Listen("tcp", ":0")
		return err
	})
	ownhost.Serve(tb, l)
	return there.IPv4, there.IPv6, uint16(l.Addr().(*net.TCPAddr).Port)
}

// beside makes a namespace at the other end of a device of the host that is not the instance's. It
// gets the addresses after the host's, and routes everything to the host.
func beside(tb testing.TB, device string, host4, host6 netip.Prefix) (there Attachment) {
	tb.Helper()
	there = Attachment{
		NetNS: filepath.Join(runDir(tb), device),
		IPv4:  host4.Addr().Next(), IPv6: host6.Addr().Next(), Gateway4: host4.Addr(), Gateway6: host6.Addr(),
	}
	must(makeNetNS(there.NetNS))
	tb.Cleanup(func() { _, err := removeNetNS(there.NetNS); must(err) })
	ns, err := openNetNS(there.NetNS)
	must(err)
	defer ns.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = device
	veth := netlink.NewVeth(attrs)
	veth.PeerName = eth0
	veth.PeerNamespace = netlink.NsFd(ns.Fd())
	must(netlink.LinkAdd(veth))
	tb.Cleanup(func() { must(netlink.LinkDel(veth)) })
	must(netlink.AddrAdd(veth, addr(host4, 0)))
	must(netlink.AddrAdd(veth, addr(host6, unix.IFA_F_NODAD)))
	must(netlink.LinkSetUp(veth))
	nl, err := netlinkIn(ns)
	must(err)
	defer nl.Close()
	eth, err := nl.LinkByName(eth0)
	must(err)
	must(nl.AddrAdd(eth, addr(netip.PrefixFrom(there.IPv4, host4.Bits()), 0)))
	must(nl.AddrAdd(eth, addr(netip.PrefixFrom(there.IPv6, host6.Bits()), unix.IFA_F_NODAD)))
	must(nl.LinkSetUp(loopback()))
	must(nl.LinkSetUp(eth))
	for to, gw := range map[string]netip.Addr{"0.0.0.0/0": there.Gateway4, "::/0": there.Gateway6} {
		must(nl.RouteAdd(&netlink.Route{Gw: gw.AsSlice(), Dst: ipNet(netip.MustParsePrefix(to))}))
	}
	return there
}

func TestEgressIsMasqueraded(t *testing.T) {
	n := open(t, "egress")
	server4, server6, port := internet(t, n)
	one := attach(t, n, endpointOf(5, 1))
	listenKernel(t, one)
	within(t, one, func() error {
		if from, err := reach(server4, port); err != nil || from.String() != "198.51.100.1" {
			t.Errorf("by IPv4: seen as %s, %v", from, err)
		}
		if from, err := reach(server6, port); err != nil || from.String() != "2001:db8::1" {
			t.Errorf("by IPv6: seen as %s, %v", from, err)
		}
		return nil
	})
}

// A Machine may send raw packets and give itself addresses. Packets from another's address arrive
// nowhere.
func TestForgedSourceIsDropped(t *testing.T) {
	n := open(t, "forged")
	one, two := attach(t, n, endpointOf(5, 1)), attach(t, n, endpointOf(5, 2))
	listenKernel(t, one)
	for name, c := range map[string]struct{ own, forged, to netip.Addr }{
		"IPv4": {one.IPv4, two.IPv4, n.gateway4},
		"IPv6": {one.IPv6, two.IPv6, n.gateway6},
	} {
		t.Run(name, func(t *testing.T) {
			server, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(c.to, hangar.ServicesDNSPort)))
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			send := func(from netip.Addr) {
				within(t, one, func() error {
					u, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)),
						server.LocalAddr().(*net.UDPAddr))
					if err != nil {
						return err
					}
					defer u.Close()
					_, err = u.Write([]byte(from.String()))
					return err
				})
			}
			within(t, one, func() error {
				eth, err := netlink.LinkByName(eth0)
				if err != nil {
					return err
				}
				return netlink.AddrAdd(eth, addr(netip.PrefixFrom(c.forged, c.forged.BitLen()), unix.IFA_F_NODAD))
			})
			b := make([]byte, 100)
			var size int
			for begun := time.Now(); size == 0; { // a datagram may be lost
				send(c.forged)
				send(c.own) // same path, same order: it arrives after the forged one would have
				must(server.SetReadDeadline(time.Now().Add(time.Second)))
				if size, _, err = server.ReadFrom(b); err != nil && (!timedOut(err) || time.Since(begun) > time.Minute) {
					t.Fatal(err)
				}
			}
			if got := string(b[:size]); got != c.own.String() {
				t.Errorf("the first packet that arrived is from %s", got)
			}
		})
	}
}

// The kernel must neither accept nor reset packets for the sandbox.
func TestKernelInNamespaceIsDeaf(t *testing.T) {
	n := open(t, "deaf")
	one := attach(t, n, endpointOf(5, 1))
	for _, a := range []netip.Addr{one.IPv4, one.IPv6} {
		_, err := net.DialTimeout("tcp", netip.AddrPortFrom(a, 9).String(), 100*time.Millisecond)
		if !timedOut(err) {
			t.Errorf("dial %s: %v, want a timeout", a, err)
		}
	}
}

type inside struct {
	MAC    string
	MTU    int
	Up     bool
	Addrs  []string
	Routes []string
	Neighs []string
}

func look(tb testing.TB, a Attachment) (got inside) {
	tb.Helper()
	within(tb, a, func() error {
		eth, err := netlink.LinkByName(eth0)
		if err != nil {
			return err
		}
		got.MAC, got.MTU, got.Up = eth.Attrs().HardwareAddr.String(), eth.Attrs().MTU, eth.Attrs().Flags&net.FlagUp != 0
		addrs, err := netlink.AddrList(eth, unix.AF_UNSPEC)
		if err != nil {
			return err
		}
		for _, a := range addrs {
			got.Addrs = append(got.Addrs, a.IPNet.String())
		}
		routes, err := netlink.RouteList(eth, unix.AF_UNSPEC)
		if err != nil {
			return err
		}
		for _, r := range routes {
			got.Routes = append(got.Routes, fmt.Sprint(r.Dst, " via ", r.Gw))
		}
		neighs, err := netlink.NeighList(eth.Attrs().Index, unix.AF_UNSPEC)
		if err != nil {
			return err
		}
		for _, n := range neighs {
			if n.State == unix.NUD_PERMANENT {
				got.Neighs = append(got.Neighs, fmt.Sprint(n.IP, " is ", n.HardwareAddr))
			}
		}
		slices.Sort(got.Addrs)
		slices.Sort(got.Routes)
		slices.Sort(got.Neighs)
		return nil
	})
	return got
}

func TestInside(t *testing.T) {
	n := open(t, "inside")
	one := attach(t, n, endpointOf(5, 1))
	got := look(t, one)
	want := inside{
		MAC: "02:6d:00:00:00:01", MTU: MTU, Up: true,
		Addrs: []string{one.IPv4.String() + "/32", "fdaa:0:5:a7b:7df0:0:1:2/112", "fe80::6d:ff:fe00:1/64"},
		Routes: []string{
			"0.0.0.0/0 via " + one.Gateway4.String(), "::/0 via fe80::1", one.Gateway4.String() + "/32 via <nil>",
			"fdaa:0:5:a7b:7df0:0:1:0/112 via <nil>", "fe80::/64 via <nil>",
		},
		Neighs: []string{one.Gateway4.String() + " is 02:68:00:00:00:00", "fe80::1 is 02:68:00:00:00:00"},
	}
	slices.Sort(want.Routes)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("inside is\n%+v, want\n%+v", got, want)
	}
}

// scrape configures the device as a sandbox does at its start.
func scrape(tb testing.TB, a Attachment) {
	tb.Helper()
	within(tb, a, func() error {
		eth, err := netlink.LinkByName(eth0)
		if err != nil {
			return err
		}
		addrs, err := netlink.AddrList(eth, unix.AF_UNSPEC)
		if err != nil {
			return err
		}
		for _, a := range addrs {
			if err := netlink.AddrDel(eth, &a); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestAttachPutsBackWhatASandboxTakes(t *testing.T) {
	n := open(t, "again")
	e := endpointOf(5, 1)
	first := attach(t, n, e)
	before := look(t, first)
	for range 3 {
		scrape(t, first)
		if got := look(t, first); len(got.Addrs) != 0 {
			t.Fatalf("after scraping there is %+v", got)
		}
		if again := attach(t, n, e); again != first {
			t.Fatalf("attached again as %+v, first %+v", again, first)
		}
		if got := look(t, first); fmt.Sprint(got) != fmt.Sprint(before) {
			t.Fatalf("inside is\n%+v, was\n%+v", got, before)
		}
	}
}

func TestAttachmentOutlivesTheDaemon(t *testing.T) {
	n := open(t, "outlive")
	e := endpointOf(5, 1)
	first := attach(t, n, e)
	port := listenKernel(t, first)
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n = open(t, "outlive")
	if _, err := reach(first.IPv6, port); err != nil {
		t.Errorf("after the restart: %v", err)
	}
	if ids, err := n.List(t.Context()); err != nil || !slices.Equal(ids, []hangar.MachineID{e.ID}) {
		t.Errorf("list: %v, %v", ids, err)
	}
	if again := attach(t, n, e); again != first {
		t.Errorf("attached again as %+v, first %+v", again, first)
	}
	if _, err := reach(first.IPv4, port); err != nil { // the namespace is still the same
		t.Errorf("after attaching again: %v", err)
	}
}

func TestAttachmentChanges(t *testing.T) {
	n := open(t, "change")
	e := endpointOf(5, 1)
	attach(t, n, e)
	e.IPv6 = Address(6, testHost, 1)
	moved := attach(t, n, e)
	if got := look(t, moved); !slices.Contains(got.Addrs, e.IPv6.String()+"/112") || len(got.Addrs) != 3 {
		t.Errorf("moved to another network: %+v", got)
	}
	_, err := removeNetNS(moved.NetNS) // as a reboot of the host does
	must(err)
	if again := attach(t, n, e); again != moved {
		t.Errorf("after a loss of the namespace: %+v, was %+v", again, moved)
	}
	other := endpointOf(5, 1)
	other.ID = "000000000000ff"
	if a, err := n.Attach(t.Context(), other); err == nil {
		t.Errorf("the same number attached twice: %+v", a)
	}
	if got := look(t, moved); len(got.Addrs) != 3 {
		t.Errorf("the number's owner was damaged: %+v", got)
	}
	for _, bad := range []Endpoint{
		{},
		{ID: "../../../etc/x", IPv6: e.IPv6, Number: 9},
		{ID: "00000000000009", Number: 9},
		{ID: "00000000000009", IPv6: e.IPv6, Number: MaxNumber},
	} {
		if _, err := n.Attach(t.Context(), bad); err == nil {
			t.Errorf("%+v was attached", bad)
		}
	}
}

func TestIPv4WrapsAround(t *testing.T) {
	n := newNetwork(t, "wrap")
	n.wanted = netip.MustParsePrefix("10.9.8.0/24")
	must(n.Open(t.Context()))
	t.Cleanup(func() { must(n.Remove(context.Background())); must(n.Close()) })
	seen := map[netip.Addr]uint64{}
	for _, number := range []uint64{1, 2, 1 + 253, 1 + 2*253, 3} {
		a := attach(t, n, endpointOf(5, number))
		if other, ok := seen[a.IPv4]; ok {
			t.Errorf("%d and %d have %s", number, other, a.IPv4)
		}
		seen[a.IPv4] = number
	}
	must(n.Detach(endpointOf(5, 1).ID))
	if a := attach(t, n, endpointOf(5, 1+3*253)); a.IPv4 != preferred4(n.pool, 1) {
		t.Errorf("a free address was not given out: %s", a.IPv4)
	}
}

// hostState is everything on the host that an attachment could leave.
func hostState(tb testing.TB) string {
	tb.Helper()
	var b strings.Builder
	links, err := netlink.LinkList()
	must(err)
	for _, l := range links {
		fmt.Fprintln(&b, l.Attrs().Name, l.Attrs().Alias)
	}
	routes, err := netlink.RouteList(nil, unix.AF_UNSPEC)
	must(err)
	fmt.Fprintln(&b, routes)
	mounts, err := mounttest.Mentioning(runDir(tb)) // others come and go with what else runs here
	must(err)
	for _, m := range mounts {
		fmt.Fprintln(&b, *m)
	}
	files, err := os.ReadDir(runDir(tb))
	must(err)
	fmt.Fprintln(&b, files)
	c, err := nftables.New()
	must(err)
	tables, err := c.ListTables()
	must(err)
	for _, table := range tables {
		fmt.Fprintln(&b, table.Name)
	}
	return b.String()
}

// openFiles returns the number of files that the process has open. Earlier tests may still be
// closing some.
func openFiles() int {
	fds, err := os.ReadDir("/proc/self/fd")
	must(err)
	return len(fds)
}

// settle waits until the kernel has deleted detached devices.
func settle(tb testing.TB, n *Network) {
	tb.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		ids, err := n.List(tb.Context())
		must(err)
		if len(ids) == 0 {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("still on the host: %v", ids)
		}
		runtime.Gosched()
	}
}

func TestTwoInstancesSideBySide(t *testing.T) {
	// Instances that would choose the same pool, and one whose name is a prefix of another's.
	first := poolCandidates("a")[0]
	second := "ab"
	for i := 0; poolCandidates(second)[0] != first; i++ {
		second = fmt.Sprintf("a%d", i)
	}
	a, b := open(t, "a"), open(t, second)
	if a.pool.Overlaps(b.pool) {
		t.Fatalf("pools %s and %s", a.pool, b.pool)
	}
	ofA, ofB := attach(t, a, endpointOf(5, 1)), attach(t, b, endpointOf(6, 1))
	port := listenKernel(t, ofB)
	if ids, err := a.List(t.Context()); err != nil || len(ids) != 1 {
		t.Errorf("list: %v, %v", ids, err)
	}
	if ofA.NetNS == ofB.NetNS {
		t.Errorf("one namespace for two: %s", ofA.NetNS)
	}
	must(a.Remove(t.Context()))
	if _, err := reach(ofB.IPv4, port); err != nil {
		t.Errorf("after the other instance was removed: %v", err)
	}
	must(b.Close())
	pool := b.pool
	must(b.Open(t.Context()))
	if b.pool != pool {
		t.Errorf("pool changed from %s to %s", pool, b.pool)
	}
}

// Two instances in one process make their tables at the same time, as when both restore them.
func TestTwoInstancesAtOnce(t *testing.T) {
	var all sync.WaitGroup
	for _, n := range []*Network{open(t, "a"), open(t, "b")} {
		all.Go(func() {
			for range 20 {
				if err := n.installRules(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

func TestManyAtOnce(t *testing.T) {
	n := open(t, "many")
	var all sync.WaitGroup
	for i := range uint64(16) {
		all.Go(func() {
			e := endpointOf(5, i)
			for range 3 {
				if _, err := n.Attach(t.Context(), e); err != nil {
					t.Error(err)
				}
				if _, err := n.Attach(t.Context(), e); err != nil {
					t.Error(err)
				}
				if err := n.Detach(e.ID); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	settle(t, n)
}

// Threads that were in a namespace must have returned or ended.
func TestThreadsStayInTheHostsNamespace(t *testing.T) {
	n := open(t, "thread")
	for i := range uint64(10) {
		attach(t, n, endpointOf(5, i))
	}
	home, err := os.Readlink("/proc/self/ns/net")
	must(err)
	tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
	must(err)
	for _, task := range tasks {
		if ns, err := os.Readlink(task); err == nil && ns != home {
			t.Errorf("%s is %s, the host's is %s", task, ns, home)
		}
	}
}

func BenchmarkAttach(b *testing.B) {
	n := open(b, "bench")
	var i uint64
	for b.Loop() {
		i++
		attach(b, n, endpointOf(5, i))
		b.StopTimer()
		must(n.Detach(endpointOf(5, i).ID))
		b.StartTimer()
	}
}

func BenchmarkAttachAgain(b *testing.B) {
	n := open(b, "bench")
	e := endpointOf(5, 1)
	a := attach(b, n, e)
	for b.Loop() {
		b.StopTimer()
		scrape(b, a)
		b.StartTimer()
		attach(b, n, e)
	}
}

func BenchmarkDetach(b *testing.B) {
	n := open(b, "bench")
	var i uint64
	for b.Loop() {
		i++
		b.StopTimer()
		attach(b, n, endpointOf(5, i))
		b.StartTimer()
		must(n.Detach(endpointOf(5, i).ID))
	}
}
