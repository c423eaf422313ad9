package listen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/connlimit"
	"github.com/hangar-platform/hangar/internal/pause"
)

const (
	// retryEvery is how often sockets that could not be opened are tried again.
	retryEvery = 30 * time.Second
	// retryFirst is when they are tried for the second time after the start, and then after
	// pauses that double: a keeper soon releases the sockets of an earlier daemon with other
	// addresses.
	retryFirst = time.Second
	// A round is followed by a pause of minPause, or of pauseFactor times its duration.
	minPause    = 20 * time.Millisecond
	pauseFactor = 10
	// acceptPause follows a failed accept, for instance because too many files are open.
	acceptPause = 20 * time.Millisecond
)

// socketShare of the connections that there may be is how many sockets Apps may have in all.
const socketShare = 2

// follower opens and closes sockets as Apps need them. All is of the goroutine of follow.
type follower struct {
	*Listeners
	connections context.Context //nolint:containedctx // ends with the drain, not with the context of follow
	shared      netip.Addr
	bound       map[key]io.Closer
	owners      map[key]hangar.OrgID // of bound sockets: whose App needed it first
	failed      map[key]string       // why; logged once
	cut         map[hangar.AppID]int
}

func newFollower(connections context.Context, l *Listeners) *follower {
	f := &follower{Listeners: l, connections: connections, bound: map[key]io.Closer{}, owners: map[key]hangar.OrgID{}, failed: map[key]string{}, shared: l.o.Shared}
	if ip, err := netip.ParseAddr(hostOf(l.o.HTTP)); err == nil && !ip.IsUnspecified() {
		f.shared = ip
	}
	return f
}

// follow accepts connections on the HTTP sockets and follows what Apps need until ctx ends, and
// then closes all sockets.
func (f *follower) follow(ctx context.Context) {
	for _, s := range []*socket{f.http, f.https} {
		if s != nil {
			f.accepting(s)
		}
	}
	endQUIC := f.serveQUIC(f.connections)
	retry := time.NewTicker(retryEvery)
	defer retry.Stop()
	early := retryFirst
	soon := time.NewTimer(early)
	defer soon.Stop()
	for ctx.Err() == nil {
		routes, ports := f.o.Routes.Changed(), f.o.Balancer.PortsChanged()
		round := time.Now()
		f.keys.rotate(round, f.log, f.configs.clear)
		f.progress.begin()
		f.adjust(ctx)
		f.progress.end(f.sockets())
		if pause.For(ctx, max(minPause, pauseFactor*time.Since(round))) != nil {
			break
		}
		select {
		case <-routes:
		case <-ports:
		case <-f.progress.poke:
		case <-soon.C:
			if early *= 2; early < retryEvery {
				soon.Reset(early)
			}
		case <-retry.C:
			f.renounce()
		case <-ctx.Done():
		}
	}
	for k, c := range f.bound {
		f.close(k, c)
	}
	endQUIC()
	for _, s := range []*socket{f.http, f.https} {
		if s != nil {
			_ = closeOnce(s)
		}
	}
}

// renounce closes the inherited sockets that no App needs. Those that could not be taken over are kept
// for the next attempt.
func (f *follower) renounce() {
	needed := make(map[string]bool, len(f.failed))
	for k := range f.failed {
		needed[k.name()] = true
	}
	f.inherited.renounce(func(name string) bool { return ofApps(name) && !needed[name] })
}

// sockets are all that are open.
func (f *follower) sockets() []Socket {
	open := make([]Socket, 0, len(f.bound)+3)
	for _, s := range []*socket{f.http, f.https} {
		if s != nil {
			open = append(open, Socket{At: s.local})
		}
	}
	if f.quic != nil {
		open = append(open, Socket{UDP: true, At: f.https.local})
	}
	for k := range f.bound {
		open = append(open, Socket{k.udp, k.addr})
	}
	return open
}

// accepting accepts the connections of a socket.
func (f *follower) accepting(s *socket) {
	f.arrivals.Add(1)
	f.wg.Go(func() {
		defer f.arrivals.Done()
		f.accept(f.connections, s)
	})
}

