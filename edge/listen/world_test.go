package listen

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/balance"
	"github.com/hangar-platform/hangar/edge/catalog"
	"github.com/hangar-platform/hangar/edge/edgetest"
	"github.com/hangar-platform/hangar/internal/freeport"
)

// patience is for how long tests wait for what is to happen at once.
const patience = 60 * time.Second

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// world is what the edge gets from its feeds, and the host that it meets. Machines are programs
// that listen on loopback: backends has their addresses, by internal port.
type world struct {
	domain hangar.Hostname
	org    hangar.OrgID // of the Apps that are added

	feed *edgetest.Feed

	mu       sync.Mutex
	backends map[int]string
	lines    []string
	inside   int // requests in a Machine
	roots    *x509.CertPool
	issued   map[string]*tls.Certificate
	ca       *x509.Certificate
	caKey    *ecdsa.PrivateKey
}

func newWorld() *world {
	w := &world{
		domain: "apps.test", org: "org", feed: edgetest.NewFeed(), backends: map[int]string{}, issued: map[string]*tls.Certificate{}, roots: x509.NewCertPool(),
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Test CA"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(err)
	w.ca, err = x509.ParseCertificate(der)
	must(err)
	w.caKey = key
	w.roots.AddCert(w.ca)
	return w
}

// app adds an App with services, and a Machine that has them.
func (w *world) app(name hangar.AppName, addresses []string, services ...hangar.Service) {
	route := hangar.AppRoute{ID: hangar.AppID(name), App: name, Org: w.org, Network: 1}
	for _, a := range addresses {
		kind, ip, _ := strings.Cut(a, " ")
		address := hangar.Address{Kind: hangar.AddressKind(kind), App: name}
		if ip != "" {
			address.IP = netip.MustParseAddr(ip)
		}
		route.Addresses = append(route.Addresses, address)
	}
	w.feed.PutRoute(route)
	if services != nil {
		w.feed.Put(hangar.MachineRow{Org: "org", Network: 1, Machine: hangar.Machine{
			ID: hangar.NewMachineID(), App: name, AppID: hangar.AppID(name), State: hangar.MachineStarted, Host: "0badcafe", Region: "loc",
			HostStatus: "ok", InstanceID: "i1", Config: hangar.MachineConfig{Services: services},
		}})
	}
}

// turn changes the state of all Machines.
func (w *world) turn(state hangar.MachineState) {
	for _, id := range w.feed.Machines() {
		row, _ := w.feed.Row(id)
		row.Machine.State = state
		w.feed.Put(row)
	}
}

// service is a service of one public port.
func service(protocol string, internal, public int, handlers ...string) hangar.Service {
	return hangar.Service{Protocol: protocol, InternalPort: internal, Ports: []hangar.ServicePort{{Port: public, Handlers: handlers}}}
}

func (w *world) Gate(hangar.HostID) (hangar.MachineGate, error) { return w, nil }

func (w *world) EnterMachine(hangar.MachineRef, int) (func(), error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inside++
	return sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.inside--
	}), nil
}

func (w *world) backend(port int) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.backends[port]
}

func (w *world) dial(ctx context.Context, network string, port int) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, w.backend(port))
	if err != nil {
		return nil, &hangar.Error{Code: hangar.CodeUnavailable, Reason: hangar.ReasonConnectionRefused, Err: err}
	}
	return conn, nil
}

func (w *world) DialService(ctx context.Context, _ hangar.MachineRef, port int) (net.Conn, error) {
	return w.dial(ctx, "tcp", port)
}

func (w *world) DialDatagrams(ctx context.Context, _ hangar.MachineRef, port int) (net.Conn, error) {
	return w.dial(ctx, "udp", port)
}

func (w *world) WakeMachine(context.Context, hangar.MachineRef, int) error { return nil }

func (w *world) OpenMachineFile(context.Context, hangar.MachineRef, string) (hangar.MachineFile, error) {
	return nil, &hangar.Error{Code: hangar.CodeNotFound}
}

func (w *world) LogEdge(ref hangar.MachineRef, level, message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, fmt.Sprintf("%s %s %s", ref.AppID, level, message))
}

// logged waits for a line in the log of some App.
func (w *world) logged(t *testing.T, part string) {
	t.Helper()
	var lines []string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		w.mu.Lock()
		lines = slices.Clone(w.lines)
		w.mu.Unlock()
		if slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, part) }) {
			return
		}
	}
	t.Errorf("no line has %q: %q", part, lines)
}

// emptied waits until so many are in Machines.
func (w *world) emptied(t *testing.T, want int) {
	t.Helper()
	var n int
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		w.mu.Lock()
		n = w.inside
		w.mu.Unlock()
		if n == want {
			return
		}
	}
	t.Errorf("%d are in machines, want %d", n, want)
}

// certificate issues one for the name that a client wants.
func (w *world) certificate(hello *tls.ClientHelloInfo, selfSigned bool) (*tls.Certificate, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	name := hello.ServerName
	if !strings.HasSuffix(name, ".test") && !selfSigned {
		return nil, errors.New("unknown name")
	}
	if c := w.issued[name]; c != nil {
		return c, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, w.ca, &key.PublicKey, w.caKey)
	must(err)
	w.issued[name] = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	return w.issued[name], nil
}

