package listen

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/balance"
)

// from connects from an address of loopback.
func from(source, address string) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: 10 * time.Second}
	return d.Dial("tcp", address)
}

// One client connects without end, and begins handshakes that it never ends. Another is served
// as if it was alone.
func TestFloodOfOneClient(t *testing.T) {
	w := newWorld()
	w.app("shop", []string{"shared_v4 127.0.0.1"}, service("tcp", 1, 80, "http"), service("tcp", 1, 443, "tls", "http"))
	r := newRig(t, w, func(o *Options) {
		o.Limits.ClientConns, o.Limits.ClientHandshakes, o.Limits.FirstByte, o.Limits.Handshake = 50, 10, time.Second, time.Second
	})
	plain, https := r.Addrs()
	var flood []net.Conn
	defer func() {
		for _, c := range flood {
			_ = c.Close()
		}
	}()
	closed := 0
	for i := range 200 {
		address := plain
		if i%2 == 0 {
			address = https
		}
		c, err := from("127.66.6.6", address.String())
		if err != nil { // it was reset at once
			closed++
			continue
		}
		if i%2 == 0 {
			_, _ = c.Write([]byte{tlsRecord, 3, 1}) // and no more
		}
		flood = append(flood, c)
	}
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
	for _, c := range flood { // all end: too many, or too slow
		must(c.SetReadDeadline(time.Now().Add(10 * time.Second)))
		if _, err := c.Read(make([]byte, 1)); err != nil {
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() {
				t.Fatal("a connection that says nothing stays open")
			}
			closed++
		}
	}
	if closed != 200 {
		t.Errorf("%d were closed", closed)
	}
}

func TestHandshakeRate(t *testing.T) {
	w := newWorld()
	w.echo(t, 1, "")
	w.app("shop", []string{"v4 " + dedicated, "shared_v4 127.0.0.1"}, service("tcp", 1, 443, "tls"))
	r := newRig(t, w, func(o *Options) { o.HTTPS, o.Limits.ClientRate, o.Limits.NameRate = ":0", 4, 2 })
	_, https := r.Addrs()
	served := func(source, name string) (n int) {
		for range 30 {
			c, err := from(source, at(dedicated, int(https.Port())))
			if err != nil { // it was reset at once
				continue
			}
			if tls.Client(c, &tls.Config{RootCAs: w.roots, ServerName: name}).Handshake() == nil {
				n++
			}
			must(c.Close())
		}
		return n
	}
	if n := served("127.66.6.6", "shop.apps.test"); n < 2*burst || n >= 4*burst {
		t.Errorf("one client got %d handshakes for a name", n)
	}
	w.logged(t, "shop error [PT02]")
	w.logged(t, "shop error [PT01]")
}

// A join of a drain that takes too long is ended, and Run returns.
func TestDrain(t *testing.T) {
	w := newWorld()
	port := freePort(t)
	w.echo(t, 1, "hello")
	w.app("shop", []string{"v4 " + dedicated}, service("tcp", 1, port))
	r := newRig(t, w, func(o *Options) { o.Drain = 300 * time.Millisecond })
	c := dial(t, "tcp", at(dedicated, port))
	_, err := io.ReadFull(c, make([]byte, 5))
	must(err)
	stopped := make(chan struct{})
	began := time.Now()
	go func() {
		defer close(stopped)
		r.stop()
	}()
	for { // what is there goes on while nothing new is taken
		if other, err := net.Dial("tcp", at(dedicated, port)); err != nil {
			break
		} else {
			must(other.Close())
		}
	}
	_, err = c.Write([]byte("still "))
	must(err)
	if _, err := io.ReadFull(c, make([]byte, 6)); err != nil {
		t.Errorf("while draining: %v", err)
	}
	if _, err := io.ReadAll(c); err == nil {
		t.Error("the connection ends as if the other side was done")
	}
	<-stopped
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
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

func TestClients(t *testing.T) {
	for a, want := range map[string]string{
		"192.0.2.7": "192.0.2.7", "2001:db8:1:2:3:4:5:6": "2001:db8:1:2::", "fdaa:0:1:a7b:7d:f066:b83b:2": "fdaa:0:1:a7b:7d:f066:b83b:0",
	} {
		if got := clientOf(netip.MustParseAddr(a)); got != netip.MustParseAddr(want) {
			t.Errorf("%s is of %s, want %s", a, got, want)
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
			want: map[key]hangar.AppName{}, cut: map[hangar.AppName]int{},
		}
		p.add(&hangar.AppRoute{App: "shop", Addresses: tt.addresses})
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

// What is open stays so when there may be no more.
func TestPlanOfManyApps(t *testing.T) {
	p := &plan{
		most: 100, free: 3, covered: func(netip.AddrPort) bool { return false },
		ports: func(*hangar.AppRoute) []balance.PortRange { return []balance.PortRange{{First: 1, Last: 4}} },
		open:  func(k key) bool { return k.addr.Addr() == netip.MustParseAddr("192.0.2.9") },
		want:  map[key]hangar.AppName{}, cut: map[hangar.AppName]int{},
	}
	for i, app := range []hangar.AppName{"a", "b", "c"} {
		ip := netip.AddrFrom4([4]byte{192, 0, 2, byte(7 + i)})
		p.add(&hangar.AppRoute{App: app, Addresses: []hangar.Address{{Kind: hangar.AddressV4, IP: ip}}})
	}
	if len(p.want) != 7 || p.cut["a"] != 1 || p.cut["b"] != 4 || p.cut["c"] != 0 {
		t.Errorf("%d sockets, cut %v", len(p.want), p.cut)
	}
}

func TestLinesAreFew(t *testing.T) {
	w := newWorld()
	l := &lines{gates: w}
	for range 1000 {
		l.failure(hangar.MachineRef{App: "shop"}, "", netip.AddrPort{}, &hangar.EdgeError{Code: hangar.EdgeNoName, Message: "why"})
	}
	if len(w.lines) != 1 {
		t.Errorf("%d lines: %q", len(w.lines), w.lines)
	}
	missed, due := l.due(line{"shop", hangar.EdgeNoName}, time.Now().Add(linesEvery))
	if !due || missed != 999 {
		t.Errorf("due %v, missed %d", due, missed)
	}
}
