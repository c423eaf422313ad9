package ippool_test

import (
	"math"
	"net/netip"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar/internal/ippool"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]struct {
		family ippool.Family
		size   uint64
		first  string
		last   string
	}{
		"192.0.2.0/28":                  {ippool.IPv4, 14, "192.0.2.1", "192.0.2.14"},
		"192.0.2.7":                     {ippool.IPv4, 1, "192.0.2.7", "192.0.2.7"},
		"192.0.2.6/31":                  {ippool.IPv4, 2, "192.0.2.6", "192.0.2.7"},
		"192.0.2.0/30, 198.51.100.9":    {ippool.IPv4, 3, "192.0.2.1", "198.51.100.9"},
		"10.0.0.0/8":                    {ippool.IPv4, 1<<24 - 2, "10.0.0.1", "10.255.255.254"},
		"2001:db8::/126":                {ippool.IPv6, 3, "2001:db8::1", "2001:db8::3"},
		"2001:db8::5/128":               {ippool.IPv6, 1, "2001:db8::5", "2001:db8::5"},
		"2001:db8::/32":                 {ippool.IPv6, math.MaxUint64, "2001:db8::1", "2001:db8:0:0:ffff:ffff:ffff:ffff"},
		"2001:db8::/64,2001:db8:1::/64": {ippool.IPv6, math.MaxUint64, "2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff"},
	} {
		pool, err := ippool.Parse(text, want.family)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		size := pool.Size()
		first, last := pool.At(0), pool.At(size-1)
		if size != want.size || first != netip.MustParseAddr(want.first) || last != netip.MustParseAddr(want.last) {
			t.Errorf("%s: %d addresses from %s to %s, want %+v", text, size, first, last, want)
		}
		if !pool.Contains(first) || !pool.Contains(last) || pool.Contains(netip.MustParseAddr("203.0.113.1")) {
			t.Errorf("%s: does not know what it contains", text)
		}
	}
	if pool, err := ippool.Parse("", ippool.IPv4); pool != nil || err != nil || pool.Size() != 0 || pool.At(0).IsValid() {
		t.Errorf("of nothing: %v, %v", pool, err)
	}
}

func TestParseRefuses(t *testing.T) {
	for text, rule := range map[string]string{
		"x": "not an address", "192.0.2.0/33": "not an address", ",": "not an address", "192.0.2.1,": "not an address", "fe80::1%lo": "not an address",
		"2001:db8::/64": "not of IPv4", "::ffff:192.0.2.0/120": "not of IPv4",
		"192.0.2.1/24": "use 192.0.2.0/24", "0.0.0.0/0": "too large", "224.0.0.0/8": "cannot be served", "0.0.0.0/8": "cannot be served", "169.254.0.0/16": "cannot be served",
		"192.0.2.0/24,192.0.2.9": "overlaps 192.0.2.0/24", strings.Repeat("192.0.2.9,", 2) + "1": "overlaps",
	} {
		if pool, err := ippool.Parse(text, ippool.IPv4); err == nil || !strings.Contains(err.Error(), rule) {
			t.Errorf("%s: %v, %v; want %q", text, pool, err, rule)
		}
	}
	for text, rule := range map[string]string{"192.0.2.1": "not of IPv6", "fdaa:0:1::/64": "private networks", "fd00::/8": "too large", "ff02::/64": "cannot be served"} {
		if pool, err := ippool.Parse(text, ippool.IPv6); err == nil || !strings.Contains(err.Error(), rule) {
			t.Errorf("%s: %v, %v; want %q", text, pool, err, rule)
		}
	}
}

func TestOwnPools(t *testing.T) {
	seen := map[netip.Prefix]string{}
	for _, instance := range []string{"", "a", "0a7b7d", "ffffff", "123456"} {
		for family, pool := range map[ippool.Family]ippool.Pool{ippool.IPv4: ippool.Loopback(instance), ippool.IPv6: ippool.UniqueLocal(instance)} {
			again, err := ippool.Parse(pool[0].String(), family)
			if err != nil || again[0] != pool[0] {
				t.Errorf("%q: %v, %v", instance, pool, err)
			}
			if other, taken := seen[pool[0]]; taken {
				t.Errorf("%q and %q share %s", instance, other, pool[0])
			}
			seen[pool[0]] = instance
			if family == ippool.IPv4 && (!pool.Contains(pool.At(0)) || !pool.At(0).IsLoopback() || netip.MustParsePrefix("127.0.0.0/16").Overlaps(pool[0])) {
				t.Errorf("%q: %v", instance, pool)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("192.0.2.0/28,198.51.100.7", uint64(3))
	f.Add("2001:db8::/64", uint64(1<<63))
	f.Fuzz(func(t *testing.T, text string, number uint64) {
		for _, family := range []ippool.Family{ippool.IPv4, ippool.IPv6} {
			pool, err := ippool.Parse(text, family)
			if err != nil || len(pool) == 0 {
				continue
			}
			if a := pool.At(number % pool.Size()); !pool.Contains(a) {
				t.Errorf("%q: address %d is %s", text, number, a)
			}
		}
	})
}
