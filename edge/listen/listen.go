// Package listen has the sockets of the edge: it accepts connections and datagrams, finds the App
// of each, terminates TLS, and joins all but HTTP with Machines.
//
// Promises. A connection whose local address belongs to one App belongs to that App, whatever
// else it says; any other names its App by its TLS server name, or is HTTP. Nothing is read from
// a connection before its handling is decided, so that bytes which are only passed on never leave
// the kernel. A connection for a port that no App declares is closed. One client, and the Apps of
// one organization, however many clients they have, cannot have more than their share of
// connections, handshakes, datagrams and sockets: as much as they have is left for others.
//
// The sockets outlive the process: each is also held by a keeper, from which the next Listeners
// take it back. Connections that come in between wait in its backlog. When Run is stopped it
// accepts nothing more, at once, and lets accepted connections continue for Options.Drain.
//
// Concurrency. Open opens the sockets with a fixed address. Run owns every other socket, and one
// goroutine for each, and for each connection; it ends when all of them have. Sockets follow Routes
// and Balancer: they come and go with the addresses and ports of Apps, and an accepted connection
// does not end with its socket.
//
// The package does not know HTTP: Options name its server.
package listen

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/balance"
	"github.com/hangar-platform/hangar/edge/catalog"
	"github.com/hangar-platform/hangar/edge/traffic"
	"github.com/hangar-platform/hangar/internal/connlimit"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/keeper"
)

// Options of Listeners. Routes, Balancer, Gates, Certificate, ServeConn and Log are needed.
type Options struct {
	// HTTP and HTTPS are the addresses on which every App is served on its ports 80 and 443,
	// whatever their numbers are here. Without a host they are every address of the server.
	// Empty: not listened on.
	HTTP, HTTPS string
	// Shared is the address that Apps share, on which they are served on all ports with TLS or
	// HTTP other than 80 and 443. If HTTP names an address, that one is used instead.
	Shared netip.Addr
	HTTP3  bool            // also serve HTTP/3, on the UDP port of HTTPS
	Host   hangar.HostID   // whose gate takes lines about an App without a Machine
	Domain hangar.Hostname // below which Apps have their names
	// Platform reports whether a name is one of the platform itself, which is served by TLS on
	// HTTPS alone. nil: none is.
	Platform func(name hangar.Hostname) bool
	// Nameless reports whether the platform serves clients that send no server name to HTTPS at
	// a shared address. If not, their handshake is refused.
	Nameless bool
	Routes   *catalog.Routes
	Balancer *balance.Balancer
	Gates    hangar.MachineGates
	// Certificate finds one for a client. Its ServerName is the App's own where the client sent
	// none. An error may be a *hangar.EdgeError, whose code the client receives.
	Certificate func(hello *tls.ClientHelloInfo, selfSigned bool) (*tls.Certificate, error)
	// ServeConn serves HTTP on a connection until that ends, and closes it. TLS is done.
	ServeConn func(ctx context.Context, conn net.Conn, e Entry)
	// ServeRequest serves a request that came by HTTP/3.
	ServeRequest func(w http.ResponseWriter, r *http.Request, e Entry)
	// MaxHeaderBytes bounds the header of such a request; 0: 1 MiB.
	MaxHeaderBytes int
	Keeper         *keeper.Client // nil: sockets end with the process
	Tickets        string         // the file of the keys of TLS sessions; empty: they end with the process
	Drain          time.Duration  // how long connections may continue after Run was stopped
	Limits         Limits
	Traffic        *traffic.Table                  // counts what passes; nil: it is not counted
	Ready          func(ctx context.Context) error // waited for before anything is accepted; nil: for nothing but Routes
	Log            *slog.Logger
}

