package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control"
	"github.com/hangar-platform/hangar/edge/dns"
	"github.com/hangar-platform/hangar/edge/listen"
	"github.com/hangar-platform/hangar/host/mesh"
	"github.com/hangar-platform/hangar/host/network"
	"github.com/hangar-platform/hangar/host/wireguard"
	"github.com/hangar-platform/hangar/internal/hint"
)

// resolvConf lists the resolvers of this server, and resolvedConf those behind systemd-resolved.
const (
	resolvConf   = "/etc/resolv.conf"
	resolvedConf = "/run/systemd/resolve/resolv.conf"
)

// private has the parts that serve the private networks of Machines.
type private struct {
	gateway *wireguard.Gateway // of peers
	names   *dns.Server        // listens nowhere if there are no private networks
	mesh    *mesh.Mesh         // nil: this server is alone, or has no private networks
}

// openPrivate opens the name server of Machines, at the addresses to which their network redirects
// them. It makes the gateway, which lets no peer in if there is no network.
func (d *opening) openPrivate(ctx context.Context, s *server, c *cluster) (*private, error) {
	port, on, err := d.cfg.wireguardPort()
	if err != nil {
		return nil, err
	}
	o := wireguard.Options{
		Dir: d.cfg.Dir, Device: network.PeerDevice(instance(d.cfg.Dir)), Host: s.self.ID, Port: port, Off: !on || s.network == nil,
		Endpoint: d.cfg.PeerEndpoint, Feed: control.NewPeerRecords(c.mirror, d.log), Log: d.log,
	}
	p := &private{}
	served := dns.Config{
		Catalog: c.machines, Routes: c.routes, Region: d.cfg.Region,
		Peers: p.peers, Resolvers: dns.NewResolvConf(resolvConf).List, Log: d.log,
	}
	if s.network != nil {
		o.Members, o.Source = s.network, s.network.HostAddr6()
		for _, addr := range []netip.Addr{s.network.HostAddr6(), s.network.HostAddr4()} {
			served.Listen = append(served.Listen, netip.AddrPortFrom(addr, hangar.ServicesDNSPort))
		}
		served.Owner = s.network.Owner
	}
	if s.network != nil && c.peers != nil {
		if p.mesh, err = d.openMesh(ctx, s, c); err != nil {
			return nil, err
		}
	}
	p.gateway, p.names = wireguard.New(o), dns.New(served)
	if err := p.names.Open(ctx); err != nil {
		return nil, hint.With(err, "if another name server listens on all addresses of this server, let it listen on its own alone")
	}
	d.opened.add(p.names.Close)
	return p, nil
}

// openMesh opens the private network to the other hosts of the cluster, and enters its endpoint in this
// server's record.
func (d *opening) openMesh(ctx context.Context, s *server, c *cluster) (*mesh.Mesh, error) {
	m := mesh.New(mesh.Options{
		Dir: d.cfg.Dir, Device: network.MeshDevice(instance(d.cfg.Dir)), Host: s.self.ID, Port: uint16(d.cfg.MeshPort), Source: s.network.HostAddr6(),
		Peers: control.NewPeerRecords(c.mirror, d.log), Log: d.log, Now: time.Now,
	})
	err := m.Open(ctx)
	if errors.Is(err, mesh.ErrPortInUse) {
		return nil, hint.With(fmt.Errorf("--mesh-port: %w", err), "another program, or another daemon, may listen there: name another port")
	}
	if err != nil {
		return nil, hint.With(fmt.Errorf("the private network between servers cannot be opened: %w", err), "see `hangar doctor`: it needs /dev/net/tun")
	}
	d.opened.add(m.Close)
	at, _, err := net.SplitHostPort(s.self.Address)
	if err != nil {
		return nil, err
	}
	s.self.MeshKey, s.self.MeshAddress = m.Key(), net.JoinHostPort(at, fmt.Sprint(m.ListenPort()))
	c.machines.Observe(m.Observe)
	return m, nil
}

// runMesh returns the loop of the mesh between hosts.
func (p *private) runMesh(hosts hangar.HostFeed) func(context.Context) error {
	return func(ctx context.Context) error {
		if p.mesh == nil {
			return nil
		}
		return p.mesh.Run(ctx, hosts)
	}
}

// heard returns when other hosts were last heard of in the private network; nil: there is none.
func (p *private) heard() map[hangar.HostID]time.Time {
	if p.mesh == nil {
		return nil
	}
	return p.mesh.Handshakes()
}

// peers returns the peers in a network, for the name server.
func (p *private) peers(id hangar.NetworkID) []dns.Peer {
	var peers []dns.Peer
	for _, at := range p.gateway.NetworkPeers(id) {
		peers = append(peers, dns.Peer{Name: at.Name, Addr: at.Address})
	}
	return peers
}

// nameservers are the resolvers of Machines: the platform, if it is on their network, or else those of
// this server that a Machine can reach. A Machine cannot reach one at a loopback address, but
// systemd-resolved names those behind it.
func (s *server) nameservers() []string {
	if s.network != nil {
		return []string{hangar.ServicesAddress.String()}
	}
	for _, path := range []string{resolvConf, resolvedConf} {
		var list []string
		for _, addr := range dns.ReadNameservers(path) {
			if !addr.IsLoopback() {
				list = append(list, addr.String())
			}
		}
		if len(list) > 0 {
			return list
		}
	}
	return nil
}

// privateRanges are the ranges of addresses of Machines and peers.
func (s *server) privateRanges() []netip.Prefix {
	if s.network == nil {
		return []netip.Prefix{network.Private}
	}
	return s.network.Ranges()
}

// privateIngress opens ports of the edge to Machines and peers.
type privateIngress struct{ *network.Network }

// OpenPorts implements edge.PrivateIngress.
func (w privateIngress) OpenPorts(ctx context.Context, sockets []listen.Socket) error {
	ports := make([]network.OpenPort, 0, len(sockets))
	for _, s := range sockets {
		ports = append(ports, network.OpenPort(s))
	}
	return w.Network.OpenPorts(ctx, ports)
}
