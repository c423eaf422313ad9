package gvisor_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// network is a network namespace with a link to the host, as the agent makes them.
type network struct {
	path  string
	guest net.IP

	ns     *netlink.Handle
	prefix *net.IPNet
	host   net.IP
}

var networks atomic.Uint32

// newNetwork makes a namespace and removes it after the test.
func newNetwork(tb testing.TB) *network {
	tb.Helper()
	n := byte(networks.Add(1) * 4)
	// A range that is reserved for benchmarks. The third octet comes from the process id, so that
	// two test runs seldom collide.
	base := net.IPv4(198, 18, byte(os.Getpid()), n).To4()
	w := &network{
		path:   filepath.Join(tb.TempDir(), "netns"),
		host:   net.IPv4(base[0], base[1], base[2], base[3]+1).To4(),
		guest:  net.IPv4(base[0], base[1], base[2], base[3]+2).To4(),
		prefix: &net.IPNet{IP: base, Mask: net.CIDRMask(30, 32)},
	}
	if err := os.WriteFile(w.path, nil, 0o600); err != nil {
		tb.Fatal(err)
	}
	// A thread of its own makes the namespace, and ends afterwards.
	made := make(chan error)
	go func() {
		runtime.LockOSThread()
		made <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			return unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), w.path, "", unix.MS_BIND, "")
		}()
	}()
	if err := <-made; err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = unix.Unmount(w.path, unix.MNT_DETACH) })
	ns, err := netns.GetFromPath(w.path)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = ns.Close() })
	if w.ns, err = netlink.NewHandleAt(ns); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(w.ns.Close)

	name := fmt.Sprintf("hgt%d-%d", os.Getpid()%100000, n)
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsFd(ns)}
	if err := netlink.LinkAdd(link); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = netlink.LinkDel(link) })
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: w.host, Mask: w.prefix.Mask}}); err != nil {
		tb.Fatal(err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		tb.Fatal(err)
	}
	// Nothing in the namespace may answer while the sandbox is away.
	nft, err := nftables.New(nftables.WithNetNSFd(int(ns)))
	if err != nil {
		tb.Fatal(err)
	}
	drop := nftables.ChainPolicyDrop
	table := nft.AddTable(&nftables.Table{Name: "guest", Family: nftables.TableFamilyNetdev})
	nft.AddChain(&nftables.Chain{
		Name: "in", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookIngress,
		Priority: nftables.ChainPriorityFilter, Policy: &drop, Device: "eth0",
	})
	if err := nft.Flush(); err != nil {
		tb.Fatal(err)
	}
	return w
}

// address gives the guest its address. gVisor removes it at every start.
func (w *network) address(tb testing.TB) {
	tb.Helper()
	lo, err := w.ns.LinkByName("lo")
	if err != nil {
		tb.Fatal(err)
	}
	eth, err := w.ns.LinkByName("eth0")
	if err != nil {
		tb.Fatal(err)
	}
	for _, l := range []netlink.Link{lo, eth} {
		if err := w.ns.LinkSetUp(l); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.ns.AddrReplace(lo, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(127, 0, 0, 1), Mask: net.CIDRMask(8, 32)}}); err != nil {
		tb.Fatal(err)
	}
	if err := w.ns.AddrReplace(eth, &netlink.Addr{IPNet: &net.IPNet{IP: w.guest, Mask: w.prefix.Mask}}); err != nil {
		tb.Fatal(err)
	}
	if err := w.ns.RouteReplace(&netlink.Route{LinkIndex: eth.Attrs().Index, Gw: w.host}); err != nil {
		tb.Fatal(err)
	}
}
