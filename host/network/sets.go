package network

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
)

// closed are the ranges that a Machine cannot reach unless the operator allows it: every range that
// is not of the public internet and may be behind a host.
//
//nolint:gochecknoglobals // a constant
var closed = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("10.0.0.0/8"),
	netip.MustParsePrefix("100.64.0.0/10"), // carriers' NAT
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"), // link-local, and where clouds serve credentials
	netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.0.0.0/24"), // protocol assignments
	netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("198.18.0.0/15"), // benchmarks of equipment
	netip.MustParsePrefix("224.0.0.0/3"),   // multicast, reserved, broadcast
	netip.MustParsePrefix("::/96"),
	netip.MustParsePrefix("::ffff:0:0/96"),  // IPv4 in IPv6
	netip.MustParsePrefix("64:ff9b:1::/48"), // translation to private IPv4
	netip.MustParsePrefix("fc00::/7"),       // unique local
	netip.MustParsePrefix("fe80::/9"),       // link-local and site-local
	netip.MustParsePrefix("ff00::/8"),       // multicast
}

// translated is the prefix that gateways between IPv6 and IPv4 put before an IPv4 address.
//
//nolint:gochecknoglobals // a constant
var translated = netip.MustParsePrefix("64:ff9b::/96")

// closedRanges returns the ranges closed to this instance's Machines.
func (t *filter) closedRanges() []netip.Prefix {
	all := append(slices.Clone(closed), t.gateway.pool.Masked())
	for _, p := range closed {
		if p.Addr().Is4() {
			all = append(all, translate(p))
		}
	}
	return all
}

func translate(p netip.Prefix) netip.Prefix {
	a, four := translated.Addr().As16(), p.Addr().As4()
	copy(a[12:], four[:])
	return netip.PrefixFrom(netip.AddrFrom16(a), translated.Bits()+p.Bits())
}

// sets are the named sets of the instance's table.
type sets struct {
	devices          *nftables.Set // the instance's own devices
	networks         *nftables.Set // a pair of equal numbers for each network on this host
	services         *nftables.Set // protocol and port of the platform's services for Machines
	closed4, closed6 *nftables.Set
	open4, open6     *nftables.Set // ranges that the operator allows
	// tracked4 and tracked6 count the connections of each Machine. The kernel adds and removes their
	// elements.
	tracked4, tracked6 *nftables.Set

	ingress *nftables.Set // private addresses at which the host serves Apps
	ports   []portSet     // of the host that are open to Machines
}

// maxTracked bounds the Machines and peers whose connections are counted. Connections of any further
// ones are not limited.
const maxTracked = 1 << 16

// addSets adds the table's sets with their elements. t.membership is held.
func (t *filter) addSets(c *nftables.Conn, table *nftables.Table) (sets, error) {
	s := sets{ingress: ingressSet(table), ports: portSets(table)}
	if err := addSet(c, s.ingress, addressElements(slices.Collect(maps.Keys(t.ingress)))); err != nil {
		return sets{}, err
	}
	for _, p := range s.ports {
		if err := addSet(c, p.set, p.elements(slices.Collect(maps.Keys(t.ports)))); err != nil {
			return sets{}, err
		}
	}
	private := t.closedRanges()
	for _, add := range []struct {
		set      **nftables.Set
		name     string
		key      nftables.SetDatatype
		interval bool
		elements []nftables.SetElement
	}{
		{&s.devices, "devices", nftables.TypeIFName, true, t.deviceRanges()},
		{&s.networks, networksSet, networkPair, false, networkElements(slices.Sorted(maps.Keys(t.members)))},
		{&s.services, "services", nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService), false, serviceElements()},
		{&s.closed4, "closed4", nftables.TypeIPAddr, true, addressRanges(private, 32)},
		{&s.closed6, "closed6", nftables.TypeIP6Addr, true, addressRanges(private, 128)},
		{&s.open4, "open4", nftables.TypeIPAddr, true, addressRanges(t.allowed, 32)},
		{&s.open6, "open6", nftables.TypeIP6Addr, true, addressRanges(t.allowed, 128)},
	} {
		set := &nftables.Set{Table: table, Name: add.name, KeyType: add.key, Interval: add.interval}
		if err := addSet(c, set, add.elements); err != nil {
			return sets{}, err
		}
		*add.set = set
	}
	for _, add := range []struct {
		set  **nftables.Set
		name string
		key  nftables.SetDatatype
	}{
		{&s.tracked4, "tracked4", nftables.TypeIPAddr},
		{&s.tracked6, "tracked6", nftables.TypeIP6Addr},
	} {
		set := &nftables.Set{Table: table, Name: add.name, KeyType: add.key, Dynamic: true, Size: maxTracked}
		if err := addSet(c, set, nil); err != nil {
			return sets{}, err
		}
		*add.set = set
	}
	return s, nil
}

