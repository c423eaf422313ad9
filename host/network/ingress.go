package network

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
)

// OpenPort is a port of the host that Machines and peers may call. An unspecified address means all
// addresses of the host, in both families.
type OpenPort struct {
	UDP bool
	At  netip.AddrPort
}

// Ingress sets the private addresses at which a program of the host serves Apps. It makes them the
// host's own and opens each one, by TCP and UDP, to the members of its network. A listener at all
// addresses of the host is reachable only at the ports that OpenPorts opens at all addresses.
// Addresses that are no longer given are closed; connections to the others continue. Ingress ignores
// addresses that hangar.FlycastAddress cannot have made. The program listens with IPV6_FREEBIND,
// because no device has the addresses. They outlive the daemon.
func (n *Network) Ingress(ctx context.Context, addresses []netip.Addr) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	wanted := make(map[netip.Addr]struct{}, len(addresses))
	for _, a := range addresses {
		if hangar.IsFlycast(a) {
			wanted[a] = struct{}{}
		}
	}
	n.membership.Lock()
	defer n.membership.Unlock()
	before := n.ingress
	opened, closed := missing(wanted, before), missing(before, wanted)
	for _, a := range opened {
		if err := n.makeLocal(netip.PrefixFrom(a, a.BitLen())); err != nil {
			return err
		}
	}
	n.ingress = wanted
	if err := n.changeSet(ingressSet(n.table()), addressElements(opened), addressElements(closed)); err != nil {
		n.ingress = before
		return fmt.Errorf("open private addresses: %w", err)
	}
	var errs []error
	for _, a := range closed { // all of them, because the next call does not know them any more
		errs = append(errs, n.dropLocal(netip.PrefixFrom(a, a.BitLen())))
	}
	return errors.Join(errs...)
}

// OpenPorts sets the ports of the host that Machines and peers may call beside the services of the
// platform, such as those at which the host serves the public. All other ports stay closed.
func (t *filter) OpenPorts(ctx context.Context, ports []OpenPort) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	wanted := make(map[OpenPort]struct{}, len(ports))
	for _, p := range ports {
		if p.At.Addr().IsUnspecified() { // of either family
			p.At = netip.AddrPortFrom(netip.IPv6Unspecified(), p.At.Port())
		}
		wanted[p] = struct{}{}
	}
	t.membership.Lock()
	defer t.membership.Unlock()
	before := t.ports
	opened, closed := missing(wanted, before), missing(before, wanted)
	t.ports = wanted
	for _, set := range portSets(t.table()) {
		if err := t.changeSet(set.set, set.elements(opened), set.elements(closed)); err != nil {
			t.ports = before
			return fmt.Errorf("open ports of the host: %w", err)
		}
	}
	return nil
}

// missing returns the keys of a that b lacks.
func missing[K comparable](a, b map[K]struct{}) (keys []K) {
	for key := range a {
		if _, ok := b[key]; !ok {
			keys = append(keys, key)
		}
	}
	return keys
}

// elementsAtOnce is a number of elements that always fits into one netlink message.
const elementsAtOnce = 500

