package mesh_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/netip"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/mesh"
	"github.com/hangar-platform/hangar/host/network"
	"github.com/hangar-platform/hangar/host/wireguard"
	"github.com/hangar-platform/hangar/host/wireguard/peertest"
	"github.com/hangar-platform/hangar/internal/ownhost"
)

// probePort is where all Machines serve, by TCP and UDP.
const probePort = 9000

// Host is one host, with its private network and its part of the mesh. Its exported methods are
// called by the process of the tests.
type Host struct {
	t        *testing.T
	n        *network.Network
	mesh     *mesh.Mesh
	peers    *wireguard.Gateway
	computer *peertest.Peer
	hosts    *feed[[]hangar.Host]
	all      *feed[[]hangar.Peer]
	rows     map[hangar.MachineID]*hangar.MachineRow
	machines map[uint64]network.Attachment
	boxes    map[netip.AddrPort]*net.UDPConn
	self     hangar.Host
}

// feed yields what a test says.
type feed[T any] struct {
	mu      sync.Mutex
	now     T
	changed chan struct{}
}

func newFeed[T any]() *feed[T] { return &feed[T]{changed: make(chan struct{})} }

func (f *feed[T]) set(now T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = now
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *feed[T]) watch(ctx context.Context) iter.Seq[T] {
	return func(yield func(T) bool) {
		for {
			f.mu.Lock()
			now, changed := f.now, f.changed
			f.mu.Unlock()
			if !yield(now) {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}
}

// watchPeers yields the peers as control does.
func (h *Host) watchPeers(ctx context.Context) iter.Seq2[[]hangar.Peer, error] {
	return func(yield func([]hangar.Peer, error) bool) {
		for peers := range h.all.watch(ctx) {
			if !yield(peers, nil) {
				return
			}
		}
	}
}

// watchHosts yields the hosts as control does.
func (h *Host) watchHosts(ctx context.Context) iter.Seq2[hangar.HostChange, error] {
	return func(yield func(hangar.HostChange, error) bool) {
		seen := map[hangar.HostID]bool{}
		for hosts := range h.hosts.watch(ctx) {
			now := map[hangar.HostID]bool{}
			for _, host := range hosts {
				now[host.ID] = true
				if !yield(hangar.HostChange{ID: host.ID, Host: &host}, nil) {
					return
				}
			}
			for id := range seen {
				if !now[id] && !yield(hangar.HostChange{ID: id}, nil) {
					return
				}
			}
			if seen = now; !yield(hangar.HostChange{Synced: true}, nil) {
				return
			}
		}
	}
}

type (
	peerFeed struct{ *Host }
	hostFeed struct{ *Host }
)

func (f peerFeed) WatchPeers(ctx context.Context) iter.Seq2[[]hangar.Peer, error] {
	return f.watchPeers(ctx)
}

func (f hostFeed) WatchHosts(ctx context.Context) iter.Seq2[hangar.HostChange, error] {
	return f.watchHosts(ctx)
}

// serveHost is a host until the process of the tests ends it.
func serveHost(t *testing.T, socket string) {
	h := &Host{
		t: t, hosts: newFeed[[]hangar.Host](), all: newFeed[[]hangar.Peer](),
		rows: map[hangar.MachineID]*hangar.MachineRow{}, machines: map[uint64]network.Attachment{}, boxes: map[netip.AddrPort]*net.UDPConn{},
	}
	server := rpc.NewServer()
	must(server.Register(h))
	c, err := net.Dial("unix", socket)
	must(err)
	server.ServeCodec(jsonrpc.NewServerCodec(c))
}

// Start is what a host needs to start.
type Start struct {
	ID      hangar.HostID
	Dir     string
	Address netip.Prefix // of its device uplink
}

const instance = "mesh"

// Start opens the private network and the mesh.
func (h *Host) Start(in Start, out *hangar.Host) error {
	ctx := h.t.Context()
	uplink, err := netlink.LinkByName("uplink")
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(uplink, &netlink.Addr{IPNet: &net.IPNet{IP: in.Address.Addr().AsSlice(), Mask: net.CIDRMask(in.Address.Bits(), 32)}}); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(uplink); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("host", in.ID)
	h.n = network.New(network.Options{Instance: instance, Host: in.ID, Log: log, RunDir: filepath.Join(in.Dir, "netns")})
	if err := h.n.Open(ctx); err != nil {
		return err
	}
	h.t.Cleanup(func() { must(errors.Join(h.n.Remove(context.WithoutCancel(h.t.Context())), h.n.Close())) })
	h.mesh = mesh.New(mesh.Options{
		Dir: in.Dir, Device: network.MeshDevice(instance), Host: in.ID, Source: h.n.HostAddr6(),
		Peers: peerFeed{h}, Log: log, Now: time.Now,
	})
	if err := h.mesh.Open(ctx); err != nil {
		return err
	}
	h.t.Cleanup(func() { must(h.mesh.Close()) })
	h.run("mesh", func(ctx context.Context) error { return h.mesh.Run(ctx, hostFeed{h}) })
	*out = hangar.Host{
		ID: in.ID, MeshKey: h.mesh.Key(), MeshAddress: netip.AddrPortFrom(in.Address.Addr(), h.mesh.ListenPort()).String(),
	}
	h.self = *out
	return nil
}

// run runs f until the test ends.
func (h *Host) run(what string, f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(h.t.Context()))
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	h.t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			h.t.Errorf("%s ended: %v", what, err)
		}
	})
}