// addSet adds a set to a transaction that makes the table.
func addSet(c *nftables.Conn, set *nftables.Set, elements []nftables.SetElement) error {
	err := c.AddSet(set, nil)
	for some := range slices.Chunk(elements, elementsAtOnce) {
		err = errors.Join(err, c.SetAddElements(set, some))
	}
	if err != nil {
		return fmt.Errorf("set %s: %w", set.Name, err)
	}
	return nil
}

// networksSet holds a pair of equal numbers for every network that has members on this host. nft(8)
// shows the numbers as IPv4 addresses, which have the same size.
const networksSet = "networks"

//nolint:gochecknoglobals // a constant
var networkPair = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeIPAddr)

// networks is the set of the installed table.
func (t *filter) networks() *nftables.Set {
	return &nftables.Set{Table: t.table(), Name: networksSet, KeyType: networkPair}
}

func networkElements(networks []hangar.NetworkID) []nftables.SetElement {
	var elements []nftables.SetElement
	for _, id := range networks {
		key := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(id)), uint32(id))
		elements = append(elements, nftables.SetElement{Key: key})
	}
	return elements
}

func serviceElements() []nftables.SetElement {
	var elements []nftables.SetElement
	for _, s := range []struct {
		protocol byte
		port     uint16
	}{
		{unix.IPPROTO_UDP, hangar.ServicesDNSPort},
		{unix.IPPROTO_TCP, hangar.ServicesDNSPort},
		{unix.IPPROTO_TCP, hangar.ServicesAPIPort},
	} {
		key := binary.BigEndian.AppendUint16([]byte{s.protocol, 0, 0, 0}, s.port)
		elements = append(elements, nftables.SetElement{Key: append(key, 0, 0)})
	}
	return elements
}

// deviceRanges are the names of Machines' devices, which share a prefix, and the names of the devices
// of peers and of other hosts.
func (t *filter) deviceRanges() []nftables.SetElement {
	machines := padded(t.gateway.prefix)
	above := slices.Clone(machines)
	above[len(t.gateway.prefix)-1]++
	ranges := []nftables.SetElement{{Key: machines}, {Key: above, IntervalEnd: true}}
	for _, name := range []string{PeerDevice(t.gateway.instance), MeshDevice(t.gateway.instance)} {
		after := padded(name)
		after[len(after)-1]++
		ranges = append(ranges, nftables.SetElement{Key: padded(name)}, nftables.SetElement{Key: after, IntervalEnd: true})
	}
	return ranges
}

// addressRanges makes the elements of an interval set from the prefixes of one address family, given
// by the size of its addresses in bits. The ranges of a set must not overlap.
func addressRanges(prefixes []netip.Prefix, bits int) []nftables.SetElement {
	var ps []netip.Prefix
	for _, p := range prefixes {
		if p.Addr().BitLen() == bits {
			ps = append(ps, p.Masked())
		}
	}
	slices.SortFunc(ps, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	var elements []nftables.SetElement
	for i := 0; i < len(ps); {
		elements = append(elements, nftables.SetElement{Key: ps[i].Addr().AsSlice()})
		after := addressAfter(ps[i])
		for i++; i < len(ps) && (!after.IsValid() || ps[i].Addr().Compare(after) <= 0); i++ {
			if next := addressAfter(ps[i]); after.IsValid() && (!next.IsValid() || next.Compare(after) > 0) {
				after = next
			}
		}
		if after.IsValid() {
			elements = append(elements, nftables.SetElement{Key: after.AsSlice(), IntervalEnd: true})
		}
	}
	return elements
}

// addressAfter is the first address above p, or the zero Addr if no address is above it.
func addressAfter(p netip.Prefix) netip.Addr {
	last := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(last)*8; bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	a, _ := netip.AddrFromSlice(last)
	return a.Next()
}
