// Package ippool has lists of IP prefixes for allocating addresses, and the default lists of an
// instance of the platform.
//
// A Pool never changes and remembers nothing: the caller records which address is in use.
package ippool

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
)

// Family is a version of IP.
type Family int

// The families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// Pool is a list of prefixes of one family that do not overlap. The nil Pool has no addresses.
type Pool []netip.Prefix

// MaxPrefixes is how many prefixes a Pool may have.
const MaxPrefixes = 256

// Parse reads a list of prefixes, separated by commas, such as "192.0.2.0/28,198.51.100.7/32"; the
// empty text is the nil Pool. A single address is a prefix of one. The error names the invalid prefix
// and the problem.
func Parse(text string, family Family) (Pool, error) {
	if text == "" {
		return nil, nil
	}
	var pool Pool
	for one := range strings.SplitSeq(text, ",") {
		one = strings.TrimSpace(one)
		p, err := parsePrefix(one)
		if err == nil {
			err = fault(p, family)
		}
		if err != nil {
			return nil, fmt.Errorf("%q %w", one, err)
		}
		for _, other := range pool {
			if p.Overlaps(other) {
				return nil, fmt.Errorf("%q overlaps %s", one, other)
			}
		}
		if pool = append(pool, p); len(pool) > MaxPrefixes {
			return nil, fmt.Errorf("has more than %d prefixes", MaxPrefixes)
		}
	}
	return pool, nil
}

func parsePrefix(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, fmt.Errorf("is not an address or a prefix, such as 192.0.2.0/28 or 2001:db8::/64")
	}
	return p, nil
}

// fault returns the reason why no addresses can be allocated from a prefix.
func fault(p netip.Prefix, family Family) error {
	a := p.Addr()
	switch {
	case a.Is4() != (family == IPv4) || a.Is4In6():
		return fmt.Errorf("is not of IPv%d", family)
	case p != p.Masked():
		return fmt.Errorf("has bits set after the first %d; use %s", p.Bits(), p.Masked())
	case family == IPv4 && p.Bits() < 8, family == IPv6 && p.Bits() < 16:
		return fmt.Errorf("is too large")
	case a.IsUnspecified(), a.IsMulticast(), a.IsLinkLocalUnicast():
		return fmt.Errorf("contains addresses that cannot be served")
	case p.Overlaps(private):
		return fmt.Errorf("is of the private networks, %s", private)
	default:
		return nil
	}
}

// private is the prefix of Machines' private addresses.
//
//nolint:gochecknoglobals // a constant
var private = netip.MustParsePrefix("fdaa::/16")

// Contains reports whether the Pool has an address.
func (p Pool) Contains(a netip.Addr) bool {
	return slices.ContainsFunc(p, func(prefix netip.Prefix) bool { return prefix.Contains(a) })
}

// Size is the number of addresses that can be allocated: all of a prefix but the first and, for IPv4,
// the last, unless it has only one or two. It stops at the largest uint64.
func (p Pool) Size() uint64 {
	var sum uint64
	for _, prefix := range p {
		_, n := usable(prefix)
		var carry uint64
		if sum, carry = bits.Add64(sum, n, 0); carry > 0 {
			return math.MaxUint64
		}
	}
	return sum
}

// At returns the number-th address, from 0 to Size-1.
func (p Pool) At(number uint64) netip.Addr {
	for _, prefix := range p {
		first, n := usable(prefix)
		if number < n {
			return add(prefix.Addr(), first+number)
		}
		number -= n
	}
	return netip.Addr{}
}

// usable returns how many addresses of a prefix can be allocated, and how many before them cannot.
func usable(p netip.Prefix) (first, n uint64) {
	free := p.Addr().BitLen() - p.Bits()
	switch {
	case free >= 64:
		return 1, math.MaxUint64
	case free <= 1:
		return 0, 1 << free
	case p.Addr().Is4():
		return 1, 1<<free - 2
	default:
		return 1, 1<<free - 1
	}
}

// add returns the address that is number above a.
func add(a netip.Addr, number uint64) netip.Addr {
	if a.Is4() {
		b := a.As4()
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(number))
		return netip.AddrFrom4(b)
	}
	b := a.As16()
	low, carry := bits.Add64(binary.BigEndian.Uint64(b[8:]), number, 0)
	binary.BigEndian.PutUint64(b[8:], low)
	binary.BigEndian.PutUint64(b[:8], binary.BigEndian.Uint64(b[:8])+carry)
	return netip.AddrFrom16(b)
}

// Loopback is the default IPv4 Pool of an instance: a /24 of 127.0.0.0/8, which every Linux server
// has to itself. It is never in 127.0.0.0/16, which other programs often use.
func Loopback(instance string) Pool {
	h := digest(instance)
	b := [4]byte{127, 1 + h[0]%254, h[1], 0}
	return Pool{netip.PrefixFrom(netip.AddrFrom4(b), 24)}
}

// UniqueLocal is the default IPv6 Pool of an instance: a /64 generated according to RFC 4193. It
// leads to the server only where a route says so.
func UniqueLocal(instance string) Pool {
	h := digest(instance)
	b := [16]byte{0: 0xfd}
	copy(b[1:8], h[2:9])
	if b[1] == 0xaa {
		b[1] = 0xab // outside of private
	}
	return Pool{netip.PrefixFrom(netip.AddrFrom16(b), 64)}
}

func digest(instance string) [sha256.Size]byte {
	return sha256.Sum256([]byte("public addresses of instance " + instance))
}
