package mesh_test

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"

	"github.com/hangar-platform/hangar"
)

// Tunnel is one end of a tunnel by WireGuard between two hosts, beside the mesh.
type Tunnel struct {
	Private  string
	Public   hangar.PeerKey // of the other end, like what follows but Port and Address
	Endpoint netip.AddrPort
	Port     uint16
	Address  netip.Prefix
}

// Tunnel makes one.
func (h *Host) Tunnel(in Tunnel, _ *struct{}) error {
	wire, err := tun.CreateTUN("plain", device.DefaultMTU)
	if err != nil {
		return err
	}
	d := device.NewDevice(wire, conn.NewDefaultBind(), device.NewLogger(device.LogLevelSilent, ""))
	h.t.Cleanup(d.Close)
	key := func(text string) string {
		raw, err := base64.StdEncoding.DecodeString(text)
		must(err)
		return hex.EncodeToString(raw)
	}
	if err := d.IpcSet(fmt.Sprintf("private_key=%s\nlisten_port=%d\npublic_key=%s\nendpoint=%s\nallowed_ip=%s\n",
		key(in.Private), in.Port, key(string(in.Public)), in.Endpoint, in.Address.Masked())); err != nil {
		return err
	}
	link, err := netlink.LinkByName("plain")
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: in.Address.Addr().AsSlice(), Mask: net.CIDRMask(in.Address.Bits(), 32)}}); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	return d.Up()
}

// tunnel joins two hosts by WireGuard, and returns the address of the second.
func tunnel(a, b *server) netip.Addr {
	const port = 51999
	var ends [2]Tunnel
	var public [2]hangar.PeerKey
	for i := range ends {
		ends[i].Private, public[i] = newKeys()
	}
	for i, s := range []*server{a, b} {
		other := []*server{b, a}[i]
		ends[i].Public, ends[i].Port = public[1-i], port
		ends[i].Endpoint = netip.AddrPortFrom(netip.MustParseAddrPort(other.MeshAddress).Addr(), port)
		ends[i].Address = netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(1 + i)}), 24)
		call(s, "Tunnel", ends[i], &struct{}{})
	}
	return ends[1].Address.Addr()
}

// BenchmarkThroughput compares one TCP connection between Machines of two hosts with one by a plain tunnel of the
// same WireGuard, and with one between the hosts, which are on one server.
func BenchmarkThroughput(b *testing.B) {
	c := newCluster(b, 2)
	from, to := c.hosts[0], c.hosts[1]
	own, other := c.machine(from, 5, 1), c.machine(to, 5, 1)
	from.reaches(1, other, own.Addr())
	port := uint16(7000)
	for name, way := range map[string]struct {
		number uint64
		at     netip.Addr
	}{"mesh": {1, other.Addr()}, "wireguard": {0, tunnel(from, to)}, "plain": {0, netip.MustParseAddrPort(to.MeshAddress).Addr()}} {
		b.Run(name, func(b *testing.B) {
			port++ // a run's stays open
			at := netip.AddrPortFrom(way.at, port)
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
