package dns_test

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"testing"

	mdns "github.com/miekg/dns"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/catalog"
	"github.com/hangar-platform/hangar/edge/dns"
)

// said returns an answer as one line: its code, or its sorted records.
func said(m *mdns.Msg) string {
	if m.Rcode != mdns.RcodeSuccess {
		return mdns.RcodeToString[m.Rcode]
	}
	var out []string
	for _, rr := range m.Answer {
		switch rr := rr.(type) {
		case *mdns.AAAA:
			out = append(out, rr.AAAA.String())
		case *mdns.TXT:
			out = append(out, strings.Join(rr.Txt, ""))
		case *mdns.PTR:
			out = append(out, rr.Ptr)
		case *mdns.A:
			out = append(out, rr.A.String())
		default:
			out = append(out, rr.String())
		}
	}
	slices.Sort(out)
	if len(out) == 0 {
		return "NODATA"
	}
	return strings.Join(out, " ")
}

// populate fills a world with the Apps of the tables.
func populate(w *world) {
	group := func(name string) func(*hangar.Machine) {
		return tagged(map[string]string{"fly_process_group": name, "role": "Primary", "version": "1.2"})
	}
	w.put(netOne, "web", 1, group("app"))
	w.put(netOne, "web", 2, in("fra"), group("worker"))
	w.put(netOne, "web", 3, in("lhr"), state(hangar.MachineStopped), group("app"))
	w.put(netOne, "web", 4, tagged(map[string]string{"platform_process_group": "app"}))
	w.put(netOne, "web", 5, state(hangar.MachineDestroyed))
	w.put(netOne, "web", 6, unregistered)
	w.put(netOne, "idle", 7, state(hangar.MachineSuspended))
	w.put(netOne, "console", 8, unregistered)
	w.put(netOne, "gone", 9, state(hangar.MachineDestroyed))
	w.put(netTwo, "other", 10)
	// A row with an address of another network is ignored.
	w.put(netTwo, "other", 11, func(m *hangar.Machine) { m.PrivateIP = address(netOne, 11) })
}

func ip(n int) string { return address(netOne, n).String() }
func id(n int) string { return fmt.Sprintf("%014x", n) }
func peersOf(id hangar.NetworkID) []dns.Peer {
	if id != netOne {
		return nil
	}
	return []dns.Peer{
		{Name: "laptop", Addr: netip.MustParseAddr("fdaa:0:1:0:a::102")},
		{Name: "interactive-7", Addr: netip.MustParseAddr("fdaa:0:1:0:a::103")},
		{Name: "near", Addr: another},
		{Name: "desk", Addr: netip.MustParseAddr("fdaa:0:1:0:a::104")},
	}
}

// ingress is a feed of Apps and their private addresses.
type ingress []hangar.AppRoute

func (f ingress) WatchRoutes(ctx context.Context) iter.Seq2[hangar.RouteChange, error] {
	return func(yield func(hangar.RouteChange, error) bool) {
		for i := range f {
			if !yield(hangar.RouteChange{App: f[i].ID, Route: &f[i]}, nil) {
				return
			}
		}
		if yield(hangar.RouteChange{Synced: true}, nil) {
			<-ctx.Done()
		}
	}
}

