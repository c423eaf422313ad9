package dns

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/catalog"
	"github.com/hangar-platform/hangar/edge/edgetest"
)

// rowsOf returns started Machines of an App on network 1.
func rowsOf(app string, from, to int) []hangar.MachineRow {
	var rows []hangar.MachineRow
	for n := from; n < to; n++ {
		rows = append(rows, hangar.MachineRow{Network: 1, Machine: hangar.Machine{
			ID: hangar.MachineID(fmt.Sprintf("%014x", n)), App: hangar.AppName(app), AppID: hangar.AppID(app), Region: "ams", State: hangar.MachineStarted,
			PrivateIP: netip.MustParseAddr(fmt.Sprintf("fdaa:0:1:a7b:7d:0:%x:2", n)),
			Config:    hangar.MachineConfig{Metadata: map[string]string{"role": "primary"}},
		}})
	}
	return rows
}

// serverOf returns a Server with rows that does not run.
func serverOf(tb testing.TB, rows []hangar.MachineRow) *Server {
	tb.Helper()
	feed := edgetest.NewFeed()
	for _, row := range rows {
		feed.Put(row)
	}
	c := catalog.New(feed, nil)
	ctx, cancel := context.WithCancel(tb.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.Run(ctx)
	}()
	tb.Cleanup(func() { cancel(); <-ended })
	<-c.Synced()
	return New(Config{Catalog: c, Region: "ams"})
}

func packed(tb testing.TB, name string, qtype uint16, change func(m *dns.Msg)) []byte {
	tb.Helper()
	m := new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype)
	if change != nil {
		change(m)
	}
	b, err := m.Pack()
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// FuzzHandle: any input gets a well-formed answer that is no longer than the asker accepts and
// matches the question; nothing private is forwarded to a resolver.
func FuzzHandle(f *testing.F) {
	for _, name := range []string{
		"web.internal", "_apps.internal", "all._instances.internal", "vms.web.internal", "top2.nearest.of.web.internal", "internal",
		"primary.role.kv._metadata.web.internal", "00000000000001.vm.WEB.internal", "example.com", ".", "localhost", "x.flycast",
		"2.0.0.0.1.0.0.0.0.0.0.0.d.7.0.0.b.7.a.0.1.0.0.0.0.0.0.0.a.a.d.f.ip6.arpa", "1.0.0.10.in-addr.arpa",
	} {
		for _, qtype := range []uint16{dns.TypeAAAA, dns.TypeTXT, dns.TypePTR, dns.TypeANY, dns.TypeSOA} {
			f.Add(packed(f, name, qtype, nil), true, false)
			f.Add(packed(f, name, qtype, func(m *dns.Msg) { m.SetEdns0(4096, true) }), false, true)
		}
	}
	s := serverOf(f, rowsOf("web", 1, 60))
	asker := map[bool]netip.Addr{true: netip.MustParseAddr("fdaa:0:1:a7b:7d:0:1:2"), false: netip.MustParseAddr("fdaa:0:2:a7b:7d:0:1:2")}
	f.Fuzz(func(t *testing.T, msg []byte, member, stream bool) {
		var q query
		out, what := s.handle(nil, msg, &q, s.asker(asker[member]), stream, time.Unix(1000, 0))
		var in dns.Msg
		readable := in.Unpack(msg) == nil
		switch what {
		case drop:
			if readable && !in.Response {
				t.Fatal("a question was dropped")
			}
			return
		case lookup:
			name, _, err := dns.UnpackDomainName(q.name, 0)
			if err != nil || strings.HasSuffix("."+name, ".internal.") || strings.HasSuffix(name, ".d.f.ip6.arpa.") {
				t.Fatalf("%q, %v goes to a resolver", name, err)
			}
			if m := question(&q); m.Question[0].Qtype != q.qtype {
				t.Fatal("another question")
			}
			return
		case done:
		}
		if limit := q.limit(stream); len(out) > limit {
			t.Fatalf("%d bytes for a client that takes %d", len(out), limit)
		}
		var m dns.Msg
		if err := m.Unpack(out); err != nil {
			t.Fatalf("%v: %x", err, out)
		}
		if !m.Response {
			t.Fatal("no answer")
		}
		if readable && len(in.Question) == 1 && m.Rcode == dns.RcodeSuccess && m.Question[0] != in.Question[0] {
			t.Fatalf("%v instead of %v", m.Question, in.Question)
		}
		if !member && strings.Contains(string(out), "fdaa") {
			t.Fatal("a foreign network is seen")
		}
		for _, rr := range m.Answer {
			if a, ok := rr.(*dns.AAAA); ok && !member && a.AAAA.String() != "fdaa::3" && a.AAAA.String() != "::1" {
				t.Fatalf("a foreign network is seen: %v", rr)
			}
		}
	})
}

// FuzzReply: a resolver's reply is either refused or can be sent to any asker.
func FuzzReply(f *testing.F) {
	for _, line := range []string{"a.example. 60 IN AAAA ::1", "a.example. 60 IN CNAME b.example.", "a.example. 9 IN TXT x"} {
		rr, err := dns.NewRR(line)
		if err != nil {
			f.Fatal(err)
		}
		m := new(dns.Msg).SetQuestion("a.example.", rr.Header().Rrtype)
		m.Answer = []dns.RR{rr, rr}
		b, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, true)
	}
	// A SOA without data.
	f.Add([]byte("0000\x00\x01000000\x000000\x00\x00\x06000000\x00\x00"), false)
	f.Fuzz(func(t *testing.T, msg []byte, edns bool) {
		var m dns.Msg
		if m.Unpack(msg) != nil || len(m.Question) != 1 || len(msg) > 4096 {
			return
		}
		change := func(m *dns.Msg) {
			if edns {
				m.SetEdns0(800, true)
			}
		}
		name := make([]byte, 256)
		end, err := dns.PackDomainName(m.Question[0].Name, name, 0, nil, false)
		if err != nil || end == 0 {
			return
		}
		var q query
		if rcode, ok := q.parse(packed(t, m.Question[0].Name, m.Question[0].Qtype, change)); !ok || rcode != 0 {
			return
		}
		now := time.Unix(1000, 0)
		r, err := newReply("", &m, now)
		if err != nil {
			return
		}
		for _, limit := range []int{plainUDP, maxUDP, maxMessage} {
			out := r.write(nil, &q, limit, r.left(now))
			var got dns.Msg
			if err := got.Unpack(out); err != nil || len(out) > limit {
				t.Fatalf("%d bytes of %d: %v", len(out), limit, err)
			}
		}
	})
}

// BenchmarkHandle measures an answer without the network.
func BenchmarkHandle(b *testing.B) {
	s := serverOf(b, rowsOf("web", 1, 4))
	crowd := serverOf(b, rowsOf("web", 1, 1000))
	asker := netip.MustParseAddr("fdaa:0:1:a7b:7d:0:1:2")
	for _, c := range []struct {
		title, name string
		server      *Server
	}{
		{"app", "web.internal", s},
		{"machine", "00000000000001.vm.web.internal", s},
		{"none", "none.internal", s},
		{"app of 1000", "web.internal", crowd},
		{"machine of 1000", "00000000000011.vm.web.internal", crowd},
	} {
		b.Run(c.title, func(b *testing.B) {
			msg := packed(b, c.name, dns.TypeAAAA, func(m *dns.Msg) { m.SetEdns0(1232, false) })
			out := make([]byte, 0, maxUDP)
			var q query
			now := time.Now()
			b.ReportAllocs()
			for b.Loop() {
				_, _ = c.server.handle(out, msg, &q, c.server.asker(asker), false, now)
			}
		})
	}
}
