package network

import (
	"bytes"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The registers that expressions share. For a set whose key has two parts, the first part goes into
// the one and the second into the next word.
const (
	register     = unix.NFT_REG_1
	registerNext = unix.NFT_REG32_01
)

// The types and codes of ICMP and ICMPv6 that rules name.
const (
	icmpRedirect      = 5
	icmpEchoRequest   = 8
	icmpv6EchoRequest = 128
)

// field is an address of the IP header.
type field struct{ offset4, offset6 uint32 }

//nolint:gochecknoglobals // constants
var (
	source      = field{offset4: 12, offset6: 8}
	destination = field{offset4: 16, offset6: 24}
)

// networkOffset is where in a private address its network begins.
const networkOffset = 2

// device matches packets that came from (IIFNAME) or leave by (OIFNAME) a device of the set. With
// none, it matches those of any other device.
func device(key expr.MetaKey, devices *nftables.Set, none bool) []expr.Any {
	return append([]expr.Any{&expr.Meta{Key: key, Register: register}}, in(devices, none)...)
}

// deviceName matches one device.
func deviceName(key expr.MetaKey, op expr.CmpOp, name string) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: key, Register: register},
		&expr.Cmp{Op: op, Register: register, Data: []byte(name + "\x00")},
	}
}

// in looks the register up in a set.
func in(set *nftables.Set, not bool) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: register, SetName: set.Name, SetID: set.ID, Invert: not}}
}

func protocol(family byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: register},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: []byte{family}},
	}
}

// noReversePath matches packets whose source is not routed to the device they came from.
func noReversePath() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: register, ResultOIF: true, FlagSADDR: true, FlagIIF: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: binaryutil.NativeEndian.PutUint32(0)},
	}
}

// established matches the packets of accepted connections, and ICMP errors about them.
func established() []expr.Any { return inState(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED) }

// isNew matches the packets of a connection before the first answer.
func isNew() []expr.Any { return inState(expr.CtStateBitNEW) }

// inState matches packets of connections in one of the states.
func inState(states uint32) []expr.Any {
	bits := binaryutil.NativeEndian.PutUint32(states)
	return []expr.Any{
		&expr.Ct{Register: register, Key: expr.CtKeySTATE},
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4, Mask: bits, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: make([]byte, 4)},
	}
}

// moreThan counts the packet's connection for the key in the register. It matches if that key has
// more than most connections. Closed connections do not count.
func moreThan(most uint32, tracked *nftables.Set) []expr.Any {
	return []expr.Any{&expr.Dynset{
		SrcRegKey: register, SetName: tracked.Name, SetID: tracked.ID, Operation: uint32(unix.NFT_DYNSET_OP_ADD),
		Exprs: []expr.Any{&expr.Connlimit{Count: most, Flags: expr.NFT_CONNLIMIT_F_INV}},
	}}
}

// machine6 loads the prefix that all IPv6 addresses of one Machine, or of the peers of one network,
// share.
func machine6() []expr.Any {
	mask := net.CIDRMask(machineBits, 8*net.IPv6len)
	return append(address(source, unix.NFPROTO_IPV6), &expr.Bitwise{
		SourceRegister: register, DestRegister: register, Len: net.IPv6len, Mask: mask, Xor: make([]byte, net.IPv6len),
	})
}

// address loads the source or destination address of a packet of the given family.
func address(f field, family byte) []expr.Any {
	offset, size := f.offset4, uint32(4)
	if family == unix.NFPROTO_IPV6 {
		offset, size = f.offset6, 16
	}
	return append(protocol(family),
		&expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size})
}

// is matches packets whose address in field f is a.
func is(f field, a netip.Addr) []expr.Any {
	family := byte(unix.NFPROTO_IPV6)
	if a.Is4() {
		family = unix.NFPROTO_IPV4
	}
	return append(address(f, family), &expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: a.AsSlice()})
}

func in4(f field, p netip.Prefix, op expr.CmpOp) []expr.Any {
	return append(address(f, unix.NFPROTO_IPV4),
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4, Mask: ipNet(p).Mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: register, Data: p.Addr().AsSlice()},
	)
}

