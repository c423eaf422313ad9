package listen

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/balance"
)

// from connects from an address of loopback.
func from(source, address string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: patience}
	return d.Dial("tcp", address)
}

// flood has one client connect without end, and begin handshakes that it never ends. Its limits
// are low; slow is how long it may take. Connections that were reset at once are not returned.
func flood(t *testing.T, w *world, slow time.Duration) (r *rig, open []net.Conn) {
	t.Helper()
	r = newRig(t, w, func(o *Options) {
		o.Limits.ClientConns, o.Limits.ClientHandshakes, o.Limits.FirstByte, o.Limits.Handshake = 50, 10, slow, slow
	})
	plain, https := r.Addrs()
	for i := range 200 {
		address := plain
		if i%2 == 0 {
			address = https
		}
		c, err := from("127.66.6.6", address.String())
		if err != nil {
			continue
		}
		t.Cleanup(func() { _ = c.Close() })
		if i%2 == 0 {
			_, _ = c.Write([]byte{tlsRecord, 3, 1}) // and no more
		}
		open = append(open, c)
	}
	return r, open
}

// Beside a client that floods the server, another one is served as if it was alone.
func TestFloodOfOneClient(t *testing.T) {
	w := newWorld()
	w.app("shop", []string{"shared_v4 127.0.0.1"}, service("tcp", 1, 80, "http"), service("tcp", 1, 443, "tls", "http"))
	r, _ := flood(t, w, time.Hour)
	plain, https := r.Addrs()
	for range 20 {
		c, err := from("127.66.6.7", plain.String())
		must(err)
		if got := ask(t, c, "shop.apps.test"); got.Port != 80 {
			t.Errorf("told %+v", got)
		}
		must(c.Close())
		c, err = from("127.66.6.7", https.String())
		must(err)
		secure := tls.Client(c, &tls.Config{RootCAs: w.roots, ServerName: "shop.apps.test"})
		if got := ask(t, secure, "shop.apps.test"); got.Name != "shop.apps.test" {
			t.Errorf("told %+v", got)
		}
		must(c.Close())
	}
}

// All connections of a flood end: there are too many of them, or they are too slow.
func TestFloodEnds(t *testing.T) {
	w := newWorld()
	w.app("shop", []string{"shared_v4 127.0.0.1"}, service("tcp", 1, 80, "http"), service("tcp", 1, 443, "tls", "http"))
	_, open := flood(t, w, 100*time.Millisecond)
	for _, c := range open {
		must(c.SetReadDeadline(time.Now().Add(patience)))
		switch _, err := c.Read(make([]byte, 1)); {
		case err == nil:
			t.Error("a connection that says nothing is answered")
		case errors.Is(err, os.ErrDeadlineExceeded):
			t.Fatal("a connection that says nothing stays open")
		}
	}
}

