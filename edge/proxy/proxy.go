// Package proxy is the HTTP side of the edge: it takes requests of clients off connections,
// brings each to a Machine, and the answer back.
//
// A request is never lost that can be repeated and never repeated that cannot: as long as
// no byte of an answer was passed on, one of which nothing was written goes to another Machine,
// and one that was written too, if its method is idempotent and its body still at hand. What a
// Machine is told about the client was found out by the edge; a client cannot say it.
// Memory is bounded: what is kept of bodies, idle connections, lines of logs.
//
// Everything streams, in both directions at once. A request counts in its Machine (see
// package balance) from before the connection to it until the end of the answer, a connection
// that switched protocols until both sides have ended.
//
// One goroutine has a request, that of the connection with HTTP/1 and one for each request
// with HTTP/2 and HTTP/3; a body that has to be waited for and a tunnel take another one.
// All methods of Proxy may be called from any goroutine. Run sweeps; everything works
// without it, and grows.
//
// The package listens on nothing, has no certificates and chooses no Machine.
package proxy

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/balance"
	"github.com/hangar-platform/hangar/edge/catalog"
	"github.com/hangar-platform/hangar/edge/proxy/access"
	"github.com/hangar-platform/hangar/edge/proxy/replay"
	"github.com/hangar-platform/hangar/edge/proxy/statics"
	"github.com/hangar-platform/hangar/internal/http1"
)

// Entry is how a connection of a client came in.
type Entry struct {
	Route      *hangar.AppRoute // whose it is; nil: the requests tell by their Host
	Private    bool             // from a private network
	Local      netip.AddrPort   // where the client connected to
	Remote     netip.AddrPort   // the client
	TLS        *tls.ConnectionState
	ServerName hangar.Hostname // that TLS was negotiated for; may be empty
	Port       int             // the public port
}

// Limits bound what one client or one request may take. What is 0 has its default.
type Limits struct {
	HeaderTimeout  time.Duration // for the header of a request
	IdleTimeout    time.Duration // between the requests of a connection
	BodyTimeout    time.Duration // for the next byte of a body, when it is waited for
	DialTimeout    time.Duration // for a connection to a Machine
	RetryFor       time.Duration // after the first failure
	MaxAttempts    int           // to reach a Machine, for one request
	MaxHeaderBytes int
	MaxBody        int64 // bytes of a request's body; 0: any number
	MaxStreams     int   // requests at a time of a connection over HTTP/2
	KeepBody       int64 // bytes of a body that are kept in memory, so that it can be sent again
	KeepBodies     int64 // bytes of all bodies that are kept in memory
	// SpoolBody is how many bytes of a body are kept altogether, those beyond KeepBody in
	// a file that has no name; 0: KeepBody.
	SpoolBody int64
	SpoolDir  string // where such files are; empty: the directory for temporary files
}

// The defaults of Limits.
const (
	DefaultHeaderTimeout  = 30 * time.Second
	DefaultIdleTimeout    = 120 * time.Second
	DefaultBodyTimeout    = 5 * time.Minute
	DefaultDialTimeout    = 10 * time.Second
	DefaultRetryFor       = 8 * time.Second
	DefaultMaxAttempts    = 90
	DefaultMaxHeaderBytes = 64 << 10
	DefaultMaxStreams     = 250
	DefaultKeepBody       = 1 << 20
	DefaultKeepBodies     = 256 << 20
	MaxSpoolBody          = 64 << 20
)

func (l Limits) complete() Limits {
	set(&l.HeaderTimeout, DefaultHeaderTimeout)
	set(&l.IdleTimeout, DefaultIdleTimeout)
	set(&l.BodyTimeout, DefaultBodyTimeout)
	set(&l.DialTimeout, DefaultDialTimeout)
	set(&l.RetryFor, DefaultRetryFor)
	set(&l.MaxAttempts, DefaultMaxAttempts)
	set(&l.MaxHeaderBytes, DefaultMaxHeaderBytes)
	set(&l.MaxStreams, DefaultMaxStreams)
	set(&l.KeepBody, DefaultKeepBody)
	set(&l.KeepBodies, DefaultKeepBodies)
	set(&l.SpoolDir, os.TempDir())
	l.SpoolBody = min(l.SpoolBody, MaxSpoolBody)
	return l
}

// set fills in what is missing.
func set[T comparable](v *T, usual T) {
	var zero T
	if *v == zero {
		*v = usual
	}
}

// Options are what a Proxy needs.
type Options struct {
	Routes   *catalog.Routes
	Catalog  *catalog.Catalog // of the Balancer's; nil: no static files
	Balancer *balance.Balancer
	Gates    hangar.MachineGates
	Host     hangar.HostID // of this server, whose gate has the logs of Apps
	Region   hangar.Region
	// Challenge answers a request of an ACME server; false: it is none, and nothing was
	// written. nil: there are none.
	Challenge func(w http.ResponseWriter, r *http.Request) bool
	AltSvc    string // the Alt-Svc header of answers over TLS; empty: none
	HTTPSPort int    // where clients reach the edge by https under the names of Apps; 0: 443
	Buckets   *statics.Buckets
	Limits    Limits
	Log       *slog.Logger
}

// Proxy answers requests. Use New.
type Proxy struct {
	options  Options
	limits   Limits
	log      *slog.Logger
	routes   *catalog.Routes
	balancer *balance.Balancer
	region   []string // of headers
	bodies   bodyLimits
	kept     atomic.Int64 // bytes of memory that bodies may still take

	pool    *pool
	streams *multiplexes
	stays   *stays
	memory  *replay.Cache
	shelves shelves
	access  *access.Log
	lines   lines

	handler http.Handler
	h1      *http1.Server
	h2      *http2.Server //nolint:staticcheck // see serveHTTP2
	base    *http.Server  // of h2
	stats   counters

	mu       sync.Mutex            // guards what follows
	streamed map[net.Conn]struct{} // connections over HTTP/2
	draining bool
	ended    chan struct{} // closed when streamed is empty, while draining
}

