package network

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
)

// Called returns the Machine whose SSH port a connection at the host's hangar.ServicesSSHPort was
// meant for. It reports false for a connection that the rules have not redirected, and for one from
// another network.
func (n *Network) Called(conn net.Conn) (hangar.MachineID, bool) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return "", false
	}
	to, err := originalDestination(tcp)
	if err != nil || to.Port() != hangar.MachineSSHPort {
		return "", false
	}
	from, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return "", false
	}
	id, network, ok := n.Owner(to.Addr())
	if caller := from.AddrPort().Addr().WithZone(""); !ok || !Private.Contains(caller) || networkOf(caller) != network {
		return "", false
	}
	return id, true
}

// originalDestination is the destination of a connection before the rules redirected it.
func originalDestination(conn *net.TCPConn) (netip.AddrPort, error) {
	const option = 80 // IP6T_SO_ORIGINAL_DST of linux/netfilter_ipv6/ip6_tables.h
	raw, err := conn.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, err
	}
	var info *unix.IPv6MTUInfo // the type of an option that begins with an address
	var failed error
	if err := raw.Control(func(fd uintptr) { info, failed = unix.GetsockoptIPv6MTUInfo(int(fd), unix.IPPROTO_IPV6, option) }); err != nil {
		return netip.AddrPort{}, err
	}
	if failed != nil {
		return netip.AddrPort{}, failed
	}
	port := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, info.Addr.Port)) // in network order
	return netip.AddrPortFrom(netip.AddrFrom16(info.Addr.Addr), port), nil
}
