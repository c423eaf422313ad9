package proxy_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/balance"
	"github.com/hangar-platform/hangar/edge/catalog"
	"github.com/hangar-platform/hangar/edge/edgetest"
	"github.com/hangar-platform/hangar/edge/listen"
	"github.com/hangar-platform/hangar/edge/proxy"
	"github.com/hangar-platform/hangar/edge/traffic"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testDomain hangar.Hostname = "apps.test"
	testHost   hangar.HostID   = "0a0b0c0d"
	testRegion hangar.Region   = "loc"
)

// world is a proxy with its Machines, which are servers of the test.
type world struct {
	t        testing.TB
	proxy    *proxy.Proxy
	routes   *catalog.Routes
	catalog  *catalog.Catalog
	balancer *balance.Balancer
	gate     *gate
	feed     *edgetest.Feed
	ctx      context.Context
	stop     context.CancelFunc
	addr     string // plain HTTP, port 80
	tlsAddr  string // port 443
	mu       sync.Mutex
	entry    func(*listen.Entry) // changes what connections come in as
	count    *traffic.Table      // counts connections; nil: nothing does
}

type option func(*proxy.Options)

// gate is the gate of all Machines.
type gate struct {
	hangar.MachineGate // methods that are not needed here
	mu                 sync.Mutex
	dials              map[hangar.MachineID]func(ctx context.Context) (net.Conn, error)
	files              map[string]string
	breakOff           error // of files after their first 4 KiB; nil: they do not
	in                 map[hangar.MachineID]int
	logs               []string
	limit              int
	full               map[hangar.MachineID]bool // lets none in
	remote             bool                      // requests enter over connections
	entered            int                       // over connections
}

// enteringConn is a connection to a Machine of another host, over which requests enter.
type enteringConn struct {
	net.Conn

	gate    *gate
	ref     hangar.MachineRef
	refused atomic.Pointer[hangar.RefusedError]
	dropped atomic.Bool // what is written
}

func (c *enteringConn) EnterMachine() (func(), error) {
	leave, err := c.gate.EnterMachine(c.ref, 0)
	c.gate.mu.Lock()
	defer c.gate.mu.Unlock()
	c.gate.entered++
	if err != nil {
		c.refused.Store(&hangar.RefusedError{Err: err})
		c.dropped.Store(true)
		leave = func() {}
	}
	return leave, nil
}

func (c *enteringConn) Write(p []byte) (int, error) {
	if c.dropped.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *enteringConn) Read(p []byte) (int, error) {
	if refused := c.refused.Load(); refused != nil {
		return 0, refused
	}
	return c.Conn.Read(p)
}

func (g *gate) EnterMachine(ref hangar.MachineRef, _ int) (func(), error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.limit > 0 && g.in[ref.ID] >= g.limit || g.full[ref.ID] {
		return nil, &hangar.Error{Code: hangar.CodeExhausted, Reason: hangar.ReasonAtLimit}
	}
	g.in[ref.ID]++
	var once sync.Once
	return func() {
		once.Do(func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.in[ref.ID]--
		})
	}, nil
}

func (g *gate) DialService(ctx context.Context, ref hangar.MachineRef, _ int) (net.Conn, error) {
	g.mu.Lock()
	dial, remote := g.dials[ref.ID], g.remote
	g.mu.Unlock()
	if dial == nil {
		return nil, &hangar.Error{Code: hangar.CodeUnavailable, Reason: hangar.ReasonConnectionRefused, Message: "nothing listens"}
	}
	conn, err := dial(ctx)
	if err == nil && remote {
		conn = &enteringConn{Conn: conn, gate: g, ref: ref}
	}
	return conn, err
}

func (g *gate) WakeMachine(context.Context, hangar.MachineRef, int) error { return nil }

type file struct {
	*strings.Reader

	breakOff error
}

func (f file) Read(p []byte) (int, error) {
	if f.breakOff == nil {
		return f.Reader.Read(p)
	}
	left := 4<<10 - (f.Reader.Size() - int64(f.Len()))
	if left <= 0 {
		return 0, f.breakOff
	}
	return f.Reader.Read(p[:min(int64(len(p)), left)])
}

func (file) Close() error       { return nil }
func (f file) Size() int64      { return f.Reader.Size() }
func (file) ModTime() time.Time { return time.Unix(1700000000, 0) }

func (g *gate) OpenMachineFile(_ context.Context, _ hangar.MachineRef, path string) (hangar.MachineFile, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	text, ok := g.files[path]
	if !ok {
		return nil, &hangar.Error{Code: hangar.CodeNotFound}
	}
	return file{strings.NewReader(text), g.breakOff}, nil
}

func (g *gate) LogEdge(ref hangar.MachineRef, level, message string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.logs = append(g.logs, level+" "+string(ref.AppID)+" "+message)
}

func (g *gate) Gate(hangar.HostID) (hangar.MachineGate, error) { return g, nil }

func (g *gate) lines() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]string(nil), g.logs...)
}

func (g *gate) overConnections() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.entered
}

func (g *gate) inside() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, each := range g.in {
		n += each
	}
	return n
}

