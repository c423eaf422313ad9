package http1

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar/internal/splice"
)

// A Server answers the requests of connections that it is given. Its fields must not change
// once it is in use.
type Server struct {
	Handler http.Handler
	// HeaderTimeout is how long a header may take from its first byte, and how long a new
	// connection may send nothing. IdleTimeout is how long a connection may wait between
	// requests. BodyTimeout is for how long no byte of a request may come that is waited for, and
	// none of an answer be taken. 0: any time.
	HeaderTimeout, IdleTimeout, BodyTimeout time.Duration
	// Timeouts returns timeouts of one connection alone, nil for none, by the context that
	// ServeConn got. The handler may change them for the next requests. nil: there are none.
	Timeouts func(ctx context.Context) *Timeouts
	// MaxHeaderBytes bounds the request line and the header, and by itself the trailer section;
	// 0: DefaultMaxHeaderBytes.
	MaxHeaderBytes int
	// MaxBody bounds the body of a request. A longer one is refused when its length is known, and
	// fails to be read with *http.MaxBytesError otherwise. 0: any size.
	MaxBody int64
	// Refuse answers a request that was not understood; err is mostly a *ProtocolError. The
	// connection is closed after it. nil: plain text.
	Refuse func(w http.ResponseWriter, status int, err error)
	// HTTP2 takes over a connection that begins with the preface of HTTP/2, of which read has
	// already been read. nil: it is refused.
	HTTP2 func(ctx context.Context, conn net.Conn, read []byte)
	// Taken is called when Drain waits for a connection that ServeConn got, with the context that
	// it got. nil: nothing is called.
	Taken func(ctx context.Context)
	Log   *slog.Logger // nil: nothing is logged

	mu       sync.Mutex
	conns    map[*serverConn]struct{}
	ended    chan struct{} // made by Drain, closed with the last connection
	draining atomic.Bool
	date     atomic.Pointer[dateField]
}

// Timeouts go before those of the Server where they are not 0.
type Timeouts struct{ Header, Idle time.Duration }

// dateField is a Date field for one second.
type dateField struct {
	second int64
	line   string
}

func (s *Server) dateLine(now time.Time) string {
	d := s.date.Load()
	if d == nil || d.second != now.Unix() {
		d = &dateField{second: now.Unix(), line: "Date: " + now.UTC().Format(http.TimeFormat) + "\r\n"}
		s.date.Store(d)
	}
	return d.line
}

func (s *Server) maxHeaderBytes() int {
	if s.MaxHeaderBytes > 0 {
		return s.MaxHeaderBytes
	}
	return DefaultMaxHeaderBytes
}

// ServeConn answers the requests of one connection and returns when it has ended, closed unless
// it was hijacked. Contexts of requests come from ctx, whose end does not end the connection.
func (s *Server) ServeConn(ctx context.Context, conn net.Conn) {
	c := &serverConn{srv: s, ctx: ctx, conn: conn, remote: remoteOf(conn), first: true}
	c.tcp = splice.TCP(conn)
	if c.tcp != nil {
		if raw, err := c.tcp.SyscallConn(); err == nil {
			c.raw, c.attempt = raw, c.tryRead
		}
		c.rx, c.tx = receiver(c.tcp), sender(c.tcp)
	}
	if t, ok := conn.(interface{ ConnectionState() tls.ConnectionState }); ok {
		state := t.ConnectionState()
		c.tls = &state
	}
	if s.Timeouts != nil {
		c.timeouts = s.Timeouts(ctx)
	}
	if !s.add(c) {
		_ = conn.Close()
		return
	}
	defer s.remove(c)
	if s.Taken != nil {
		s.Taken(ctx)
	}
	c.serve()
}

func remoteOf(conn net.Conn) string {
	if a := conn.RemoteAddr(); a != nil {
		return a.String()
	}
	return ""
}

func (s *Server) add(c *serverConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining.Load() {
		return false
	}
	if s.conns == nil {
		s.conns = make(map[*serverConn]struct{})
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *Server) remove(c *serverConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if s.ended != nil && len(s.conns) == 0 {
		close(s.ended)
		s.ended = nil
	}
}

// Drain ends the server: from now on answers say Connection: close, idle connections are closed,
// and new ones not served. It returns when all have ended or ctx has; those that are left then
// are closed. A hijacked connection counts until its handler returns.
func (s *Server) Drain(ctx context.Context) {
	s.mu.Lock()
	s.draining.Store(true)
	for c := range s.conns {
		if c.state.CompareAndSwap(connIdle, connClosing) {
			c.setReadDeadline(longAgo) // its goroutine closes it, which may take a while
		} else if c.state.Load() == connNew { // its request may be in flight
			c.setReadDeadline(time.Now().Add(lingering))
		}
	}
	if len(s.conns) == 0 {
		s.mu.Unlock()
		return
	}
	if s.ended == nil {
		s.ended = make(chan struct{})
	}
	ended := s.ended
	s.mu.Unlock()
	select {
	case <-ended:
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.conns {
			c.sever()
		}
	}
}
