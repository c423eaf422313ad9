package dns_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	mdns "github.com/miekg/dns"
	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/catalog"
	"github.com/hangar-platform/hangar/edge/dns"
	"github.com/hangar-platform/hangar/edge/edgetest"
	"github.com/hangar-platform/hangar/internal/freeport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The networks and clients of the tests. Clients use IPv4 because a test can choose among loopback
// addresses on any server.
const (
	netOne hangar.NetworkID = 1
	netTwo hangar.NetworkID = 0x20
)

var (
	one      = netip.MustParseAddr("127.0.7.1")
	another  = netip.MustParseAddr("127.0.7.11") // of the same network
	two      = netip.MustParseAddr("127.0.7.2")
	stranger = netip.MustParseAddr("127.0.7.9")
)

func owner(a netip.Addr) (hangar.MachineID, hangar.NetworkID, bool) {
	switch a {
	case one:
		return "asker1", netOne, true
	case another:
		return "asker11", netOne, true
	case two:
		return "asker2", netTwo, true
	}
	return "", 0, false
}

// world is a catalog that a test writes.
type world struct {
	catalog *catalog.Catalog
	feed    *edgetest.Feed
}

// newWorld returns a world without Machines whose catalog is complete.
func newWorld(tb testing.TB) *world {
	tb.Helper()
	w := &world{feed: edgetest.NewFeed()}
	w.catalog = catalog.New(w.feed, nil)
	ctx, cancel := context.WithCancel(tb.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = w.catalog.Run(ctx)
	}()
	tb.Cleanup(func() { cancel(); <-ended })
	<-w.catalog.Synced()
	return w
}

// address returns the address of the n-th Machine of a network.
func address(network hangar.NetworkID, n int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("fdaa:0:%x:a7b:7d:0:%x:2", uint32(network), n))
}

// put adds or changes a Machine, and returns when the catalog shows it.
func (w *world) put(network hangar.NetworkID, app string, n int, change ...func(*hangar.Machine)) hangar.MachineID {
	id := hangar.MachineID(fmt.Sprintf("%014x", n))
	row, ok := w.feed.Row(id)
	if !ok {
		row = hangar.MachineRow{Network: network, Machine: hangar.Machine{
			ID: id, App: hangar.AppName(app), AppID: hangar.AppID(app), Host: "0a7b007d", Region: "ams", State: hangar.MachineStarted, PrivateIP: address(network, n),
		}}
	}
	for _, c := range change {
		c(&row.Machine)
	}
	seq := w.feed.Put(row)
	if err := w.catalog.AwaitMachine(context.Background(), row.Machine.Ref(), seq); err != nil {
		panic(err)
	}
	return id
}

// remove removes a Machine, and returns when the catalog no longer shows it.
func (w *world) remove(id hangar.MachineID) {
	row, _ := w.feed.Row(id)
	changed, stop := w.catalog.Subscribe(row.Machine.AppID)
	defer stop()
	w.feed.Remove(id)
	for {
		if _, ok := w.catalog.Machine(id); !ok {
			return
		}
		<-changed
	}
}

func state(s hangar.MachineState) func(*hangar.Machine) {
	return func(m *hangar.Machine) { m.State = s }
}

func in(r hangar.Region) func(*hangar.Machine) { return func(m *hangar.Machine) { m.Region = r } }

func tagged(pairs map[string]string) func(*hangar.Machine) {
	return func(m *hangar.Machine) { m.Config.Metadata = pairs }
}

func unregistered(m *hangar.Machine) { m.Config.DNS = &hangar.DNSConfig{SkipRegistration: true} }

// serve runs a server until the test ends, and returns its address.
func serve(tb testing.TB, c dns.Config) netip.AddrPort {
	tb.Helper()
	return run(tb, c).Addrs()[0]
}