// seen is what ServeConn received, as its clients get it.
type seen struct {
	App     hangar.AppName
	Private bool
	TLS     bool
	ALPN    string
	Name    hangar.Hostname
	Port    int
	Local   netip.AddrPort
	Host    string
}

func seenOf(e Entry, host string) seen {
	s := seen{Private: e.Private, TLS: e.TLS != nil, Name: e.ServerName, Port: e.Port, Local: e.Local, Host: host}
	if e.Route != nil {
		s.App = e.Route.App
	}
	if e.TLS != nil {
		s.ALPN = e.TLS.NegotiatedProtocol
	}
	return s
}

// serveConn is an HTTP server that answers with what it received. It ends when ctx does.
func serveConn(ctx context.Context, conn net.Conn, e Entry) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	for in := bufio.NewReader(conn); ; {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, err := json.Marshal(seenOf(e, r.Host))
		must(err)
		if _, err := fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
			return
		}
	}
}

// rig is Listeners at work.
type rig struct {
	*Listeners
	world *world
	stop  func()
}

// start runs Listeners in a world until stop is called.
func start(w *world, log *slog.Logger, change func(*Options)) *rig {
	routes := catalog.NewRoutes(w.feed, w.domain, log)
	machines := catalog.New(w.feed, log)
	balancer := balance.New(balance.Options{Catalog: machines, Gates: w, Region: "loc", Log: log})
	o := Options{
		HTTP: "127.0.0.1:0", HTTPS: "127.0.0.1:0", Host: "0badcafe", Domain: w.domain, Routes: routes, Balancer: balancer, Gates: w,
		Certificate: w.certificate, ServeConn: serveConn, Drain: 5 * time.Second, Log: log,
		Ready: func(ctx context.Context) error {
			select {
			case <-machines.Synced():
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
		ServeRequest: func(w http.ResponseWriter, r *http.Request, e Entry) {
			must(json.NewEncoder(w).Encode(seenOf(e, r.Host)))
		},
	}
	if change != nil {
		change(&o)
	}
	l := New(o)
	must(l.Open(context.Background()))
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, run := range []func(context.Context) error{routes.Run, machines.Run, balancer.Run, l.Run} {
		wg.Go(func() { _ = run(ctx) })
	}
	return &rig{Listeners: l, world: w, stop: sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		must(l.Close())
	})}
}

func newRig(tb testing.TB, w *world, change func(*Options)) *rig {
	tb.Helper()
	r := start(w, slog.New(slog.DiscardHandler), change)
	tb.Cleanup(r.stop)
	return r
}

// echo is a backend that returns what it gets, after a greeting.
func (w *world) echo(t *testing.T, port int, greeting string) {
	t.Helper()
	w.listen(t, port, func(conn net.Conn) {
		_, _ = io.WriteString(conn, greeting)
		_, _ = io.Copy(conn, conn)
	})
}

// listen is a backend.
func (w *world) listen(tb testing.TB, port int, serve func(net.Conn)) {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	w.mu.Lock()
	w.backends[port] = l.Addr().String()
	w.mu.Unlock()
	var wg sync.WaitGroup
	tb.Cleanup(func() {
		must(l.Close())
		wg.Wait()
	})
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				serve(conn)
			})
		}
	})
}

// dial connects to an address as soon as it is listened on.
func dial(tb testing.TB, network, address string) net.Conn {
	tb.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		conn, err := net.Dial(network, address)
		if err == nil {
			must(conn.SetDeadline(time.Now().Add(patience)))
			tb.Cleanup(func() { _ = conn.Close() })
			return conn
		}
		if time.Now().After(deadline) {
			tb.Fatal(err)
		}
	}
}

// refuses waits until nothing listens on an address any more.
func refuses(t *testing.T, address string) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		conn, err := net.Dial("tcp", address)
		if errors.Is(err, syscall.ECONNREFUSED) {
			return
		}
		if err == nil { // it waited to be accepted when the socket was closed, or was accepted
			must(conn.Close())
		}
	}
	t.Fatalf("%s is still listened on", address)
}

// uncounted waits until no connection counts for an organization any more, which is a moment
// after the client sees its end.
func (r *rig) uncounted(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(patience); r.Stats().Conns > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections still count", r.Stats().Conns)
		}
	}
}

// freePort returns a port without a listener at the addresses that tests give to Apps.
func freePort(tb testing.TB) int {
	tb.Helper()
	port, err := freeport.Port(tb.Context())
	must(err)
	return port
}

// exchange sends text, ends its direction, and returns what comes back until the end.
func exchange(t *testing.T, conn net.Conn, text string) string {
	t.Helper()
	_, err := io.WriteString(conn, text)
	must(err)
	must(conn.(interface{ CloseWrite() error }).CloseWrite())
	b, err := io.ReadAll(conn)
	if err != nil {
		t.Errorf("after %q: %v", b, err)
	}
	return string(b)
}

// ask sends a request and returns what the server received.
func ask(t *testing.T, conn net.Conn, host string) (got seen) {
	t.Helper()
	_, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", host)
	must(err)
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	must(json.NewDecoder(answer.Body).Decode(&got))
	return got
}
