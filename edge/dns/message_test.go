package dns_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"github.com/hangar-platform/hangar/edge/dns"
)

// exchange sends bytes over UDP and returns the answer. If answered is false, it returns everything
// that arrives before the answer to a later question.
func exchange(t *testing.T, to netip.AddrPort, msg []byte, answered bool) []byte {
	t.Helper()
	conn := dial(t, "udp", one, to)
	defer conn.Close()
	sent := [][]byte{msg}
	if !answered {
		sentinel := query("_api.internal", mdns.TypeAAAA)
		sentinel.Id = 0xbeef
		after, err := sentinel.Pack()
		if err != nil {
			t.Fatal(err)
		}
		sent = append(sent, after)
	}
	for _, b := range sent {
		if _, err := conn.Conn.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	buf := make([]byte, 65535)
	n, err := conn.Conn.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	if n >= 2 && binary.BigEndian.Uint16(buf) == 0xbeef {
		return nil
	}
	return buf[:n]
}

// pack encodes a question after change has modified it.
func pack(t *testing.T, change func(m *mdns.Msg)) []byte {
	t.Helper()
	m := query("web.internal", mdns.TypeAAAA)
	m.Id = 7
	change(m)
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestOddMessages: an invalid question gets the code for its fault, and a message that may be an
// answer gets no answer.
func TestOddMessages(t *testing.T) {
	w := newWorld(t)
	populate(w)
	addr := serve(t, dns.Config{Catalog: w.catalog})
	plain := pack(t, func(*mdns.Msg) {})
	edns := func(m *mdns.Msg) *mdns.OPT { return m.SetEdns0(1232, false).IsEdns0() }
	const none = -1
	for name, c := range map[string]struct {
		msg  []byte
		want int
	}{
		"nothing":           {[]byte{}, none},
		"half a header":     {plain[:11], none},
		"an answer":         {pack(t, func(m *mdns.Msg) { m.Response = true }), none},
		"notify":            {pack(t, func(m *mdns.Msg) { m.Opcode = mdns.OpcodeNotify }), mdns.RcodeNotImplemented},
		"update":            {pack(t, func(m *mdns.Msg) { m.Opcode = mdns.OpcodeUpdate }), mdns.RcodeNotImplemented},
		"no question":       {pack(t, func(m *mdns.Msg) { m.Question = nil }), mdns.RcodeFormatError},
		"two questions":     {pack(t, func(m *mdns.Msg) { m.Question = append(m.Question, m.Question[0]) }), mdns.RcodeFormatError},
		"a record in it":    {pack(t, func(m *mdns.Msg) { m.Answer = []mdns.RR{&mdns.NULL{Hdr: mdns.RR_Header{Name: "."}}} }), mdns.RcodeFormatError},
		"half a question":   {plain[:len(plain)-3], mdns.RcodeFormatError},
		"half a name":       {plain[:20], mdns.RcodeFormatError},
		"a compressed name": {append(append([]byte{}, plain[:12]...), 0xc0, 12, 0, 28, 0, 1), mdns.RcodeFormatError},
		"a label too long":  {append(append([]byte{}, plain[:12]...), append([]byte{64}, make([]byte, 80)...)...), mdns.RcodeFormatError},
		"class CH":          {pack(t, func(m *mdns.Msg) { m.Question[0].Qclass = mdns.ClassCHAOS }), mdns.RcodeRefused},
		"a zone transfer":   {pack(t, func(m *mdns.Msg) { m.Question[0].Qtype = mdns.TypeAXFR }), mdns.RcodeRefused},
		"EDNS":              {pack(t, func(m *mdns.Msg) { edns(m) }), mdns.RcodeSuccess},
		"EDNS of version 1": {pack(t, func(m *mdns.Msg) { edns(m).SetVersion(1) }), mdns.RcodeBadVers},
		"EDNS with options": {pack(t, func(m *mdns.Msg) {
			o := edns(m)
			o.Option = append(o.Option, &mdns.EDNS0_COOKIE{Code: mdns.EDNS0COOKIE, Cookie: "0102030405060708"})
		}), mdns.RcodeSuccess},
		"EDNS twice":           {pack(t, func(m *mdns.Msg) { o := edns(m); m.Extra = append(m.Extra, o) }), mdns.RcodeFormatError},
		"EDNS of another":      {pack(t, func(m *mdns.Msg) { edns(m).Hdr.Name = "a." }), mdns.RcodeFormatError},
		"something at the end": {append(append([]byte{}, plain...), 1, 2, 3), mdns.RcodeSuccess},
	} {
		got := exchange(t, addr, c.msg, c.want != none)
		if got == nil {
			continue
		}
		var m mdns.Msg
		if err := m.Unpack(got); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if m.Rcode != c.want || m.Id != 7 {
			t.Errorf("%s: %s, not %s", name, mdns.RcodeToString[m.Rcode], mdns.RcodeToString[c.want])
		}
	}
}

// TestHeader: the answer repeats the question and the asker's bits.
func TestHeader(t *testing.T) {
	w := newWorld(t)
	populate(w)
	addr := serve(t, dns.Config{Catalog: w.catalog})
	m := query("wEb.INTERnal", mdns.TypeAAAA)
	m.CheckingDisabled = true
	m.SetEdns0(4096, true)
	got := ask(t, "udp", one, addr, m)
	if got.Question[0].Name != "wEb.INTERnal." || got.Answer[0].Header().Name != "wEb.INTERnal." {
		t.Errorf("the case of the question is lost: %v", got)
	}
	opt := got.IsEdns0()
	if !got.RecursionDesired || !got.RecursionAvailable || !got.Authoritative || !got.CheckingDisabled || got.AuthenticatedData ||
		opt == nil || !opt.Do() || opt.UDPSize() != 1232 {
		t.Errorf("%v", got)
	}
	m = query("web.internal", mdns.TypeAAAA)
	m.RecursionDesired = false
	if got := ask(t, "udp", one, addr, m); got.RecursionDesired || got.IsEdns0() != nil {
		t.Errorf("%v", got)
	}
	for _, name := range []string{"web.internal", "example.com"} {
		got = ask(t, "udp", one, addr, query(name, mdns.TypeANY))
		if len(got.Answer) != 1 || got.Answer[0].Header().Rrtype != mdns.TypeHINFO {
			t.Errorf("ANY: %v", got)
		}
	}
	if got := ask(t, "udp", one, addr, query("internal", mdns.TypeSOA)); len(got.Answer) != 1 || len(got.Ns) != 0 {
		t.Errorf("SOA: %v", got)
	}
}

// TestLongAnswers: over UDP an answer fits the asker's limit and is marked as truncated; over TCP
// it is complete.
func TestLongAnswers(t *testing.T) {
	w := newWorld(t)
	const machines = 300
	for n := range machines {
		w.put(netOne, "web", n+1)
	}
	addr := serve(t, dns.Config{Catalog: w.catalog})
	for _, c := range []struct{ size, most int }{{0, 512}, {100, 512}, {900, 900}, {1232, 1232}, {4096, 1232}} {
		m := query("web.internal", mdns.TypeAAAA)
		if c.size > 0 {
			m.SetEdns0(uint16(c.size), false)
		}
		got := ask(t, "udp", one, addr, m)
		got.Compress = true
		if !got.Truncated || got.Len() > c.most || got.Len() < c.most-60 {
			t.Errorf("size %d: an answer of %d bytes with %d records, cut: %t", c.size, got.Len(), len(got.Answer), got.Truncated)
		}
		// A record that does not fit is omitted completely.
		m.Question[0] = query("vms.web.internal", mdns.TypeTXT).Question[0]
		if got := ask(t, "udp", one, addr, m); !got.Truncated || len(got.Answer) != 0 {
			t.Errorf("size %d: %v", c.size, got)
		}
	}
	got := ask(t, "tcp", one, addr, query("web.internal", mdns.TypeAAAA))
	if got.Truncated || len(got.Answer) != machines {
		t.Errorf("%d records over TCP, cut: %t", len(got.Answer), got.Truncated)
	}
	got = ask(t, "tcp", one, addr, query("vms.web.internal", mdns.TypeTXT))
	strs := got.Answer[0].(*mdns.TXT).Txt
	if len(got.Answer) != 1 || got.Truncated || len(strs[0]) != 255 || strings.Count(strings.Join(strs, ""), ",") != machines-1 {
		t.Errorf("%d records, the first of %d strings", len(got.Answer), len(strs))
	}
	// Clients that use the first address reach all of them over time.
	firsts := map[string]bool{}
	for range 200 {
		firsts[ask(t, "udp", one, addr, query("web.internal", mdns.TypeAAAA)).Answer[0].String()] = true
	}
	if len(firsts) < 50 {
		t.Errorf("200 answers began with %d addresses", len(firsts))
	}
}

// TestLongestAnswers: records that do not fit a message are omitted completely.
func TestLongestAnswers(t *testing.T) {
	w := newWorld(t)
	const machines = 4000
	for n := range machines {
		w.put(netOne, "web", n+1)
	}
	addr := serve(t, dns.Config{Catalog: w.catalog})
	name := strings.Repeat("x.", 90) + "web.internal" // as long a question as there may be
	for _, c := range []struct {
		name  string
		qtype uint16
	}{{"web.internal", mdns.TypeAAAA}, {"_instances.internal", mdns.TypeTXT}, {"vms.web.internal", mdns.TypeTXT}, {name, mdns.TypeAAAA}} {
		m := query(c.name, c.qtype)
		m.SetEdns0(1232, true)
		got := ask(t, "tcp", one, addr, m)
		switch {
		case c.name == name:
			if got.Rcode != mdns.RcodeNameError {
				t.Errorf("%v", got)
			}
		case got.Truncated || len(got.Answer) == 0:
			t.Errorf("%s: %d records, cut: %t", c.name, len(got.Answer), got.Truncated)
		case c.qtype == mdns.TypeTXT:
			text := strings.Join(got.Answer[0].(*mdns.TXT).Txt, "")
			if len(text) < 64_000 || !strings.HasSuffix(text, "ams") {
				t.Errorf("%s: %d bytes, the end %q", c.name, len(text), text[len(text)-20:])
			}
		}
	}
}

// TestConnection asks several questions at once on one connection.
func TestConnection(t *testing.T) {
	w := newWorld(t)
	populate(w)
	addr := serve(t, dns.Config{Catalog: w.catalog})
	conn := dial(t, "tcp", one, addr)
	for i := range 20 {
		m := query("web.internal", mdns.TypeAAAA)
		m.Id = uint16(i)
		if err := conn.WriteMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		if m, err := conn.ReadMsg(); err != nil || m.Id != uint16(i) || len(m.Answer) != 3 {
			t.Fatalf("answer %d: %v, %v", i, m, err)
		}
	}
	// One that sends no message is closed.
	conn = dial(t, "tcp", one, addr)
	if _, err := conn.Conn.Write([]byte{0xff, 0xff, 0}); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after a message that is too long: %v", err)
	}
}

// TestOpen: the error names the address.
func TestOpen(t *testing.T) {
	w := newWorld(t)
	addr := serve(t, dns.Config{Catalog: w.catalog})
	s := dns.New(dns.Config{Catalog: w.catalog, Listen: []netip.AddrPort{addr}})
	err := s.Open(t.Context())
	if err == nil || !strings.Contains(err.Error(), addr.String()) || !strings.Contains(err.Error(), "in use") {
		t.Errorf("an address that is in use: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if len(s.Addrs()) != 0 {
		t.Error(fmt.Sprint(s.Addrs()))
	}
}
