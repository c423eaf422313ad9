package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
)

// filter is the instance's nftables table: what its sets hold, and its rules. It puts the table
// back when another program has changed it.
type filter struct {
	gateway  *gateway
	allowed  []netip.Prefix
	most     uint32 // Options.MaxConnections
	log      *slog.Logger
	firewall *firewall // of the host's namespace; set by Open

	membership sync.Mutex               // held while the sets change
	members    map[hangar.NetworkID]int // how many of each network are on this host
	ingress    map[netip.Addr]struct{}  // private addresses at which the host serves Apps
	ports      map[OpenPort]struct{}    // of the host that are open to Machines
}

// table is the instance's nftables table on the host.
func (t *filter) table() *nftables.Table {
	return &nftables.Table{Name: "hangar_" + t.gateway.instance, Family: nftables.TableFamilyINet}
}

// standIn is the table that holds the rules while the instance's table is replaced.
func (t *filter) standIn() *nftables.Table {
	table := t.table()
	table.Name += "/stand-in"
	return table
}

// installRules replaces the instance's table, with the networks of the members.
func (t *filter) installRules() error {
	t.membership.Lock()
	defer t.membership.Unlock()
	return t.replaceTable()
}

// replaceTable creates the instance's table again. t.membership is held.
//
// One transaction would leave a gap: the kernel makes the sets of ranges searchable only
// after the transaction has taken effect and the hooks of the old table are gone, and
// until then no device is an own one. So a second table with the same rules stands in,
// and the sets of a table are made before its rules.
func (t *filter) replaceTable() (err error) {
	table := t.table()
	replaces, err := t.firewall.has(table)
	if err != nil {
		return fmt.Errorf("look for nftables table %s: %w", table.Name, err)
	}
	defer func() { err = errors.Join(err, t.firewall.remove(t.standIn())) }() // also one that a crash has left
	if replaces {
		if err := t.install(t.standIn()); err != nil {
			return err
		}
		afterPackets()
	}
	if err := t.install(table); err != nil {
		return err
	}
	if replaces {
		afterPackets()
	}
	return nil
}

