package network

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/hangar-platform/hangar"
)

// Private is the prefix of every private network, on this platform's hosts and on all others.
var Private = netip.MustParsePrefix("fdaa::/16") //nolint:gochecknoglobals // a constant

// MaxNumber is the exclusive limit of the numbers that a host gives to its Machines: a number has at
// most six digits of base 36 in the name of a device. A host that creates ten Machines a second
// reaches it after seven years.
const MaxNumber = 36 * 36 * 36 * 36 * 36 * 36

// hostPrefixBits is how many leading bits name the network and the host of an address.
const hostPrefixBits = 80

// machineBits is how many leading bits all addresses of a Machine share.
const machineBits = 112

// Address returns the private address of a Machine: fdaa, the network, the host, the Machine's number
// and 2. The Machine owns every address with the same first machineBits. Different networks, hosts or
// numbers below MaxNumber give different addresses. Address returns the zero Addr when host is not 8
// hexadecimal characters.
func Address(network hangar.NetworkID, host hangar.HostID, number uint64) netip.Addr {
	h, ok := hostBits(host)
	if !ok {
		return netip.Addr{}
	}
	a := [16]byte{0: 0xfd, 1: 0xaa, 15: 2}
	binary.BigEndian.PutUint32(a[2:], uint32(network))
	binary.BigEndian.PutUint32(a[6:], h)
	binary.BigEndian.PutUint32(a[10:], uint32(number))
	return netip.AddrFrom16(a)
}

// Prefix holds all addresses of one network's Machines and peers at a host. It is the zero Prefix
// when host is not 8 hexadecimal characters.
func Prefix(network hangar.NetworkID, host hangar.HostID) netip.Prefix {
	a := Address(network, host, 0)
	if !a.IsValid() {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(a, hostPrefixBits).Masked()
}

// HostAddress is the private address of the host itself, in network 0, which has no Machines. It is
// the zero Addr when host is not 8 hexadecimal characters.
func HostAddress(host hangar.HostID) netip.Addr {
	a := Address(0, host, 0)
	if !a.IsValid() {
		return a
	}
	return a.Prev()
}

func hostBits(host hangar.HostID) (uint32, bool) {
	h, err := strconv.ParseUint(string(host), 16, 32)
	return uint32(h), err == nil && len(host) == 8
}

// gatewayLinkLocal is the address of the host on every device. It is the same everywhere, so that the
// routes of a restored sandbox stay valid.
var gatewayLinkLocal = netip.MustParseAddr("fe80::1") //nolint:gochecknoglobals // a constant

// gatewayMAC is the hardware address of the host's end of every device. It never changes, because a
// restored sandbox may have it in its neighbour table.
func gatewayMAC() net.HardwareAddr { return net.HardwareAddr{0x02, 0x68, 0, 0, 0, 0} }

// machineMAC is the hardware address of a Machine's eth0. Only the Machine and the host are on the
// link.
func machineMAC(number uint64) net.HardwareAddr {
	mac := net.HardwareAddr{0x02, 0x6d, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(mac[2:], uint32(number))
	return mac
}

// linkLocal is the address that a device with that MAC would assign to itself (RFC 4291, appendix A).
func linkLocal(mac net.HardwareAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{
		0xfe, 0x80, 0, 0, 0, 0, 0, 0,
		mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5],
	})
}

// linkPrefix begins the names of all devices of an instance. It has a fixed length, so that one
// instance's prefix never begins another's device name.
func linkPrefix(instance string) string {
	return "h" + instance + strings.Repeat("-", max(0, 8-len(instance)))
}

// PeerDevice is the host's device for the WireGuard peers of an instance. The rules treat it as one
// of the instance's own devices: a packet from it must have a source address that is routed to it.
func PeerDevice(instance string) string { return "hw" + instance }

// MeshDevice is the host's device that leads to the other hosts of an instance's cluster. The rules
// treat it as one of the instance's own, too, but let its packets reach Machines only.
func MeshDevice(instance string) string { return "hm" + instance }

// linkName returns the host's device of a Machine: 15 characters, the maximum.
func linkName(prefix string, number uint64) string {
	digits := strconv.FormatUint(number, 36)
	return prefix + strings.Repeat("0", max(0, 6-len(digits))) + digits
}

// alias describes a complete attachment, for Open and for people who list devices.
func alias(id hangar.MachineID, e endpoint) string {
	return fmt.Sprintf("machine %s number %d %s %s", id, e.number, e.ipv4, e.ipv6)
}

func parseAlias(text string) (id hangar.MachineID, e endpoint, ok bool) {
	var ipv4, ipv6 string
	if _, err := fmt.Sscanf(text, "machine %s number %d %s %s", &id, &e.number, &ipv4, &ipv6); err != nil {
		return "", endpoint{}, false
	}
	var err4, err6 error
	e.ipv4, err4 = netip.ParseAddr(ipv4)
	e.ipv6, err6 = netip.ParseAddr(ipv6)
	return id, e, err4 == nil && err6 == nil
}

// preferred4 is the IPv4 address of a Machine unless another one has it. Numbers map to all addresses
// in order, except for the network, the gateway and the broadcast address.
func preferred4(pool netip.Prefix, number uint64) netip.Addr {
	usable := uint64(1)<<(32-pool.Bits()) - 3
	first := pool.Addr().As4()
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(first[:])+2+uint32(number%usable))
	return netip.AddrFrom4(a)
}

// poolCandidates are the ranges from which an instance chooses its pool, in an order of its own:
// first the ranges that the public platform uses, then the rest of the private space.
func poolCandidates(instance string) []netip.Prefix {
	h := fnv.New32a()
	_, _ = h.Write([]byte(instance))
	offset := h.Sum32()
	var all []netip.Prefix
	for i := range uint32(16) {
		all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16 + byte((offset+i)%16), 0, 0}), 16))
	}
	for i := range uint32(256) {
		all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(offset + i), 0, 0}), 16))
	}
	return all
}

func addr(p netip.Prefix, flags int) *netlink.Addr {
	return &netlink.Addr{IPNet: ipNet(p), Flags: flags}
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), bits), ok
}
