package network

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
)

// gateway is the host as Machines see it: its own addresses, and the pool of the Machines' IPv4
// addresses.
type gateway struct {
	instance string
	prefix   string // with which the names of Machines' devices begin
	host     hangar.HostID
	wanted   netip.Prefix // Options.IPv4Pool
	pool     netip.Prefix // set by Open
	gateway4 netip.Addr   // the host in the pool; set by Open
	gateway6 netip.Addr   // the host's own private address
}

// HostAddr6 is the host's own address in the private networks, at which the platform's services for
// Machines listen. It is valid after Open.
func (g *gateway) HostAddr6() netip.Addr { return g.gateway6 }

// HostAddr4 is the host's IPv4 address as Machines see it. It is valid after Open.
func (g *gateway) HostAddr4() netip.Addr { return g.gateway4 }

// Ranges are all addresses from which Machines may call the host. They are valid after Open.
func (g *gateway) Ranges() []netip.Prefix { return []netip.Prefix{Private, g.pool} }

// open gives the host its own addresses. They are on the loopback device, which every host has. The
// label of the IPv4 address names its instance, and its prefix length shows other daemons the pool
// that is in use.
func (g *gateway) open(nl *netlink.Handle) error {
	addrs, err := dump(func() ([]netlink.Addr, error) { return nl.AddrList(nil, unix.AF_INET) })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	g.pool = g.wanted
	if !g.pool.IsValid() {
		if g.pool, err = g.choosePool(nl, addrs); err != nil {
			return err
		}
	}
	g.gateway4 = g.pool.Addr().Next()
	if err := g.drop4(nl, addrs, g.gateway4); err != nil {
		return err
	}
	if err := writeSysctl("net/ipv6/conf/lo/disable_ipv6", "0"); err != nil {
		return err
	}
	own := addr(netip.PrefixFrom(g.gateway4, g.pool.Bits()), unix.IFA_F_NOPREFIXROUTE)
	own.Label = g.label()
	for _, a := range []*netlink.Addr{own, g.addr6()} {
		if err := nl.AddrReplace(loopback(), a); err != nil {
			return fmt.Errorf("give %s to the host: %w", a.IPNet, err)
		}
	}
	return nil
}

// close removes the host's own addresses.
func (g *gateway) close(nl *netlink.Handle) error {
	addrs, err := dump(func() ([]netlink.Addr, error) { return nl.AddrList(nil, unix.AF_INET) })
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	if err := g.drop4(nl, addrs, netip.Addr{}); err != nil {
		return err
	}
	if err := nl.AddrDel(loopback(), g.addr6()); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("take %s from the host: %w", g.gateway6, err)
	}
	return nil
}

// drop4 removes this instance's addresses among addrs, except keep.
func (g *gateway) drop4(nl *netlink.Handle, addrs []netlink.Addr, keep netip.Addr) error {
	for _, a := range addrs {
		if p, ok := prefixOf(a.IPNet); !ok || a.Label != g.label() || p.Addr() == keep {
			continue
		}
		if err := nl.AddrDel(loopback(), &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("take %s from the host: %w", a.IPNet, err)
		}
	}
	return nil
}

func (g *gateway) label() string { return "lo:" + g.prefix }

func (g *gateway) addr6() *netlink.Addr {
	return addr(netip.PrefixFrom(g.gateway6, 128), unix.IFA_F_NODAD)
}

// loopback is the loopback device, which has index 1 in every namespace.
func loopback() netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo", Index: 1}}
}

// choosePool returns the pool of the address that the host has already, or else a free one.
func (g *gateway) choosePool(nl *netlink.Handle, addrs []netlink.Addr) (netip.Prefix, error) {
	var used []netip.Prefix
	for _, a := range addrs {
		p, ok := prefixOf(a.IPNet)
		if !ok {
			continue
		}
		if a.Label == g.label() && p.Bits() <= 24 {
			return p.Masked(), nil
		}
		used = append(used, p.Masked())
	}
	routes, err := dump(func() ([]netlink.Route, error) { return nl.RouteList(nil, unix.AF_INET) })
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if p, ok := prefixOf(r.Dst); ok && p.Bits() > 0 {
			used = append(used, p)
		}
	}
	for _, candidate := range poolCandidates(g.instance) {
		if !slices.ContainsFunc(used, candidate.Overlaps) {
			return candidate, nil
		}
	}
	return netip.Prefix{}, errors.New("no free IPv4 network: every /16 of 172.16.0.0/12 and 10.0.0.0/8 is in use on this host; set a pool")
}
