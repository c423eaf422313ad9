package mesh_test

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/network"
)

// Machines of one network reach each other on any hosts, under their own addresses, and those of
// different networks do not; nor do hosts reach other hosts' Machines.
func TestMatrix(t *testing.T) {
	c := newCluster(t, 3)
	type at struct {
		host    int
		network hangar.NetworkID
		number  uint64
	}
	addresses := map[at]netip.AddrPort{}
	for _, m := range []at{{0, 5, 1}, {0, 6, 2}, {1, 5, 1}, {1, 6, 3}, {2, 5, 7}, {2, 7, 8}} {
		addresses[m] = c.machine(c.hosts[m.host], m.network, m.number)
	}
	for from, own := range addresses {
		for to, address := range addresses {
			switch {
			case from == to:
			case from.network == to.network:
				c.hosts[from.host].reaches(from.number, address, own.Addr())
			default:
				c.hosts[from.host].misses(from.number, address)
			}
		}
		for host := range c.hosts {
			if host != from.host {
				c.hosts[host].misses(0, own)
			}
		}
	}
	// Networks that only one end has are not routed.
	var routes []string
	call(c.hosts[2], "Routes", struct{}{}, &routes)
	var want []string
	for _, s := range c.hosts[:2] {
		want = append(want, netip.PrefixFrom(network.HostAddress(s.ID), 128).String(), network.Prefix(5, s.ID).String())
	}
	slices.Sort(want)
	if !slices.Equal(routes, want) {
		t.Errorf("host %s routes %q, want %q", c.hosts[2].ID, routes, want)
	}
	var series int
	if call(c.hosts[2], "Metrics", struct{}{}, &series); series != 6 {
		t.Errorf("%d series, want three of each of two hosts", series)
	}
}

// A network that is at a host no longer is routed there no longer, and again once it is back.
func TestRoutesFollow(t *testing.T) {
	c := newCluster(t, 2)
	a, b := c.hosts[0], c.hosts[1]
	one, other := c.machine(a, 5, 1), c.machine(b, 5, 1)
	a.reaches(1, other, one.Addr())
	rows := c.Rows
	c.Rows = rows[:1]
	c.publish()
	awaitRoutes(t, a, network.Prefix(5, b.ID), false)
	awaitRoutes(t, b, network.Prefix(5, a.ID), false)
	a.misses(1, other)
	c.Rows = rows
	c.publish()
	a.reaches(1, other, one.Addr())
	b.reaches(1, one, other.Addr())
}

func awaitRoutes(t *testing.T, s *server, p netip.Prefix, there bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		var routes []string
		call(s, "Routes", struct{}{}, &routes)
		if slices.Contains(routes, p.String()) == there {
			return
		}
	}
	t.Fatalf("host %s: that %s is routed stays %t", s.ID, p, !there)
}

