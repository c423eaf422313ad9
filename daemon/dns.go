package daemon

import (
	"bufio"
	"context"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/catalog"
	"github.com/hangar-platform/hangar/edge/dns"
	"github.com/hangar-platform/hangar/host/network"
	"github.com/hangar-platform/hangar/host/wireguard"
	"github.com/hangar-platform/hangar/internal/hint"
)

// resolvConf says which resolvers this server has, and resolvedConf those behind
// systemd-resolved.
const (
	resolvConf   = "/etc/resolv.conf"
	resolvedConf = "/run/systemd/resolve/resolv.conf"
)

// openDNS opens the name server of Machines, at the addresses that their network
// redirects them to. Without a network there is none.
func openDNS(ctx context.Context, cfg Config, wires *network.Network, view *catalog.Catalog, routes *catalog.Routes, gateway *wireguard.Gateway, log *slog.Logger, opened *closers) (*dns.Server, error) {
	if wires == nil {
		return nil, nil //nolint:nilnil // it is asked for once
	}
	var listen []netip.AddrPort
	for _, addr := range []netip.Addr{wires.HostAddr6(), wires.HostAddr4()} {
		listen = append(listen, netip.AddrPortFrom(addr, hangar.ServicesDNSPort))
	}
	known := resolvers{path: resolvConf}
	names := dns.New(dns.Config{
		Listen: listen, Catalog: view, Routes: routes, Region: cfg.Region, Owner: wires.Owner, Peers: peersOf(gateway), Resolvers: known.list, Log: log,
	})
	if err := names.Open(ctx); err != nil {
		return nil, hint.With(err, "if another name server listens on all addresses of this server, let it listen on its own alone")
	}
	opened.add(names.Close)
	return names, nil
}

// peersOf tells a name server who came in through a gateway.
func peersOf(gateway *wireguard.Gateway) func(hangar.NetworkID) []dns.Peer {
	return func(id hangar.NetworkID) []dns.Peer {
		var peers []dns.Peer
		for _, p := range gateway.NetworkPeers(id) {
			peers = append(peers, dns.Peer{Name: p.Name, Addr: p.Address})
		}
		return peers
	}
}

// nameservers are what Machines ask: the platform, where it is on their network, and
// else those of this server that a Machine can reach, too: a resolver on a loopback
// address it cannot, but systemd-resolved names those behind it.
func nameservers(wires *network.Network) []string {
	if wires != nil {
		return []string{hangar.ServicesAddress.String()}
	}
	for _, path := range []string{resolvConf, resolvedConf} {
		var list []string
		for _, addr := range readNameservers(path) {
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

// resolvers are those of this server. They follow the file that names them.
type resolvers struct {
	path string

	mu      sync.Mutex // guards what follows
	all     []netip.AddrPort
	written time.Time
	checked time.Time
}

// checkInterval is how often the file is looked at, at most.
const checkInterval = time.Second

func (r *resolvers) list() []netip.AddrPort {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if now.Sub(r.checked) < checkInterval {
		return r.all
	}
	r.checked = now
	// A file that is gone for a moment changes nothing.
	if info, err := os.Stat(r.path); err == nil && !info.ModTime().Equal(r.written) {
		r.written = info.ModTime()
		r.all = nil
		for _, addr := range readNameservers(r.path) {
			const port = 53
			r.all = append(r.all, netip.AddrPortFrom(addr, port))
		}
	}
	return r.all
}

// readNameservers returns what a file in the format of resolv.conf names.
func readNameservers(path string) []netip.Addr {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	var list []netip.Addr
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if addr, err := netip.ParseAddr(fields[1]); err == nil {
			list = append(list, addr)
		}
	}
	return list
}
