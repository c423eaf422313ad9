package dns_test

import (
	"net/netip"
	"testing"

	mdns "github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hangar-platform/hangar/edge/dns"
)

// TestCounts: each message counts once, under its result.
func TestCounts(t *testing.T) {
	w := newWorld(t)
	w.put(netOne, "web", 1)
	u := newUpstream(t, func(w mdns.ResponseWriter, m *mdns.Msg) {
		answer := new(mdns.Msg).SetReply(m)
		if m.Question[0].Name == "bad.example.com." {
			answer.Rcode = mdns.RcodeRefused
		} else {
			answer.Answer = []mdns.RR{&mdns.A{Hdr: mdns.RR_Header{Name: m.Question[0].Name, Rrtype: mdns.TypeA, Class: mdns.ClassINET, Ttl: 600}, A: []byte{192, 0, 2, 1}}}
		}
		_ = w.WriteMsg(answer)
	})
	s := run(t, dns.Config{Catalog: w.catalog, Resolvers: resolvers(u)})
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(s)
	addr := s.Addrs()[0]
	for _, each := range []struct {
		from    netip.Addr
		network string
		name    string
		result  string
	}{
		{one, "udp", "web.internal", "local"},
		{one, "tcp", "none.internal", "local"},
		{stranger, "udp", "example.com", "refused"},
		{one, "udp", "example.com", "resolved"},
		{one, "tcp", "example.com", "cached"},
		{one, "udp", "bad.example.com", "failed"},
	} {
		before := counted(t, registry)
		ask(t, each.network, each.from, addr, query(each.name, mdns.TypeA))
		after := counted(t, registry)
		for result, n := range after {
			want := before[result]
			if result == each.result {
				want++
			}
			if n != want && result != "" {
				t.Errorf("after %s of %s over %s, %s is %v, want %v", each.name, each.from, each.network, result, n, want)
			}
		}
	}
	conn := dial(t, "tcp", one, addr)
	if _, err := conn.Write([]byte("x")); err != nil { // a message of one byte
		t.Fatal(err)
	}
	if _, err := conn.ReadMsg(); err == nil {
		t.Error("what is no question is answered")
	}
	if after := counted(t, registry); after["invalid"] != 1 || after["limited"] != 0 || after[""] == 0 {
		t.Errorf("counts are %v", after)
	}
}

// counted returns the number of messages by result, and under the empty result the size of the
// cache.
func counted(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			switch f.GetName() {
			case "hangar_dns_queries_total":
				all[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			case "hangar_dns_cache_bytes":
				all[""] = m.GetGauge().GetValue()
			}
		}
	}
	return all
}