// adjust opens and closes sockets.
func (f *follower) adjust(ctx context.Context) {
	p := &plan{
		shared: f.shared, most: f.o.Limits.Ports, covered: f.covered, ports: f.o.Balancer.Ports,
		free: f.o.Limits.Conns/socketShare - len(f.bound), open: func(k key) bool { _, ok := f.bound[k]; return ok },
		want: make(map[key]*hangar.AppRoute, len(f.bound)), cut: map[hangar.AppID]int{}, held: map[hangar.OrgID]int{},
	}
	for _, org := range f.owners {
		p.held[org]++
	}
	for _, route := range f.o.Routes.All() {
		p.add(route)
	}
	for k, c := range f.bound {
		if _, ok := p.want[k]; !ok {
			f.close(k, c)
			f.drop(k.name())
			delete(f.bound, k)
			delete(f.owners, k)
		}
	}
	for k := range f.failed {
		if _, ok := p.want[k]; !ok {
			delete(f.failed, k)
		}
	}
	for k, route := range p.want {
		if _, ok := f.bound[k]; !ok && ctx.Err() == nil {
			f.open(ctx, k, route)
		}
	}
	for app, n := range p.cut {
		if f.cut[app] != n {
			f.lines.say(hangar.MachineRef{AppID: app}, "warn", fmt.Sprintf(
				"%d ports are not served: an App can have %d beside those of HTTP and HTTPS, counted for each of its addresses, all Apps %d, and those of an organization no more than are left",
				n, f.o.Limits.Ports, f.o.Limits.Conns/socketShare))
		}
	}
	f.cut = p.cut
}

// covered reports whether connections to an address come by the sockets of HTTP and HTTPS.
func (f *follower) covered(a netip.AddrPort) bool {
	for _, s := range []*socket{f.http, f.https} {
		if s == nil || s.local.Port() != a.Port() {
			continue
		}
		// A socket of all IPv6 addresses is one of all IPv4 addresses, too: Go makes it so.
		if ip := s.local.Addr(); ip == a.Addr() || ip.IsUnspecified() && (ip.Is6() || a.Addr().Is4()) {
			return true
		}
	}
	return false
}

// open opens the socket of an App.
func (f *follower) open(ctx context.Context, k key, route *hangar.AppRoute) {
	err := f.begin(ctx, k)
	if err == nil {
		f.owners[k] = route.Org
		delete(f.failed, k)
		return
	}
	if why := err.Error(); f.failed[k] != why {
		f.failed[k] = why
		f.lines.say(hangar.MachineRef{AppID: route.ID}, "error", fmt.Sprintf("[%s] cannot listen on %s: %v", hangar.EdgeSocket, k.name(), cause(err)))
	}
}

// begin listens.
func (f *follower) begin(ctx context.Context, k key) error {
	if k.udp {
		conn, err := f.listenUDP(ctx, k.name(), k.addr.String())
		if err != nil {
			return err
		}
		p := newDatagrams(f.Listeners, conn, k.addr)
		f.bound[k] = p
		f.wg.Go(func() { p.run(f.connections) })
		return nil
	}
	s, err := f.listen(ctx, k.name(), k.addr.String(), 0)
	if err != nil {
		return err
	}
	s.own = k.addr.Addr() != f.shared
	f.bound[k] = s
	f.accepting(s)
	return nil
}

func (f *follower) close(k key, c io.Closer) {
	if err := c.Close(); err != nil {
		f.log.Warn("a socket cannot be closed", slog.String("socket", k.name()), slog.Any("error", err))
	}
}

// cause returns the system's error inside one of package net, which repeats the address.
func cause(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}

// accept accepts connections until the socket is closed.
func (l *Listeners) accept(connections context.Context, s *socket) {
	for complained := (time.Time{}); ; {
		conn, err := s.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			if time.Since(complained) > linesEvery {
				complained = time.Now()
				l.log.Warn("a connection cannot be accepted", slog.String("socket", s.name), slog.Any("error", err))
			}
			_ = pause.For(connections, acceptPause)
			continue
		}
		a := &arrival{conn: l.o.Traffic.Count(conn), socket: s, local: unmapped(conn.LocalAddr()), remote: unmapped(conn.RemoteAddr())}
		a.client, a.flow = connlimit.ClientOf(a.remote.Addr()), a.conn.Flow()
		if !l.clients.Take(a.client) {
			l.refused.clients.Add(1)
			a.conn.Abort(nil)
			continue
		}
		l.taken.Add(1)
		l.arrivals.Add(1)
		l.wg.Go(func() {
			defer a.hand(&l.arrivals)
			defer l.clients.Leave(a.client)
			defer l.discharge(a)
			l.serve(connections, a)
		})
	}
}
