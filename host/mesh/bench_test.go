package mesh_test

import (
	"net/netip"
	"testing"

	"github.com/hangar-platform/hangar"
)

// BenchmarkThroughput compares one TCP connection between Machines of two hosts with one between the hosts,
// which are on one server.
func BenchmarkThroughput(b *testing.B) {
	c := newCluster(b, 2)
	from, to := c.hosts[0], c.hosts[1]
	own, other := c.machine(from, 5, 1), c.machine(to, 5, 1)
	from.reaches(1, other, own.Addr())
	for name, way := range map[string]struct {
		number uint64
		at     netip.Addr
	}{"mesh": {1, other.Addr()}, "plain": {0, netip.MustParseAddrPort(to.MeshAddress).Addr()}} {
		b.Run(name, func(b *testing.B) {
			at := netip.AddrPortFrom(way.at, 7000)
			call(to, "Drain", Packet{By: way.number, To: at}, &struct{}{})
			const size = 64 << 20
			b.SetBytes(size)
			for b.Loop() {
				call(from, "Pour", Sized{way.number, at, size}, &struct{}{})
			}
		})
	}
}

// BenchmarkFirstOfNetwork is how long after both hosts have learned of the first Machines of a network
// one of them is answered by the other, by TCP and by UDP.
func BenchmarkFirstOfNetwork(b *testing.B) {
	c := newCluster(b, 2)
	from, to := c.hosts[0], c.hosts[1]
	b.ResetTimer()
	for i := range b.N {
		b.StopTimer()
		id, number := hangar.NetworkID(5+i), uint64(1+i)
		own, other := c.attach(from, id, number), c.attach(to, id, number)
		b.StartTimer()
		c.publish()
		from.reaches(number, other, own.Addr())
	}
}
