package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/balance"
	"github.com/hangar-platform/hangar/edge/traffic"
	"github.com/hangar-platform/hangar/internal/connlimit"
)

const (
	// sessionIdle is after how long without a datagram in either direction a session ends.
	sessionIdle = 60 * time.Second
	// maxPending is how many datagrams of a client wait for its Machine.
	maxPending = 8
	// maxPendingBytes is how many bytes may wait in all sessions together. Those of one
	// organization are never more than what is left.
	maxPendingBytes = 64 << 20
	// sessionShare of the connections that there may be is how many sessions there may be.
	sessionShare = 2
	// maxDatagram is the length of the longest datagram.
	maxDatagram = 64 << 10
	// receiveBuffer is how many bytes the kernel is asked to keep until they are read.
	receiveBuffer = 4 << 20
)

// datagrams is a public UDP port of an App, at one of its addresses.
type datagrams struct {
	*net.UDPConn
	l     *Listeners
	local netip.AddrPort

	mu       sync.Mutex
	sessions map[netip.AddrPort]*session
	clients  map[netip.Addr]int // sessions
}

// session is the exchange of datagrams between a client and a Machine.
type session struct {
	remote netip.AddrPort
	org    hangar.OrgID // for which it counts
	app    *traffic.App
	latest atomic.Int64 // when the latest datagram came, in nanoseconds

	mu      sync.Mutex
	machine net.Conn // nil until there is one
	pending [][]byte // to be sent then
	ended   bool
}

func newDatagrams(l *Listeners, conn *net.UDPConn, local netip.AddrPort) *datagrams {
	_ = conn.SetReadBuffer(receiveBuffer) // as much as the kernel allows
	return &datagrams{
		UDPConn: conn, l: l, local: local,
		sessions: map[netip.AddrPort]*session{}, clients: map[netip.Addr]int{},
	}
}

// run passes on the datagrams of clients until the socket is closed. Sessions end then, too.
func (d *datagrams) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	raw, err := d.SyscallConn()
	if err != nil {
		return
	}
	for awaitDatagram(raw) == nil {
		d.receive(ctx)
	}
}

// receive takes a datagram off the socket. Its error would be of one that could not be sent.
func (d *datagrams) receive(ctx context.Context) {
	b := datagramBuffers.Get().(*[maxDatagram]byte) //nolint:forcetypeassert // the pool's own
	defer datagramBuffers.Put(b)
	n, remote, err := d.ReadFromUDPAddrPort(b[:])
	if err != nil {
		return
	}
	if s := d.session(ctx, remote); s != nil {
		s.app.Received(n)
		d.l.send(s, b[:n])
	}
}

// session returns the client's session, which may be a new one. It is nil if there are too many.
func (d *datagrams) session(ctx context.Context, remote netip.AddrPort) *session {
	s, refused := d.admit(ctx, remote)
	if refused != nil {
		d.l.refused.sessions.Add(1)
		d.logFailure(remote, refused)
	}
	return s
}

func (d *datagrams) admit(ctx context.Context, remote netip.AddrPort) (*session, *hangar.EdgeError) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.sessions[remote]; s != nil {
		return s, nil
	}
	client := connlimit.ClientOf(remote.Addr())
	route, _, ok := d.l.o.Routes.ByAddress(d.local.Addr())
	if !ok {
		return nil, nil // the address was taken away from its App a moment ago
	}
	if len(d.sessions) >= d.l.o.Limits.Sessions || d.clients[client] >= d.l.o.Limits.ClientSessions {
		return nil, &hangar.EdgeError{Code: hangar.EdgeQueueFull, Message: "datagrams of a client are dropped, because there are too many"}
	}
	if !d.l.sessions.Take(route.Org) {
		return nil, &hangar.EdgeError{Code: hangar.EdgeOrgLimit, Message: "datagrams of a client are dropped, because the apps of the organization have too many clients"}
	}
	s := &session{remote: remote, org: route.Org, app: d.l.o.Traffic.App(route.ID)}
	s.latest.Store(time.Now().UnixNano())
	d.sessions[remote] = s
	d.clients[client]++
	d.l.wg.Go(func() {
		defer d.forget(s, client)
		d.exchange(ctx, s)
	})
	return s, nil
}

