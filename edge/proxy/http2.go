package proxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/balance"
	"github.com/hangar-platform/hangar/edge/traffic"
)

// multiplexed is a connection to a Machine that uses HTTP/2 with prior knowledge.
type multiplexed struct {
	*http.ClientConn
	pool *multiplexes
	to   destination
	used atomic.Bool // it has served a request before

	mu      sync.Mutex
	holders int
	idle    *time.Timer
	closed  bool
}

// multiplexes are the HTTP/2 connections, by destination in the order of creation.
type multiplexes struct {
	transport *http.Transport
	mu        sync.Mutex
	all       map[destination][]*multiplexed
}

// maxUntaken bounds the bytes of an answer over HTTP/2 that are held for a slow client.
const maxUntaken = 128 << 10

// dialKey is the context key of the function that connects.
type dialKey struct{}

func newMultiplexes() *multiplexes {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &multiplexes{
		all: make(map[destination][]*multiplexed),
		transport: &http.Transport{
			Protocols:          protocols,
			DisableCompression: true,
			HTTP2: &http.HTTP2Config{
				SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second, MaxReceiveBufferPerStream: maxUntaken,
			},
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return ctx.Value(dialKey{}).(func(context.Context) (net.Conn, error))(ctx)
			},
		},
	}
}

// take returns a connection with room for one more request, or nil.
func (p *multiplexes) take(to destination) *multiplexed {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.all[to]
	for i := 0; i < len(list); i++ {
		m := list[i]
		if m.Err() != nil {
			list = append(list[:i:i], list[i+1:]...)
			i--
			continue
		}
		if m.Reserve() == nil {
			p.all[to] = list
			m.hold()
			return m
		}
	}
	if p.all[to] = list; len(list) == 0 {
		delete(p.all, to)
	}
	return nil
}

// dial makes a connection with room for a request. It is shared unless to is nil.
func (p *multiplexes) dial(ctx context.Context, to *destination, dial func(context.Context) (net.Conn, error)) (*multiplexed, error) {
	conn, err := p.transport.NewClientConn(context.WithValue(ctx, dialKey{}, dial), "http", "machine:80")
	if err != nil {
		return nil, err
	}
	m := &multiplexed{ClientConn: conn, pool: p}
	if err := conn.Reserve(); err != nil {
		_ = conn.Close()
		return nil, err
	}
	m.hold()
	if to != nil {
		m.to = *to
		p.mu.Lock()
		p.all[m.to] = append(p.all[m.to], m)
		p.mu.Unlock()
	}
	return m, nil
}

func (m *multiplexed) hold() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holders++
	if m.idle != nil {
		m.idle.Stop()
	}
}

// leave records the end of a request. A connection that is idle for long is closed.
func (m *multiplexed) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used.Store(true)
	if m.holders--; m.holders > 0 {
		return
	}
	if m.closed || m.to == (destination{}) {
		_ = m.Close()
		return
	}
	m.idle = time.AfterFunc(idleUpstream, func() {
		m.mu.Lock()
		unused := m.holders == 0
		m.mu.Unlock()
		if unused {
			m.retire()
		}
	})
}

// retire excludes a connection from reuse, and closes it when its requests have ended.
func (m *multiplexed) retire() {
	m.pool.mu.Lock()
	list := m.pool.all[m.to]
	for i := range list {
		if list[i] == m {
			m.pool.all[m.to] = append(list[:i:i], list[i+1:]...)
			break
		}
	}
	if len(m.pool.all[m.to]) == 0 {
		delete(m.pool.all, m.to)
	}
	m.pool.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	if m.idle != nil {
		m.idle.Stop()
	}
	if m.holders == 0 {
		_ = m.Close()
	}
}

// drop retires the connections to a Machine, or all if id is empty.
func (p *multiplexes) drop(id hangar.MachineID) {
	var list []*multiplexed
	p.mu.Lock()
	for to, conns := range p.all {
		if id == "" || to.machine == id {
			list = append(list, conns...)
		}
	}
	p.mu.Unlock()
	for _, m := range list {
		m.retire()
	}
}

// dialHTTP2 is dial for a connection whose end is counted when it is closed.
func (x *exchange) dialHTTP2(ctx context.Context, permit *balance.Permit) (net.Conn, error) {
	conn, err := x.dial(ctx, permit)
	if err != nil {
		return nil, err
	}
	return &countedConn{Conn: conn, traffic: permit.Traffic}, nil
}

