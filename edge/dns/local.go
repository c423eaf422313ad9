package dns

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"sync"

	"github.com/miekg/dns"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/catalog"
)

// local answers questions about local zones.
type local struct {
	catalog *catalog.Catalog
	routes  *catalog.Routes // nil: there are none
	region  hangar.Region
	peers   func(hangar.NetworkID) []Peer
	kept    nodes
}

// answer answers a client's question about a name in the zone z. before is the number of labels of
// the name before the zone's name.
func (l *local) answer(q *query, asker netip.Addr, network hangar.NetworkID, z *zone, before int) answer {
	none := answer{rcode: dns.RcodeNameError, zone: z, labels: before}
	var n *node
	switch z.kind {
	case zoneInternal:
		select {
		case <-l.catalog.Synced():
		default:
			// A row that is not visible yet may exist.
			return answer{rcode: dns.RcodeServerFailure}
		}
		n = l.node(q, asker, network, before)
	case zoneFlycast:
		if l.routes != nil {
			select {
			case <-l.routes.Synced():
			default:
				return answer{rcode: dns.RcodeServerFailure}
			}
		}
		n = l.flycast(q, network, before)
	case zoneReverse:
		n = l.reverse(q, network, before)
	case zoneLocalhost:
		n = &node{}
		switch q.qtype {
		case dns.TypeA:
			return answer{records: records{wire: appendRecord(nil, dns.TypeA, []byte{127, 0, 0, 1}), count: 1}}
		case dns.TypeAAAA:
			return answer{records: addressRecords([]netip.Addr{netip.IPv6Loopback()}, true)}
		}
	case zoneEmpty:
		if before == 0 {
			n = &node{}
		}
	}
	if n == nil {
		return none
	}
	a := answer{zone: z, labels: before}
	switch q.qtype {
	case dns.TypeAAAA:
		a.records = n.addresses
	case dns.TypeTXT:
		a.records = n.text
	case dns.TypePTR:
		a.records = n.pointer
	case dns.TypeANY:
		a.records = minimal()
	case dns.TypeSOA:
		if before == 0 {
			a.records = records{wire: append(binary.BigEndian.AppendUint16(nil, pointer), z.soa...), count: 1}
		}
	}
	return a
}

// minimal is the answer to a question for all types: RFC 8482.
func minimal() records {
	return records{wire: appendRecord(nil, dns.TypeHINFO, []byte("\x07RFC8482\x00")), count: 1}
}

// node returns the node of a name below ".internal".
func (l *local) node(q *query, asker netip.Addr, network hangar.NetworkID, before int) *node {
	var buf [4 + maxNameBytes]byte
	key := append(binary.BigEndian.AppendUint32(buf[:0], uint32(network)), q.name...)
	if n := l.kept.get(key); n != nil && n.valid(l.catalog, network) {
		return n
	}
	labels := make([]string, before)
	for i := range labels {
		labels[i] = q.label(i)
		// A label that contains a dot must not count as two labels.
		if strings.Contains(labels[i], ".") {
			return nil
		}
	}
	of := names{network: network, asker: asker, catalog: l.catalog, region: l.region, peers: l.peers}
	n := of.find(labels)
	if n != nil && !n.changeable {
		l.kept.put(key, n)
	}
	return n
}

// flycast returns the node of an App that the edge serves in a network.
func (l *local) flycast(q *query, network hangar.NetworkID, before int) *node {
	if before == 0 {
		return &node{} // other names are below it
	}
	if before > 1 || l.routes == nil {
		return nil
	}
	route, ok := l.routes.ByName(hangar.AppName(q.label(0)))
	if !ok {
		return nil
	}
	var list []netip.Addr
	for i := range route.Addresses {
		if a := &route.Addresses[i]; a.Kind == hangar.AddressPrivateV6 && a.NetworkID == network {
			list = append(list, a.IP)
		}
	}
	if len(list) == 0 {
		return nil
	}
	return &node{addresses: addressRecords(list, true)}
}

// reverse returns the node of an address: its name, for clients on the same network.
func (l *local) reverse(q *query, network hangar.NetworkID, before int) *node {
	const nibbles, zoneNibbles = 32, 4
	if before > nibbles-zoneNibbles {
		return nil
	}
	var addr [16]byte
	addr[0], addr[1] = 0xfd, 0xaa
	for i := range before {
		label := q.label(before - 1 - i) // the nibble after those of the zone
		digit := strings.Index("0123456789abcdef", label)
		if len(label) != 1 || digit < 0 {
			return nil
		}
		at := zoneNibbles + i
		addr[at/2] |= byte(digit) << (4 * (1 - at%2))
	}
	if before < nibbles-zoneNibbles {
		return &node{} // other names are below it
	}
	row, ok := l.catalog.MachineAt(netip.AddrFrom16(addr))
	if !ok || row.Network != network || len(registered(network, []*hangar.MachineRow{row})) == 0 {
		return nil
	}
	m := &row.Machine
	name := wireName(string(m.ID) + ".vm." + string(m.App) + ".internal")
	return &node{pointer: records{wire: appendRecord(nil, dns.TypePTR, name), count: 1}}
}

// networkOf returns the private network of an address; 0 if it is not in one.
func networkOf(a netip.Addr) hangar.NetworkID {
	if !a.Is6() {
		return 0
	}
	b := a.As16()
	if b[0] != 0xfd || b[1] != 0xaa {
		return 0
	}
	return hangar.NetworkID(binary.BigEndian.Uint32(b[2:]))
}

// maxKept bounds the cached nodes, in bytes.
const maxKept = 32 << 20

// nodes caches the records of names, by network and name. An entry may be stale, so the reader
// compares versions. When the cache is full, all entries are dropped.
type nodes struct {
	mu    sync.RWMutex // guards what follows
	all   map[string]*node
	bytes int
}

func (k *nodes) get(key []byte) *node {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.all[string(key)]
}

func (k *nodes) put(key []byte, n *node) {
	const overhead = 256 // of an entry in the map, and of the node
	size := len(key) + n.bytes() + overhead
	k.mu.Lock()
	defer k.mu.Unlock()
	old := k.all[string(key)]
	if old != nil {
		k.bytes -= len(key) + old.bytes() + overhead
	}
	if k.all == nil || k.bytes+size > maxKept {
		k.all, k.bytes = make(map[string]*node), 0
	}
	k.all[string(key)] = n
	k.bytes += size
}
