package network

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// tableName is the instance's nftables table on the host.
func (n *Network) tableName() string { return "hangar_" + n.instance }

// installRules replaces the instance's table in one transaction:
//
//	prerouting   drop what a Machine sends under a foreign address
//	forward      drop IPv4 from Machine to Machine; refuse Machines that are not there
//	output       refuse Machines that are not there
//	postrouting  masquerade what leaves for the internet
//
// "Refuse" spares everyone who calls a Machine that was destroyed the wait for a
// default gateway that knows nothing of private networks.
func (n *Network) installRules() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	table := &nftables.Table{Name: n.tableName(), Family: nftables.TableFamilyINet}
	c.AddTable(table) // so that there is one to delete
	c.DelTable(table)
	c.AddTable(table)

	// Before connection tracking, which then never hears of forged packets.
	prerouting := baseChain(table, "prerouting", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
	forward := baseChain(table, "forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)
	output := baseChain(table, "output", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityFilter)
	postrouting := baseChain(table, "postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	for _, chain := range []*nftables.Chain{prerouting, forward, output, postrouting} {
		c.AddChain(chain)
	}
	add := func(chain *nftables.Chain, exprs ...[]expr.Any) {
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: slices.Concat(exprs...)})
	}
	leaves := slices.Concat(n.outside(), device(expr.MetaKeyOIFNAME, expr.CmpOpNeq, "lo\x00"))

	add(prerouting, n.device(expr.MetaKeyIIFNAME, expr.CmpOpEq), noWayBack(), drop())
	add(forward, n.device(expr.MetaKeyIIFNAME, expr.CmpOpEq), n.device(expr.MetaKeyOIFNAME, expr.CmpOpEq),
		protocol(unix.NFPROTO_IPV4), drop())
	for _, chain := range []*nftables.Chain{forward, output} {
		add(chain, leaves, in4(destination, n.pool, expr.CmpOpEq), refuse())
		add(chain, leaves, n.ownIPv6(destination), refuse())
	}
	add(postrouting, n.outside(), in4(source, n.pool, expr.CmpOpEq), in4(destination, n.pool, expr.CmpOpNeq), masquerade())
	add(postrouting, n.outside(), n.ownIPv6(source), notPrivateIPv6(destination), masquerade())
	if err := c.Flush(); err != nil {
		return fmt.Errorf("install nftables table %s: %w", table.Name, err)
	}
	return nil
}

// removeRules deletes the instance's table if it is there.
func (n *Network) removeRules() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	table := &nftables.Table{Name: n.tableName(), Family: nftables.TableFamilyINet}
	c.AddTable(table)
	c.DelTable(table)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("delete nftables table %s: %w", table.Name, err)
	}
	return nil
}

// dropIngress keeps the kernel's own stack in a Machine's namespace from hearing
// anything. The sandbox taps the device before the hook. Without it the kernel, while
// it has the addresses, answers segments of connections that are about to be restored
// with resets.
func dropIngress(ns *os.File) error {
	c, err := nftables.New(nftables.WithNetNSFd(int(ns.Fd())))
	if err != nil {
		return fmt.Errorf("open nftables of the namespace: %w", err)
	}
	table := &nftables.Table{Name: "hangar", Family: nftables.TableFamilyNetdev}
	c.AddTable(table)
	chain := baseChain(table, "ingress", nftables.ChainTypeFilter, nftables.ChainHookIngress, nftables.ChainPriorityFilter)
	chain.Device = eth0
	policy := nftables.ChainPolicyDrop
	chain.Policy = &policy
	c.AddChain(chain)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("drop ingress of the namespace: %w", err)
	}
	return nil
}

func baseChain(t *nftables.Table, name string, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority) *nftables.Chain {
	policy := nftables.ChainPolicyAccept
	return &nftables.Chain{Table: t, Name: name, Type: kind, Hooknum: hook, Priority: priority, Policy: &policy}
}

// device matches devices whose name begins with, or with a final zero is, name.
func device(key expr.MetaKey, op expr.CmpOp, name string) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: op, Register: 1, Data: []byte(name)},
	}
}

func (n *Network) device(key expr.MetaKey, op expr.CmpOp) []expr.Any {
	return device(key, op, n.prefix)
}

// outside matches packets that leave by a device that is not ours.
func (n *Network) outside() []expr.Any { return n.device(expr.MetaKeyOIFNAME, expr.CmpOpNeq) }

func protocol(family byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
	}
}

// noWayBack matches packets whose source is not routed to the device they came from.
func noWayBack() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: 1, ResultOIF: true, FlagSADDR: true, FlagIIF: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(0)},
	}
}

// field is an address of the IP header.
type field struct{ offset4, offset6 uint32 }

//nolint:gochecknoglobals // constants
var (
	source      = field{offset4: 12, offset6: 8}
	destination = field{offset4: 16, offset6: 24}
)

func in4(f field, p netip.Prefix, op expr.CmpOp) []expr.Any {
	mask := ipNet(p).Mask
	return append(protocol(unix.NFPROTO_IPV4),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: f.offset4, Len: 4},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: 1, Data: p.Addr().AsSlice()},
	)
}

// ownIPv6 matches the private addresses of this host, in whatever network.
func (n *Network) ownIPv6(f field) []expr.Any {
	h, _ := hostBits(n.host)
	mask := [16]byte{0: 0xff, 1: 0xff, 6: 0xff, 7: 0xff, 8: 0xff, 9: 0xff}
	want := [16]byte{0: 0xfd, 1: 0xaa}
	binary.BigEndian.PutUint32(want[6:], h)
	return append(masked6(f, mask), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: want[:]})
}

func notPrivateIPv6(f field) []expr.Any {
	want := [16]byte{0: 0xfd, 1: 0xaa}
	return append(masked6(f, [16]byte{0: 0xff, 1: 0xff}), &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: want[:]})
}

func masked6(f field, mask [16]byte) []expr.Any {
	return append(protocol(unix.NFPROTO_IPV6),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: f.offset6, Len: 16},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 16, Mask: mask[:], Xor: make([]byte, 16)},
	)
}

func drop() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}} }

// refuse answers that there is no route: code 0 of "unreachable" in ICMP and ICMPv6.
func refuse() []expr.Any {
	return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: 0}}
}

func masquerade() []expr.Any { return []expr.Any{&expr.Masq{}} }