// TestOrganizationWithManyClients has as many clients as it takes, each below its own limit,
// fill the server with connections to Apps of one organization, by name and at addresses of its
// own, and say nothing. Another organization is served as if it was alone.
func TestOrganizationWithManyClients(t *testing.T) {
	const most, each = 60, 3
	w := newWorld()
	raw, port := freePort(t), freePort(t)
	w.echo(t, 1, "hello")
	w.app("greedy", []string{"v4 " + dedicated}, service("tcp", 1, raw))
	w.app("names", []string{"shared_v4 127.0.0.1"}, service("tcp", 1, 443, "tls", "http"))
	w.org = "other"
	w.app("shop", []string{"v4 " + dedicated2, "shared_v4 127.0.0.1"}, service("tcp", 1, port), service("tcp", 1, 443, "tls", "http"))
	r := newRig(t, w, func(o *Options) { o.Limits.Conns, o.Limits.ClientConns = most, each })
	_, https := r.Addrs()
	for _, address := range []string{at(dedicated, raw), at(dedicated2, port)} {
		c := dial(t, "tcp", address)
		_, err := io.ReadFull(c, make([]byte, 5)) // by now it counts
		must(err)
		must(c.Close())
	}
	r.uncounted(t)

	var held []net.Conn
	defer func() {
		for _, c := range held {
			_ = c.Close()
		}
	}()
	// greet connects as a client to an App, and reports whether the connection is served.
	greet := func(source, app string) bool {
		address := at(dedicated, raw)
		switch app {
		case "shop":
			address = at(dedicated2, port)
		case "names", "shop by name":
			address = https.String()
		}
		c, err := from(source, address)
		if err != nil {
			return false
		}
		held = append(held, c)
		must(c.SetDeadline(time.Now().Add(patience)))
		if address == https.String() {
			name, _, _ := strings.Cut(app, " ")
			return tls.Client(c, &tls.Config{RootCAs: w.roots, ServerName: name + ".apps.test"}).Handshake() == nil
		}
		_, err = io.ReadFull(c, make([]byte, 5))
		return err == nil
	}
	served := 0
	for i := range most {
		app := "greedy"
		if i%2 == 0 {
			app = "names"
		}
		if greet(fmt.Sprintf("127.66.6.%d", 1+i), app) {
			served++
		}
	}
	if served != most/2 {
		t.Errorf("%d of %d connections to one organization's apps are served", served, most)
	}
	for i := range most / 10 {
		for _, app := range []string{"shop", "shop by name"} {
			if !greet(fmt.Sprintf("127.66.7.%d", 1+i), app) {
				t.Errorf("another organization's connection %d to %s is not served", i, app)
			}
		}
	}
	if s := r.Stats(); s.RefusedConns != most/2 || s.Conns != most/2+most/5 {
		t.Errorf("counted %+v", s)
	}
	w.logged(t, "greedy error [PH08]")
	for _, c := range held {
		_ = c.Close()
	}
	r.uncounted(t)
	w.emptied(t, 0)
	if !greet("127.66.6.1", "greedy") {
		t.Error("afterwards, it is not served")
	}
}

