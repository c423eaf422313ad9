package dns

import (
	"encoding/binary"
	"strconv"

	"github.com/miekg/dns"
)

// TTL is how long an answer about the private network may be cached, and NegativeTTL how long a
// missing name may be, in seconds. NegativeTTL is shorter, because a name that is requested too early
// appears within milliseconds.
const (
	TTL         = 5
	NegativeTTL = 1
)

// zone is a part of the name space that is answered here and never forwarded.
type zone struct {
	kind zoneKind
	soa  []byte // its SOA record after the owner
}

type zoneKind int

const (
	zoneEmpty     zoneKind = iota // nothing is in it
	zoneInternal                  // the names of the private network
	zoneFlycast                   // Apps that the edge serves in it
	zoneReverse                   // fdaa::/16
	zoneLocalhost                 // RFC 6761
)

// maxZoneLabels is the most labels that the name of a zone has.
const maxZoneLabels = 6

// reverseZone contains the addresses of all private networks.
const reverseZone = "a.a.d.f.ip6.arpa"

// zones are the local zones, by their names in wire format.
var zones = localZones() //nolint:gochecknoglobals // a constant

func localZones() map[string]*zone {
	kinds := map[string]zoneKind{
		"internal":  zoneInternal,
		reverseZone: zoneReverse,
		"localhost": zoneLocalhost,
		"flycast":   zoneFlycast,
		// No registry delegates these: RFC 6761, RFC 7686.
		"invalid": zoneEmpty, "onion": zoneEmpty,
	}
	// Addresses without a meaning outside: RFC 6303.
	for _, name := range []string{
		"10.in-addr.arpa", "168.192.in-addr.arpa", "0.in-addr.arpa", "127.in-addr.arpa", "254.169.in-addr.arpa",
		"2.0.192.in-addr.arpa", "100.51.198.in-addr.arpa", "113.0.203.in-addr.arpa", "255.255.255.255.in-addr.arpa",
		"d.f.ip6.arpa", "8.e.f.ip6.arpa", "9.e.f.ip6.arpa", "a.e.f.ip6.arpa", "b.e.f.ip6.arpa",
	} {
		kinds[name] = zoneEmpty
	}
	for i := 16; i < 32; i++ {
		kinds[strconv.Itoa(i)+".172.in-addr.arpa"] = zoneEmpty
	}
	zones := make(map[string]*zone, len(kinds))
	for name, kind := range kinds {
		zones[string(wireName(name))] = &zone{kind: kind, soa: soaBody(name)}
	}
	return zones
}

// soaBody is the SOA record of a zone, which says how long negative answers may be cached.
func soaBody(name string) []byte {
	data := wireName(name)
	data = append(data, wireName("hostmaster."+name)...)
	for _, n := range []uint32{1, 3600, 600, 86400, NegativeTTL} { // serial, refresh, retry, expire, minimum
		data = binary.BigEndian.AppendUint32(data, n)
	}
	return appendBody(nil, dns.TypeSOA, NegativeTTL, data)
}

// zone returns the zone of the name, the innermost if zones are nested, and the number of the name's
// labels before it.
func (q *query) zone() (z *zone, before int) {
	for i := max(0, q.labels-maxZoneLabels); i < q.labels; i++ {
		if z := zones[string(q.from(i))]; z != nil {
			return z, i
		}
	}
	return nil, 0
}
