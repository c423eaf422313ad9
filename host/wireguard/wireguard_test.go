package wireguard_test

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/network"
	"github.com/hangar-platform/hangar/host/wireguard"
	"github.com/hangar-platform/hangar/host/wireguard/peertest"
	"github.com/hangar-platform/hangar/internal/ownhost"
)

const (
	testHost hangar.HostID = "0a7b7df0"
	// patience is how long what must arrive may take; what must not is waited for
	// shortly.
	patience = time.Minute
	shortly  = 500 * time.Millisecond
)

// feed is a hangar.PeerFeed of what a test says.
type feed struct {
	mu      sync.Mutex
	peers   []hangar.Peer
	changed chan struct{}
}

func (f *feed) set(peers ...hangar.Peer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.peers = peers
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *feed) WatchPeers(ctx context.Context) iter.Seq2[[]hangar.Peer, error] {
	return func(yield func([]hangar.Peer, error) bool) {
		for {
			f.mu.Lock()
			peers, changed := f.peers, f.changed
			f.mu.Unlock()
			if !yield(peers, nil) {
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

// site is a host with a gateway.
type site struct {
	*wireguard.Gateway
	net  *network.Network
	dir  string
	feed *feed
	end  func()
}

// open makes a host whose gateway takes a free port.
func open(t *testing.T, instance string) *site {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	n := network.New(network.Options{Instance: instance, Host: testHost, Log: log, RunDir: t.TempDir()})
	if err := n.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(n.Remove(context.WithoutCancel(t.Context())), n.Close()); err != nil {
			t.Error(err)
		}
	})
	s := &site{net: n, dir: t.TempDir(), feed: &feed{changed: make(chan struct{})}}
	s.start(t, instance, 0)
	return s
}

// start runs a gateway, as a new daemon of the same host.
func (s *site) start(t *testing.T, instance string, port uint16) {
	t.Helper()
	s.Gateway = wireguard.New(wireguard.Options{
		Dir: s.dir, Device: network.PeerDevice(instance), Host: testHost, Port: port, Endpoint: "127.0.0.1",
		Source: s.net.HostAddr6(), Members: s.net, Feed: s.feed, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func(g *wireguard.Gateway) { done <- g.Run(ctx) }(s.Gateway)
	s.end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the gateway ended: %v", err)
		}
	})
	t.Cleanup(func() { s.end() })
}

// keys are a peer and its private key.
type keys struct {
	hangar.Peer
	private string
}

func newPeer(network hangar.NetworkID, number uint64) keys {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	must(err)
	encode := base64.StdEncoding.EncodeToString
	return keys{hangar.Peer{
		Name: fmt.Sprint("peer", number), Org: "acme", NetworkID: network, Host: testHost,
		Address: hangar.PeerAddress(network, testHost, number), PublicKey: hangar.PeerKey(encode(key.PublicKey().Bytes())),
	}, encode(key.Bytes())}
}

// let makes the feed yield peers and waits until the gateway has let them in.
func (s *site) let(t *testing.T, in ...keys) {
	t.Helper()
	var peers []hangar.Peer
	for _, k := range in {
		peers = append(peers, k.Peer)
	}
	s.feed.set(peers...)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, p := range peers {
		if err := s.AwaitPeer(ctx, p.PublicKey, p.Address); err != nil {
			t.Fatalf("%s is not let in: %v", p.Name, err)
		}
	}
}

// config is the config that a peer gets to connect.
func (s *site) config(t *testing.T, k keys) peertest.Config {
	t.Helper()
	g, err := s.OpenGateway(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return peertest.Config{
		PrivateKey: k.private, PublicKey: string(g.GatewayKey), Address: k.Prefix(), AllowedIPs: hangar.NetworkPrefix(k.Address),
		DNS: k.Nameserver(), Endpoint: netip.AddrPortFrom(netip.MustParseAddr(g.EndpointIP), g.EndpointPort), MTU: wireguard.MTU, Keepalive: 15,
	}
}

// machine attaches a namespace that answers like a Machine, and returns its address with the port
// of a server that sends callers their own addresses.
func (s *site) machine(t *testing.T, id hangar.NetworkID, number uint64) netip.AddrPort {
	t.Helper()
	a, err := s.net.Attach(t.Context(), network.Endpoint{
		ID: hangar.MachineID(fmt.Sprintf("%014x", number)), IPv6: network.Address(id, testHost, number), Number: number,
	})
	if err != nil {
		t.Fatal(err)
	}
	var l net.Listener
	within(t, a.NetNS, func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		c.DelTable(&nftables.Table{Name: "hangar", Family: nftables.TableFamilyNetdev})
		if err := c.Flush(); err != nil {
			return err
		}
		l, err = net.Listen("tcp", "[::]:8080")
		return err
	})
	ownhost.Serve(t, l)
	return netip.AddrPortFrom(a.IPv6, 8080)
}

// within runs f in a namespace.
func within(t *testing.T, path string, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocks: the thread goes with the goroutine
		ns, err := os.Open(path)
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			_ = ns.Close()
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// call returns who the server at an address says that the peer is.
func call(t *testing.T, p *peertest.Peer, at netip.AddrPort, within time.Duration) (netip.Addr, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	c, err := p.DialContext(ctx, "tcp", at.String())
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	b, err := io.ReadAll(c)
	if err != nil {
		return netip.Addr{}, err
	}
	from, err := netip.ParseAddrPort(string(b))
	return from.Addr(), err
}

// A peer reaches the Machines of its network and the name server, and is known by its
// address.
func TestPeerReachesItsNetwork(t *testing.T) {
	s := open(t, "reach")
	one, other := newPeer(5, 1), newPeer(5, 2)
	s.let(t, one, other)
	m, foreign := s.machine(t, 5, 1), s.machine(t, 6, 2)
	for _, at := range []string{
		netip.AddrPortFrom(s.net.HostAddr6(), hangar.ServicesDNSPort).String(), "[::]:22",
	} {
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		ownhost.Serve(t, l)
	}
	p := peertest.Start(t, s.config(t, one))
	for range 2 {
		if from, err := call(t, p, m, patience); err != nil || from != one.Address {
			t.Fatalf("the machine is called from %s, %v, want %s", from, err, one.Address)
		}
	}
	if from, err := call(t, p, netip.AddrPortFrom(p.DNS, hangar.ServicesDNSPort), patience); err != nil || from != one.Address {
		t.Errorf("the name server is called from %s, %v", from, err)
	}
	traffic := s.PeerTraffic()[one.PublicKey]
	if traffic.Handshake.IsZero() || traffic.Received == 0 || traffic.Sent == 0 {
		t.Errorf("the gateway has seen %+v", traffic)
	}
	if quiet := s.PeerTraffic()[other.PublicKey]; !quiet.Handshake.IsZero() || quiet.Received != 0 {
		t.Errorf("of a peer that never came: %+v", quiet)
	}
	for _, route := range []string{"fdaa::/16", "2001:db8::/32", "::/1"} {
		if err := p.Add(netip.Addr{}, netip.MustParsePrefix(route)); err != nil {
			t.Fatal(err)
		}
	}
	closed := []netip.AddrPort{
		foreign,
		netip.AddrPortFrom(s.net.HostAddr6(), 22), netip.AddrPortFrom(p.DNS, 22),
		netip.MustParseAddrPort("[fdaa:0:6::3]:8080"), netip.MustParseAddrPort("[2001:db8::1]:80"), netip.MustParseAddrPort("[::ffff:127.0.0.1]:22"),
	}
	// The peer's own WireGuard would not send these; one that is made for it would.
	wide := s.config(t, other)
	wide.AllowedIPs = netip.MustParsePrefix("::/0")
	q := peertest.Start(t, wide)
	if from, err := call(t, q, m, patience); err != nil || from != other.Address {
		t.Fatalf("the machine is called from %s, %v, want %s", from, err, other.Address)
	}
	for _, at := range closed {
		if _, err := call(t, q, at, shortly); err == nil {
			t.Errorf("%s is reached through the tunnel", at)
		}
	}
}

// Packets that a peer sends under an address that is not its own reach nothing, be it another
// peer's, a Machine's or one of another network.
func TestForgedSources(t *testing.T) {
	s := open(t, "forged")
	one, other, foreign := newPeer(5, 1), newPeer(5, 2), newPeer(6, 3)
	s.let(t, one, other, foreign)
	m := s.machine(t, 5, 1)
	p := peertest.Start(t, s.config(t, one))
	if _, err := call(t, p, m, patience); err != nil {
		t.Fatal(err)
	}
	own := one.Address.Next()
	for _, source := range []netip.Addr{own, other.Address, foreign.Address, network.Address(5, testHost, 9), s.net.HostAddr6()} {
		if err := p.Add(source, netip.Prefix{}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), map[bool]time.Duration{true: patience, false: shortly}[source == own])
		c, err := p.From(ctx, source, "tcp", m.String())
		cancel()
		if err == nil {
			_ = c.Close()
		}
		if (err == nil) != (source == own) {
			t.Errorf("from %s: %v", source, err)
		}
	}
}

// A peer that is removed is cut off at once, in the middle of a connection.
func TestRemove(t *testing.T) {
	s := open(t, "remove")
	one, other := newPeer(5, 1), newPeer(5, 2)
	s.let(t, one, other)
	m := s.machine(t, 5, 1)
	p, q := peertest.Start(t, s.config(t, one)), peertest.Start(t, s.config(t, other))
	for _, each := range []*peertest.Peer{p, q} {
		if _, err := call(t, each, m, patience); err != nil {
			t.Fatal(err)
		}
	}
	s.let(t, other)
	if err := s.AwaitPeer(t.Context(), one.PublicKey, netip.Addr{}); err != nil {
		t.Fatal(err)
	}
	if _, err := call(t, p, m, shortly); err == nil {
		t.Error("a removed peer still reaches the machine")
	}
	if _, err := call(t, q, m, patience); err != nil {
		t.Errorf("the other peer: %v", err)
	}
	routes, err := netlink.RouteListFiltered(unix.AF_INET6, &netlink.Route{Dst: &net.IPNet{
		IP: one.Prefix().Masked().Addr().AsSlice(), Mask: net.CIDRMask(120, 128),
	}}, netlink.RT_FILTER_DST)
	if err != nil || len(routes) > 0 {
		t.Errorf("routes to the removed peer: %v, %v", routes, err)
	}
	// The same key may come back, under another address.
	again := one
	again.Address = hangar.PeerAddress(5, testHost, 3)
	s.let(t, other, again)
	r := peertest.Start(t, s.config(t, again))
	if from, err := call(t, r, m, patience); err != nil || from != again.Address {
		t.Errorf("after its return the peer is %s, %v", from, err)
	}
}

// After the end of a daemon, orderly or not, the peers are let in again by the next,
// at the same port and under the same key.
func TestRestart(t *testing.T) {
	s := open(t, "restart")
	one := newPeer(5, 1)
	s.let(t, one)
	m := s.machine(t, 5, 1)
	before := s.config(t, one)
	p := peertest.Start(t, before)
	if _, err := call(t, p, m, patience); err != nil {
		t.Fatal(err)
	}
	s.end()
	if _, err := netlink.LinkByName(network.PeerDevice("restart")); err == nil {
		t.Error("the device outlives the daemon")
	}
	if _, err := os.Stat(filepath.Join(s.dir, wireguard.EndpointsFile)); err != nil {
		t.Error(err)
	}
	s.start(t, "restart", 0)
	if after := s.config(t, one); after != before {
		t.Errorf("the peer's config was %+v and is %+v", before, after)
	}
	began := time.Now()
	if from, err := call(t, p, m, patience); err != nil || from != one.Address {
		t.Fatalf("after a restart the peer is %s, %v", from, err)
	}
	t.Logf("the peer is back %s after the restart", time.Since(began))
	info, err := os.Stat(filepath.Join(s.dir, wireguard.KeyFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file of the key: %v, %v", info, err)
	}
}

// Without peers no port is taken; one that is in use is said to be, and is taken as
// soon as it is free.
func TestPortInUse(t *testing.T) {
	taken, err := net.ListenUDP("udp", &net.UDPAddr{})
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := uint16(taken.LocalAddr().(*net.UDPAddr).Port)
	s := open(t, "port")
	s.end()
	s.start(t, "port", port)
	if _, err := netlink.LinkByName(network.PeerDevice("port")); err == nil {
		t.Error("there is a device without a peer")
	}
	_, err = s.OpenGateway(t.Context())
	if hangar.CodeOf(err) != hangar.CodeUnavailable {
		t.Errorf("a port in use: %v", err)
	}
	t.Log(err)
	if _, err := netlink.LinkByName(network.PeerDevice("port")); err == nil {
		t.Error("there is a device that listens nowhere")
	}
	must(taken.Close())
	if g, err := s.OpenGateway(t.Context()); err != nil || g.EndpointPort != port {
		t.Errorf("a port that is free again: %+v, %v", g, err)
	}
}

// A randomly chosen port is not given up for another because another program has it for a while:
// every config that was printed names it.
func TestChosenPortInUse(t *testing.T) {
	s := open(t, "chosen")
	before, err := s.OpenGateway(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.end()
	taken, err := net.ListenUDP("udp", &net.UDPAddr{Port: int(before.EndpointPort)})
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	s.start(t, "chosen", 0)
	if g, err := s.OpenGateway(t.Context()); hangar.CodeOf(err) != hangar.CodeUnavailable {
		t.Errorf("while port %d is in use the gateway listens at %d, %v", before.EndpointPort, g.EndpointPort, err)
	}
	must(taken.Close())
	if after, err := s.OpenGateway(t.Context()); err != nil || after != before {
		t.Errorf("the gateway was %+v and is %+v, %v", before, after, err)
	}
}

// A device that is deleted is created again, with its routes.
func TestDeviceIsDeleted(t *testing.T) {
	s := open(t, "deleted")
	one := newPeer(5, 1)
	s.let(t, one)
	l, err := netlink.LinkByName(network.PeerDevice("deleted"))
	if err != nil {
		t.Fatal(err)
	}
	routes, done := make(chan netlink.RouteUpdate, 100), make(chan struct{})
	defer close(done)
	must(netlink.RouteSubscribe(routes, done))
	must(netlink.LinkDel(l))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		select {
		case r := <-routes:
			if r.Type == unix.RTM_NEWROUTE && r.Dst != nil && r.Dst.Contains(one.Address.AsSlice()) && r.LinkIndex != l.Attrs().Index {
				p := peertest.Start(t, s.config(t, one))
				if _, err := call(t, p, s.machine(t, 5, 1), patience); err != nil {
					t.Error(err)
				}
				return
			}
		case <-ctx.Done():
			t.Fatal("there is no new device")
		}
	}
}

func TestOff(t *testing.T) {
	g := wireguard.New(wireguard.Options{Off: true})
	_, err := g.OpenGateway(t.Context())
	if hangar.CodeOf(err) != hangar.CodeFailedPrecondition {
		t.Errorf("got %v", err)
	}
}