// countedConn is a connection to a Machine whose end is counted.
type countedConn struct {
	net.Conn
	traffic *traffic.Machine
	closed  atomic.Bool
}

func (c *countedConn) Close() error {
	if !c.closed.Swap(true) {
		c.traffic.Disconnected()
	}
	return c.Conn.Close()
}

// tryHTTP2 is try over HTTP/2.
func (x *exchange) tryHTTP2(ctx context.Context, permit *balance.Permit) (*answer, *failure) {
	to := destination{permit.Row.Machine.ID, permit.Row.Machine.InstanceID, permit.Port}
	shared := &to
	if x.ep.Handling.ProxyProto {
		shared = nil
	}
	began := time.Now()
	for {
		var m *multiplexed
		if shared != nil {
			m = x.p.streams.take(to)
		}
		if m == nil {
			var err error
			if m, err = x.p.streams.dial(ctx, shared, func(ctx context.Context) (net.Conn, error) { return x.dialHTTP2(ctx, permit) }); err != nil {
				x.admission.end()
				return nil, &failure{err: dialError(err), unsent: true}
			}
		}
		a, f := x.roundTripHTTP2(ctx, m)
		if f == nil {
			permit.Traffic.Response(a.StatusCode, time.Since(began))
			a.admission = &x.admission
			return a, nil
		}
		m.leave()
		if f.unsent || f.stale {
			m.retire()
		}
		if !f.stale || !x.mayResend(ctx, permit, f) {
			x.admission.end()
			return nil, f
		}
		x.p.stats.retries.Add(1)
	}
}

// roundTripHTTP2 sends the request over a connection.
func (x *exchange) roundTripHTTP2(ctx context.Context, m *multiplexed) (*answer, *failure) {
	ctx, cancel := context.WithCancelCause(ctx)
	a := &answer{h2: m, stop: func() { cancel(nil) }}
	x.admission.onExit(func() { cancel(errExited) })
	if a.stallTimeout = x.idleTimeout(); a.stallTimeout > 0 {
		a.stallTimer = time.AfterFunc(a.stallTimeout, func() { cancel(errTimeout) })
		a.stop = func() { a.stallTimer.Stop(); cancel(nil) }
	}
	trace := &streamTrace{informational: x.informational}
	out, ok := x.outgoing(httptrace.WithClientTrace(ctx, trace.client()))
	if !ok {
		m.Release()
		a.stop()
		return nil, &failure{err: bodyLost(x.body), final: true}
	}
	if x.body != nil {
		out.Body = &touchingBody{out.Body, a}
	}
	forHTTP2(out)
	used := m.used.Load()
	res, err := m.RoundTrip(out)
	trace.end()
	switch {
	case err != nil:
		f := x.failureHTTP2(ctx, m, used, trace, err)
		a.stop()
		return nil, f
	case res.StatusCode < 200 || res.StatusCode > 999:
		_ = res.Body.Close()
		a.stop()
		return nil, &failure{final: true, answers: true, err: &hangar.EdgeError{
			Code: hangar.EdgeIncomplete, Status: http.StatusBadGateway, Message: "the machine's answer has no status of HTTP",
		}}
	}
	a.Response = res
	return a, nil
}

// touchingBody is the body of a request whose progress keeps the exchange from being idle.
type touchingBody struct {
	io.ReadCloser
	a *answer
}

func (b *touchingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.a.touch()
	}
	return n, err
}

// forHTTP2 completes a request for a connection of the HTTP library.
func forHTTP2(out *http.Request) {
	out.Header = out.Header.Clone() // the connection still reads them after an abandoned attempt
	if out.Header["User-Agent"] == nil {
		out.Header["User-Agent"] = []string{""} // otherwise the library sets its own
	}
	out.URL = &url.URL{Scheme: "http", Host: out.Host, Path: out.URL.Path, RawPath: out.URL.RawPath, RawQuery: out.URL.RawQuery, ForceQuery: out.URL.ForceQuery}
	if out.Host == "" {
		out.URL.Host = "machine"
	}
	out.RequestURI = ""
}