func run(tb testing.TB, c dns.Config) *dns.Server {
	tb.Helper()
	c.Listen = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")}
	c.Region, c.Owner = "ams", owner
	s := dns.New(c)
	if err := s.Open(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(tb.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			tb.Errorf("the server ended with %v", err)
		}
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// dial connects to a server from an address.
func dial(tb testing.TB, network string, from netip.Addr, to netip.AddrPort) *mdns.Conn {
	tb.Helper()
	d := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
	if network == "tcp" {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	conn, err := d.DialContext(tb.Context(), network, to.String())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		tb.Fatal(err)
	}
	return &mdns.Conn{Conn: conn, UDPSize: 4096}
}

func ask(tb testing.TB, network string, from netip.Addr, to netip.AddrPort, m *mdns.Msg) *mdns.Msg {
	tb.Helper()
	conn := dial(tb, network, from, to)
	defer conn.Close()
	if err := conn.WriteMsg(m); err != nil {
		tb.Fatal(err)
	}
	got, err := conn.ReadMsg()
	if err != nil {
		tb.Fatalf("%v: %v", m.Question, err)
	}
	if got.Id != m.Id || !got.Response {
		tb.Fatalf("the answer to another question: %v", got)
	}
	return got
}

func query(name string, qtype uint16) *mdns.Msg {
	return new(mdns.Msg).SetQuestion(mdns.Fqdn(name), qtype)
}

// upstream is a resolver of a test.
type upstream struct {
	addr netip.AddrPort

	mu     sync.Mutex // guards what follows
	asked  map[string]int
	answer func(w mdns.ResponseWriter, m *mdns.Msg)
}

func newUpstream(tb testing.TB, answer func(w mdns.ResponseWriter, m *mdns.Msg)) *upstream {
	tb.Helper()
	u := &upstream{asked: map[string]int{}, answer: answer}
	address, err := freeport.Address(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	packets, err := (&net.ListenConfig{}).ListenPacket(tb.Context(), "udp", address)
	if err != nil {
		tb.Fatal(err)
	}
	stream, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", address)
	if err != nil {
		tb.Fatal(err)
	}
	u.addr = netip.MustParseAddrPort(address)
	handler := mdns.HandlerFunc(func(w mdns.ResponseWriter, m *mdns.Msg) {
		u.mu.Lock()
		u.asked[m.Question[0].Name]++
		answer := u.answer
		u.mu.Unlock()
		if answer != nil {
			answer(w, m)
		}
	})
	for _, s := range []*mdns.Server{{PacketConn: packets, Handler: handler}, {Listener: stream, Handler: handler}} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = s.ActivateAndServe()
		}()
		<-started
		tb.Cleanup(func() {
			_ = s.Shutdown()
			<-ended
		})
	}
	return u
}

// set changes how u answers; nil: not at all.
func (u *upstream) set(answer func(w mdns.ResponseWriter, m *mdns.Msg)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.answer = answer
}

// times is how often a name was asked for.
func (u *upstream) times(name string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.asked[name]
}

func resolvers(all ...*upstream) func() []netip.AddrPort {
	return func() []netip.AddrPort {
		var addrs []netip.AddrPort
		for _, u := range all {
			addrs = append(addrs, u.addr)
		}
		return addrs
	}
}

// reply answers with records in the text format of zone files. A SOA goes to the authority section.
func reply(rcode int, lines ...string) func(w mdns.ResponseWriter, m *mdns.Msg) {
	return func(w mdns.ResponseWriter, m *mdns.Msg) {
		r := new(mdns.Msg).SetRcode(m, rcode)
		for _, line := range lines {
			rr, err := mdns.NewRR(line)
			if err != nil {
				panic(err)
			}
			if _, ok := rr.(*mdns.SOA); ok {
				r.Ns = append(r.Ns, rr)
			} else {
				r.Answer = append(r.Answer, rr)
			}
		}
		if w.LocalAddr().Network() == "udp" {
			r.Truncate(1232)
		}
		_ = w.WriteMsg(r)
	}
}
