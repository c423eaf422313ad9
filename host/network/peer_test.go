package network

import (
	"fmt"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/hangar-platform/hangar"
)

// The address of a peer never belongs to a Machine, nor to another peer, and has the bits of its
// network and host.
func TestPeersAreNoMachines(t *testing.T) {
	number := rapid.OneOf(rapid.Uint64Range(0, hangar.MaxPeerNumber-1), rapid.SampledFrom([]uint64{0, 255, 256, hangar.MaxPeerNumber - 1}))
	machines := rapid.OneOf(rapid.Uint64Range(0, MaxNumber-1), rapid.SampledFrom([]uint64{0, 10, MaxNumber - 1}))
	rapid.Check(t, func(t *rapid.T) {
		network := hangar.NetworkID(rapid.Uint32().Draw(t, "network"))
		host := hangar.HostID(fmt.Sprintf("%08x", rapid.Uint32().Draw(t, "host")))
		n := number.Draw(t, "peer")
		peer := hangar.Peer{Address: hangar.PeerAddress(network, host, n)}
		if networkOf(peer.Address) != network || hangar.NetworkPrefix(peer.Address) != hangar.NetworkPrefix(Address(network, host, 0)) {
			t.Fatalf("%s is not of network %d", peer.Address, network)
		}
		if machine := machinePrefix(Address(network, host, machines.Draw(t, "machine"))); machine.Overlaps(peer.Prefix()) {
			t.Fatalf("%s is in the machine's %s", peer.Prefix(), machine)
		}
		for _, fixed := range []netip.Addr{peer.Nameserver(), hangar.ServicesAddress, HostAddress(host)} {
			if peer.Prefix().Contains(fixed) {
				t.Fatalf("%s holds %s", peer.Prefix(), fixed)
			}
		}
		other := hangar.Peer{Address: hangar.PeerAddress(network, host, number.Draw(t, "other"))}
		if other.Address != peer.Address && other.Prefix().Overlaps(peer.Prefix()) {
			t.Fatalf("%s overlaps %s", other.Prefix(), peer.Prefix())
		}
		if hangar.PeerAddress(network, host, n) == hangar.PeerAddress(network+1, host, n) {
			t.Fatalf("%s is of two networks", peer.Address)
		}
	})
}
