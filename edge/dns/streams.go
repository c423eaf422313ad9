package dns

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/connlimit"
	"github.com/hangar-platform/hangar/internal/pause"
)

const (
	// streamPatience is how long a connection may be silent, and an answer may take to be accepted.
	streamPatience = 10 * time.Second
	// Bounds of concurrent connections, of all clients and of one. All Machines of one network together
	// have at most half. A new connection never evicts another.
	maxStreams       = 2048
	maxClientStreams = 64
	// retryPause is the pause after an error that prevents reading from a socket.
	retryPause = 50 * time.Millisecond
)

// streams counts concurrent connections.
type streams struct {
	clients  *connlimit.Count[netip.Addr]
	networks *connlimit.Count[hangar.NetworkID]
}

func newStreams() *streams {
	return &streams{connlimit.NewCount[netip.Addr](maxClientStreams, maxStreams), connlimit.NewCount[hangar.NetworkID](maxStreams, maxStreams)}
}

// take counts a connection; false: its client or its network has enough.
func (s *streams) take(who asker) bool {
	client := connlimit.ClientOf(who.client())
	if !s.clients.Take(client) {
		return false
	}
	if !s.networks.Take(who.network) {
		s.clients.Leave(client)
		return false
	}
	return true
}

// leave undoes take.
func (s *streams) leave(who asker) {
	s.clients.Leave(connlimit.ClientOf(who.client()))
	s.networks.Leave(who.network)
}

// serveStreams serves a listener until ctx ends.
func (s *Server) serveStreams(ctx context.Context, l *net.TCPListener) error {
	var serving sync.WaitGroup
	defer serving.Wait()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	open := newStreams()
	for {
		conn, err := l.AcceptTCP()
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return ctx.Err()
		}
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return err
			}
			s.log.DebugContext(ctx, "accept a connection for DNS", "error", err)
			_ = pause.For(ctx, retryPause)
			continue
		}
		addr := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().WithZone("")
		who := s.asker(addr)
		if !open.take(who) {
			_ = conn.Close()
			continue
		}
		serving.Go(func() {
			defer open.leave(who)
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
			s.serveStream(ctx, conn, addr)
		})
	}
}

// serveStream answers the questions of a connection one after another, until the client is silent or
// exceeds its rate.
func (s *Server) serveStream(ctx context.Context, conn net.Conn, addr netip.Addr) {
	var q query
	in := bufio.NewReader(conn)
	var msg, out []byte
	for {
		// In this order: a goroutine that ends ctx moves the deadline afterwards.
		if conn.SetDeadline(time.Now().Add(streamPatience)) != nil || ctx.Err() != nil {
			return
		}
		var length [2]byte
		if _, err := io.ReadFull(in, length[:]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(length[:]))
		if n > longestQuery {
			return
		}
		if cap(msg) < n {
			msg = make([]byte, n)
		}
		msg = msg[:n]
		if _, err := io.ReadFull(in, msg); err != nil {
			return
		}
		now, who := time.Now(), s.asker(addr)
		if !s.clients.allow(who.client(), now, false) {
			s.count(resultLimited)
			return
		}
		var what verdict
		out, what = s.handle(append(out[:0], 0, 0), msg, &q, who, true, now)
		switch what {
		case drop:
			return
		case lookup:
			if !s.clients.ask(who.client(), now) {
				s.count(resultLimited)
				return
			}
			out = s.resolve(ctx, out, who.network, &q, true)
			s.clients.asked(who.client(), time.Now())
		case done:
		}
		binary.BigEndian.PutUint16(out, uint16(len(out)-2))
		if _, err := conn.Write(out); err != nil {
			return
		}
	}
}
