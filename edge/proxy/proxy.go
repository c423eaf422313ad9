// Package proxy is the HTTP side of the edge: it reads requests from connections of clients, brings
// each to a Machine, and the answer back.
//
// A request that can be repeated is never lost, and one that cannot is never repeated: as long as
// no byte of an answer was passed on, a request of which nothing was written goes to another
// Machine, and so does one that was written, if its method is idempotent and its body still at
// hand. What a Machine learns about the client was found out by the edge; a client cannot set it.
// Memory is bounded: for bodies, idle connections and lines of logs.
//
// Everything streams, in both directions at once. A request counts in its Machine (see
// package balance) from before the connection to it until the end of the answer, a connection
// that switched protocols until both sides have ended.
//
// One goroutine has a request, that of the connection with HTTP/1 and one for each request with
// HTTP/2 and HTTP/3; a tunnel, and a body that has to be waited for, take another one. All methods
// of Proxy may be called from any goroutine. Run sweeps; without it everything works, but memory
// grows.
//
// The package listens on nothing, has no certificates and chooses no Machine.
package proxy

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/balance"
	"github.com/hangar-platform/hangar/edge/catalog"
	"github.com/hangar-platform/hangar/edge/proxy/access"
	"github.com/hangar-platform/hangar/edge/proxy/http1"
	"github.com/hangar-platform/hangar/edge/proxy/replay"
	"github.com/hangar-platform/hangar/edge/proxy/statics"
	"github.com/hangar-platform/hangar/edge/traffic"
	"github.com/hangar-platform/hangar/internal/connlimit"
)

// Limits bound the resources of one client or one request. A limit of 0 has its default.
type Limits struct {
	HeaderTimeout  time.Duration // for the header of a request
	IdleTimeout    time.Duration // between the requests of a connection
	BodyTimeout    time.Duration // for the next byte of a body, when it is waited for
	DialTimeout    time.Duration // for a connection to a Machine
	RetryFor       time.Duration // after the first failure
	CrashWait      time.Duration // for word that a program has ended, whose connections know first
	MaxAttempts    int           // to reach a Machine, for one request
	MaxHeaderBytes int
	MaxBody        int64 // bytes of a request's body; 0: any number
	MaxStreams     int   // requests at a time of a connection over HTTP/2
	KeepBody       int64 // bytes of a body that are kept in memory, so that it can be sent again
	KeepBodies     int64 // bytes of all bodies that are kept in memory; one organization gets a quarter
	// SpoolBody is how many bytes of a body are kept altogether, those beyond KeepBody in
	// a file that has no name; 0: KeepBody.
	SpoolBody   int64
	SpoolBodies int64  // bytes of all bodies that are in files; one organization gets a quarter
	SpoolDir    string // where such files are; empty: the directory for temporary files
	// PlatformRequests is how many requests may be in flight at the names of the platform, and
	// ClientPlatformRequests how many of one client.
	PlatformRequests       int
	ClientPlatformRequests int
	// Requests is how many may be in flight. Those for Apps of one organization are never more
	// than what is left of it.
	Requests int
}

// The defaults of Limits.
const (
	DefaultHeaderTimeout  = 30 * time.Second
	DefaultIdleTimeout    = 120 * time.Second
	DefaultBodyTimeout    = 5 * time.Minute
	DefaultDialTimeout    = 10 * time.Second
	DefaultRetryFor       = 8 * time.Second
	DefaultCrashWait      = 150 * time.Millisecond
	DefaultMaxAttempts    = 90
	DefaultMaxHeaderBytes = 64 << 10
	DefaultMaxStreams     = 250
	DefaultKeepBody       = 1 << 20
	DefaultKeepBodies     = 256 << 20
	DefaultSpoolBodies    = 1 << 30
	MaxSpoolBody          = 64 << 20

	DefaultPlatformRequests       = 8192
	DefaultClientPlatformRequests = 512
	DefaultRequests               = 100_000
)