// served returns Apps, two of which have private addresses, one of these in another network.
func served(t *testing.T) *catalog.Routes {
	t.Helper()
	at := func(app hangar.AppName, network hangar.NetworkID, n uint64) hangar.Address {
		return hangar.Address{App: app, Kind: hangar.AddressPrivateV6, IP: hangar.FlycastAddress(network, n), NetworkID: network}
	}
	routes := catalog.NewRoutes(ingress{
		{ID: "web", App: "web", Network: netOne, Addresses: []hangar.Address{
			{App: "web", Kind: hangar.AddressV6, IP: netip.MustParseAddr("2001:db8::1")}, at("web", netOne, 1), at("web", netOne, 2),
		}},
		{ID: "other", App: "other", Network: netTwo, Addresses: []hangar.Address{at("other", netOne, 7)}},
		{ID: "idle", App: "idle", Network: netOne, Addresses: []hangar.Address{{App: "idle", Kind: hangar.AddressSharedV4, IP: netip.MustParseAddr("127.0.0.1")}}},
	}, "hangar.localhost", nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = routes.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	<-routes.Synced()
	return routes
}

// reversed is the name of an address.
func reversed(a netip.Addr) string {
	name, err := mdns.ReverseAddr(a.String())
	if err != nil {
		panic(err)
	}
	return name
}

// TestNames asks for every kind of name, over UDP and TCP.
func TestNames(t *testing.T) {
	w := newWorld(t)
	populate(w)
	leak := newUpstream(t, reply(mdns.RcodeSuccess))
	addr := serve(t, dns.Config{Catalog: w.catalog, Routes: served(t), Peers: peersOf, Resolvers: resolvers(leak)})
	started := strings.Join([]string{ip(1), ip(2), ip(4)}, " ")
	instance := func(n int, region string) string {
		return "instance=" + id(n) + ",app=web,ip=" + ip(n) + ",region=" + region
	}
	for _, c := range []struct {
		from  netip.Addr
		name  string
		qtype uint16
		want  string
	}{
		{one, "web.internal", mdns.TypeAAAA, started},
		{one, "WeB.InTeRnAl", mdns.TypeAAAA, started},
		{another, "web.internal", mdns.TypeAAAA, started},
		{one, "global.web.internal", mdns.TypeAAAA, started},
		{one, "web.internal", mdns.TypeA, "NODATA"},
		{one, "web.internal", mdns.TypeSRV, "NODATA"},
		{one, "web.internal", mdns.TypeTXT, "NODATA"},
		{one, "web.internal", mdns.TypeDS, "NODATA"},
		{one, "ams.web.internal", mdns.TypeAAAA, ip(1) + " " + ip(4)},
		{one, "fra.web.internal", mdns.TypeAAAA, ip(2)},
		{one, "lhr.web.internal", mdns.TypeAAAA, "NODATA"}, // all of it stopped
		{one, "syd.web.internal", mdns.TypeAAAA, "NXDOMAIN"},
		{one, id(1) + ".vm.web.internal", mdns.TypeAAAA, ip(1)},
		{one, id(1) + ".vm.web.internal", mdns.TypeA, "NODATA"},
		{one, id(3) + ".vm.web.internal", mdns.TypeAAAA, "NODATA"},
		{one, id(5) + ".vm.web.internal", mdns.TypeAAAA, "NXDOMAIN"}, // destroyed
		{one, id(6) + ".vm.web.internal", mdns.TypeAAAA, "NXDOMAIN"}, // not registered
		{one, id(7) + ".vm.web.internal", mdns.TypeAAAA, "NXDOMAIN"}, // of another App
		{one, "x." + id(1) + ".vm.web.internal", mdns.TypeAAAA, "NXDOMAIN"},
		{one, "vm.web.internal", mdns.TypeAAAA, "NODATA"},
		{one, "app.process.web.internal", mdns.TypeAAAA, ip(1) + " " + ip(4)},
		{one, "worker.process.web.internal", mdns.TypeAAAA, ip(2)},
		{one, "nothing.process.web.internal", mdns.TypeAAAA, "NXDOMAIN"},
		{one, "primary.role.kv._metadata.web.internal", mdns.TypeAAAA, ip(1) + " " + ip(2)},
		{one, "1.2.version.kv._metadata.web.internal", mdns.TypeAAAA, ip(1) + " " + ip(2)},
		{one, "app.platform_process_group.kv._metadata.web.internal", mdns.TypeAAAA, ip(1) + " " + ip(4)},
		{one, "replica.role.kv._metadata.web.internal", mdns.TypeAAAA, "NXDOMAIN"},
		{one, "role.kv._metadata.web.internal", mdns.TypeAAAA, "NODATA"},
		{one, "none.kv._metadata.web.internal", mdns.TypeAAAA, "NXDOMAIN"},
		{one, "top1.nearest.of.web.internal", mdns.TypeAAAA, ip(1)},
		{one, "top2.nearest.of.web.internal", mdns.TypeAAAA, ip(1) + " " + ip(4)},
		{one, "top9.nearest.of.web.internal", mdns.TypeAAAA, started},
		{one, "top0.nearest.of.web.internal", mdns.TypeAAAA, "NXDOMAIN"},
		{one, "topx.nearest.of.web.internal", mdns.TypeAAAA, "NXDOMAIN"},
		{one, "vms.web.internal", mdns.TypeTXT, id(1) + " ams," + id(2) + " fra," + id(4) + " ams"},
		{one, "all.vms.web.internal", mdns.TypeTXT, id(1) + " ams," + id(2) + " fra," + id(3) + " lhr," + id(4) + " ams"},
		{one, "regions.web.internal", mdns.TypeTXT, "ams,fra"},
		{one, "all.regions.web.internal", mdns.TypeTXT, "ams,fra,lhr"},
		{one, "_apps.internal", mdns.TypeTXT, "idle,web"},
		{one, "_apps.internal", mdns.TypeAAAA, "NODATA"},
		{one, "x._apps.internal", mdns.TypeTXT, "NXDOMAIN"},
		{one, "_instances.internal", mdns.TypeTXT, instance(1, "ams") + ";" + instance(2, "fra") + ";" + instance(4, "ams")},
		{one, "all._instances.internal", mdns.TypeTXT, instance(1, "ams") + ";" + instance(2, "fra") + ";" + instance(3, "lhr") + ";" +
			instance(4, "ams") + ";instance=" + id(7) + ",app=idle,ip=" + ip(7) + ",region=ams"},
		{one, "_peer.internal", mdns.TypeTXT, "desk,laptop,near"},
		{one, "laptop._peer.internal", mdns.TypeAAAA, "fdaa:0:1:0:a::102"},
		{one, "interactive-7._peer.internal", mdns.TypeAAAA, "fdaa:0:1:0:a::103"},
		{two, "laptop._peer.internal", mdns.TypeAAAA, "NXDOMAIN"},
		{one, "_api.internal", mdns.TypeAAAA, "fdaa::3"},
		{another, "_api.internal", mdns.TypeAAAA, "fdaa:0:1::3"}, // a peer
		{one, "idle.internal", mdns.TypeAAAA, "NODATA"},
		{one, "vms.idle.internal", mdns.TypeTXT, "NODATA"},
		{one, "console.internal", mdns.TypeAAAA, "NXDOMAIN"},
		{one, "gone.internal", mdns.TypeAAAA, "NXDOMAIN"},
		{one, "none.internal", mdns.TypeAAAA, "NXDOMAIN"},
		{one, `a\.web.internal`, mdns.TypeAAAA, "NXDOMAIN"},
		{one, "internal", mdns.TypeAAAA, "NODATA"},
		{one, "web.flycast", mdns.TypeAAAA, hangar.FlycastAddress(netOne, 1).String() + " " + hangar.FlycastAddress(netOne, 2).String()},
		{one, "WEB.flycast", mdns.TypeAAAA, hangar.FlycastAddress(netOne, 1).String() + " " + hangar.FlycastAddress(netOne, 2).String()},
		{one, "web.flycast", mdns.TypeA, "NODATA"},
		{one, "web.flycast", mdns.TypeTXT, "NODATA"},
		{one, "x.web.flycast", mdns.TypeAAAA, "NXDOMAIN"},
		{one, "other.flycast", mdns.TypeAAAA, hangar.FlycastAddress(netOne, 7).String()}, // of another network
		{two, "other.flycast", mdns.TypeAAAA, "NXDOMAIN"},
		{two, "web.flycast", mdns.TypeAAAA, "NXDOMAIN"},
		{one, "idle.flycast", mdns.TypeAAAA, "NXDOMAIN"},
		{one, "none.flycast", mdns.TypeAAAA, "NXDOMAIN"},
		{one, "flycast", mdns.TypeAAAA, "NODATA"},
		{stranger, "web.flycast", mdns.TypeAAAA, "REFUSED"},
		{one, "host.localhost", mdns.TypeAAAA, "::1"},
		{one, "localhost", mdns.TypeA, "127.0.0.1"},

		// Each network only sees its own names.
		{two, "other.internal", mdns.TypeAAAA, address(netTwo, 10).String()},
		{two, "web.internal", mdns.TypeAAAA, "NXDOMAIN"},
		{two, id(1) + ".vm.web.internal", mdns.TypeAAAA, "NXDOMAIN"},
		{two, "vms.web.internal", mdns.TypeTXT, "NXDOMAIN"},
		{two, "_apps.internal", mdns.TypeTXT, "other"},
		{one, "other.internal", mdns.TypeAAAA, "NXDOMAIN"},
		{stranger, "web.internal", mdns.TypeAAAA, "REFUSED"},
		{stranger, "example.com", mdns.TypeAAAA, "REFUSED"},

		// Addresses.
		{one, reversed(address(netOne, 1)), mdns.TypePTR, id(1) + ".vm.web.internal."},
		{one, reversed(address(netOne, 3)), mdns.TypePTR, id(3) + ".vm.web.internal."},
		{one, reversed(address(netOne, 1)), mdns.TypeAAAA, "NODATA"},
		{two, reversed(address(netOne, 1)), mdns.TypePTR, "NXDOMAIN"},
		{one, reversed(address(netOne, 6)), mdns.TypePTR, "NXDOMAIN"},
		{one, reversed(address(netOne, 99)), mdns.TypePTR, "NXDOMAIN"},
		{one, "a.a.d.f.ip6.arpa", mdns.TypePTR, "NODATA"},
		{one, "0.0.a.a.d.f.ip6.arpa", mdns.TypePTR, "NODATA"},
		{one, "x.a.a.d.f.ip6.arpa", mdns.TypePTR, "NXDOMAIN"},
		{one, "0." + reversed(address(netOne, 1)), mdns.TypePTR, "NXDOMAIN"},
		{one, "1.0.16.172.in-addr.arpa", mdns.TypePTR, "NXDOMAIN"},
		{one, "1.0.0.10.in-addr.arpa", mdns.TypePTR, "NXDOMAIN"},
		{one, "1.d.f.ip6.arpa", mdns.TypePTR, "NXDOMAIN"},
	} {
		for _, network := range []string{"udp", "tcp"} {
			for range 2 { // from the rows, and from what was kept of them
				got := ask(t, network, c.from, addr, query(c.name, c.qtype))
				if said(got) != c.want {
					t.Errorf("%s %s from %s over %s: %s, not %s", c.name, mdns.TypeToString[c.qtype], c.from, network, said(got), c.want)
				}
				for _, rr := range got.Answer {
					if rr.Header().Ttl != dns.TTL || !got.Authoritative {
						t.Errorf("%s: time to live %d, authoritative %t", c.name, rr.Header().Ttl, got.Authoritative)
					}
				}
				if len(got.Answer) == 0 && got.Rcode != mdns.RcodeRefused {
					checkNegative(t, c.name, got)
				}
			}
		}
	}
	leak.mu.Lock()
	defer leak.mu.Unlock()
	if len(leak.asked) > 0 {
		t.Errorf("names left the host: %v", leak.asked)
	}
}

// checkNegative: the SOA is that of the zone and gives the time to live.
func checkNegative(t *testing.T, name string, m *mdns.Msg) {
	t.Helper()
	if len(m.Ns) != 1 {
		t.Errorf("%s: authorities %v", name, m.Ns)
		return
	}
	soa, ok := m.Ns[0].(*mdns.SOA)
	if !ok || !mdns.IsSubDomain(soa.Hdr.Name, mdns.Fqdn(strings.ToLower(name))) && !mdns.IsSubDomain(soa.Hdr.Name, mdns.Fqdn(name)) ||
		soa.Minttl != dns.NegativeTTL || soa.Hdr.Ttl != dns.NegativeTTL {
		t.Errorf("%s: authority %v", name, m.Ns[0])
	}
}

// TestNamesFollowMachines: a cached answer is never given after a change.
func TestNamesFollowMachines(t *testing.T) {
	w := newWorld(t)
	addr := serve(t, dns.Config{Catalog: w.catalog})
	expect := func(name string, qtype uint16, want string) {
		t.Helper()
		for range 3 {
			if got := said(ask(t, "udp", one, addr, query(name, qtype))); got != want {
				t.Fatalf("%s: %s, not %s", name, got, want)
			}
		}
	}
	all := func(aaaa, vm, txt, apps string) {
		t.Helper()
		expect("web.internal", mdns.TypeAAAA, aaaa)
		expect(id(1)+".vm.web.internal", mdns.TypeAAAA, vm)
		expect("vms.web.internal", mdns.TypeTXT, txt)
		expect("_apps.internal", mdns.TypeTXT, apps)
	}
	all("NXDOMAIN", "NXDOMAIN", "NXDOMAIN", "NODATA")
	w.put(netOne, "web", 1, state(hangar.MachineStarting))
	all("NODATA", "NODATA", "NODATA", "web")
	w.put(netOne, "web", 1, state(hangar.MachineStarted))
	all(ip(1), ip(1), id(1)+" ams", "web")
	w.put(netOne, "web", 2)
	all(ip(1)+" "+ip(2), ip(1), id(1)+" ams,"+id(2)+" ams", "web")
	w.put(netOne, "web", 1, state(hangar.MachineStopping))
	all(ip(2), "NODATA", id(2)+" ams", "web")
	w.put(netOne, "web", 1, state(hangar.MachineDestroyed))
	all(ip(2), "NXDOMAIN", id(2)+" ams", "web")
	w.remove(hangar.MachineID(id(1)))
	w.remove(hangar.MachineID(id(2)))
	all("NXDOMAIN", "NXDOMAIN", "NXDOMAIN", "NODATA")
	w.put(netOne, "web", 1, state(hangar.MachineStarted))
	all(ip(1), ip(1), id(1)+" ams", "web")
}
