package network

import (
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
)

// ruleset adds rules to a table that has its sets. No rule is about a single Machine.
type ruleset struct {
	*filter
	conn  *nftables.Conn
	table *nftables.Table
	sets  sets
	peer  string // PeerDevice
	mesh  string // MeshDevice

	// Own devices are those of Machines, of peers and of other hosts. Outside means any other device
	// but lo.
	fromOwn, fromOther, fromOutside []expr.Any
	toOwn, toOther, toOutside       []expr.Any
	fromPeers, fromMesh, toMesh     []expr.Any
	toIngress                       []expr.Any
}

// addRules adds the chains and their rules to a table that has its sets.
//
// Rules for packets from own devices refuse rather than drop what leads nowhere, so that the caller of
// a Machine that was destroyed, or may not be reached, need not wait for an answer. A refusal looks
// the same whether or not the Machine exists.
func (t *filter) addRules(c *nftables.Conn, table *nftables.Table, s sets) {
	r := t.newRuleset(c, table, s)
	counted := &nftables.Chain{Table: table, Name: "counted"}
	leaving := &nftables.Chain{Table: table, Name: "leaving"}
	c.AddChain(counted)
	c.AddChain(leaving)
	r.prerouting()
	r.services()
	r.count(counted)
	r.input(counted)
	r.forward(leaving)
	r.leave(leaving, counted)
	r.output()
	r.postrouting()
}

func (t *filter) newRuleset(c *nftables.Conn, table *nftables.Table, s sets) *ruleset {
	instance := t.gateway.instance
	r := &ruleset{filter: t, conn: c, table: table, sets: s, peer: PeerDevice(instance), mesh: MeshDevice(instance)}
	r.fromOwn, r.fromOther = device(expr.MetaKeyIIFNAME, s.devices, false), device(expr.MetaKeyIIFNAME, s.devices, true)
	r.toOwn, r.toOther = device(expr.MetaKeyOIFNAME, s.devices, false), device(expr.MetaKeyOIFNAME, s.devices, true)
	r.fromOutside = slices.Concat(r.fromOther, deviceName(expr.MetaKeyIIFNAME, expr.CmpOpNeq, "lo"))
	r.toOutside = slices.Concat(r.toOther, deviceName(expr.MetaKeyOIFNAME, expr.CmpOpNeq, "lo"))
	r.fromPeers = deviceName(expr.MetaKeyIIFNAME, expr.CmpOpEq, r.peer)
	r.fromMesh = deviceName(expr.MetaKeyIIFNAME, expr.CmpOpEq, r.mesh)
	r.toMesh = deviceName(expr.MetaKeyOIFNAME, expr.CmpOpEq, r.mesh)
	r.toIngress = slices.Concat(address(destination, unix.NFPROTO_IPV6), in(s.ingress, false))
	return r
}

// chain adds a chain that the kernel calls at hook.
func (r *ruleset) chain(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority) *nftables.Chain {
	return r.conn.AddChain(baseChain(r.table, name, kind, hook, priority))
}

// add adds a rule that applies to packets that match all of exprs.
func (r *ruleset) add(chain *nftables.Chain, exprs ...[]expr.Any) {
	r.conn.AddRule(&nftables.Rule{Table: r.table, Chain: chain, Exprs: slices.Concat(exprs...)})
}