// World is what the cluster state has.
type World struct {
	Hosts []hangar.Host
	Peers []hangar.Peer
	Rows  []hangar.MachineRow
}

// Set is a change of the cluster state, of which the host learns.
func (h *Host) Set(in World, _ *struct{}) error {
	h.hosts.set(in.Hosts)
	h.all.set(in.Peers)
	rows := map[hangar.MachineID]*hangar.MachineRow{}
	for _, row := range in.Rows {
		rows[row.Machine.ID] = &row
		h.mesh.Observe(h.rows[row.Machine.ID], &row)
	}
	for id, old := range h.rows {
		if rows[id] == nil {
			h.mesh.Observe(old, nil)
		}
	}
	h.rows = rows
	return nil
}

// Place is a number of a Machine and its network.
type Place struct {
	Network hangar.NetworkID
	Number  uint64
}

// Attach makes what is a Machine to others: it serves at probePort.
func (h *Host) Attach(in Place, out *netip.Addr) error {
	a, err := h.n.Attach(h.t.Context(), network.Endpoint{
		ID: hangar.MachineID(fmt.Sprintf("%014x", in.Number)), IPv6: network.Address(in.Network, h.self.ID, in.Number), Number: in.Number,
	})
	if err != nil {
		return err
	}
	h.machines[in.Number], *out = a, a.IPv6
	return h.within(in.Number, func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		c.DelTable(&nftables.Table{Name: "hangar", Family: nftables.TableFamilyNetdev})
		if err := c.Flush(); err != nil {
			return err
		}
		return h.serve(netip.AddrPortFrom(netip.IPv6Unspecified(), probePort))
	})
}

// serve sends callers their own addresses, by TCP and UDP.
func (h *Host) serve(at netip.AddrPort) error {
	free := net.ListenConfig{Control: func(_, _ string, c syscallConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1) }), err)
	}}
	l, err := free.Listen(h.t.Context(), "tcp6", at.String())
	if err != nil {
		return err
	}
	ownhost.Serve(h.t, l)
	p, err := free.ListenPacket(h.t.Context(), "udp6", at.String())
	if err != nil {
		return err
	}
	echo(h.t, p.(*net.UDPConn))
	return nil
}