// Entry is how a client's connection came in.
type Entry struct {
	Route      *hangar.AppRoute     // whose address it came to; nil: a shared one, where the requests say by their Host
	Private    bool                 // from a private network
	Local      netip.AddrPort       // where the client connected to
	Remote     netip.AddrPort       // the client
	Client     netip.Addr           // whom limits count Remote for; see Limits
	TLS        *tls.ConnectionState // nil: none
	ServerName hangar.Hostname      // that TLS was negotiated for; may be empty
	Port       int                  // public
	Flow       *traffic.Flow        // counts the bytes of the connection; nil: nothing does
	// Taken is called by who serves the connection, on its goroutine and maybe more than once, when its end waits for
	// that of the connection; may be nil.
	Taken func()
}

// Listeners are the sockets of the edge. Use New, Open, Run and Close, in that order.
type Listeners struct {
	o       Options
	log     *slog.Logger
	clients *connlimit.Count[netip.Addr]   // connections
	orgs    *connlimit.Count[hangar.OrgID] // connections of which it is known whose App they are for
	shakes  *connlimit.Count[netip.Addr]   // TLS handshakes under way
	byIP    *rates[netip.Addr]
	byName  *shares[hangar.Hostname, netip.Addr]
	keys    *ticketKeys
	configs configs
	lines   *lines
	outer   *tls.Config // of every connection, until it has said whose it is

	http, https *socket // nil: not listened on
	quic        *net.UDPConn
	sessions    *connlimit.Count[hangar.OrgID] // of datagrams, at all sockets
	pending     *connlimit.Count[hangar.OrgID] // bytes of datagrams that wait for a Machine
	taken       atomic.Uint64
	refused     refusals
	inherited   inheritance
	progress    *progress
	arrivals    arrivals
	wg          sync.WaitGroup // connections, sessions and what accepts them
}

// New returns Listeners that listen on nothing yet.
func New(o Options) *Listeners {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Traffic == nil {
		o.Traffic = traffic.NewTable()
	}
	if o.Platform == nil {
		o.Platform = func(hangar.Hostname) bool { return false }
	}
	o.Limits = o.Limits.complete().affordable()
	l := &Listeners{
		o: o, log: o.Log,
		clients: connlimit.NewCount[netip.Addr](o.Limits.ClientConns, o.Limits.Conns),
		orgs:    connlimit.NewCount[hangar.OrgID](o.Limits.Conns, o.Limits.Conns),
		shakes:  connlimit.NewCount[netip.Addr](o.Limits.ClientHandshakes, o.Limits.Handshakes),
		byIP:    newRates[netip.Addr](o.Limits.ClientRate),
		byName:  newShares[hangar.Hostname, netip.Addr](o.Limits.NameRate),
		keys:    &ticketKeys{path: o.Tickets}, progress: newProgress(),
	}
	l.sessions = connlimit.NewCount[hangar.OrgID](o.Limits.Conns/sessionShare, o.Limits.Conns/sessionShare)
	l.pending = connlimit.NewCount[hangar.OrgID](maxPendingBytes, maxPendingBytes)
	l.arrivals.silent, l.arrivals.handed = map[*net.TCPConn]struct{}{}, make(chan struct{})
	l.lines = &lines{gates: o.Gates, host: o.Host}
	l.outer = &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: l.configFor}
	return l
}

// Open listens on HTTP and HTTPS, or takes their sockets back from the keeper. Connections
// wait until Run accepts them.
func (l *Listeners) Open(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open listeners: %w", err), l.Close())
		}
	}()
	if err := l.keys.open(time.Now()); err != nil {
		return err
	}
	l.inherited.take(l.o.Keeper)
	if l.o.HTTP != "" {
		if l.http, err = l.listenFixed(ctx, "http "+l.o.HTTP, l.o.HTTP, 80); err != nil {
			return err
		}
	}
	if l.o.HTTPS != "" {
		if l.https, err = l.listenFixed(ctx, "https "+l.o.HTTPS, l.o.HTTPS, 443); err != nil {
			return err
		}
	}
	if l.o.HTTP3 && l.https != nil {
		l.quic, err = l.listenUDP(ctx, "http3 "+l.o.HTTPS, net.JoinHostPort(hostOf(l.o.HTTPS), fmt.Sprint(l.https.local.Port())))
		if err != nil {
			return err
		}
	}
	l.inherited.renounce(func(name string) bool { return !ofApps(name) })
	return nil
}

