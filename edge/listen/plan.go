package listen

import (
	"net/netip"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/balance"
)

// key is a socket that Apps need.
type key struct {
	udp  bool
	addr netip.AddrPort
}

// name is what the keeper knows the socket by.
func (k key) name() string {
	if k.udp {
		return "udp " + k.addr.String()
	}
	return "tcp " + k.addr.String()
}

// ofApps reports whether a keeper's name is that of a socket which Apps need.
func ofApps(name string) bool {
	return strings.HasPrefix(name, "tcp ") || strings.HasPrefix(name, "udp ")
}

// plan is the set of sockets that Apps need.
type plan struct {
	shared netip.Addr // zero: none
	most   int        // sockets of one App
	free   int        // sockets that there may be beyond those that are open
	// held are those of organizations that are open or planned: one may have another only as
	// long as more are free than it has.
	held map[hangar.OrgID]int
	// covered reports whether another socket takes the connections of this TCP address.
	covered func(netip.AddrPort) bool
	ports   func(*hangar.AppRoute) []balance.PortRange
	open    func(key) bool // which are open

	want map[key]*hangar.AppRoute // of one App that needs it
	cut  map[hangar.AppID]int     // how many sockets Apps would have beyond most, or what is free
}

// add plans for an App. Datagrams do not name their App, so that they go only to public addresses
// of one App.
func (p *plan) add(route *hangar.AppRoute) {
	if len(route.Addresses) == 0 {
		return
	}
	left := p.most
	ranges := p.ports(route)
	for i := range route.Addresses {
		a := &route.Addresses[i]
		for _, r := range ranges {
			ip := a.IP
			switch {
			case a.Kind == hangar.AddressSharedV4 && (r.UDP || !r.Handling.Shareable() || r.Handling.PgTLS):
				continue
			case a.Kind == hangar.AddressSharedV4:
				ip = p.shared
			case a.Kind == hangar.AddressPrivateV6 && r.UDP:
				continue
			}
			if ip.IsValid() {
				left = p.addRange(route, ip, r, left)
			}
		}
	}
}

// addRange plans for the ports of one address, and returns how many sockets the App may
// still have.
func (p *plan) addRange(route *hangar.AppRoute, ip netip.Addr, r balance.PortRange, left int) int {
	for port := max(r.First, 1); port <= min(r.Last, 65535); port++ {
		k := key{r.UDP, netip.AddrPortFrom(ip, uint16(port))}
		if !r.UDP && p.covered(k.addr) {
			continue
		}
		if _, ok := p.want[k]; ok {
			continue
		}
		fresh := !p.open(k)
		if left == 0 || fresh && p.free <= p.held[route.Org] {
			p.cut[route.ID] += min(r.Last, 65535) - port + 1
			break
		}
		left--
		if fresh {
			p.free--
			p.held[route.Org]++
		}
		p.want[k] = route
	}
	return left
}
