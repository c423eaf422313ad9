package proxy

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/balance"
	"github.com/hangar-platform/hangar/edge/listen"
	"github.com/hangar-platform/hangar/edge/proxy/http1"
)

// clientConn is the state of a client's connection.
type clientConn struct {
	listen.Entry
	ctx  context.Context //nolint:containedctx // the connection's, not a request's
	idle time.Duration   // longest pause between requests

	// Headers of all its requests:

	ip        []string
	forwarded []string // appended to X-Forwarded-For
	port      []string
	alt       []string // nil: none

	// timeouts are those of the service of its last request over HTTP/1, or of the first one to
	// come. HTTP/2 keeps the initial ones.
	timeouts http1.Timeouts
}

// setTimeouts applies a service's timeouts to the connection.
func (v *clientConn) setTimeouts(ep *balance.Endpoint) {
	v.timeouts = http1.Timeouts{}
	o := ep.Options.HTTP
	if o == nil {
		return
	}
	if s := o.HeadersReadTimeout; s != nil {
		v.timeouts.Header = time.Duration(*s) * time.Second
	}
	if s := o.IdleTimeout; s != nil && time.Duration(*s)*time.Second < v.idle {
		v.timeouts.Idle = time.Duration(*s) * time.Second
	}
}

// timeouts returns the timeouts of a client's connection.
func timeouts(ctx context.Context) *http1.Timeouts {
	return &ctx.Value(clientConnKey{}).(*clientConn).timeouts
}

// taken records that Drain waits for a client's connection.
func taken(ctx context.Context) {
	if f := ctx.Value(clientConnKey{}).(*clientConn).Taken; f != nil {
		f()
	}
}

func (p *Proxy) newClientConn(ctx context.Context, e listen.Entry) *clientConn {
	ip := e.Remote.Addr().Unmap().WithZone("").String()
	v := &clientConn{
		Entry: e, ctx: ctx, idle: p.limits.IdleTimeout,
		ip:        []string{ip},
		forwarded: []string{ip + ", " + e.Local.Addr().Unmap().WithZone("").String()},
		port:      []string{strconv.Itoa(e.Port)},
	}
	if e.TLS != nil && p.options.AltSvc != "" && !e.Private {
		v.alt = []string{p.options.AltSvc}
	}
	return v
}

// clientConnKey is the key of the clientConn in the context of a request.
type clientConnKey struct{}

// ServeConn serves the requests of a connection until it has ended, and closes it. Deadlines
// of the connection are the proxy's to set.
func (p *Proxy) ServeConn(ctx context.Context, conn net.Conn, e listen.Entry) {
	defer conn.Close()
	v := p.newClientConn(ctx, e)
	ctx = context.WithValue(ctx, clientConnKey{}, v)
	route := e.Route
	if route == nil && e.TLS != nil {
		route, _ = p.routes.ByHostname(e.ServerName)
	}
	if route != nil {
		if ep, ok := p.balancer.Endpoint(route, false, e.Port); ok {
			v.setTimeouts(ep)
		}
	}
	if alpn(e.TLS, http2Protocol) {
		p.serveHTTP2(ctx, conn)
		return
	}
	p.h1.ServeConn(ctx, conn)
}

const http2Protocol = "h2"

// ServeRequest answers one request of a client that speaks HTTP/3.
func (p *Proxy) ServeRequest(w http.ResponseWriter, r *http.Request, e listen.Entry) {
	v := p.newClientConn(r.Context(), e)
	v.alt = nil // it already uses HTTP/3
	p.serve(w, r, v)
}

// handle is the http.Handler of both servers.
func (p *Proxy) handle(w http.ResponseWriter, r *http.Request) {
	p.serve(w, r, r.Context().Value(clientConnKey{}).(*clientConn))
}

// priorKnowledge serves a connection whose client starts with HTTP/2 without negotiation, and of
// which the first bytes have been read.
func (p *Proxy) priorKnowledge(ctx context.Context, conn net.Conn, read []byte) {
	defer conn.Close()
	p.serveHTTP2(ctx, &prefixed{Conn: conn, first: read})
}

// prefixed is a connection whose first bytes have been read.
type prefixed struct {
	net.Conn
	first []byte
}

func (c *prefixed) Read(p []byte) (int, error) {
	if len(c.first) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.first)
	c.first = c.first[n:]
	return n, nil
}

// ambiguous refuses what HTTP/2 and HTTP/3 can express and HTTP/1 cannot, or not in one way.
func ambiguous(r *http.Request) *hangar.EdgeError {
	if r.ProtoMajor < 2 {
		return nil // package http1 is strict
	}
	why := ""
	length := r.Header["Content-Length"]
	switch {
	case len(length) > 0 && (len(length) > 1 || length[0] != strconv.FormatInt(r.ContentLength, 10)):
		why = "Content-Length is not the length of the body"
	case !httpguts.ValidHeaderFieldName(r.Method):
		why = "the method is not one"
	case r.Host != "" && !http1.ValidHost(r.Host):
		why = "the host is not a name or an address"
	case r.Method == http.MethodConnect: // refused later
	case r.URL.Path == "*" && r.Method != http.MethodOptions:
		why = "the target * is for OPTIONS alone"
	case r.URL.Path != "*" && !strings.HasPrefix(r.URL.Path, "/"), r.URL.Host != "":
		why = "the target is not a path"
	case !http1.ValidTarget(r.URL.RawQuery):
		why = "the target has a character that is not allowed"
	}
	if why == "" {
		return nil
	}
	return &hangar.EdgeError{Code: hangar.EdgeBadRequest, Status: http.StatusBadRequest, Message: "the request is malformed: " + why}
}

// challenged answers an ACME server that validates a name.
func (p *Proxy) challenged(w http.ResponseWriter, r *http.Request) bool {
	const where = "/.well-known/acme-challenge/"
	return p.options.Challenge != nil && len(r.URL.Path) > len(where) && r.URL.Path[:len(where)] == where && p.options.Challenge(w, r)
}

// refused is the error of a request that is not HTTP/1.
func refused(status int, err error) *hangar.EdgeError {
	e := &hangar.EdgeError{Code: hangar.EdgeBadRequest, Status: status, Message: "the request is malformed", Err: err}
	if why, ok := errors.AsType[*http1.ProtocolError](err); ok {
		e.Message = "the request is malformed: " + why.Reason
	}
	switch status {
	case http.StatusRequestEntityTooLarge, http.StatusRequestHeaderFieldsTooLarge, http.StatusRequestURITooLong:
		e.Code = hangar.EdgeTooLarge
	case http.StatusRequestTimeout:
		e.Code, e.Message = hangar.EdgeSlow, "the request took too long to come"
	case http.StatusMethodNotAllowed, http.StatusNotImplemented:
		e.Code = hangar.EdgeNoMethod
	}
	return e
}