func echo(t *testing.T, c *net.UDPConn) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 2048)
		for {
			_, from, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort([]byte(from.String()), from)
		}
	}()
	t.Cleanup(func() {
		_ = c.Close()
		<-done
	})
}

// within runs f in the namespace of a Machine; 0: of the host.
func (h *Host) within(number uint64, f func() error) error {
	if number == 0 {
		return f()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocks: the thread goes with the goroutine
		ns, err := os.Open(h.machines[number].NetNS)
		if err == nil {
			err = errors.Join(unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET), ns.Close())
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// Probe is a call of a Machine, or with the number 0 of the host.
type Probe struct {
	From     uint64
	Protocol string // tcp or udp
	To       netip.AddrPort
	Wait     time.Duration
}

// Probe returns by which address the caller is known at the other end, or an error.
func (h *Host) Probe(in Probe, out *netip.Addr) error {
	ctx, cancel := context.WithTimeout(h.t.Context(), in.Wait)
	defer cancel()
	dial := (&net.Dialer{}).DialContext
	if in.From == computer {
		dial = h.computer.DialContext
	}
	return h.within(in.From%computer, func() (err error) {
		*out, err = ask(ctx, dial, in.Protocol, in.To)
		return err
	})
}

// computer stands for the peer of a host in the place of the number of a Machine.
const computer = 1 << 20

func ask(ctx context.Context, dial func(ctx context.Context, network, address string) (net.Conn, error), protocol string, to netip.AddrPort) (netip.Addr, error) {
	c, err := dial(ctx, protocol, to.String())
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	if protocol == "udp" {
		if _, err := c.Write([]byte("who am I?")); err != nil {
			return netip.Addr{}, err
		}
	}
	if err := c.SetReadDeadline(deadline); err != nil {
		return netip.Addr{}, err
	}
	b := make([]byte, 100)
	size, err := c.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		return netip.Addr{}, err
	}
	from, err := netip.ParseAddrPort(string(b[:size]))
	return from.Addr(), err
}

// Flycast has the host serve an App at a private address.
func (h *Host) Flycast(at netip.Addr, _ *struct{}) error {
	if err := h.n.Ingress(h.t.Context(), []netip.Addr{at}); err != nil {
		return err
	}
	return h.serve(netip.AddrPortFrom(at, probePort))
}

// ServeSSH has the host tell who connects to the SSH port of a Machine whose that is, and who is called.
func (h *Host) ServeSSH(_ struct{}, _ *struct{}) error {
	l, err := net.Listen("tcp6", netip.AddrPortFrom(h.n.HostAddr6(), hangar.ServicesSSHPort).String())
	if err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if id, ok := h.n.Called(c); ok {
				_, _ = fmt.Fprintf(c, "%s called by %s", id, c.RemoteAddr().(*net.TCPAddr).IP)
			}
			_ = c.Close()
		}
	}()
	h.t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return nil
}

// CallSSH returns what a caller of an address by TCP hears.
func (h *Host) CallSSH(in Probe, out *string) error {
	ctx, cancel := context.WithTimeout(h.t.Context(), in.Wait)
	defer cancel()
	dial := (&net.Dialer{}).DialContext
	if in.From == computer {
		dial = h.computer.DialContext
	}
	return h.within(in.From%computer, func() error {
		c, err := dial(ctx, "tcp", in.To.String())
		if err != nil {
			return err
		}
		defer c.Close()
		deadline, _ := ctx.Deadline()
		if err := c.SetReadDeadline(deadline); err != nil {
			return err
		}
		text, err := io.ReadAll(c)
		*out = string(text)
		return err
	})
}

// Box opens a mailbox of a Machine or of the host.
func (h *Host) Box(in Packet, _ *struct{}) error {
	return h.within(in.By, func() error {
		c, err := net.ListenUDP("udp6", net.UDPAddrFromAddrPort(in.To))
		if err != nil {
			return err
		}
		h.t.Cleanup(func() { _ = c.Close() })
		h.boxes[in.To] = c
		return nil
	})
}