// newWorld has the Apps "app" and "other" of one organization, "foreign" of another one, and
// listens.
func newWorld(tb testing.TB, options ...option) *world {
	tb.Helper()
	shared := netip.MustParseAddr("127.0.0.1")
	f := edgetest.NewFeed()
	route := func(app, org string, network hangar.NetworkID, public bool) {
		r := hangar.AppRoute{ID: hangar.AppID(app), App: hangar.AppName(app), Org: hangar.OrgID(org), Network: network}
		if public {
			r.Addresses = []hangar.Address{{IP: shared, Kind: hangar.AddressSharedV4, App: r.App}}
		}
		f.PutRoute(r)
	}
	route("app", "personal", 1, true)
	route("second", "personal", 1, true)
	route("other", "personal", 2, false)
	route("foreign", "strangers", 3, true)
	ctx, stop := context.WithCancel(tb.Context())
	w := &world{
		t: tb, feed: f, ctx: ctx, stop: stop,
		gate: &gate{dials: map[hangar.MachineID]func(context.Context) (net.Conn, error){}, files: map[string]string{}, in: map[hangar.MachineID]int{}},
	}
	w.routes = catalog.NewRoutes(f, testDomain, nil)
	w.catalog = catalog.New(f, nil)
	w.balancer = balance.New(balance.Options{Catalog: w.catalog, Gates: w.gate, Region: testRegion, QueueWait: time.Minute, WakeWait: time.Minute})
	o := proxy.Options{
		Routes: w.routes, Catalog: w.catalog, Balancer: w.balancer, Gates: w.gate, Host: testHost, Region: testRegion,
		Limits: proxy.Limits{RetryFor: 20 * time.Second},
	}
	for _, change := range options {
		change(&o)
	}
	w.proxy = proxy.New(o)
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{w.routes.Run, w.catalog.Run, w.balancer.Run, w.proxy.Run} {
		running.Go(func() { _ = run(ctx) })
	}
	<-w.routes.Synced()
	<-w.catalog.Synced()
	plain, secure := w.listen(), w.listen()
	w.addr, w.tlsAddr = plain.Addr().String(), secure.Addr().String()
	running.Go(func() { w.accept(plain, nil) })
	config := serverTLS(tb)
	running.Go(func() { w.accept(secure, config) })
	tb.Cleanup(func() {
		_ = plain.Close()
		_ = secure.Close()
		brief, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		w.proxy.Drain(brief)
		stop()
		running.Wait()
		// The goroutine of a request over HTTP/2 may outlive its connection for a moment.
		if !eventually(func() bool { return w.gate.inside() == 0 && w.proxy.Stats().InFlight == 0 }) {
			tb.Errorf("%d requests are still counted in Machines, %d in flight", w.gate.inside(), w.proxy.Stats().InFlight)
		}
	})
	return w
}

func (w *world) listen() net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

func (w *world) accept(l net.Listener, config *tls.Config) {
	var serving sync.WaitGroup
	defer serving.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		serving.Go(func() {
			e := listen.Entry{
				Local: conn.LocalAddr().(*net.TCPAddr).AddrPort(), Remote: conn.RemoteAddr().(*net.TCPAddr).AddrPort(), Port: 80,
			}
			if config != nil {
				secure := tls.Server(conn, config)
				if err := secure.HandshakeContext(w.ctx); err != nil {
					_ = conn.Close()
					return
				}
				state := secure.ConnectionState()
				conn, e.Port, e.TLS, e.ServerName = secure, 443, &state, hangar.Canonical(state.ServerName)
			}
			w.mu.Lock()
			if w.count != nil && config == nil {
				counted := w.count.Count(conn.(*net.TCPConn))
				conn, e.Flow = counted, counted.Flow()
			}
			change := w.entry
			w.mu.Unlock()
			if change != nil {
				change(&e)
			}
			w.proxy.ServeConn(w.ctx, conn, e)
		})
	}
}

// serverTLS has a certificate for every name.
func serverTLS(tb testing.TB) *tls.Config {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"*.apps.test"}}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		tb.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, NextProtos: []string{"h2", "http/1.1"}}
}

// service is one of port 80 and 443 to 8080, changed as a test needs it.
func service(change func(*hangar.ServicePort)) []hangar.Service {
	ports := []hangar.ServicePort{{Port: 80, Handlers: []string{"http"}}, {Port: 443, Handlers: []string{"tls", "http"}}}
	for i := range ports {
		if change != nil {
			change(&ports[i])
		}
	}
	return []hangar.Service{{Protocol: "tcp", InternalPort: 8080, Ports: ports}}
}

// machine adds a Machine whose connections go to an address; empty: nothing listens.
func (w *world) machine(id, app, addr string, change func(*hangar.ServicePort)) hangar.MachineID {
	w.t.Helper()
	return w.row(id, app, addr, func(m *hangar.Machine) { m.Config.Services = service(change) })
}

func (w *world) row(id, app, addr string, change func(*hangar.Machine)) hangar.MachineID {
	w.t.Helper()
	dial := func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	}
	if addr == "" {
		dial = nil
	}
	return w.dialed(id, app, dial, change)
}

