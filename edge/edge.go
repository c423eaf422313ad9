// Package edge serves Apps to clients outside of their private networks: it accepts connections,
// finds the App of each, and joins them to Machines.
//
// It is made of children that know at most those named before them. edge/catalog follows the Machines, Apps
// and addresses. edge/balance picks a Machine for a request, and starts one if needed.
// edge/listen takes connections, ends TLS and passes on what is not HTTP; edge/proxy does HTTP;
// edge/certs has the certificates. Edge joins them.
//
// The edge makes no lasting decision: feeds drive it, and the host of a Machine, behind
// hangar.MachineGate, has the last word on which requests get in. Its directory holds only
// certificates and the keys of TLS sessions, so that it can serve while its feeds are down.
//
// An orderly shutdown loses no request: Run stops accepting, waits for requests in flight, and
// returns. The keeper also holds the listening sockets, so that connections wait for the next
// daemon instead of being refused; see edge/listen.
package edge

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"iter"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/balance"
	"github.com/hangar-platform/hangar/edge/catalog"
	"github.com/hangar-platform/hangar/edge/certs"
	"github.com/hangar-platform/hangar/edge/listen"
	"github.com/hangar-platform/hangar/edge/proxy"
	"github.com/hangar-platform/hangar/edge/proxy/statics"
	"github.com/hangar-platform/hangar/edge/traffic"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/keeper"
)

// Options of an Edge.
type Options struct {
	Host   hangar.HostID // of this server
	Dir    string        // for certificates and keys of TLS sessions
	HTTP   string        // host:port at which Apps are served under their names
	HTTPS  string        // likewise with TLS
	HTTP3  bool          // also by HTTP/3, on the UDP port of HTTPS
	Shared netip.Addr
	Domain hangar.Hostname // below which Apps have their names
	Region hangar.Region   // of this server
	// Platform is what answers at names directly below Domain that are the platform's own. No
	// handler is called before Run, or after it.
	Platform map[hangar.Hostname]http.Handler
	// Nameless answers clients that send no server name by TLS to an address that Apps share, under
	// the same conditions; nil: their handshakes are refused.
	Nameless http.Handler

	Machines     *catalog.Catalog // followed by its owner
	Routes       *catalog.Routes  // followed by Run
	Certificates hangar.CertificateFeed
	Orders       hangar.CertificateStore // of all edges of the platform; nil: there are no others
	Gates        hangar.MachineGates
	Keeper       *keeper.Client // of listening sockets; nil: they end with the process
	Private      PrivateIngress // leads private networks to the edge; nil: there are none

	ACME      string         // address of the directory of an ACME server; empty: there is none
	ACMEEmail string         // for its operator to write to; may be empty
	ACMERoots *x509.CertPool // who may sign its own certificate; nil: the system's

	Limits     listen.Limits // of clients
	Drain      time.Duration // how long what is under way may take once Run's context ends
	ReplayBody int64         // bytes of a body that are kept in case it has to be sent again, those beyond 1 MiB on disk
	Buckets    string        // URL of the S3 service that has buckets of static files; empty: there is none
	Log        *slog.Logger
}

// Edge is the edge of one server.
type Edge struct {
	o         Options
	routes    *catalog.Routes
	balancer  *balance.Balancer
	proxy     *proxy.Proxy
	certs     *certs.Certs
	listeners *listen.Listeners
	buckets   *statics.Buckets // nil: there are none
	traffic   *traffic.Table
	colour    colour // set by Open

	applying sync.Mutex // held by applyPrivate, so that an older reading never replaces a newer one
}

var (
	_ hangar.RouteHost       = (*Edge)(nil)
	_ hangar.CertificateHost = (*Edge)(nil)
	_ hangar.EdgeLog         = (*Edge)(nil)
	_ hangar.MetricSource    = (*Edge)(nil)
)

// New returns an Edge that listens on nothing yet.
func New(o Options) *Edge {
	e := &Edge{o: o, traffic: traffic.NewTable()}
	e.routes = o.Routes
	e.balancer = balance.New(balance.Options{Catalog: o.Machines, Gates: o.Gates, Region: o.Region, Log: o.Log})
	e.certs = certs.New(certs.Options{
		Dir: filepath.Join(o.Dir, "certificates"), Domain: o.Domain, Feed: o.Certificates, Owner: e.owner, Shared: o.Orders, Host: o.Host,
		Platform: slices.Sorted(maps.Keys(o.Platform)), Directory: o.ACME, Email: o.ACMEEmail, Roots: o.ACMERoots, Log: o.Log,
	})
	e.listeners = listen.New(listen.Options{
		HTTP: o.HTTP, HTTPS: o.HTTPS, HTTP3: o.HTTP3, Shared: o.Shared, Host: o.Host, Domain: o.Domain,
		Platform: func(name hangar.Hostname) bool { return o.Platform[name] != nil }, Nameless: o.Nameless != nil,
		Routes: e.routes, Balancer: e.balancer, Gates: o.Gates, Certificate: e.certs.Get,
		ServeConn:      func(ctx context.Context, conn net.Conn, in listen.Entry) { e.proxy.ServeConn(ctx, conn, in) }, // Open makes it
		ServeRequest:   func(w http.ResponseWriter, r *http.Request, in listen.Entry) { e.proxy.ServeRequest(w, r, in) },
		MaxHeaderBytes: proxy.DefaultMaxHeaderBytes, Keeper: o.Keeper, Tickets: filepath.Join(o.Dir, "tickets.key"),
		Traffic: e.traffic, Limits: o.Limits, Drain: o.Drain, Ready: e.ready, Log: o.Log,
	})
	return e
}