// Open empties a mailbox up to the datagram that says last, and returns what came before.
func (h *Host) Open(at netip.AddrPort, out *[]string) error {
	c := h.boxes[at]
	must(c.SetReadDeadline(time.Now().Add(patience)))
	b := make([]byte, 2048)
	for {
		size, from, err := c.ReadFromUDPAddrPort(b)
		if err != nil {
			return err
		}
		if string(b[:size]) == "last" {
			return nil
		}
		*out = append(*out, fmt.Sprintf("%s from %s", b[:size], from.Addr()))
	}
}

// Packet is a datagram under any address.
type Packet struct {
	By       uint64 // whose it is in truth; 0: that of the host, put into the mesh as if it were a Machine's
	From, To netip.AddrPort
	Text     string
}

// Forge sends a packet.
func (h *Host) Forge(in Packet, _ *struct{}) error {
	return h.within(in.By, func() error {
		name, to := network.MeshDevice(instance), []byte(nil)
		if in.By != 0 {
			name, to = "eth0", []byte{0x02, 0x68, 0, 0, 0, 0}
		}
		device, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		at := &unix.SockaddrLinklayer{Protocol: 0xdd86, Ifindex: device.Index, Halen: uint8(len(to))} // ETH_P_IPV6 in network order
		copy(at.Addr[:], to)
		return unix.Sendto(fd, datagram(in), 0, at)
	})
}

// datagram is an IPv6 packet.
func datagram(in Packet) []byte {
	body := binary.BigEndian.AppendUint16(nil, in.From.Port())
	body = binary.BigEndian.AppendUint16(body, in.To.Port())
	body = binary.BigEndian.AppendUint16(body, uint16(8+len(in.Text)))
	body = append(append(body, 0, 0), in.Text...)
	sum := uint32(0)
	for words := slices.Concat(in.From.Addr().AsSlice(), in.To.Addr().AsSlice(), []byte{0, unix.IPPROTO_UDP, 0, byte(len(body))}, body, make([]byte, len(body)%2)); len(words) > 0; words = words[2:] {
		sum += uint32(binary.BigEndian.Uint16(words))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(body[6:], ^uint16(sum))
	return slices.Concat([]byte{0x60, 0, 0, 0, 0, byte(len(body)), unix.IPPROTO_UDP, 64}, in.From.Addr().AsSlice(), in.To.Addr().AsSlice(), body)
}

// Sized sends a datagram, in a packet of so many bytes that must not be fragmented.
type Sized struct {
	From uint64
	To   netip.AddrPort
	Size int
}

// SendSized fails with the MTU of the way once that is known to be too small.
func (h *Host) SendSized(in Sized, _ *struct{}) error {
	return h.within(in.From, func() error {
		c, err := net.DialUDP("udp6", nil, net.UDPAddrFromAddrPort(in.To))
		if err != nil {
			return err
		}
		defer c.Close()
		raw, err := c.SyscallConn()
		if err != nil {
			return err
		}
		var mtu int
		set := func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1) }
		if err := errors.Join(raw.Control(set), err); err != nil {
			return err
		}
		for n := 0; n < 100 || in.Size > network.MTU && n < 6000; n++ { // the answer that it is too large takes some time
			if _, err = c.Write([]byte(strings.Repeat("x", in.Size-48))); err != nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if !errors.Is(err, unix.EMSGSIZE) {
			return err
		}
		get := func(fd uintptr) { mtu, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU) }
		if err := errors.Join(raw.Control(get), err); err != nil {
			return err
		}
		return fmt.Errorf("MTU %d", mtu)
	})
}

// Enlarge lets a Machine send packets that are too large for the mesh.
func (h *Host) Enlarge(number uint64, _ *struct{}) error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Alias, "machine ") {
			if err := netlink.LinkSetMTU(l, 1500); err != nil {
				return err
			}
		}
	}
	return h.within(number, func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(l, 1500)
	})
}