// masked6 compares the bits of an IPv6 address that mask selects.
func masked6(f field, mask [16]byte, op expr.CmpOp, want [16]byte) []expr.Any {
	return append(address(f, unix.NFPROTO_IPV6),
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 16, Mask: mask[:], Xor: make([]byte, 16)},
		&expr.Cmp{Op: op, Register: register, Data: want[:]},
	)
}

// private6 matches an address of any private network.
func private6(f field, op expr.CmpOp) []expr.Any {
	return masked6(f, [16]byte{0: 0xff, 1: 0xff}, op, [16]byte{0: 0xfd, 1: 0xaa})
}

// sameNetwork matches packets between private addresses of one network of the set. The
// kernel cannot compare two fields of a packet, but it can ask a set for both at once.
func sameNetwork(networks *nftables.Set) []expr.Any {
	load := func(f field, register uint32) expr.Any {
		return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: f.offset6 + networkOffset, Len: 4}
	}
	return append(append(protocol(unix.NFPROTO_IPV6), load(source, register), load(destination, registerNext)), in(networks, false)...)
}

// toPort matches packets of a protocol and destination port of the set.
func toPort(services *nftables.Set) []expr.Any {
	return append([]expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register},
		&expr.Payload{DestRegister: registerNext, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	}, in(services, false)...)
}

// toTCP matches packets to a TCP port.
func toTCP(port uint16) []expr.Any {
	return append(ofProtocol(unix.IPPROTO_TCP),
		&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: binaryutil.BigEndian.PutUint16(port)},
	)
}

// routedTo matches packets whose destination is routed to a device of the set.
func routedTo(devices *nftables.Set) []expr.Any {
	return append([]expr.Any{&expr.Fib{Register: register, ResultOIFNAME: true, FlagDADDR: true}}, in(devices, false)...)
}

// notRoutedTo matches packets whose destination is routed to any device but this one.
func notRoutedTo(name string) []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: register, ResultOIFNAME: true, FlagDADDR: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: padded(name)},
	}
}

// redirected matches packets of connections whose destination redirect or redirectPort has changed.
func redirected() []expr.Any {
	const destinationNAT = 1 << 5 // IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h
	bits := binaryutil.NativeEndian.PutUint32(destinationNAT)
	return []expr.Any{
		&expr.Ct{Register: register, Key: expr.CtKeySTATUS},
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4, Mask: bits, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: make([]byte, 4)},
	}
}

// toSocketOfAllAddresses matches packets for a socket that is bound to the unspecified address.
func toSocketOfAllAddresses() []expr.Any {
	return []expr.Any{
		&expr.Socket{Key: expr.SocketKeyWildcard, Register: register},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: []byte{1}},
	}
}

// ofProtocol matches packets of a transport protocol.
func ofProtocol(transport byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: []byte{transport}},
	}
}

// icmp matches one type of ICMP or ICMPv6 messages.
func icmp(protocol, kind byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: []byte{protocol}},
		&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: []byte{kind}},
	}
}

func accept() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}} }

func drop() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}} }

// refuse answers that there is no route: code 0 of "unreachable" in ICMP and ICMPv6.
func refuse() []expr.Any {
	return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: 0}}
}

func jump(chain *nftables.Chain) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain.Name}}
}

func masquerade() []expr.Any { return []expr.Any{&expr.Masq{}} }

// redirect sends a connection to another address, at the same port.
func redirect(to netip.Addr) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: register, Data: to.AsSlice()},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV6, RegAddrMin: register},
	}
}

// redirectPort sends a connection to another address and port.
func redirectPort(to netip.Addr, port uint16) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: register, Data: to.AsSlice()},
		&expr.Immediate{Register: unix.NFT_REG_2, Data: binaryutil.BigEndian.PutUint16(port)},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV6, RegAddrMin: register, RegProtoMin: unix.NFT_REG_2},
	}
}

// padded returns the name of a device as the kernel stores it.
func padded(name string) []byte {
	return append([]byte(name), bytes.Repeat([]byte{0}, unix.IFNAMSIZ-len(name))...)
}
