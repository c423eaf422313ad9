package publicdial

import "net/netip"

// special are the ranges that tenants must not make the server connect to, each with its description.
// The first match applies. Sources: the IANA registries of special-purpose addresses for IPv4 and
// IPv6 (RFC 6890) and the documentation of the clouds for their metadata services.
var special = []struct { //nolint:gochecknoglobals // a table that nothing changes
	rule     string
	prefixes []netip.Prefix
}{
	{"a metadata service", prefixes(
		"169.254.169.254/32", "169.254.170.2/32", "fd00:ec2::254/128", // AWS and most others
		"100.100.100.200/32", // Alibaba
		"168.63.129.16/32",   // Azure
		"192.0.0.192/32",     // Oracle
		"fd20:ce::254/128",   // Google
	)},
	{"an unspecified address", prefixes("0.0.0.0/8", "::/128")},
	{"a loopback address", prefixes("127.0.0.0/8", "::1/128")},
	{"a private address", prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10")},
	{"a link-local address", prefixes("169.254.0.0/16", "fe80::/10")},
	{"an address of a carrier's NAT", prefixes("100.64.0.0/10")},
	{"a multicast address", prefixes("224.0.0.0/4", "ff00::/8")},
	{"a translated address", prefixes("64:ff9b:1::/48", "2002::/16", "192.88.99.0/24", "2001::/32")}, // NAT64, 6to4, Teredo
	{"a reserved address", prefixes(
		"192.0.0.0/24", "192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
		"2001::/23", "2001:db8::/32", "3fff::/20",
	)},
}

// global is the range of all public IPv6 addresses (RFC 4291, section 2.4, and the registry of the
// IPv6 address space).
var global = netip.MustParsePrefix("2000::/3") //nolint:gochecknoglobals // a constant

// nat64 is the well-known prefix of addresses that contain an IPv4 address in their last four bytes
// (RFC 6052). A server with IPv6 only reaches the IPv4 internet through it.
var nat64 = netip.MustParsePrefix("64:ff9b::/96") //nolint:gochecknoglobals // a constant

const notGlobal = "a reserved address"

func prefixes(list ...string) []netip.Prefix {
	parsed := make([]netip.Prefix, len(list))
	for i, text := range list {
		parsed[i] = netip.MustParsePrefix(text)
	}
	return parsed
}

// plain converts the forms of an IPv4 address within IPv6 to that address, and drops zones.
func plain(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if nat64.Contains(a) {
		b := a.As16()
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return a
}

// rangeOf returns the description of an address's special range; empty: the address is on the public
// internet.
func rangeOf(a netip.Addr) string {
	a = plain(a)
	for _, s := range special {
		for _, p := range s.prefixes {
			if p.Contains(a) {
				return s.rule
			}
		}
	}
	if a.Is6() && !global.Contains(a) {
		return notGlobal
	}
	return ""
}
