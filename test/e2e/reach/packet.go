package reach

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	echoRequest4, echoReply4 = 8, 0
	echoRequest6, echoReply6 = 128, 129
	magic                    = "is anybody there?"
)

// tryICMP asks for an echo.
func tryICMP(ctx context.Context, a Attempt) error {
	domain, proto, request, reply := unix.AF_INET6, unix.IPPROTO_ICMPV6, byte(echoRequest6), byte(echoReply6)
	if a.To.Addr().Is4() {
		domain, proto, request, reply = unix.AF_INET, unix.IPPROTO_ICMP, echoRequest4, echoReply4
	}
	// A raw socket, where the kernel refuses sockets for echoes alone.
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		fd, err = unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, proto)
	}
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: resend.Microseconds()}); err != nil {
		return err
	}
	packet := append([]byte{request, 0, 0, 0, 0x68, 0x67, 0, 1}, magic...)
	if a.To.Addr().Is4() {
		binary.BigEndian.PutUint16(packet[2:], checksum(packet))
	}
	answer := make([]byte, 1500)
	for ctx.Err() == nil {
		if err := unix.Sendto(fd, packet, 0, sockaddr(a.To)); err != nil {
			return fmt.Errorf("send: %w", err)
		}
		for {
			n, from, err := unix.Recvfrom(fd, answer, 0)
			if err != nil {
				break // too late, or a refusal: try again
			}
			// A raw socket hears answers to others, too, and by IPv4 gives their headers.
			got := answer[:n]
			if i := strings.Index(string(got), magic); i >= 8 && got[i-8] == reply && isFrom(from, a.To.Addr()) {
				return nil
			}
		}
	}
	return ctx.Err()
}

func isFrom(from unix.Sockaddr, addr netip.Addr) bool {
	switch from := from.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(from.Addr) == addr
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(from.Addr) == addr.WithZone("")
	default:
		return false
	}
}

func sockaddr(at netip.AddrPort) unix.Sockaddr {
	if at.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: at.Addr().As4()}
	}
	sa := &unix.SockaddrInet6{Addr: at.Addr().As16()}
	if i, err := net.InterfaceByName(at.Addr().Zone()); err == nil {
		sa.ZoneId = uint32(i.Index)
	}
	return sa
}

// sendForged sends a UDP datagram from an address that eth0 takes for as long as that lasts.
// Sandboxes forbid writing the headers of IPv6 packets; this they allow.
func sendForged(ctx context.Context, a Attempt) (err error) {
	eth0, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	bits := a.From.BitLen()
	taken := &netlink.Addr{IPNet: &net.IPNet{IP: a.From.AsSlice(), Mask: net.CIDRMask(bits, bits)}, Flags: unix.IFA_F_NODAD}
	switch err := netlink.AddrAdd(eth0, taken); {
	case errors.Is(err, unix.EEXIST): // it is its own
	case err != nil:
		return fmt.Errorf("take %s: %w", a.From, err)
	default:
		defer func() { err = errors.Join(err, netlink.AddrDel(eth0, taken)) }()
	}
	d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(a.From, 0))}
	conn, err := d.DialContext(ctx, "udp", a.To.String())
	if err != nil {
		return err
	}
	_, err = conn.Write(a.Text)
	return errors.Join(err, conn.Close())
}

// checksum is that of the internet protocols.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