// MaxConns is the largest number of connections: as Limits say, or fewer if the process may not
// have the descriptors.
func (l *Listeners) MaxConns() int { return l.o.Limits.Conns }

// Stats are counts, current ones and those since the start.
type Stats struct {
	Taken           uint64 // connections that were accepted and not too many
	Conns           int    // of which it is known whose App they are for
	Sessions        int    // of datagrams
	RefusedClients  uint64
	RefusedConns    uint64 // because the organization has too many
	RefusedSessions uint64 // likewise, or because the port or the client has
}

// refusals count connections and sessions above the limits.
type refusals struct{ clients, conns, sessions atomic.Uint64 }

// Stats returns the counts.
func (l *Listeners) Stats() Stats {
	return Stats{
		Taken: l.taken.Load(), Conns: l.orgs.Open(), Sessions: l.sessions.Open(),
		RefusedClients: l.refused.clients.Load(), RefusedConns: l.refused.conns.Load(), RefusedSessions: l.refused.sessions.Load(),
	}
}

// Addrs are where HTTP and HTTPS are listened on, once Open has returned.
func (l *Listeners) Addrs() (plain, secure netip.AddrPort) {
	if l.http != nil {
		plain = l.http.local
	}
	if l.https != nil {
		secure = l.https.local
	}
	return plain, secure
}

// AltSvc is the header by which clients learn of HTTP/3. It is empty without.
func (l *Listeners) AltSvc() string {
	if l.quic == nil {
		return ""
	}
	return fmt.Sprintf(`h3=":%d"; ma=86400`, l.https.local.Port())
}

// Run accepts connections, and opens and closes the sockets of Apps, until ctx ends. Then it
// accepts nothing more, leaves the sockets to the keeper, and returns when the last connection
// has ended; after Options.Drain it ends the rest.
func (l *Listeners) Run(ctx context.Context) error {
	if l.ready(ctx) != nil {
		close(l.arrivals.handed)
		return nil // ctx ended, and nothing was accepted
	}
	lifetime, end := finish.Lifetime(ctx)
	defer end()
	connections, abort := context.WithCancelCause(lifetime)
	defer abort(nil)
	newFollower(connections, l).follow(ctx)
	stopped := time.Now()
	l.arrivals.finish(min(l.o.Limits.LastWords, l.o.Drain))
	ended := make(chan struct{})
	go func() {
		l.wg.Wait()
		close(ended)
	}()
	drained := time.NewTimer(l.o.Drain - time.Since(stopped))
	defer drained.Stop()
	select {
	case <-ended:
	case <-drained.C:
		abort(errDrained)
		<-ended
	}
	return nil
}

// errDrained is the error of connections that outlast the drain.
var errDrained = errors.New("the server is restarted")

// ready waits until the owners of connections are known.
func (l *Listeners) ready(ctx context.Context) error {
	select {
	case <-l.o.Routes.Synced():
	case <-ctx.Done():
		return ctx.Err()
	}
	if l.o.Ready == nil {
		return nil
	}
	return l.o.Ready(ctx)
}

// Close closes the sockets of Open, and leaves them to the keeper if there is one.
func (l *Listeners) Close() error {
	var errs []error
	for _, s := range []*socket{l.http, l.https} {
		if s != nil {
			errs = append(errs, closeOnce(s))
		}
	}
	if l.quic != nil {
		errs = append(errs, closeOnce(l.quic))
	}
	l.inherited.close()
	return errors.Join(errs...)
}

// closeOnce closes what may be closed already.
func closeOnce(c io.Closer) error {
	if err := c.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