// OpenPeers lets a computer in by WireGuard, as a user does.
func (h *Host) OpenPeers(id hangar.NetworkID, out *hangar.Peer) error {
	h.peers = wireguard.New(wireguard.Options{
		Dir: h.t.TempDir(), Device: network.PeerDevice(instance), Host: h.self.ID, Endpoint: "127.0.0.1",
		Source: h.n.HostAddr6(), Members: h.n, Feed: peerFeed{h}, Log: slog.New(slog.DiscardHandler),
	})
	h.run("gateway", h.peers.Run)
	g, err := h.peers.OpenGateway(h.t.Context())
	if err != nil {
		return err
	}
	private, public := newKeys()
	*out = hangar.Peer{Name: "computer", NetworkID: id, Host: h.self.ID, Address: hangar.PeerAddress(id, h.self.ID, 1), PublicKey: public}
	h.computer = peertest.Start(h.t, peertest.Config{
		PrivateKey: private, PublicKey: string(g.GatewayKey), Address: out.Prefix(), AllowedIPs: hangar.NetworkPrefix(out.Address), DNS: out.Nameserver(),
		Endpoint: netip.AddrPortFrom(netip.MustParseAddr(g.EndpointIP), g.EndpointPort), MTU: wireguard.MTU, Keepalive: 15,
	})
	return nil
}

// Routes are what is routed to the mesh.
func (h *Host) Routes(_ struct{}, out *[]string) error {
	l, err := netlink.LinkByName(network.MeshDevice(instance))
	if err != nil {
		return err
	}
	routes, err := netlink.RouteList(l, unix.AF_INET6)
	for _, r := range routes {
		if r.Dst != nil && r.Dst.IP[0] == 0xfd {
			*out = append(*out, r.Dst.String())
		}
	}
	slices.Sort(*out)
	return err
}

// Seen are the hosts that this one has heard of.
func (h *Host) Seen(_ struct{}, out *map[hangar.HostID]bool) error {
	*out = map[hangar.HostID]bool{}
	for id, at := range h.mesh.Handshakes() {
		(*out)[id] = !at.IsZero()
	}
	return nil
}

// Metrics is how many series there are for operators.
func (h *Host) Metrics(_ struct{}, out *int) error {
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(h.mesh); err != nil {
		return err
	}
	families, err := registry.Gather()
	for _, f := range families {
		*out += len(f.GetMetric())
	}
	return err
}

// DeleteDevice is what an administrator does by mistake.
func (h *Host) DeleteDevice(_ struct{}, _ *struct{}) error {
	l, err := netlink.LinkByName(network.MeshDevice(instance))
	if err != nil {
		return err
	}
	return netlink.LinkDel(l)
}

// Drain opens a port at which all that is sent is thrown away.
func (h *Host) Drain(in Packet, _ *struct{}) error {
	return h.within(in.By, func() error {
		l, err := net.Listen("tcp", in.To.String())
		if err != nil {
			return err
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			}
		}()
		h.t.Cleanup(func() {
			_ = l.Close()
			<-done
		})
		return nil
	})
}

// Pour sends so many bytes there, and returns once they have arrived.
func (h *Host) Pour(in Sized, _ *struct{}) error {
	return h.within(in.From, func() error {
		c, err := net.Dial("tcp", in.To.String())
		if err != nil {
			return err
		}
		defer c.Close()
		b := make([]byte, 1<<20)
		for left := in.Size; left > 0; left -= len(b) {
			if _, err := c.Write(b[:min(left, len(b))]); err != nil {
				return err
			}
		}
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, c) // ends when the other end has read all
		return err
	})
}

// keyPath is where the key of a host is kept.
func keyPath(dir string) string { return filepath.Join(dir, mesh.KeyFile) }