// New returns a Proxy that serves what it is given.
func New(o Options) *Proxy {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	p := &Proxy{
		options: o, limits: o.Limits.complete(), log: o.Log, routes: o.Routes, balancer: o.Balancer,
		region: []string{string(o.Region)}, pool: newPool(), streams: newMultiplexes(), stays: newStays(),
		memory: replay.NewCache(replay.CacheOptions{}), access: access.New(),
		streamed: make(map[net.Conn]struct{}), ended: make(chan struct{}),
	}
	p.kept.Store(p.limits.KeepBodies)
	p.bodies = bodyLimits{memory: p.limits.KeepBody, spool: p.limits.SpoolBody, dir: p.limits.SpoolDir, total: &p.kept}
	p.handler = http.HandlerFunc(p.handle)
	p.h1 = &http1.Server{
		Handler: p.handler, HeaderTimeout: p.limits.HeaderTimeout, IdleTimeout: p.limits.IdleTimeout, BodyTimeout: p.limits.BodyTimeout,
		MaxHeaderBytes: p.limits.MaxHeaderBytes, Timeouts: timeouts, Refuse: p.refuse, HTTP2: p.priorKnowledge, Log: o.Log,
	}
	p.base = &http.Server{
		Handler: p.handler, MaxHeaderBytes: p.limits.MaxHeaderBytes, ReadHeaderTimeout: p.limits.HeaderTimeout, IdleTimeout: p.limits.IdleTimeout,
		ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: p.limits.MaxStreams, MaxReadFrameSize: 16 << 10,
			SendPingTimeout: p.limits.IdleTimeout, PingTimeout: 15 * time.Second, WriteByteTimeout: p.limits.BodyTimeout,
		},
	}
	p.h2 = new(http2.Server)                                    //nolint:staticcheck // see serveHTTP2
	if err := http2.ConfigureServer(p.base, p.h2); err != nil { //nolint:staticcheck // see serveHTTP2
		panic("configure HTTP/2: " + err.Error()) // only for a TLS config, of which there is none
	}
	o.Balancer.Gone(p.gone)
	o.Balancer.Ended(p.stays.end)
	return p
}

// gone is called when a Machine has ended or restarts.
func (p *Proxy) gone(id hangar.MachineID) {
	p.pool.drop(id)
	p.streams.drop(id)
}

// Access is what passes lines about requests on to those who follow an App.
func (p *Proxy) Access() *access.Log { return p.access }

// Run sweeps what the proxy keeps until ctx ends.
func (p *Proxy) Run(ctx context.Context) error {
	defer p.streams.drop("")
	defer p.pool.sweep(time.Now().Add(time.Hour))
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case now := <-tick.C:
			p.pool.sweep(now.Add(-idleUpstream))
			p.lines.sweep(now, func(of line, more int) {
				p.logEdge(p.options.Host, hangar.MachineRef{App: of.app}, "warn", "["+string(of.code)+"]"+leftOut(more))
			})
			p.shelves.sweep(func(app hangar.AppName) bool { _, ok := p.routes.App(app); return ok })
		}
	}
}

// Drain ends what ServeConn serves: answers say that the connection will close, idle
// connections are closed, and new ones at once. It returns when all have ended or ctx has, and
// those that are left are closed.
func (p *Proxy) Drain(ctx context.Context) {
	p.mu.Lock()
	first := !p.draining
	p.draining = true
	if first && len(p.streamed) == 0 {
		close(p.ended)
	}
	p.mu.Unlock()
	var ending sync.WaitGroup
	ending.Go(func() { p.h1.Drain(ctx) })
	ending.Go(func() { p.drainHTTP2(ctx) })
	ending.Wait()
}

func (p *Proxy) drainHTTP2(ctx context.Context) {
	_ = p.base.Shutdown(ctx) // says GOAWAY, and waits for nothing that is not its own
	select {
	case <-p.ended:
	case <-ctx.Done():
		p.mu.Lock()
		defer p.mu.Unlock()
		for conn := range p.streamed {
			_ = conn.Close()
		}
	}
}

// enter notes a connection over HTTP/2; false: no more are served.
func (p *Proxy) enter(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.draining {
		p.streamed[conn] = struct{}{}
	}
	return !p.draining
}

func (p *Proxy) leave(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.streamed, conn)
	if p.draining && len(p.streamed) == 0 {
		close(p.ended)
	}
}

// Stats are counts since the start, and of now.
type Stats struct {
	Requests uint64
	Failures uint64 // answers of the edge's own, and those that a Machine did not complete
	Dials    uint64 // connections to Machines
	Retries  uint64
	Replays  uint64
	InFlight int64 // requests
	Tunnels  int64 // connections that switched protocols
}

type counters struct {
	requests, failures, dials, retries, replays atomic.Uint64
	inFlight, tunnels                           atomic.Int64
}

// Stats returns the counts.
func (p *Proxy) Stats() Stats {
	c := &p.stats
	return Stats{
		Requests: c.requests.Load(), Failures: c.failures.Load(), Dials: c.dials.Load(), Retries: c.retries.Load(),
		Replays: c.replays.Load(), InFlight: c.inFlight.Load(), Tunnels: c.tunnels.Load(),
	}
}

// refuse answers a request that is no HTTP/1.
func (p *Proxy) refuse(w http.ResponseWriter, status int, err error) {
	p.stats.failures.Add(1)
	refuse(w, refused(status, err), requestID(time.Now(), p.options.Region))
}