func (l Limits) complete() Limits {
	l.HeaderTimeout = cmp.Or(l.HeaderTimeout, DefaultHeaderTimeout)
	l.IdleTimeout = cmp.Or(l.IdleTimeout, DefaultIdleTimeout)
	l.BodyTimeout = cmp.Or(l.BodyTimeout, DefaultBodyTimeout)
	l.DialTimeout = cmp.Or(l.DialTimeout, DefaultDialTimeout)
	l.RetryFor = cmp.Or(l.RetryFor, DefaultRetryFor)
	l.CrashWait = cmp.Or(l.CrashWait, DefaultCrashWait)
	l.MaxAttempts = cmp.Or(l.MaxAttempts, DefaultMaxAttempts)
	l.MaxHeaderBytes = cmp.Or(l.MaxHeaderBytes, DefaultMaxHeaderBytes)
	l.MaxStreams = cmp.Or(l.MaxStreams, DefaultMaxStreams)
	l.KeepBody = cmp.Or(l.KeepBody, DefaultKeepBody)
	l.KeepBodies = cmp.Or(l.KeepBodies, DefaultKeepBodies)
	l.SpoolBodies = cmp.Or(l.SpoolBodies, DefaultSpoolBodies)
	l.SpoolDir = cmp.Or(l.SpoolDir, os.TempDir())
	l.PlatformRequests = cmp.Or(l.PlatformRequests, DefaultPlatformRequests)
	l.ClientPlatformRequests = cmp.Or(l.ClientPlatformRequests, DefaultClientPlatformRequests)
	l.Requests = cmp.Or(l.Requests, DefaultRequests)
	l.SpoolBody = min(l.SpoolBody, MaxSpoolBody)
	return l
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
	Platform  map[hangar.Hostname]http.Handler // what answers at names of the platform itself; see servePlatform
	Nameless  http.Handler                     // what answers over TLS for no name at an address that Apps share; nil: such connections do not come
	Limits    Limits
	Traffic   *traffic.Table // counts requests; nil: they are not counted
	Log       *slog.Logger
}

// Proxy answers requests. Use New.
type Proxy struct {
	options  Options
	limits   Limits
	log      *slog.Logger
	routes   *catalog.Routes
	balancer *balance.Balancer
	region   []string // value of a header
	bodies   bodyLimits

	pool    *pool
	streams *multiplexes
	memory  *replay.Cache
	shelves shelves
	access  *access.Log
	lines   lines
	callers *connlimit.Count[netip.Addr]   // requests in flight at the names of the platform
	orgs    *connlimit.Count[hangar.OrgID] // requests in flight for Apps

	handler http.Handler
	h1      *http1.Server
	stats   counters

	mu       sync.Mutex            // guards the fields below
	streamed map[net.Conn]struct{} // HTTP/2 connections
	draining bool
	ended    chan struct{} // closed when streamed is empty, while draining

	streamServers map[time.Duration]*streamServer // of connections over HTTP/2, by how long they may be idle
}