// TestDatagramsOfOneOrganization is the same with datagrams: neither their sessions nor what
// waits for Machines takes the room of others.
func TestDatagramsOfOneOrganization(t *testing.T) {
	const most = 20 // sessions
	w := newWorld()
	ports := []int{freePort(t), freePort(t), freePort(t)}
	w.udpEcho(t, 1, "udp ")
	w.app("greedy", []string{"v4 " + dedicated}, service("udp", 1, ports[0]), service("udp", 1, ports[1]))
	w.org = "other"
	w.app("game", []string{"v4 " + dedicated2}, service("udp", 1, ports[2]))
	r := newRig(t, w, func(o *Options) { o.Limits.Conns = most * sessionShare })
	client := func(ip string, port int) net.Conn {
		c, err := net.Dial("udp", at(ip, port))
		must(err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	for i := range most / 2 {
		if got := say(t, client(dedicated, ports[i%2]), "hello"); got != "udp hello" {
			t.Errorf("client %d is answered %q", i, got)
		}
	}
	_, err := client(dedicated, ports[0]).Write([]byte("one too many"))
	must(err)
	w.logged(t, "greedy error [PH08] datagrams of a client are dropped")
	for i := range most / 4 {
		if got := say(t, client(dedicated2, ports[2]), "hello"); got != "udp hello" {
			t.Errorf("another organization's client %d is answered %q", i, got)
		}
	}
	if s := r.Stats(); s.Sessions != most/2+most/4 || s.RefusedSessions == 0 {
		t.Errorf("counted %+v", s)
	}
}

func TestHandshakeRate(t *testing.T) {
	w := newWorld()
	w.echo(t, 1, "")
	w.app("shop", []string{"v4 " + dedicated, "shared_v4 127.0.0.1"}, service("tcp", 1, 443, "tls"))
	r := newRig(t, w, func(o *Options) { o.HTTPS, o.Limits.ClientRate, o.Limits.NameRate = ":0", 1, 1 })
	_, https := r.Addrs()
	const times = 40 // more than it may within half a minute
	if n := w.shakeHands(t, "127.66.6.6", at(dedicated, int(https.Port())), times); n <= burst/2 || n == times {
		t.Errorf("one client got %d handshakes for a name", n)
	}
	w.logged(t, "shop error [PT02]")
	w.logged(t, "shop error [PT01]")
}

// shakeHands has a client begin TLS with the App shop, and counts how often it may.
func (w *world) shakeHands(t *testing.T, source, address string, times int) (served int) {
	t.Helper()
	for range times {
		c, err := from(source, address)
		if err != nil { // it was reset at once
			continue
		}
		if tls.Client(c, &tls.Config{RootCAs: w.roots, ServerName: "shop.apps.test"}).Handshake() == nil {
			served++
		}
		must(c.Close())
	}
	return served
}

// TestHandshakesOfAbusers has a few clients begin TLS for a name as often as they can. Another
// one, that is content with less than they have got, is served as if it was alone.
func TestHandshakesOfAbusers(t *testing.T) {
	w := newWorld()
	w.app("shop", []string{"shared_v4 127.0.0.1"}, service("tcp", 1, 443, "tls", "http"))
	r := newRig(t, w, func(o *Options) { o.Limits.ClientRate, o.Limits.NameRate = -1, 8 })
	_, https := r.Addrs()
	got := 0
	for range 3 {
		for abuser := range 3 {
			got += w.shakeHands(t, fmt.Sprintf("127.66.6.%d", 1+abuser), https.String(), 15)
		}
		if w.shakeHands(t, "127.66.7.1", https.String(), 1) != 1 {
			t.Errorf("after %d handshakes of others, a client gets none", got)
		}
	}
	if got == 3*3*15 {
		t.Error("no client was limited")
	}
}

// An established connection continues while no new one is accepted. It is ended after a drain
// that takes too long, and Run returns.
func TestDrain(t *testing.T) {
	w := newWorld()
	port := freePort(t)
	w.echo(t, 1, "hello")
	w.app("shop", []string{"v4 " + dedicated}, service("tcp", 1, port))
	for drain, ends := range map[time.Duration]error{time.Hour: nil, time.Millisecond: syscall.ECONNRESET} {
		r := newRig(t, w, func(o *Options) { o.Drain = drain })
		c := dial(t, "tcp", at(dedicated, port))
		_, err := io.ReadFull(c, make([]byte, 5))
		must(err)
		stopped := r.stopping(t)
		refuses(t, at(dedicated, port))
		if ends == nil {
			if got := exchange(t, c, "still "); got != "still " {
				t.Errorf("while draining, %q comes back", got)
			}
		} else if _, err := io.ReadAll(c); !errors.Is(err, ends) {
			t.Errorf("after draining for too long, the connection ends with %v", err)
		}
		<-stopped
	}
}

func TestRates(t *testing.T) {
	r := newRates[int](10)
	now := time.Now()
	for i := range 10 * burst {
		if !r.allow(1, now) {
			t.Fatalf("event %d is one too many", i)
		}
	}
	if r.allow(1, now) {
		t.Error("there is no bound")
	}
	if !r.allow(2, now) || !r.allow(1, now.Add(100*time.Millisecond)) || r.allow(1, now.Add(100*time.Millisecond)) {
		t.Error("the rate is another")
	}
	for i := range 10 * minSweep {
		r.allow(10+i, now.Add(time.Duration(i)*time.Second))
	}
	if n := len(r.due); n > 2*minSweep {
		t.Errorf("%d keys are remembered", n)
	}
	for range 1000 {
		if !newRates[int](Limits{ClientRate: -1}.complete().ClientRate).allow(1, now) {
			t.Fatal("no limit is one")
		}
	}
}

func TestShares(t *testing.T) {
	s := newShares[string, int](20)
	now := time.Now()
	take := func(client int) (n int) {
		for s.allow("name", client, now) {
			n++
		}
		return n
	}
	if a, b, c := take(1), take(2), take(3); a != 50 || b != 25 || c != 13 {
		t.Errorf("they got %d, %d and %d", a, b, c)
	}
	if !s.allow("other", 1, now) || s.allow("name", 1, now.Add(burst*time.Second-1)) || !s.allow("name", 1, now.Add(burst*time.Second)) {
		t.Error("the period or the key is another")
	}
	for i := range 10 * minSweep {
		s.allow(fmt.Sprint(i), 1, now.Add(time.Duration(i)*time.Second))
	}
	if n := len(s.periods); n > 2*minSweep {
		t.Errorf("%d keys are remembered", n)
	}
	unbound := newShares[string, int](Limits{NameRate: -1}.complete().NameRate)
	for range 1000 {
		if !unbound.allow("name", 1, now) {
			t.Fatal("no limit is one")
		}
	}
}

func TestPlan(t *testing.T) {
	address := func(kind hangar.AddressKind, ip string) hangar.Address {
		return hangar.Address{Kind: kind, IP: netip.MustParseAddr(ip)}
	}
	v4, v6, flycast := address(hangar.AddressV4, "192.0.2.1"), address(hangar.AddressV6, "2001:db8::1"), address(hangar.AddressPrivateV6, "fdaa:0:1:0:1::1")
	shared := address(hangar.AddressSharedV4, "127.0.0.1")
	web := hangar.Handling{TLS: true, HTTP: true}
	for name, tt := range map[string]struct {
		addresses []hangar.Address
		ports     []balance.PortRange
		want      []string
		cut       int
	}{
		"closed":         {ports: []balance.PortRange{{First: 80, Last: 80}}},
		"covered":        {addresses: []hangar.Address{v4}, ports: []balance.PortRange{{First: 80, Last: 80}}},
		"raw":            {addresses: []hangar.Address{v4, v6, flycast, shared}, ports: []balance.PortRange{{First: 22, Last: 22}}, want: []string{"tcp 192.0.2.1:22", "tcp [2001:db8::1]:22", "tcp [fdaa:0:1:0:1::1]:22"}},
		"shareable":      {addresses: []hangar.Address{shared}, ports: []balance.PortRange{{First: 8443, Last: 8443, Handling: web}}, want: []string{"tcp 10.0.0.1:8443"}},
		"postgres":       {addresses: []hangar.Address{shared}, ports: []balance.PortRange{{First: 5432, Last: 5432, Handling: hangar.Handling{PgTLS: true, TLS: true}}}},
		"datagrams":      {addresses: []hangar.Address{v4, flycast, shared}, ports: []balance.PortRange{{UDP: true, First: 80, Last: 80}}, want: []string{"udp 192.0.2.1:80"}},
		"range":          {addresses: []hangar.Address{v4}, ports: []balance.PortRange{{First: 79, Last: 81}}, want: []string{"tcp 192.0.2.1:79", "tcp 192.0.2.1:81"}},
		"too many":       {addresses: []hangar.Address{v4}, ports: []balance.PortRange{{First: 1000, Last: 1009}}, want: []string{"tcp 192.0.2.1:1000", "tcp 192.0.2.1:1001", "tcp 192.0.2.1:1002", "tcp 192.0.2.1:1003"}, cut: 6},
		"twice the same": {addresses: []hangar.Address{v4}, ports: []balance.PortRange{{First: 22, Last: 23}, {First: 23, Last: 24}}, want: []string{"tcp 192.0.2.1:22", "tcp 192.0.2.1:23", "tcp 192.0.2.1:24"}},
	} {
		p := &plan{
			shared: netip.MustParseAddr("10.0.0.1"), most: 4, covered: func(a netip.AddrPort) bool { return a.Port() == 80 },
			ports: func(*hangar.AppRoute) []balance.PortRange { return tt.ports },
			free:  100, open: func(key) bool { return false },
			want: map[key]*hangar.AppRoute{}, cut: map[hangar.AppID]int{}, held: map[hangar.OrgID]int{},
		}
		p.add(&hangar.AppRoute{ID: "shop", App: "shop", Addresses: tt.addresses})
		got := map[string]bool{}
		for k := range p.want {
			got[k.name()] = true
		}
		ok := len(got) == len(tt.want) && p.cut["shop"] == tt.cut
		for _, w := range tt.want {
			ok = ok && got[w]
		}
		if !ok {
			t.Errorf("%s: %v and %d cut, want %v and %d", name, got, p.cut["shop"], tt.want, tt.cut)
		}
	}
}

// TestPlanOfOneOrganization has an organization want more sockets, for many Apps, than there may
// be. The App of another one gets all of its own.
func TestPlanOfOneOrganization(t *testing.T) {
	p := &plan{
		most: 100, free: 100, covered: func(netip.AddrPort) bool { return false },
		ports: func(*hangar.AppRoute) []balance.PortRange { return []balance.PortRange{{First: 1, Last: 20}} },
		open:  func(key) bool { return false },
		want:  map[key]*hangar.AppRoute{}, cut: map[hangar.AppID]int{}, held: map[hangar.OrgID]int{},
	}
	add := func(org hangar.OrgID, n byte) hangar.AppID {
		id := hangar.AppID(fmt.Sprint(org, n))
		p.add(&hangar.AppRoute{ID: id, Org: org, Addresses: []hangar.Address{{Kind: hangar.AddressV4, IP: netip.AddrFrom4([4]byte{192, 0, 2, n})}}})
		return id
	}
	for n := range byte(10) {
		add("greedy", n)
	}
	if p.held["greedy"] != 50 || p.free != 50 {
		t.Errorf("one organization has %d sockets, %d are free", p.held["greedy"], p.free)
	}
	if id := add("other", 100); p.cut[id] != 0 || p.held["other"] != 20 {
		t.Errorf("another one has %d sockets, and %d were cut", p.held["other"], p.cut[id])
	}
}

// What is open stays so when there may be no more.
func TestPlanOfManyApps(t *testing.T) {
	p := &plan{
		most: 100, free: 3, covered: func(netip.AddrPort) bool { return false },
		ports: func(*hangar.AppRoute) []balance.PortRange { return []balance.PortRange{{First: 1, Last: 4}} },
		open:  func(k key) bool { return k.addr.Addr() == netip.MustParseAddr("192.0.2.9") },
		want:  map[key]*hangar.AppRoute{}, cut: map[hangar.AppID]int{}, held: map[hangar.OrgID]int{},
	}
	for i, app := range []hangar.AppName{"a", "b", "c"} {
		ip := netip.AddrFrom4([4]byte{192, 0, 2, byte(7 + i)})
		p.add(&hangar.AppRoute{ID: hangar.AppID(app), App: app, Org: hangar.OrgID(app), Addresses: []hangar.Address{{Kind: hangar.AddressV4, IP: ip}}})
	}
	if len(p.want) != 7 || p.cut["a"] != 2 || p.cut["b"] != 3 || p.cut["c"] != 0 {
		t.Errorf("%d sockets, cut %v", len(p.want), p.cut)
	}
}

func TestLinesAreFew(t *testing.T) {
	w := newWorld()
	l := &lines{gates: w}
	for range 1000 {
		l.failure(hangar.MachineRef{AppID: "shop"}, netip.AddrPort{}, &hangar.EdgeError{Code: hangar.EdgeNoName, Message: "why"})
	}
	if len(w.lines) != 1 {
		t.Errorf("%d lines: %q", len(w.lines), w.lines)
	}
	missed, due := l.due(line{"shop", hangar.EdgeNoName}, time.Now().Add(linesEvery))
	if !due || missed != 999 {
		t.Errorf("due %v, missed %d", due, missed)
	}
}
