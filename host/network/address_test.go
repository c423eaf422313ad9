package network

import (
	"fmt"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/hangar-platform/hangar"
)

func TestAddressIsUnique(t *testing.T) {
	type place struct {
		network hangar.NetworkID
		host    uint32
		number  uint64
	}
	places := rapid.Custom(func(t *rapid.T) place {
		return place{
			network: hangar.NetworkID(rapid.Uint32().Draw(t, "network")),
			host:    rapid.Uint32().Draw(t, "host"),
			number:  rapid.Uint64Range(0, MaxNumber-1).Draw(t, "number"),
		}
	})
	address := func(p place) netip.Addr {
		return Address(p.network, hangar.HostID(fmt.Sprintf("%08x", p.host)), p.number)
	}
	rapid.Check(t, func(t *rapid.T) {
		p := places.Draw(t, "p")
		q := p
		switch rapid.IntRange(0, 3).Draw(t, "what differs") {
		case 0:
			q.network = hangar.NetworkID(rapid.Uint32().Draw(t, "other network"))
		case 1:
			q.host = rapid.Uint32().Draw(t, "other host")
		case 2:
			q.number = rapid.Uint64Range(0, MaxNumber-1).Draw(t, "other number")
		case 3:
			q = places.Draw(t, "q")
		}
		a, b := address(p), address(q)
		if (a == b) != (p == q) {
			t.Fatalf("%+v has %s, %+v has %s", p, a, q, b)
		}
		if pa, pb := machinePrefix(a).Masked(), machinePrefix(b).Masked(); pa.Overlaps(pb) != (p == q) {
			t.Fatalf("%+v has %s, %+v has %s", p, pa, q, pb)
		}
		if as16 := a.As16(); as16[0] != 0xfd || as16[1] != 0xaa || as16[15] != 2 {
			t.Fatalf("%s has not the form fdaa:…:2", a)
		}
		if host := HostAddress(hangar.HostID(fmt.Sprintf("%08x", p.host))); a == host {
			t.Fatalf("%+v has the host's own address %s", p, a)
		}
		if linkName("habcdefgh", p.number) == linkName("habcdefgh", q.number) != (p.number == q.number) {
			t.Fatalf("devices of %d and %d", p.number, q.number)
		}
	})
}

func TestAddressForm(t *testing.T) {
	if got, want := Address(0x18, "0a7b7df0", 0x66b83b).String(), "fdaa:0:18:a7b:7df0:66:b83b:2"; got != want {
		t.Errorf("address %s, want %s", got, want)
	}
	for _, host := range []hangar.HostID{"", "0a7b7df", "0a7b7df00", "xa7b7df0", "+a7b7df0"} {
		if a := Address(1, host, 1); a.IsValid() {
			t.Errorf("host %q: address %s, want none", host, a)
		}
	}
}

func TestNames(t *testing.T) {
	for instance, want := range map[string]string{"abcdefgh": "habcdefgh00000z", "a": "ha-------00000z"} {
		if got := linkName(linkPrefix(instance), 35); got != want || len(got) != 15 {
			t.Errorf("instance %s: device %s, want %s", instance, got, want)
		}
	}
	e := endpoint{number: 7, ipv4: netip.MustParseAddr("172.16.0.9"), ipv6: Address(1, testHost, 7)}
	id, got, ok := parseAlias(alias("00000000000007", e))
	if !ok || id != "00000000000007" || got != e {
		t.Errorf("alias %q read as %s %+v %t", alias("00000000000007", e), id, got, ok)
	}
	for _, bad := range []string{"", "uplink to the office", "machine 00000000000007 number 7", "machine 0 number 1 a b"} {
		if _, _, ok := parseAlias(bad); ok {
			t.Errorf("alias %q was accepted", bad)
		}
	}
}

func TestPreferred4IsUsable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.IntRange(8, 24).Draw(t, "bits")
		pool := netip.PrefixFrom(netip.MustParseAddr("10.0.0.0"), bits)
		a := preferred4(pool, rapid.Uint64Range(0, MaxNumber-1).Draw(t, "number"))
		if !pool.Contains(a) || a == pool.Addr() || a == pool.Addr().Next() || !pool.Contains(a.Next()) {
			t.Fatalf("%s of %s", a, pool)
		}
	})
}
