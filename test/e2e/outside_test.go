package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar/test/e2e/reach"
)

// outside is a computer that this host routes to: a namespace on a link of its own. It
// goes with the test.
type outside struct {
	ns           *os.File
	addr4, addr6 netip.Addr // of the computer
	host4, host6 netip.Addr // of this host, as the computer sees it
	server       *reach.Server
}

// newOutside makes a computer with addresses in a network, of which a random part is
// taken, and a server on both ends of the link.
func newOutside(t *testing.T, name, prefix4, prefix6 string) *outside {
	t.Helper()
	part := uint32(rand.IntN(60)) * 4
	four, six := netip.MustParsePrefix(prefix4).Addr().As4(), netip.MustParsePrefix(prefix6).Addr().As16()
	four[3] = byte(part)
	six[6], six[7] = byte(rand.Uint32()), byte(rand.Uint32())
	o := &outside{host4: netip.AddrFrom4(four).Next(), host6: netip.AddrFrom16(six).Next()}
	o.addr4, o.addr6 = o.host4.Next(), o.host6.Next()
	o.makeNamespace(t)
	o.connect(t, fmt.Sprintf("e2e%08x", rand.Uint32()))
	o.within(t, func() {
		var err error
		if o.server, err = reach.Serve(name, netip.AddrPortFrom(netip.IPv6Unspecified(), reach.Port)); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() { o.server.Close() })
	for _, a := range []netip.Addr{o.host4, o.host6} {
		serveOnHost(t, "host", netip.AddrPortFrom(a, reach.Port))
	}
	return o
}

// serveOnHost answers on an address of this host until the test ends.
func serveOnHost(t *testing.T, name string, at netip.AddrPort) {
	t.Helper()
	s, err := reach.Serve(name, at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
}

func (o *outside) makeNamespace(t *testing.T) {
	t.Helper()
	made := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			o.ns, err = os.Open("/proc/thread-self/ns/net")
		}
		made <- err
	}()
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.ns.Close() })
}

// connect makes the link, its addresses, and routes to everywhere from outside.
func (o *outside) connect(t *testing.T, name string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace = "eth0", netlink.NsFd(o.ns.Fd())
	must(netlink.LinkAdd(veth))
	t.Cleanup(func() {
		if err := netlink.LinkDel(veth); err != nil && !errors.Is(err, unix.ENODEV) {
			t.Error(err)
		}
	})
	address := func(link netlink.Link, a netip.Addr, bits int) {
		t.Helper()
		must(netlink.AddrReplace(link, &netlink.Addr{
			IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}, Flags: unix.IFA_F_NODAD,
		}))
	}
	must(netlink.LinkSetUp(veth))
	address(veth, o.host4, 30)
	address(veth, o.host6, 64)
	o.within(t, func() {
		link, err := netlink.LinkByName("eth0")
		must(err)
		lo, err := netlink.LinkByName("lo")
		must(err)
		must(errors.Join(netlink.LinkSetUp(lo), netlink.LinkSetUp(link)))
		address(link, o.addr4, 30)
		address(link, o.addr6, 64)
		for _, via := range []netip.Addr{o.host4, o.host6} {
			must(netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: via.AsSlice()}))
		}
	})
}

// within runs f on a thread that is in the namespace. What f opens stays there.
func (o *outside) within(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := errors.New("it failed")
		defer func() { done <- err }()
		if err = unix.Setns(int(o.ns.Fd()), unix.CLONE_NEWNET); err == nil {
			err = errors.New("it failed")
			f()
			err = nil
		}
	}()
	if err := <-done; err != nil {
		t.Errorf("in the namespace of %s: %v", o.addr4, err)
	}
}

// try makes attempts from outside, all at once.
func (o *outside) try(t *testing.T, attempts []reach.Attempt) []reach.Outcome {
	t.Helper()
	outcomes := make([]reach.Outcome, len(attempts))
	var all sync.WaitGroup
	for i, a := range attempts {
		all.Go(func() {
			o.within(t, func() { outcomes[i] = reach.Try(t.Context(), a) })
		})
	}
	all.Wait()
	return outcomes
}