// New returns a Proxy; ServeConn serves connections.
func New(o Options) *Proxy {
	if o.Traffic == nil {
		o.Traffic = traffic.NewTable()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	p := &Proxy{
		options: o, limits: o.Limits.complete(), log: o.Log, routes: o.Routes, balancer: o.Balancer,
		region: []string{string(o.Region)}, pool: newPool(), streams: newMultiplexes(),
		memory: replay.NewCache(replay.CacheOptions{}), access: access.New(),
		streamed: make(map[net.Conn]struct{}), ended: make(chan struct{}), streamServers: make(map[time.Duration]*streamServer),
	}
	p.callers = connlimit.NewCount[netip.Addr](p.limits.ClientPlatformRequests, p.limits.PlatformRequests)
	p.orgs = connlimit.NewCount[hangar.OrgID](p.limits.Requests, p.limits.Requests)
	p.bodies = bodyLimits{memory: p.limits.KeepBody, spool: p.limits.SpoolBody, dir: p.limits.SpoolDir, room: newBodyRoom(bodyBytes{p.limits.KeepBodies, p.limits.SpoolBodies})}
	p.handler = http.HandlerFunc(p.handle)
	p.h1 = &http1.Server{
		Handler: p.handler, HeaderTimeout: p.limits.HeaderTimeout, IdleTimeout: p.limits.IdleTimeout, BodyTimeout: p.limits.BodyTimeout,
		MaxHeaderBytes: p.limits.MaxHeaderBytes, Timeouts: timeouts, Refuse: p.refuse, HTTP2: p.priorKnowledge, Taken: taken, Log: o.Log,
	}
	o.Balancer.OnStale(p.dropStale)
	return p
}

// dropStale closes the idle connections to a Machine that has stopped or restarts.
func (p *Proxy) dropStale(id hangar.MachineID) {
	p.pool.drop(id)
	p.streams.drop(id)
}

// Access passes lines about requests to the followers of an App.
func (p *Proxy) Access() *access.Log { return p.access }

// Run sweeps caches and idle connections until ctx ends.
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
			for of, more := range p.lines.sweep(now) {
				p.logEdge(p.options.Host, hangar.MachineRef{AppID: of.app}, "warn", "["+string(of.code)+"]"+leftOut(more))
			}
			p.shelves.sweep(func(app hangar.AppID) bool { _, ok := p.routes.App(app); return ok })
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

// goAwayEvery is how often HTTP/2 connections are notified of a shutdown: a new connection may have
// missed the last round.
const goAwayEvery = 100 * time.Millisecond

func (p *Proxy) drainHTTP2(ctx context.Context) {
	tick := time.NewTicker(goAwayEvery)
	defer tick.Stop()
	for {
		p.mu.Lock()
		servers := slices.Collect(maps.Values(p.streamServers))
		p.mu.Unlock()
		for _, s := range servers {
			_ = s.base.Shutdown(ctx) // sends GOAWAY, once to each, and waits only for its own connections
		}
		select {
		case <-p.ended:
			return
		case <-tick.C:
		case <-ctx.Done():
			p.mu.Lock()
			defer p.mu.Unlock()
			for conn := range p.streamed {
				sever(conn)
			}
			return
		}
	}
}

// sever resets a connection, because a TLS close would wait for a client that reads nothing.
func sever(conn net.Conn) {
	if secure, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secure.NetConn()
	}
	_ = conn.Close()
}

// enter registers an HTTP/2 connection; false: no more are served.
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

// Stats are counts, current ones and those since the start.
type Stats struct {
	Requests uint64
	Failures uint64 // answers of the edge's own, and those that a Machine did not complete
	Dials    uint64 // connections to Machines
	Retries  uint64
	Replays  uint64
	Refused  uint64 // requests of organizations that had too many in flight
	InFlight int64  // requests
	Tunnels  int64  // connections that switched protocols
}

type counters struct {
	requests, failures, dials, retries, replays, refused atomic.Uint64
	inFlight, tunnels                                    atomic.Int64
}

// Stats returns the counts.
func (p *Proxy) Stats() Stats {
	c := &p.stats
	return Stats{
		Requests: c.requests.Load(), Failures: c.failures.Load(), Dials: c.dials.Load(), Retries: c.retries.Load(),
		Replays: c.replays.Load(), Refused: c.refused.Load(), InFlight: c.inFlight.Load(), Tunnels: c.tunnels.Load(),
	}
}

// refuse answers a request that is not HTTP/1.
func (p *Proxy) refuse(w http.ResponseWriter, status int, err error) {
	e := refused(status, err)
	p.stats.failures.Add(1)
	p.options.Traffic.Failed(e.Code)
	refuse(w, e, requestID(time.Now(), p.options.Region))
}