// install makes a table of the instance's rules, replacing an existing one.
func (t *filter) install(table *nftables.Table) error {
	var s sets
	err := t.firewall.change(func(c *nftables.Conn) (err error) {
		c.AddTable(table) // so that there is one to delete
		c.DelTable(table)
		c.AddTable(table)
		s, err = t.addSets(c, table)
		return err
	})
	if err == nil {
		err = t.firewall.change(func(c *nftables.Conn) error {
			t.addRules(c, table, s)
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("install nftables table %s: %w", table.Name, err)
	}
	return nil
}

// afterPackets returns when the kernel has finished every packet that it was processing: such a
// packet may bypass a table whose hooks were added after it arrived.
func afterPackets() {
	const global = 1 // MEMBARRIER_CMD_GLOBAL: waits for readers of RCU, which all hooks are
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0); errno != 0 {
		<-time.After(100 * time.Millisecond) // the kernel has no such call, or processors without a tick
	}
}

// addRules adds the rules to a table that has its sets. No rule is of one Machine; "own
// devices" are those of Machines, that of peers and that of other hosts:
//
//	prerouting   drop what comes from an own device under a foreign address, and what
//	             comes from elsewhere under an own one, or for the host's own ones and
//	             the private ones of Apps
//	services     send what Machines call the platform, and the SSH port of this host's Machines of the sender's
//	             network, to the host's own address
//	counted      drop a new connection of a Machine that has MaxConnections
//	input        of own devices: nothing of other hosts but what was for the SSH port of a Machine; answers; "counted"; the platform's services, what was for
//	             the SSH port of a Machine, Apps that are served in the sender's network, open ports, echo; drop the rest
//	forward      from own devices: as "leaving" says; to own devices: only answers
//	leaving      "counted"; from one host to another: refuse; to own devices within a network; to
//	             the internet; refuse the rest
//	output       refuse Machines that are not there
//	postrouting  masquerade what leaves for the internet
//
// "Refuse" spares everyone who calls a Machine that was destroyed, or is not to be
// reached, the wait for an answer; it looks the same whether or not there is one.
func (t *filter) addRules(c *nftables.Conn, table *nftables.Table, s sets) {
	// Before connection tracking, which then never sees forged packets.
	prerouting := baseChain(table, "prerouting", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
	services := baseChain(table, "services", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
	input := baseChain(table, "input", nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityFilter)
	forward := baseChain(table, "forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)
	counted := &nftables.Chain{Table: table, Name: "counted"}
	leaving := &nftables.Chain{Table: table, Name: "leaving"}
	output := baseChain(table, "output", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityFilter)
	postrouting := baseChain(table, "postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	for _, chain := range []*nftables.Chain{prerouting, services, counted, input, leaving, forward, output, postrouting} {
		c.AddChain(chain)
	}
	add := func(chain *nftables.Chain, exprs ...[]expr.Any) {
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: slices.Concat(exprs...)})
	}
	fromOwn, fromOther := device(expr.MetaKeyIIFNAME, s.devices, false), device(expr.MetaKeyIIFNAME, s.devices, true)
	toOwn, toOther := device(expr.MetaKeyOIFNAME, s.devices, false), device(expr.MetaKeyOIFNAME, s.devices, true)
	mesh := MeshDevice(t.gateway.instance)
	fromMesh := deviceName(expr.MetaKeyIIFNAME, expr.CmpOpEq, mesh)
	toIngress := slices.Concat(address(destination, unix.NFPROTO_IPV6), in(s.ingress, false))
	fromOutside := slices.Concat(fromOther, deviceName(expr.MetaKeyIIFNAME, expr.CmpOpNeq, "lo"))
	toOutside := slices.Concat(toOther, deviceName(expr.MetaKeyOIFNAME, expr.CmpOpNeq, "lo"))

	add(prerouting, fromOwn, noReversePath(), drop())
	// The way back to link-local addresses is by any device, so that does not tell whose
	// they are; nothing needs them, as neighbours are fixed.
	add(prerouting, fromOwn, private6(source, expr.CmpOpNeq), drop())
	add(prerouting, fromOutside, in4(source, t.gateway.pool, expr.CmpOpEq), drop())
	add(prerouting, fromOutside, t.ownIPv6(source), drop())
	add(prerouting, fromOutside, is(destination, t.gateway.gateway4), drop())
	add(prerouting, fromOutside, is(destination, t.gateway.gateway6), drop())
	add(prerouting, fromOutside, toIngress, drop())

	add(services, fromOwn, servicesIPv6(), toPort(s.services), redirect(t.gateway.gateway6))

	// Packets that lead to no attached Machine are refused, as at every other port. Another host serves its own.
	add(services, fromOwn, sameNetwork(s.networks), routedTo(s.devices), notRoutedTo(PeerDevice(t.gateway.instance)), notRoutedTo(mesh),
		toTCP(hangar.MachineSSHPort), redirectPort(t.gateway.gateway6, hangar.ServicesSSHPort))

	// A packet that is dropped before it is confirmed takes no place in the kernel's table.
	for _, f := range []struct {
		set    *nftables.Set
		source []expr.Any
	}{{s.tracked4, address(source, unix.NFPROTO_IPV4)}, {s.tracked6, machine6()}} {
		add(counted, isNew(), f.source, moreThan(t.maxConnections(), f.set), drop())
	}

	add(input, fromOther, accept())
	add(input, fromMesh, isNew(), is(destination, t.gateway.gateway6), toTCP(hangar.ServicesSSHPort), redirected(), jump(counted))
	add(input, fromMesh, is(destination, t.gateway.gateway6), toTCP(hangar.ServicesSSHPort), redirected(), accept())
	add(input, fromMesh, drop())
	add(input, protocol(unix.NFPROTO_IPV4), icmp(unix.IPPROTO_ICMP, icmpRedirect), drop()) // may be about a connection
	add(input, established(), accept())
	add(input, jump(counted))
	for _, a := range []netip.Addr{t.gateway.gateway4, t.gateway.gateway6} {
		add(input, is(destination, a), toPort(s.services), accept())
	}
	add(input, is(destination, t.gateway.gateway6), toTCP(hangar.ServicesSSHPort), redirected(), accept())
	// A listener of the host at all of its addresses is not an App's, except for the open ports.
	add(input, toIngress, sameNetwork(s.networks), s.ports[0].toOpenPort(), accept())
	add(input, toIngress, toSocketOfAllAddresses(), refuse())
	for _, transport := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		add(input, toIngress, sameNetwork(s.networks), ofProtocol(transport), accept())
	}
	add(input, toIngress, refuse()) // before what is open at all addresses
	for _, p := range s.ports {
		add(input, p.toOpenPort(), accept())
	}
	add(input, is(destination, t.gateway.gateway4), icmp(unix.IPPROTO_ICMP, icmpEchoRequest), accept())
	add(input, is(destination, t.gateway.gateway6), icmp(unix.IPPROTO_ICMPV6, icmpv6EchoRequest), accept())
	add(input, drop())

	add(forward, established(), accept())
	add(forward, fromOwn, jump(leaving))
	add(forward, toOwn, drop())

	add(leaving, jump(counted))
	add(leaving, fromMesh, deviceName(expr.MetaKeyOIFNAME, expr.CmpOpEq, mesh), refuse())
	add(leaving, toOwn, sameNetwork(s.networks), accept())
	add(leaving, toOwn, refuse())
	// Peers and other hosts are here for the private network alone.
	add(leaving, deviceName(expr.MetaKeyIIFNAME, expr.CmpOpEq, PeerDevice(t.gateway.instance)), refuse())
	add(leaving, fromMesh, refuse())
	// An address that is not on an own device now is nowhere else either, so no exception
	// applies.
	add(leaving, in4(destination, t.gateway.pool, expr.CmpOpEq), refuse())
	add(leaving, private6(destination, expr.CmpOpEq), refuse())
	for _, f := range []struct {
		family       byte
		open, closed *nftables.Set
	}{{unix.NFPROTO_IPV4, s.open4, s.closed4}, {unix.NFPROTO_IPV6, s.open6, s.closed6}} {
		add(leaving, address(destination, f.family), in(f.open, false), accept())
		add(leaving, address(destination, f.family), in(f.closed, false), refuse())
	}
	add(leaving, accept())

	add(output, toOutside, in4(destination, t.gateway.pool, expr.CmpOpEq), refuse())
	add(output, toOutside, t.ownIPv6(destination), refuse())

	add(postrouting, toOther, in4(source, t.gateway.pool, expr.CmpOpEq), in4(destination, t.gateway.pool, expr.CmpOpNeq), masquerade())
	add(postrouting, toOther, t.ownIPv6(source), private6(destination, expr.CmpOpNeq), masquerade())
}

// trackedFile says how many connections the kernel can track.
const trackedFile = "/proc/sys/net/netfilter/nf_conntrack_max"

// maxConnections is Options.MaxConnections with its default.
func (t *filter) maxConnections() uint32 {
	const share, least = 32, 1024
	if t.most > 0 {
		return t.most
	}
	raw, err := os.ReadFile(trackedFile)
	if err != nil {
		return least // the kernel's module is loaded with the first rule that needs it
	}
	all, err := strconv.ParseUint(strings.TrimSpace(string(raw)), 10, 32)
	if err != nil {
		return least
	}
	return max(least, uint32(all/share))
}

// removeRules deletes the instance's tables. A missing one is not an error.
func (t *filter) removeRules() error {
	return t.firewall.remove(t.standIn(), t.table())
}

// dropIngress keeps packets from the kernel's own stack in a Machine's namespace. The sandbox taps
// the device before the hook. Without it the kernel, while it has the addresses, answers segments
// of connections that are about to be restored with resets.
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

// ownIPv6 matches the private addresses of this host, in any network.
func (t *filter) ownIPv6(f field) []expr.Any {
	h, _ := hostBits(t.gateway.host)
	mask := [16]byte{0: 0xff, 1: 0xff, 6: 0xff, 7: 0xff, 8: 0xff, 9: 0xff}
	want := [16]byte{0: 0xfd, 1: 0xaa}
	binary.BigEndian.PutUint32(want[6:], h)
	return masked6(f, mask, expr.CmpOpEq, want)
}

// servicesIPv6 matches the address of the platform's services, and its form with a
// network in it that peers use.
func servicesIPv6() []expr.Any {
	var mask [16]byte
	for i := range mask {
		if i < networkOffset || i >= networkOffset+4 {
			mask[i] = 0xff
		}
	}
	return masked6(destination, mask, expr.CmpOpEq, hangar.ServicesAddress.As16())
}