// Packets of a Machine, or a host, under an address that is not its own arrive nowhere.
func TestForgedSources(t *testing.T) {
	c := newCluster(t, 3)
	a, b, third := c.hosts[0], c.hosts[1], c.hosts[2]
	own, sibling, foreign := c.machine(a, 5, 1), c.machine(a, 5, 2), c.machine(a, 6, 3)
	victim, neighbour, elsewhere := c.machine(b, 5, 1), c.machine(b, 6, 2), c.machine(third, 5, 1)
	a.reaches(1, victim, own.Addr())
	a.reaches(3, neighbour, foreign.Addr())
	third.reaches(1, victim, elsewhere.Addr())
	const port = 9999
	sources := []netip.Addr{
		foreign.Addr(), victim.Addr(), neighbour.Addr(), elsewhere.Addr(), network.HostAddress(a.ID), network.HostAddress(b.ID), network.HostAddress(third.ID),
		hangar.ServicesAddress, netip.MustParseAddr("fdaa:0:5:0:1::1"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("fe80::1"), network.Address(5, b.ID, 77),
	}
	box := netip.AddrPortFrom(victim.Addr(), port)
	call(b, "Box", Packet{By: 1, To: box}, &struct{}{})
	for name, by := range map[string]uint64{"a Machine": 1, "a host": 0} {
		more := []netip.Addr{}
		if by != 0 { // a host has all addresses of its Machines
			more = append(more, sibling.Addr())
		}
		for _, source := range append(more, sources...) {
			call(a, "Forge", Packet{by, netip.AddrPortFrom(source, 4000), box, name + " as " + source.String()}, &struct{}{})
		}
		call(a, "Forge", Packet{by, netip.AddrPortFrom(own.Addr(), 4000), box, "genuine"}, &struct{}{})
		call(a, "Forge", Packet{by, netip.AddrPortFrom(own.Addr(), 4000), box, "last"}, &struct{}{})
		var got []string
		call(b, "Open", box, &got)
		if want := []string{"genuine from " + own.Addr().String()}; !slices.Equal(got, want) {
			t.Errorf("by %s arrived %q, want %q", name, got, want)
		}
	}
}

// Through the mesh nothing is reached but Machines and peers: neither the host's own address with
// the platform's services, nor Apps that are served there, nor a third host.
func TestOnlyMachinesAreBehindTheMesh(t *testing.T) {
	c := newCluster(t, 2)
	a, b := c.hosts[0], c.hosts[1]
	own, other := c.machine(a, 5, 1), c.machine(b, 5, 1)
	a.reaches(1, other, own.Addr())
	app := hangar.FlycastAddress(5, 1)
	a.misses(1, netip.AddrPortFrom(app, probePort))
	for _, s := range c.hosts {
		call(s, "Flycast", app, &struct{}{})
		// Each host serves its own Machines there.
		s.reaches(1, netip.AddrPortFrom(app, probePort), map[*server]netip.AddrPort{a: own, b: other}[s].Addr())
	}
	call(b, "Box", Packet{By: 1, To: netip.AddrPortFrom(other.Addr(), 9999)}, &struct{}{})
	for _, to := range []netip.AddrPort{
		netip.AddrPortFrom(network.HostAddress(b.ID), hangar.ServicesDNSPort), netip.AddrPortFrom(network.HostAddress(b.ID), 9999),
	} {
		call(b, "Box", Packet{To: to}, &struct{}{})
		call(a, "Forge", Packet{0, netip.AddrPortFrom(own.Addr(), 4000), to, "through the mesh"}, &struct{}{})
		call(a, "Forge", Packet{0, netip.AddrPortFrom(network.HostAddress(a.ID), 4000), to, "through the mesh"}, &struct{}{})
		// It comes by the same way, hence after them.
		call(a, "Forge", Packet{0, netip.AddrPortFrom(own.Addr(), 4000), netip.AddrPortFrom(other.Addr(), 9999), "last"}, &struct{}{})
		var got []string
		call(b, "Open", netip.AddrPortFrom(other.Addr(), 9999), &got)
		call(b, "Forge", Packet{1, netip.AddrPortFrom(other.Addr(), 4000), netip.AddrPortFrom(network.HostAddress(b.ID), hangar.ServicesDNSPort), "last"}, &struct{}{})
		if to.Port() == hangar.ServicesDNSPort { // a Machine of the host does reach it
			if call(b, "Open", to, &got); len(got) > 0 {
				t.Errorf("at %s arrived %q", to, got)
			}
		}
	}
	a.misses(0, netip.AddrPortFrom(network.HostAddress(b.ID), hangar.ServicesDNSPort))
}

// A user's peer of one host reaches the Machines of its network at another, and they reach it.
func TestPeersReachOtherHosts(t *testing.T) {
	c := newCluster(t, 2)
	a, b := c.hosts[0], c.hosts[1]
	other, foreign := c.machine(b, 5, 1), c.machine(b, 6, 2)
	c.machine(a, 6, 2)
	var peer hangar.Peer
	call(a, "OpenPeers", hangar.NetworkID(5), &peer)
	c.Peers = []hangar.Peer{peer}
	c.publish()
	a.reaches(computer, other, peer.Address)
	a.misses(computer, foreign)
	c.Peers = nil
	c.publish()
	awaitRoutes(t, b, network.Prefix(5, a.ID), false)
	a.misses(computer, other)
}

// The SSH port of a Machine leads Machines and peers of its network at another host to the Machine's host, which
// knows whom it is for, and no others.
func TestSSHAtAnotherHost(t *testing.T) {
	c := newCluster(t, 2)
	a, b := c.hosts[0], c.hosts[1]
	own, other := c.machine(a, 5, 1), c.machine(b, 5, 2)
	c.machine(a, 6, 3)
	foreign := c.machine(b, 6, 4)
	var peer hangar.Peer
	call(a, "OpenPeers", hangar.NetworkID(5), &peer)
	c.Peers = []hangar.Peer{peer}
	c.publish()
	for _, s := range c.hosts { // what answers has to be the other host
		call(s, "ServeSSH", struct{}{}, &struct{}{})
	}
	a.reaches(1, other, own.Addr())
	a.reaches(3, foreign, network.Address(6, a.ID, 3))
	a.reaches(computer, other, peer.Address)
	ssh := func(m netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(m.Addr(), hangar.MachineSSHPort) }
	for from, address := range map[uint64]netip.Addr{1: own.Addr(), computer: peer.Address} {
		var got string
		err := a.client.Call("Host.CallSSH", Probe{From: from, To: ssh(other), Wait: patience}, &got)
		if want := fmt.Sprintf("%014x called by %s", 2, address); err != nil || got != want {
			t.Errorf("from %s: %q, %v, want %q", address, got, err, want)
		}
	}
	for what, to := range map[string]netip.AddrPort{
		"a Machine of another network":     ssh(foreign),
		"no Machine":                       ssh(netip.AddrPortFrom(network.Address(5, b.ID, 77), 0)),
		"the other host":                   netip.AddrPortFrom(network.HostAddress(b.ID), hangar.ServicesSSHPort),
		"the other host as if it were one": ssh(netip.AddrPortFrom(network.HostAddress(b.ID), 0)),
	} {
		for _, from := range []uint64{0, 1, computer} {
			var got string
			if err := a.client.Call("Host.CallSSH", Probe{From: from, To: to, Wait: shortly}, &got); err == nil && got != "" {
				t.Errorf("%d reaches %s: %q", from, what, got)
			}
		}
	}
}

// Packets of 1420 bytes pass whole; of larger ones the sender learns how large they may be.
func TestMTU(t *testing.T) {
	c := newCluster(t, 2)
	a, b := c.hosts[0], c.hosts[1]
	own, other := c.machine(a, 5, 1), c.machine(b, 5, 1)
	a.reaches(1, other, own.Addr())
	call(a, "Enlarge", uint64(1), &struct{}{})
	box := netip.AddrPortFrom(other.Addr(), 9999)
	call(b, "Box", Packet{By: 1, To: box}, &struct{}{})
	call(a, "SendSized", Sized{1, box, network.MTU}, &struct{}{})
	call(a, "Forge", Packet{1, own, box, "last"}, &struct{}{})
	var got []string
	call(b, "Open", box, &got)
	if len(got) == 0 || !strings.HasPrefix(got[0], strings.Repeat("x", network.MTU-48)+" from ") {
		t.Errorf("%d packets arrived whole", len(got))
	}
	err := a.client.Call("Host.SendSized", Sized{1, box, network.MTU + 1}, &struct{}{})
	if want := fmt.Sprintf("MTU %d", network.MTU); err == nil || err.Error() != want {
		t.Errorf("a packet that is too large: %v, want %s", err, want)
	}
}

// After a crash a host is reached again as soon as it runs, under the same key.
func TestHostComesBack(t *testing.T) {
	c := newCluster(t, 2)
	a, b := c.hosts[0], c.hosts[1]
	own, other := c.machine(a, 5, 1), c.machine(b, 5, 1)
	a.reaches(1, other, own.Addr())
	before := b.Host
	b.kill()
	a.misses(1, other)
	b.start()
	if b.MeshKey != before.MeshKey || b.MeshAddress != before.MeshAddress {
		t.Errorf("the host was %+v and is %+v", before, b.Host)
	}
	var address netip.Addr
	call(b, "Attach", Place{5, 1}, &address)
	call(b, "Set", c.World, &struct{}{}) // the other host learns nothing, as nothing has changed
	a.reaches(1, other, own.Addr())
	b.reaches(1, own, other.Addr())
	info, err := os.Stat(keyPath(b.dir))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file of the key: %v, %v", info, err)
	}
	var seen map[hangar.HostID]bool
	if call(a, "Seen", struct{}{}, &seen); !seen[b.ID] || len(seen) != 1 {
		t.Errorf("host %s has heard of %v", a.ID, seen)
	}
}