func (w *world) dialed(id, app string, dial func(context.Context) (net.Conn, error), change func(*hangar.Machine)) hangar.MachineID {
	w.t.Helper()
	full := hangar.MachineID(id + strings.Repeat("0", 14-len(id)))
	w.gate.mu.Lock()
	if dial != nil {
		w.gate.dials[full] = dial
	} else {
		delete(w.gate.dials, full)
	}
	w.gate.mu.Unlock()
	route, ok := w.routes.App(hangar.AppID(app))
	if !ok {
		w.t.Fatalf("there is no app %s", app)
	}
	row := hangar.MachineRow{
		Machine: hangar.Machine{
			ID: full, Name: id, App: route.App, AppID: route.ID, State: hangar.MachineStarted, Region: testRegion, Host: testHost, HostStatus: "ok",
			InstanceID: hangar.NewInstanceID(time.Now()),
		},
		OrgID: route.Org, Network: route.Network,
	}
	if change != nil {
		change(&row.Machine)
	}
	w.publish(row)
	return full
}

// publish sends a row to the edge.
func (w *world) publish(row hangar.MachineRow) {
	w.t.Helper()
	seq := w.feed.Put(row)
	if err := w.catalog.AwaitMachine(w.ctx, row.Machine.Ref(), seq); err != nil {
		w.t.Fatalf("the catalog does not take the row: %v", err)
	}
}

// crash tells the edge that the program of a Machine has exited by itself, and was restarted.
func (w *world) crash(id hangar.MachineID) {
	w.t.Helper()
	row, ok := w.catalog.Machine(id)
	if !ok {
		w.t.Fatalf("there is no machine %s", id)
	}
	for _, state := range []hangar.MachineState{hangar.MachineRestarting, hangar.MachineStarting, hangar.MachineStarted} {
		next := *row
		next.Machine.State, next.Crashes, next.Losses = state, row.Crashes+1, row.Losses+1
		w.publish(next)
	}
}

// backend serves a handler as a Machine would.
func (w *world) backend(h http.HandlerFunc) string {
	w.t.Helper()
	l := w.listen()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{Handler: h, Protocols: protocols}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	w.t.Cleanup(func() {
		_ = s.Close()
		<-done
	})
	return l.Addr().String()
}

// scripted serves each connection, numbered from 1, with a function.
func (w *world) scripted(serve func(n int, c net.Conn)) string {
	w.t.Helper()
	l := w.listen()
	var all sync.WaitGroup
	all.Go(func() {
		for n := 1; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				serve(n, c)
			})
		}
	})
	w.t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	return l.Addr().String()
}

// client speaks HTTP/1.1, by TLS for https URLs, and follows no redirects.
func (w *world) client() *http.Client { return w.clientOf(false) }

func (w *world) clientOf(h2 bool) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!h2)
	protocols.SetHTTP2(h2)
	protocols.SetUnencryptedHTTP2(h2)
	tr := &http.Transport{
		Protocols: protocols, DisableCompression: true, ExpectContinueTimeout: time.Minute,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			to := w.addr
			if strings.HasSuffix(addr, ":443") {
				to = w.tlsAddr
			}
			return (&net.Dialer{}).DialContext(ctx, network, to)
		},
	}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

type result struct {
	*http.Response
	body string
}

func (w *world) do(c *http.Client, r *http.Request) result {
	w.t.Helper()
	res, err := c.Do(r)
	if err != nil {
		w.t.Fatalf("%s %s: %v", r.Method, r.URL, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatalf("%s %s: read the body: %v", r.Method, r.URL, err)
	}
	return result{res, string(b)}
}

func (w *world) get(url string, headers ...string) result {
	w.t.Helper()
	return w.do(w.client(), w.request(http.MethodGet, url, nil, headers...))
}

func (w *world) request(method, url string, body io.Reader, headers ...string) *http.Request {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), method, url, body)
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
			continue
		}
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

// raw sends bytes over a new connection, and returns everything received until it ends or, if they
// do not ask for its end, nothing more arrives for a while.
func (w *world) raw(text string) string {
	w.t.Helper()
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.say(c, text)
}

// say is raw over a connection, which it closes.
func (w *world) say(c net.Conn, text string) string {
	w.t.Helper()
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		w.t.Fatal(err)
	}
	var got bytes.Buffer
	buf := make([]byte, 4096)
	ends := strings.Contains(strings.ToLower(text), "connection: close")
	for patience := time.Minute; ; {
		_ = c.SetReadDeadline(time.Now().Add(patience))
		n, err := c.Read(buf)
		if got.Write(buf[:n]); !ends {
			patience = 300 * time.Millisecond
		}
		if err != nil {
			return got.String()
		}
	}
}

func wantCode(t *testing.T, got result, status int, code hangar.EdgeCode) {
	t.Helper()
	if got.StatusCode != status || got.Header.Get(hangar.HeaderErrorCode.Neutral) != string(code) || got.Header.Get(hangar.HeaderErrorCode.Original) != string(code) {
		t.Errorf("got %d %q: %s, want %d %q", got.StatusCode, got.Header.Get(hangar.HeaderErrorCode.Neutral), got.body, status, code)
	}
}
