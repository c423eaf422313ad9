package listen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/balance"
	"github.com/hangar-platform/hangar/edge/traffic"
)

// arrival is a connection and what is known of it.
type arrival struct {
	conn          *traffic.Conn
	flow          *traffic.Flow // of the connection, also if that is QUIC
	socket        *socket
	local, remote netip.AddrPort
	client        netip.Addr
	port          int                       // public
	route         *hangar.AppRoute          // nil until it is known
	dedicated     bool                      // the local address is that App's own
	platform      bool                      // TLS is for a name of the platform; there is no route
	private       bool                      // it came by a private network
	endpoint      *balance.Endpoint         // nil until it is known
	name          hangar.Hostname           // that TLS is for
	greeted       bool                      // the client has begun TLS
	refused       *hangar.EdgeError         // why the TLS handshake was refused
	handed        bool                      // serveHTTP has passed it on, or it has ended
	quic          atomic.Pointer[quic.Conn] // nil: it is TCP, or not known yet

	mu    sync.Mutex   // guards what follows
	org   hangar.OrgID // that the connection counts for; empty: none
	ended bool         // discharge was called
}

// charge counts a connection for the organization of its App, once that is known, unless the
// organization has too many.
func (l *Listeners) charge(a *arrival) *hangar.EdgeError {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.org != "" || a.ended:
	case l.orgs.Take(a.route.Org):
		a.org = a.route.Org
		a.flow.For(a.route.ID)
	default:
		l.refused.conns.Add(1)
		return &hangar.EdgeError{Code: hangar.EdgeOrgLimit, Message: "the organization has too many connections to its apps open"}
	}
	return nil
}

// discharge undoes charge, when the connection has ended.
func (l *Listeners) discharge(a *arrival) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended = true; a.org != "" {
		l.orgs.Leave(a.org)
		a.org = ""
	}
}

// hand records, once, that a connection was passed on or has ended.
func (a *arrival) hand(all *arrivals) {
	if !a.handed {
		a.handed = true
		all.Done()
	}
}

// serveHTTP passes a connection to Options.ServeConn.
func (l *Listeners) serveHTTP(ctx context.Context, conn net.Conn, a *arrival, e Entry) {
	e.Taken = func() { a.hand(&l.arrivals) }
	l.o.ServeConn(ctx, conn, e)
}

// tlsRecord is the first byte of every TLS handshake, and of no request.
const tlsRecord = 0x16

// errMoved says that an address was released by its App a moment ago.
var errMoved = errors.New("the address is of no app")

// serve serves a connection until it ends.
func (l *Listeners) serve(ctx context.Context, a *arrival) {
	err := l.dispatch(ctx, a)
	if err == nil {
		return
	}
	a.conn.Abort(err)
	if e, ok := errors.AsType[*hangar.EdgeError](err); ok && !errors.Is(err, io.EOF) {
		l.o.Traffic.Failed(e.Code)
	}
	if a.route != nil && !errors.Is(err, io.EOF) {
		l.lines.failure(hangar.MachineRef{App: a.route.App, AppID: a.route.ID}, a.remote, err)
	}
}

// dispatch finds the App of a connection and serves it. After an error it is still open.
func (l *Listeners) dispatch(ctx context.Context, a *arrival) error {
	a.port = int(a.local.Port())
	route, address, dedicated := l.o.Routes.ByAddress(a.local.Addr())
	if !dedicated && a.socket.own {
		return errMoved
	}
	if !dedicated {
		if a.socket.port != 0 {
			a.port = a.socket.port
		}
		return l.serveWeb(ctx, a)
	}
	a.route, a.dedicated, a.private = route, true, address.Kind == hangar.AddressPrivateV6
	if e := l.charge(a); e != nil {
		return e
	}
	endpoint, ok := l.o.Balancer.Endpoint(route, false, a.port)
	if !ok && a.socket.port != 0 && a.socket.port != a.port {
		a.port = a.socket.port
		endpoint, ok = l.o.Balancer.Endpoint(route, false, a.port)
	}
	if !ok {
		return &hangar.EdgeError{Code: hangar.EdgeNoneHealthy, Message: fmt.Sprintf("the app has no service on port %d", a.port)}
	}
	a.endpoint = endpoint
	switch h := endpoint.Handling; {
	case h.PgTLS:
		return l.servePostgres(ctx, a)
	case h.TLS && h.HTTP: // a client that speaks HTTP without TLS gets an error that says so
		return l.serveWeb(ctx, a)
	case h.TLS:
		return l.serveTLS(ctx, a)
	case h.HTTP:
		l.serveHTTP(ctx, a.conn, a, a.entry())
		return nil
	default:
		return l.join(ctx, a, a.conn, nil)
	}
}

// serveWeb serves a connection whose first byte decides whether it is TLS.
func (l *Listeners) serveWeb(ctx context.Context, a *arrival) error {
	first, err := l.peek(a.conn)
	if err != nil {
		return err
	}
	if first == tlsRecord {
		return l.serveTLS(ctx, a)
	}
	l.serveHTTP(ctx, a.conn, a, a.entry())
	return nil
}

// serveTLS terminates TLS and serves its content.
func (l *Listeners) serveTLS(ctx context.Context, a *arrival) error {
	conn, err := l.handshake(ctx, a)
	if err != nil {
		return err
	}
	state := conn.ConnectionState()
	switch {
	case state.NegotiatedProtocol == protoACME: // the handshake was all
		return conn.Close()
	case a.platform || a.endpoint.Handling.HTTP:
		e := a.entry()
		e.TLS = &state
		l.serveHTTP(ctx, conn.Conn, a, e)
		return nil
	default:
		return l.join(ctx, a, conn, nil)
	}
}

// entry describes a connection for HTTP. On a shared address one connection may have requests for
// many Apps, also for others than TLS was established for.
func (a *arrival) entry() Entry {
	e := Entry{Flow: a.flow, Private: a.private, Local: a.local, Remote: a.remote, Client: a.client, ServerName: a.name, Port: a.port}
	if a.dedicated {
		e.Route = a.route
	}
	return e
}

// peek waits for the first byte of a connection, and leaves it there.
func (l *Listeners) peek(conn *traffic.Conn) (byte, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	if err := conn.SetReadDeadline(time.Now().Add(l.o.Limits.FirstByte)); err != nil {
		return 0, err
	}
	defer l.arrivals.listen(conn.TCP())()
	var b [1]byte
	var n int
	var peekErr error
	err = raw.Read(func(fd uintptr) bool {
		for {
			n, _, peekErr = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
			if !errors.Is(peekErr, unix.EINTR) {
				return !errors.Is(peekErr, unix.EAGAIN)
			}
		}
	})
	switch {
	case err != nil:
		return 0, err
	case peekErr != nil:
		return 0, peekErr
	case n == 0:
		return 0, io.EOF
	}
	return b[0], conn.SetReadDeadline(time.Time{})
}
