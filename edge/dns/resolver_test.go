package dns_test

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"github.com/hangar-platform/hangar/edge/dns"
)

const zone = "example.com. 60 IN SOA ns.example.com. root.example.com. 1 2 3 4 30"

// TestOtherNames: a resolver answers names that are not local, and the cache repeats the answer
// until it expires.
func TestOtherNames(t *testing.T) {
	w := newWorld(t)
	u := newUpstream(t, func(w mdns.ResponseWriter, m *mdns.Msg) {
		switch m.Question[0].Name {
		case "www.example.com.":
			reply(mdns.RcodeSuccess, "www.example.com. 300 IN CNAME web.example.com.", "web.example.com. 100 IN AAAA 2001:db8::1")(w, m)
		case "short.example.com.":
			reply(mdns.RcodeSuccess, "short.example.com. 0 IN AAAA 2001:db8::2")(w, m)
		case "empty.example.com.":
			reply(mdns.RcodeSuccess, zone)(w, m)
		case "nosoa.example.com.":
			reply(mdns.RcodeNameError)(w, m)
		default:
			reply(mdns.RcodeNameError, zone)(w, m)
		}
	})
	addr := serve(t, dns.Config{Catalog: w.catalog, Resolvers: resolvers(u)})
	for _, c := range []struct {
		name  string
		rcode int
		kept  bool
		ttl   uint32 // of the first record
	}{
		{"www.example.com.", mdns.RcodeSuccess, true, 100},
		{"short.example.com.", mdns.RcodeSuccess, false, 0},
		{"empty.example.com.", mdns.RcodeSuccess, true, 30},
		{"none.example.com.", mdns.RcodeNameError, true, 30},
		{"nosoa.example.com.", mdns.RcodeNameError, false, 0},
	} {
		began := time.Now()
		for range 5 {
			m := query(strings.ToUpper(c.name), mdns.TypeAAAA)
			m.SetEdns0(1232, false)
			got := ask(t, "udp", one, addr, m)
			if got.Rcode != c.rcode || got.Authoritative || !got.RecursionAvailable || got.Question[0].Name != strings.ToUpper(c.name) || got.IsEdns0() == nil {
				t.Errorf("%s: %v", c.name, got)
			}
			if all := append(got.Answer, got.Ns...); len(all) > 0 && (all[0].Header().Ttl > c.ttl || all[0].Header().Ttl+2+uint32(time.Since(began).Seconds()) < c.ttl) {
				t.Errorf("%s: a time to live of %d, not %d", c.name, all[0].Header().Ttl, c.ttl)
			}
		}
		if n := u.times(c.name); n == 0 || c.kept && n > 3 || !c.kept && n < 5 { // a lookup that is slow asks up to three times
			t.Errorf("%s was looked up %d times", c.name, n)
		}
	}
	if got := ask(t, "tcp", two, addr, query("www.example.com", mdns.TypeAAAA)); len(got.Answer) != 2 || u.times("www.example.com.") > 3 {
		t.Errorf("another network, over TCP: %v", got)
	}
}

// TestLongOtherNames: an answer that a resolver truncates is fetched over TCP, and truncated
// again for clients over UDP.
func TestLongOtherNames(t *testing.T) {
	w := newWorld(t)
	var lines []string
	for i := range 100 {
		lines = append(lines, "www.example.com. 300 IN AAAA "+netip.AddrFrom16([16]byte{0x20, 1, 15: byte(i)}).String())
	}
	u := newUpstream(t, reply(mdns.RcodeSuccess, lines...))
	addr := serve(t, dns.Config{Catalog: w.catalog, Resolvers: resolvers(u)})
	got := ask(t, "udp", one, addr, query("www.example.com", mdns.TypeAAAA))
	got.Compress = true
	if !got.Truncated || len(got.Answer) == 0 || got.Len() > 512 {
		t.Errorf("over UDP: %d records in %d bytes, cut: %t", len(got.Answer), got.Len(), got.Truncated)
	}
	if got := ask(t, "tcp", one, addr, query("www.example.com", mdns.TypeAAAA)); got.Truncated || len(got.Answer) != 100 {
		t.Errorf("over TCP: %d records, cut: %t", len(got.Answer), got.Truncated)
	}
	if n := u.times("www.example.com."); n < 2 || n > 6 { // UDP, then TCP; a lookup that is slow asks up to three times
		t.Errorf("looked up %d times", n)
	}
}

