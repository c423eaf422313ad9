package listen

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/traffic"
)

// counts returns the series of the Apps and Machines of a rig, by App, name and labels.
func counts(r *rig) map[string]float64 {
	all := map[string]float64{}
	of := ""
	emit := func(name string, value float64, labels ...hangar.MetricLabel) {
		name = of + " " + name
		for _, l := range labels {
			name += fmt.Sprintf(" %s=%s", l.Name, l.Value)
		}
		all[name] += value
	}
	for _, a := range r.o.Traffic.Apps() {
		of = string(a.ID())
		a.Emit(emit)
	}
	for _, m := range r.o.Balancer.Traffic() {
		of = string(m.Machine.AppID)
		emit("app_concurrency", float64(m.InFlight))
		if m.Counts != nil {
			m.Counts.Emit(emit)
		}
	}
	return all
}

// counted waits until series have values: what a connection has counted last is there a moment
// after its client sees the end.
func counted(t *testing.T, r *rig, want map[string]float64) {
	t.Helper()
	var wrong string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		all := counts(r)
		wrong = ""
		for name, value := range want {
			if all[name] != value {
				wrong += fmt.Sprintf("%s is %v, want %v\n", name, all[name], value)
			}
		}
		if wrong == "" {
			return
		}
	}
	t.Error(wrong)
}

func TestRawConnectionsAreCounted(t *testing.T) {
	w := newWorld()
	port := freePort(t)
	w.echo(t, 1, "hello:")
	w.app("shop", []string{"v4 " + dedicated}, service("tcp", 1, port))
	r := newRig(t, w, nil)
	conn := dial(t, "tcp", at(dedicated, port))
	_, err := io.ReadFull(conn, make([]byte, len("hello:")))
	must(err)
	counted(t, r, map[string]float64{
		"shop edge_tcp_connects_count": 1, "shop edge_tcp_disconnects_count": 0, "shop edge_data_out": 6, "shop edge_data_in": 0,
		"shop app_concurrency": 1, "shop app_tcp_connects_count": 1, "shop app_tcp_disconnects_count": 0, "shop app_connect_time_seconds_count": 1,
	})
	const size = 3 << 20 // through the kernel alone
	if got := exchange(t, conn, strings.Repeat("x", size)); len(got) != size {
		t.Errorf("%d bytes came back", len(got))
	}
	counted(t, r, map[string]float64{
		"shop edge_tcp_disconnects_count": 1, "shop edge_data_out": 6 + size, "shop edge_data_in": size,
		"shop app_concurrency": 0, "shop app_tcp_disconnects_count": 1,
	})
	// One that its client resets counts no less.
	broken := dial(t, "tcp", at(dedicated, port))
	_, err = io.WriteString(broken, "12345")
	must(err)
	_, err = io.ReadFull(broken, make([]byte, len("hello:12345")))
	must(err)
	must(broken.(*net.TCPConn).SetLinger(0))
	must(broken.Close())
	counted(t, r, map[string]float64{
		"shop edge_tcp_connects_count": 2, "shop edge_tcp_disconnects_count": 2, "shop edge_data_out": 6 + size + 11, "shop edge_data_in": size + 5,
		"shop app_tcp_connects_count": 2, "shop app_tcp_disconnects_count": 2,
	})
}

func TestDatagramsAreCounted(t *testing.T) {
	w := newWorld()
	port := freePort(t)
	backend, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(err)
	defer backend.Close()
	w.backends[1] = backend.LocalAddr().String()
	w.app("shop", []string{"v4 " + dedicated}, service("udp", 1, port))
	r := newRig(t, w, nil)
	must(r.Await(t.Context()))
	conn := dial(t, "udp", at(dedicated, port))
	_, err = io.WriteString(conn, "ping")
	must(err)
	b := make([]byte, 100)
	n, from, err := backend.ReadFromUDPAddrPort(b)
	must(err)
	_, err = backend.WriteToUDPAddrPort(append(b[:n], "pong"...), from)
	must(err)
	if n, err = conn.Read(b); err != nil || string(b[:n]) != "pingpong" {
		t.Fatalf("%q, %v", b[:n], err)
	}
	counted(t, r, map[string]float64{"shop edge_data_in": 4, "shop edge_data_out": 8})
}

// Handshakes count for the App that the client has named. A name that the client made up counts
// for no App, and is not shown.
func TestHandshakesAreCounted(t *testing.T) {
	w := newWorld()
	w.app("shop", []string{"shared_v4 127.0.0.1", "v4 " + dedicated}, service("tcp", 1, 443, "tls", "http"))
	r := newRig(t, w, nil)
	_, secure := r.Addrs()
	shake := func(address, name string, roots bool) {
		t.Helper()
		config := &tls.Config{RootCAs: w.roots, ServerName: name}
		if !roots {
			config.RootCAs = nil // it trusts no authority, and says so
		}
		c := tls.Client(dial(t, "tcp", address), config)
		if err := c.Handshake(); (err == nil) != roots {
			t.Errorf("%s at %s: %v", name, address, err)
		}
		_ = c.Close()
	}
	shake(secure.String(), "shop.apps.test", true)
	shake(secure.String(), "shop.apps.test", false)
	shake(secure.String(), "shop.apps.test", false)
	counted(t, r, map[string]float64{
		"shop edge_tls_handshake_time_seconds_count version=TLSv1.3": 1,
		"shop edge_tls_handshake_errors servername=shop.apps.test":   2,
	})
	c := tls.Client(dial(t, "tcp", secure.String()), &tls.Config{RootCAs: w.roots, ServerName: "nobody.apps.test"})
	if c.Handshake() == nil {
		t.Error("TLS for a name that no App has")
	}
	for name := range counts(r) {
		if strings.Contains(name, "nobody") {
			t.Errorf("there is %s", name)
		}
	}
}

func TestConfiguredName(t *testing.T) {
	route := &hangar.AppRoute{App: "shop", Hostnames: []hangar.Hostname{"www.example.com", "*.example.org"}}
	for name, want := range map[hangar.Hostname]hangar.Hostname{
		"shop.apps.test": "shop.apps.test", "www.example.com": "www.example.com", "a.example.org": "*.example.org",
		"a.b.example.org": "", "other.apps.test": "", "example.com": "", "": "", ".": "",
	} {
		if got := configuredName(route, name, "apps.test"); got != want {
			t.Errorf("%q is counted as %q, want %q", name, got, want)
		}
	}
}

// A client that speaks HTTP/3 is counted by what QUIC says.
func TestFlowOfQUIC(t *testing.T) {
	table := traffic.NewTable()
	var in, out uint64
	f := table.NewFlow(func() (uint64, uint64) { return in, out })
	in, out = 10, 20
	a := f.For("shop")
	in = 15
	table.Apps()
	out = 30
	f.End()
	in = 1000
	table.Apps()
	got := map[string]float64{}
	a.Emit(func(name string, value float64, _ ...hangar.MetricLabel) { got[name] = value })
	if got["edge_data_in"] != 15 || got["edge_data_out"] != 30 || got["edge_tcp_connects_count"] != 0 {
		t.Errorf("%v", got)
	}
}