// streamTrace records how far a round trip over HTTP/2 came, and forwards interim answers.
type streamTrace struct {
	informational func(code int, h http.Header)

	wrote, read atomic.Bool // the headers, the first byte of the answer

	mu   sync.Mutex // guards over, and held by informational
	over bool
}

// client returns the hooks for a round trip. The connection may call them for a moment after it.
func (t *streamTrace) client() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		WroteHeaders:         func() { t.wrote.Store(true) },
		GotFirstResponseByte: func() { t.read.Store(true) },
		Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			t.mu.Lock()
			defer t.mu.Unlock()
			if !t.over {
				t.informational(code, http.Header(h))
			}
			return nil
		},
	}
}

// end returns once no interim answer is being forwarded, and none will be.
func (t *streamTrace) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
}

// failureHTTP2 converts the error of a round trip. used says that the connection had served another request before.
func (x *exchange) failureHTTP2(ctx context.Context, m *multiplexed, used bool, trace *streamTrace, err error) *failure {
	if e := x.bodyFailure(); e != nil {
		return &failure{err: e, final: true}
	}
	// A cancelled round trip does not wait for the writer of the request.
	unsent := ctx.Err() == nil && !trace.wrote.Load()
	f := &failure{err: exchangeError(ctx, err), unsent: unsent || refusedStream(err), answers: trace.read.Load()}
	f.stale = used && !f.answers && (f.unsent || m.Err() != nil)
	if !used && !f.answers && f.err.Code == hangar.EdgeIncomplete && f.err.Status == http.StatusBadGateway {
		f.final = true
		f.err.Code, f.err.Message = hangar.EdgeHandshake, "the machine does not speak HTTP/2 with prior knowledge (h2_backend)"
	}
	return f
}

// refusedStream reports whether the Machine has reported that it did not process a request.
func refusedStream(err error) bool {
	var s http2.StreamError
	return errors.As(err, &s) && s.Code == http2.ErrCodeRefusedStream
}

// serveHTTP2 serves a connection of a client that speaks HTTP/2 until it ends.
func (p *Proxy) serveHTTP2(ctx context.Context, conn net.Conn) {
	if !p.enter(conn) {
		return
	}
	defer p.leave(conn)
	taken(ctx)
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	t := *timeouts(ctx)
	t.Header = cmp.Or(t.Header, p.limits.HeaderTimeout)
	t.Idle = cmp.Or(t.Idle, p.limits.IdleTimeout)
	s := p.streamServer(t.Idle)
	s.h2.ServeConn(bounded(conn, t.Header), &http2.ServeConnOpts{Context: ctx, BaseConfig: s.base, Handler: p.handler}) //nolint:staticcheck // one goroutine less for a connection than by way of a net.Listener
}

// streamServer serves connections of clients over HTTP/2 that may all be idle for the same time.
type streamServer struct {
	base *http.Server  // what h2 takes settings from, and its end
	h2   *http2.Server //nolint:staticcheck // see serveHTTP2
}

// streamServer returns the server of connections that may be idle for some time. There are as
// many as IdleTimeout has seconds, at most, as that and what services say is in seconds.
func (p *Proxy) streamServer(idle time.Duration) *streamServer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.streamServers[idle]; s != nil {
		return s
	}
	s := &streamServer{
		base: &http.Server{
			Handler: p.handler, MaxHeaderBytes: p.limits.MaxHeaderBytes, ReadHeaderTimeout: p.limits.HeaderTimeout, IdleTimeout: idle,
			ErrorLog: slog.NewLogLogger(p.log.Handler(), slog.LevelDebug),
			HTTP2: &http.HTTP2Config{
				MaxConcurrentStreams: p.limits.MaxStreams, MaxReadFrameSize: 16 << 10,
				SendPingTimeout: p.limits.IdleTimeout, PingTimeout: 15 * time.Second, WriteByteTimeout: p.limits.BodyTimeout,
			},
		},
		h2: new(http2.Server), //nolint:staticcheck // see serveHTTP2
	}
	if err := http2.ConfigureServer(s.base, s.h2); err != nil { //nolint:staticcheck // see serveHTTP2
		panic("configure HTTP/2: " + err.Error()) // fails only for a TLS config, which is not set
	}
	p.streamServers[idle] = s
	return s
}

// alpn reports whether a client has chosen a protocol.
func alpn(state *tls.ConnectionState, protocol string) bool {
	return state != nil && state.NegotiatedProtocol == protocol
}