// TestResolversFail: if a resolver fails, refuses or does not answer, the next one is asked.
func TestResolversFail(t *testing.T) {
	w := newWorld(t)
	good := newUpstream(t, reply(mdns.RcodeSuccess, "a.example.com. 0 IN AAAA 2001:db8::1"))
	for name, bad := range map[string]func(mdns.ResponseWriter, *mdns.Msg){
		"silent":  nil,
		"fails":   reply(mdns.RcodeServerFailure),
		"refuses": reply(mdns.RcodeRefused),
		"lies": func(w mdns.ResponseWriter, m *mdns.Msg) {
			other := m.Copy()
			other.Question[0].Name = "b.example.com."
			reply(mdns.RcodeSuccess, "b.example.com. 60 IN AAAA 2001:db8::2")(w, other)
		},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpstream(t, bad)
			answered := func(addr netip.AddrPort) {
				t.Helper()
				if got := said(ask(t, "udp", one, addr, query("a.example.com", mdns.TypeAAAA))); got != "2001:db8::1" {
					t.Fatal(got)
				}
			}
			for tries := 1; ; tries++ { // the good one may be slow on a busy machine, and so not come first
				addr := serve(t, dns.Config{Catalog: w.catalog, Resolvers: resolvers(u, good)})
				answered(addr)
				// Afterwards the resolver that answered is asked first.
				before := u.times("a.example.com.")
				answered(addr)
				again := u.times("a.example.com.") - before
				if again == 0 {
					return
				}
				if tries == 5 {
					t.Fatalf("the one that does not answer was asked %d times again", again)
				}
			}
		})
	}
	t.Run("all", func(t *testing.T) {
		u := newUpstream(t, reply(mdns.RcodeServerFailure))
		addr := serve(t, dns.Config{Catalog: w.catalog, Resolvers: resolvers(u)})
		began := time.Now()
		for range 5 {
			if got := said(ask(t, "udp", one, addr, query("a.example.com", mdns.TypeAAAA))); got != "SERVFAIL" {
				t.Fatal(got)
			}
		}
		// A lookup sends three questions, and a failure is remembered for a second.
		if n := u.times("a.example.com."); n > 3+3*int(time.Since(began).Seconds()) {
			t.Errorf("a failure was looked up %d times in a moment", n)
		}
	})
	t.Run("none", func(t *testing.T) {
		addr := serve(t, dns.Config{Catalog: w.catalog})
		if got := said(ask(t, "udp", one, addr, query("a.example.com", mdns.TypeAAAA))); got != "SERVFAIL" {
			t.Fatal(got)
		}
	})
}

// TestStaleAnswers: while no resolver answers, the last answer is given.
func TestStaleAnswers(t *testing.T) {
	w := newWorld(t)
	u := newUpstream(t, nil)
	addr := serve(t, dns.Config{Catalog: w.catalog, Resolvers: resolvers(u)})
	lookup := func(name string) string {
		t.Helper()
		return said(ask(t, "udp", one, addr, query(name, mdns.TypeAAAA)))
	}
	// aged has an answer that is too old.
	aged := func(name string) {
		t.Helper()
		u.set(reply(mdns.RcodeSuccess, name+" 1 IN AAAA 2001:db8::1"))
		if got := lookup(name); got != "2001:db8::1" {
			t.Fatal(got)
		}
		time.Sleep(1100 * time.Millisecond)
	}
	until := func(name, want string) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); lookup(name) != want; {
			if time.Now().After(deadline) {
				t.Fatal("the old answer stays although the resolver is back")
			}
		}
	}
	t.Run("during a lookup", func(t *testing.T) {
		for try := 1; ; try++ { // a lookup ends during the test if the server stands still
			name := fmt.Sprintf("a%d.example.com.", try)
			aged(name)
			before := u.times(name)
			release := make(chan struct{})
			u.set(func(w mdns.ResponseWriter, m *mdns.Msg) {
				<-release
				reply(mdns.RcodeSuccess, name+" 60 IN AAAA 2001:db8::2")(w, m)
			})
			got := lookup(name)
			close(release)
			if got != "2001:db8::1" {
				t.Fatal(got)
			}
			// The same lookup, which sends three questions, gets the new answer.
			until(name, "2001:db8::2")
			if n := u.times(name) - before; n <= 3 {
				return
			} else if try == 5 {
				t.Fatalf("the old answer came after its lookup: the resolver was asked %d times", n)
			}
		}
	})
	t.Run("after a failure", func(t *testing.T) {
		const name = "b.example.com."
		aged(name)
		u.set(reply(mdns.RcodeServerFailure))
		for range 2 { // the second is of a failure that is remembered
			if got := lookup(name); got != "2001:db8::1" {
				t.Fatal(got)
			}
		}
		u.set(reply(mdns.RcodeSuccess, name+" 1 IN AAAA 2001:db8::2"))
		until(name, "2001:db8::2")
	})
}

// TestOneLookupForAll: identical questions in flight share a lookup.
func TestOneLookupForAll(t *testing.T) {
	w := newWorld(t)
	release := make(chan struct{})
	u := newUpstream(t, func(w mdns.ResponseWriter, m *mdns.Msg) {
		<-release
		reply(mdns.RcodeSuccess, "a.example.com. 60 IN AAAA 2001:db8::1")(w, m)
	})
	addr := serve(t, dns.Config{Catalog: w.catalog, Resolvers: resolvers(u)})
	var asking sync.WaitGroup
	for _, from := range []netip.Addr{one, another, two} {
		conn := dial(t, "udp", from, addr)
		for range 10 {
			if err := conn.WriteMsg(query("a.example.com", mdns.TypeAAAA)); err != nil {
				t.Fatal(err)
			}
		}
		asking.Go(func() {
			for range 10 {
				if got, err := conn.ReadMsg(); err != nil || said(got) != "2001:db8::1" {
					t.Errorf("%v, %v", got, err)
				}
			}
		})
	}
	// Questions for private names do not wait for these.
	if got := said(ask(t, "udp", one, addr, query("_api.internal", mdns.TypeAAAA))); got != "fdaa::3" {
		t.Error(got)
	}
	close(release)
	asking.Wait()
	if n := u.times("a.example.com."); n > 3 { // the others are retries of a slow one
		t.Errorf("looked up %d times", n)
	}
}