// owner returns the organization of the App that is open to the public under a name.
func (e *Edge) owner(name hangar.Hostname) (hangar.OrgID, bool) {
	route, ok := e.routes.ByHostname(name)
	if !ok {
		return "", false
	}
	return route.Org, true
}

// ready waits until all Machines and Apps are known: before, a request would meet an App that
// seems not to be there.
func (e *Edge) ready(ctx context.Context) error {
	for _, synced := range []<-chan struct{}{e.routes.Synced(), e.o.Machines.Synced()} {
		select {
		case <-synced:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Open binds the addresses at which Apps are served under their names, or takes them back from
// the keeper. Connections wait until Run.
func (e *Edge) Open(ctx context.Context) error {
	if err := os.MkdirAll(e.o.Dir, 0o700); err != nil {
		return err
	}
	var err error
	if e.colour, err = nextColour(filepath.Join(e.o.Dir, colourFile)); err != nil {
		return err
	}
	if e.o.Buckets != "" {
		endpoint, err := url.Parse(e.o.Buckets)
		if err != nil {
			return err
		}
		buckets, err := statics.NewBuckets(statics.BucketOptions{Endpoint: endpoint})
		if err != nil {
			return err
		}
		e.buckets = buckets
	}
	if err := e.certs.Open(ctx); err != nil {
		return err
	}
	if err := e.listeners.Open(ctx); err != nil {
		return errors.Join(err, e.certs.Close())
	}
	_, https := e.listeners.Addrs()
	e.proxy = proxy.New(proxy.Options{
		Routes: e.routes, Catalog: e.o.Machines, Balancer: e.balancer, Gates: e.o.Gates, Host: e.o.Host, Region: e.o.Region,
		Challenge: e.certs.Challenge, HTTPSPort: int(https.Port()), AltSvc: e.listeners.AltSvc(), Buckets: e.buckets,
		Platform: e.o.Platform, Nameless: e.o.Nameless, Traffic: e.traffic, Limits: proxy.Limits{SpoolBody: e.o.ReplayBody, Requests: e.listeners.MaxConns()}, Log: e.o.Log,
	})
	return nil
}

// Run serves until ctx ends, and then until requests in flight have ended, Options.Drain at most.
func (e *Edge) Run(ctx context.Context) error {
	// The resources of requests outlive the last of them.
	lasting, stop := finish.Lifetime(ctx)
	defer stop()
	var group errgroup.Group
	for _, run := range []func(context.Context) error{e.routes.Run, e.balancer.Run, e.certs.Run, e.proxy.Run, e.followPrivate, e.sweepTraffic} {
		group.Go(func() error { return run(lasting) })
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		<-ctx.Done()
		bounded, cancel := context.WithTimeout(lasting, e.o.Drain)
		defer cancel()
		select { // accepted clients are answered
		case <-e.listeners.Handed():
		case <-bounded.Done():
		}
		e.proxy.Drain(bounded)
	}()
	err := e.listeners.Run(ctx)
	if ctx.Err() != nil {
		<-drained
	}
	stop()
	if ended := group.Wait(); !errors.Is(ended, context.Canceled) {
		err = errors.Join(err, ended)
	}
	return errors.Join(err, ctx.Err())
}

// Close releases what Open took. The keeper still has the sockets.
func (e *Edge) Close() error { return errors.Join(e.listeners.Close(), e.certs.Close()) }

// Addrs are where Apps are served under their names, once Open has returned.
func (e *Edge) Addrs() (plain, secure netip.AddrPort) { return e.listeners.Addrs() }

// AwaitRoute implements hangar.RouteHost. When it returns, the sockets of the App are open, too,
// and its private addresses lead to them.
func (e *Edge) AwaitRoute(ctx context.Context, app hangar.AppID, seq uint64) error {
	if err := e.routes.Await(ctx, app, seq); err != nil {
		return err
	}
	if err := e.listeners.Await(ctx); err != nil || e.o.Private == nil {
		return err
	}
	return e.applyPrivate(ctx)
}

// Domain implements hangar.RouteHost.
func (e *Edge) Domain() hangar.Hostname { return e.o.Domain }

// ACME implements hangar.CertificateHost.
func (e *Edge) ACME() bool { return e.certs.ACME() }

// CertificateState implements hangar.CertificateHost.
func (e *Edge) CertificateState(name hangar.Hostname) hangar.CertificateState {
	return e.certs.CertificateState(name)
}

// Certificate finds the certificate of a name that is served here, or, for a client without a
// server name, one of the server's own authority for the address that it has called. The
// handshake takes place elsewhere. It may be called once Open has returned.
func (e *Edge) Certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	return e.certs.Get(hello, hello.ServerName == "")
}

// RetryCertificate implements hangar.CertificateHost.
func (e *Edge) RetryCertificate(name hangar.Hostname) { e.certs.RetryCertificate(name) }

// FollowEdge implements hangar.EdgeLog.
func (e *Edge) FollowEdge(ctx context.Context, app hangar.AppID) iter.Seq2[hangar.LogEntry, error] {
	return e.proxy.Access().FollowEdge(ctx, app)
}