// forget ends a session. The client's next datagram begins another.
func (d *datagrams) forget(s *session, client netip.Addr) {
	s.mu.Lock()
	s.ended = true
	d.l.forgetPending(s)
	s.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.sessions, s.remote)
	d.l.sessions.Leave(s.org)
	if d.clients[client]--; d.clients[client] == 0 {
		delete(d.clients, client)
	}
}

// send passes a datagram on to the Machine, or keeps it until there is one.
func (l *Listeners) send(s *session, b []byte) {
	s.latest.Store(time.Now().UnixNano())
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.machine != nil:
		_, _ = s.machine.Write(b) // as lost as any datagram may be
	case s.ended || len(s.pending) >= maxPending:
	case !l.pending.TakeN(s.org, len(b)):
	default:
		s.pending = append(s.pending, append([]byte(nil), b...))
	}
}

// forgetPending drops the datagrams that wait for the Machine. s.mu is held.
func (l *Listeners) forgetPending(s *session) {
	for _, b := range s.pending {
		l.pending.LeaveN(s.org, len(b))
	}
	s.pending = nil
}

// exchange finds a Machine for a session and passes on its answers until both sides are silent.
func (d *datagrams) exchange(ctx context.Context, s *session) {
	permit, machine, err := d.connect(ctx)
	if err != nil {
		if ctx.Err() == nil {
			d.logFailure(s.remote, err)
		}
		return
	}
	defer permit.Release()
	defer machine.Close()
	stop := context.AfterFunc(ctx, func() { _ = machine.Close() })
	defer stop()
	defer permit.OnExit(func() { _ = machine.Close() })()
	d.l.begin(s, machine)
	d.answer(s, machine)
}

// logFailure writes a line to the App's log.
func (d *datagrams) logFailure(remote netip.AddrPort, err error) {
	if route, _, ok := d.l.o.Routes.ByAddress(d.local.Addr()); ok {
		d.l.lines.failure(hangar.MachineRef{App: route.App, AppID: route.ID}, remote, err)
	}
}

// connect finds a Machine that takes datagrams.
func (d *datagrams) connect(ctx context.Context) (*balance.Permit, net.Conn, error) {
	none := &hangar.EdgeError{Code: hangar.EdgeNoneHealthy, Message: fmt.Sprintf("the app has no service for datagrams on port %d", d.local.Port())}
	route, _, ok := d.l.o.Routes.ByAddress(d.local.Addr())
	if !ok {
		return nil, nil, none
	}
	endpoint, ok := d.l.o.Balancer.Endpoint(route, true, int(d.local.Port()))
	if !ok {
		return nil, nil, none
	}
	return d.l.connect(ctx, endpoint, d.l.dialDatagrams)
}

// dialDatagrams connects a socket with the Machine of a permit.
func (l *Listeners) dialDatagrams(p *balance.Permit, ctx context.Context) (net.Conn, error) { //nolint:revive // as a method expression has it
	gate, err := l.o.Gates.Gate(p.Row.Machine.Host)
	if err != nil {
		return nil, err
	}
	return gate.DialDatagrams(ctx, p.Row.Machine.Ref(), p.Port)
}

// begin sends the pending datagrams.
func (l *Listeners) begin(s *session, machine net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.pending {
		_, _ = machine.Write(b)
	}
	s.machine = machine
	l.forgetPending(s)
}

// answer passes on a Machine's datagrams, until neither side has sent anything for sessionIdle, or
// the Machine takes nothing.
func (d *datagrams) answer(s *session, machine net.Conn) {
	in, err := newDatagramReader(machine)
	if err != nil {
		return
	}
	for {
		deadline := time.Unix(0, s.latest.Load()).Add(sessionIdle)
		if err := machine.SetReadDeadline(deadline); err != nil {
			return
		}
		err := in.next(func(b []byte) {
			s.latest.Store(time.Now().UnixNano())
			n, _ := d.WriteToUDPAddrPort(b, s.remote)
			s.app.Sent(n)
		})
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() && time.Unix(0, s.latest.Load()).Add(sessionIdle).After(time.Now()) {
			continue
		}
		if err != nil {
			return
		}
	}
}