// A host with another key is reached by that, and what has the old one no longer is.
func TestKeyChange(t *testing.T) {
	c := newCluster(t, 2)
	a, b := c.hosts[0], c.hosts[1]
	own, other := c.machine(a, 5, 1), c.machine(b, 5, 1)
	a.reaches(1, other, own.Addr())
	before := b.MeshKey
	b.kill()
	must(os.Remove(keyPath(b.dir)))
	b.start()
	if b.MeshKey == before {
		t.Fatal("the key is the same")
	}
	var address netip.Addr
	call(b, "Attach", Place{5, 1}, &address)
	call(b, "Set", c.World, &struct{}{})
	a.misses(1, other)
	c.publish()
	a.reaches(1, other, own.Addr())
}

// A host that is removed is cut off.
func TestRemovedHost(t *testing.T) {
	c := newCluster(t, 2)
	a, b := c.hosts[0], c.hosts[1]
	own, other := c.machine(a, 5, 1), c.machine(b, 5, 1)
	a.reaches(1, other, own.Addr())
	call(a, "Set", World{Hosts: []hangar.Host{a.Host}, Rows: c.Rows}, &struct{}{})
	awaitRoutes(t, a, network.Prefix(5, b.ID), false)
	b.misses(1, own)
	a.misses(1, other)
	c.publish()
	b.reaches(1, own, other.Addr())
}

// A device that is deleted by mistake is created again, with all its routes and peers.
func TestDeviceIsDeleted(t *testing.T) {
	c := newCluster(t, 2)
	a, b := c.hosts[0], c.hosts[1]
	own, other := c.machine(a, 5, 1), c.machine(b, 5, 1)
	a.reaches(1, other, own.Addr())
	call(a, "DeleteDevice", struct{}{}, &struct{}{})
	a.reaches(1, other, own.Addr())
	b.reaches(1, own, other.Addr())
}

// Two hosts with one key, as after a data directory was copied, cannot take each other's packets: the
// second is left out.
func TestOneKeyOfTwoHosts(t *testing.T) {
	c := newCluster(t, 3)
	a, b, third := c.hosts[0], c.hosts[1], c.hosts[2]
	own, other, left := c.machine(a, 5, 1), c.machine(b, 5, 1), c.machine(third, 5, 1)
	c.Hosts = []hangar.Host{a.Host, b.Host, third.Host}
	c.Hosts[2].MeshKey = b.MeshKey
	call(a, "Set", c.World, &struct{}{})
	awaitRoutes(t, a, network.Prefix(5, third.ID), false)
	a.reaches(1, other, own.Addr())
	a.misses(1, left)
}