// changeSet adds elements to a set of the installed table and removes some. t.membership is held. The
// caller records the wanted content first: if another program has just changed the table, a new one
// is installed with that content.
func (t *filter) changeSet(set *nftables.Set, add, remove []nftables.SetElement) error {
	if len(add)+len(remove) == 0 {
		return nil
	}
	err := t.firewall.change(func(c *nftables.Conn) error {
		for some := range slices.Chunk(add, elementsAtOnce) {
			if err := c.SetAddElements(set, some); err != nil {
				return err
			}
		}
		for some := range slices.Chunk(remove, elementsAtOnce) {
			if err := c.SetDeleteElements(set, some); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(err, unix.ENOENT) {
		err = t.replaceTable()
	}
	return err
}

func ingressSet(table *nftables.Table) *nftables.Set {
	return &nftables.Set{Table: table, Name: "ingress", KeyType: nftables.TypeIP6Addr}
}

func addressElements(addresses []netip.Addr) []nftables.SetElement {
	elements := make([]nftables.SetElement, len(addresses))
	for i, a := range addresses {
		elements[i].Key = a.AsSlice()
	}
	return elements
}

// portSet is one of the sets of open ports: those open at all addresses, at IPv4 or at IPv6
// addresses.
type portSet struct {
	set  *nftables.Set
	bits int // size of the address before the port in a key; 0: no address
}

func portSets(table *nftables.Table) []portSet {
	port := []nftables.SetDatatype{nftables.TypeInetProto, nftables.TypeInetService}
	sets := []portSet{{bits: 0}, {bits: 32}, {bits: 128}}
	for i, kind := range [][]nftables.SetDatatype{nil, {nftables.TypeIPAddr}, {nftables.TypeIP6Addr}} {
		sets[i].set = &nftables.Set{
			Table: table, Name: []string{"ports", "ports4", "ports6"}[i], KeyType: nftables.MustConcatSetType(append(kind, port...)...),
		}
	}
	return sets
}

// elements are those of the ports that belong to the set.
func (s portSet) elements(ports []OpenPort) []nftables.SetElement {
	var elements []nftables.SetElement
	for _, p := range ports {
		var key []byte
		if a := p.At.Addr(); !a.IsUnspecified() {
			key = a.Unmap().AsSlice()
		}
		if len(key)*8 != s.bits {
			continue
		}
		protocol := byte(unix.IPPROTO_TCP)
		if p.UDP {
			protocol = unix.IPPROTO_UDP
		}
		key = append(binary.BigEndian.AppendUint16(append(key, protocol, 0, 0, 0), p.At.Port()), 0, 0)
		elements = append(elements, nftables.SetElement{Key: key})
	}
	return elements
}

// toOpenPort matches packets to the ports of the set.
func (s portSet) toOpenPort() []expr.Any {
	var exprs []expr.Any
	next := uint32(unix.NFT_REG32_00)
	switch s.bits {
	case 32:
		exprs = address(destination, unix.NFPROTO_IPV4)
		next++
	case 128:
		exprs = address(destination, unix.NFPROTO_IPV6)
		next += 4
	}
	if s.bits == 0 {
		return toPort(s.set)
	}
	return append(append(exprs,
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: next},
		&expr.Payload{DestRegister: next + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	), in(s.set, false)...)
}

// localProtocol marks the routes that this package makes; rtnetlink(7) lists other protocols.
const localProtocol netlink.RouteProtocol = 'h'

// localRoute is the route that makes a prefix the host's own, so that programs can listen at each of
// its addresses. The metric identifies the instance.
func (n *Network) localRoute(p netip.Prefix) *netlink.Route {
	h := fnv.New32a()
	_, _ = h.Write([]byte(n.instance))
	return &netlink.Route{
		LinkIndex: loopback().Attrs().Index, Dst: ipNet(p), Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL,
		Protocol: localProtocol, Priority: int(h.Sum32()>>1 | 1), Family: unix.AF_INET6,
	}
}

func (n *Network) makeLocal(p netip.Prefix) error {
	if err := n.nl.RouteAdd(n.localRoute(p)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("give %s to the host: %w", p, err)
	}
	return nil
}

func (n *Network) dropLocal(p netip.Prefix) error {
	if err := n.nl.RouteDel(n.localRoute(p)); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("take %s from the host: %w", p, err)
	}
	return nil
}

// locals are the prefixes that the instance has made the host's own.
func (n *Network) locals() ([]netip.Prefix, error) {
	own := n.localRoute(netip.PrefixFrom(netip.IPv6Unspecified(), 0))
	routes, err := dump(func() ([]netlink.Route, error) {
		return n.nl.RouteListFiltered(unix.AF_INET6, own, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return nil, fmt.Errorf("list local routes: %w", err)
	}
	var prefixes []netip.Prefix
	for _, r := range routes {
		if p, ok := prefixOf(r.Dst); ok && r.Priority == own.Priority {
			prefixes = append(prefixes, p)
		}
	}
	return prefixes, nil
}

// openLocals makes the addresses of Options.Own the host's own and removes all other local routes of
// the instance, except for those of Apps: it reads them back, and they stay until Ingress changes
// them.
func (n *Network) openLocals() error {
	prefixes, err := n.locals()
	if err != nil {
		return err
	}
	n.membership.Lock()
	defer n.membership.Unlock()
	clear(n.ingress)
	for _, p := range prefixes {
		switch {
		case p.IsSingleIP() && hangar.IsFlycast(p.Addr()):
			n.ingress[p.Addr()] = struct{}{}
		case !slices.Contains(n.own, p):
			if err := n.dropLocal(p); err != nil {
				return err
			}
		}
	}
	for _, p := range n.own {
		if err := n.makeLocal(p); err != nil {
			return err
		}
	}
	return nil
}

// closeLocals removes all local routes of the instance.
func (n *Network) closeLocals() error {
	prefixes, err := n.locals()
	for _, p := range prefixes {
		err = errors.Join(err, n.dropLocal(p))
	}
	return err
}