// prerouting drops packets from an own device with a foreign source address. It also drops packets
// from outside with an own source address, or for an address of the host or of Apps that only own
// devices may call. It precedes connection tracking, which therefore never sees forged packets.
func (r *ruleset) prerouting() {
	chain := r.chain("prerouting", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
	g := r.gateway
	r.add(chain, r.fromOwn, noReversePath(), drop())
	// Link-local addresses are routed to every device, so their route does not identify the sender.
	// No program needs them, because neighbours are permanent.
	r.add(chain, r.fromOwn, private6(source, expr.CmpOpNeq), drop())
	r.add(chain, r.fromOutside, in4(source, g.pool, expr.CmpOpEq), drop())
	r.add(chain, r.fromOutside, r.ownIPv6(source), drop())
	r.add(chain, r.fromOutside, is(destination, g.gateway4), drop())
	r.add(chain, r.fromOutside, is(destination, g.gateway6), drop())
	r.add(chain, r.fromOutside, r.toIngress, drop())
}

// services redirects calls of the platform's services, and calls of the SSH port of a Machine in the
// sender's network, to the host's own address.
func (r *ruleset) services() {
	chain := r.chain("services", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
	gateway6 := r.gateway.gateway6
	r.add(chain, r.fromOwn, servicesIPv6(), toPort(r.sets.services), redirect(gateway6))
	// Only for attached Machines of this host: other packets are refused, as at every other port, and
	// another host redirects those for its own Machines.
	r.add(chain, r.fromOwn, sameNetwork(r.sets.networks), routedTo(r.sets.devices), notRoutedTo(r.peer), notRoutedTo(r.mesh),
		toTCP(hangar.MachineSSHPort), redirectPort(gateway6, hangar.ServicesSSHPort))
}

// count drops a new connection of a Machine that has Options.MaxConnections already. A packet that is
// dropped before its connection is confirmed takes no place in the kernel's table.
func (r *ruleset) count(chain *nftables.Chain) {
	for _, f := range []struct {
		set    *nftables.Set
		source []expr.Any
	}{{r.sets.tracked4, address(source, unix.NFPROTO_IPV4)}, {r.sets.tracked6, machine6()}} {
		r.add(chain, isNew(), f.source, moreThan(r.maxConnections(), f.set), drop())
	}
}

// input guards the host itself against packets from own devices. Other hosts reach only the SSH ports
// of Machines. Machines and peers reach these, the platform's services, the Apps that are served in
// their network, and the open ports; the host answers their pings.
func (r *ruleset) input(counted *nftables.Chain) {
	chain := r.chain("input", nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityFilter)
	g := r.gateway
	toSSH := slices.Concat(is(destination, g.gateway6), toTCP(hangar.ServicesSSHPort), redirected())
	r.add(chain, r.fromOther, accept())
	r.add(chain, r.fromMesh, isNew(), toSSH, jump(counted))
	r.add(chain, r.fromMesh, toSSH, accept())
	r.add(chain, r.fromMesh, drop())
	r.add(chain, protocol(unix.NFPROTO_IPV4), icmp(unix.IPPROTO_ICMP, icmpRedirect), drop()) // may be about a connection
	r.add(chain, established(), accept())
	r.add(chain, jump(counted))
	for _, a := range []netip.Addr{g.gateway4, g.gateway6} {
		r.add(chain, is(destination, a), toPort(r.sets.services), accept())
	}
	r.add(chain, toSSH, accept())
	r.inputOfApps(chain)
	for _, p := range r.sets.ports {
		r.add(chain, p.toOpenPort(), accept())
	}
	r.add(chain, is(destination, g.gateway4), icmp(unix.IPPROTO_ICMP, icmpEchoRequest), accept())
	r.add(chain, is(destination, g.gateway6), icmp(unix.IPPROTO_ICMPV6, icmpv6EchoRequest), accept())
	r.add(chain, drop())
}

// inputOfApps decides about all packets to the private addresses of Apps, before the rules of open
// ports. A listener of the host at all of its addresses does not serve an App, so it is reachable
// only at the ports that are open at all addresses.
func (r *ruleset) inputOfApps(chain *nftables.Chain) {
	r.add(chain, r.toIngress, sameNetwork(r.sets.networks), r.sets.ports[0].toOpenPort(), accept())
	r.add(chain, r.toIngress, toSocketOfAllAddresses(), refuse())
	for _, transport := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		r.add(chain, r.toIngress, sameNetwork(r.sets.networks), ofProtocol(transport), accept())
	}
	r.add(chain, r.toIngress, refuse())
}

// forward sends packets from own devices through leaving. To own devices it lets only answers pass.
func (r *ruleset) forward(leaving *nftables.Chain) {
	chain := r.chain("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)
	r.add(chain, established(), accept())
	r.add(chain, r.fromOwn, jump(leaving))
	r.add(chain, r.toOwn, drop())
}

// leave decides where new connections from own devices may lead: to own devices within a network, and
// from Machines to the internet and to the ranges that the operator allows.
func (r *ruleset) leave(chain, counted *nftables.Chain) {
	r.add(chain, jump(counted))
	r.add(chain, r.fromMesh, r.toMesh, refuse())
	r.add(chain, r.toOwn, sameNetwork(r.sets.networks), accept())
	r.add(chain, r.toOwn, refuse())
	// Peers and other hosts may reach the private network only.
	r.add(chain, r.fromPeers, refuse())
	r.add(chain, r.fromMesh, refuse())
	// A private address that no own device has exists nowhere else, so no exception applies.
	r.add(chain, in4(destination, r.gateway.pool, expr.CmpOpEq), refuse())
	r.add(chain, private6(destination, expr.CmpOpEq), refuse())
	for _, f := range []struct {
		family       byte
		open, closed *nftables.Set
	}{{unix.NFPROTO_IPV4, r.sets.open4, r.sets.closed4}, {unix.NFPROTO_IPV6, r.sets.open6, r.sets.closed6}} {
		r.add(chain, address(destination, f.family), in(f.open, false), accept())
		r.add(chain, address(destination, f.family), in(f.closed, false), refuse())
	}
	r.add(chain, accept())
}

// output refuses the host's own packets for Machines that are not attached.
func (r *ruleset) output() {
	chain := r.chain("output", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityFilter)
	r.add(chain, r.toOutside, in4(destination, r.gateway.pool, expr.CmpOpEq), refuse())
	r.add(chain, r.toOutside, r.ownIPv6(destination), refuse())
}

// postrouting masquerades packets of Machines to the internet.
func (r *ruleset) postrouting() {
	chain := r.chain("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	pool := r.gateway.pool
	r.add(chain, r.toOther, in4(source, pool, expr.CmpOpEq), in4(destination, pool, expr.CmpOpNeq), masquerade())
	r.add(chain, r.toOther, r.ownIPv6(source), private6(destination, expr.CmpOpNeq), masquerade())
}
