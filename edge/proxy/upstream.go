package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/pires/go-proxyproto"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/balance"
	"github.com/hangar-platform/hangar/edge/proxy/http1"
	"github.com/hangar-platform/hangar/internal/pause"
)

// answer is a Machine's answer, with the function that returns its connection.
type answer struct {
	*http.Response
	admission *admission
	conn      *upstream    // HTTP/1.1
	h2        *multiplexed // HTTP/2
	stop      func()       // cancels the request to the Machine
	// stallTimer ends an exchange over HTTP/2 without progress; nil: nothing does.
	stallTimer   *time.Timer
	stallTimeout time.Duration
}

// drop abandons the rest of the answer, and releases the permit.
func (a *answer) drop() {
	a.stop()
	if a.conn != nil {
		_ = a.conn.Close()
	}
	_ = a.Body.Close()
	if a.h2 != nil {
		a.h2.leave()
	}
	a.admission.end()
}

// done releases the connection of a fully read answer, and the permit.
func (a *answer) done(p *pool) {
	_ = a.Body.Close()
	if a.conn != nil {
		p.put(a.conn, time.Now())
	}
	if a.h2 != nil {
		a.h2.leave()
	}
	a.stop()
	a.admission.end()
}

// failure is the result of an attempt without an answer.
type failure struct {
	err     *hangar.EdgeError
	refused error // the host did not admit the request, which was not sent
	unsent  bool  // nothing of the request was written
	stale   bool  // the connection had been kept from an earlier request, and was silent
	answers bool  // part of an answer was read
	final   bool  // another Machine would give the same result
}

// try sends the request to the Machine of a permit and returns the beginning of its answer. Without
// an answer, it ends the admission.
func (x *exchange) try(ctx context.Context, permit *balance.Permit) (*answer, *failure) {
	if x.upgrade == "" && x.http2() {
		return x.tryHTTP2(ctx, permit)
	}
	to := destination{permit.Row.Machine.ID, permit.Row.Machine.InstanceID, permit.Port}
	shared := !x.ep.Handling.ProxyProto // otherwise the connection names its client
	began := time.Now()
	for {
		var u *upstream
		var at *idle
		if shared {
			u, at = x.p.pool.take(to, began)
		}
		if err := x.enter(permit, u); err != nil {
			x.admission.refused(err)
			return nil, &failure{refused: err}
		}
		if u == nil {
			conn, err := x.dial(ctx, permit)
			if err != nil {
				x.admission.end()
				return nil, &failure{err: dialError(err), unsent: true}
			}
			u = &upstream{Conn: http1.NewConn(conn), at: at, traffic: permit.Traffic}
		}
		x.admission.onExit(u.end)
		res, f := x.roundTrip(ctx, u)
		if f == nil {
			permit.Traffic.Response(res.StatusCode, time.Since(began))
			res.admission = &x.admission
			return res, nil
		}
		_ = u.Close()
		if f.refused != nil {
			x.admission.refused(f.refused)
			return nil, f
		}
		if !f.stale || !x.mayResend(ctx, permit, f) {
			x.admission.end()
			return nil, f
		}
		x.p.stats.retries.Add(1)
	}
}

// enter enters the Machine of a permit, unless Acquire did. It enters over the connection u that
// the request will use, if that allows it.
func (x *exchange) enter(permit *balance.Permit, u *upstream) error {
	if u == nil {
		return permit.Enter(nil)
	}
	err := permit.Enter(u.NetConn())
	if err != nil {
		x.p.pool.put(u, time.Now())
	}
	return err
}

// mayDefer reports whether the request may be sent together with the question whether the host lets
// it in. That requires that it can be sent again to another host if this one does not answer.
func (x *exchange) mayDefer() bool {
	return x.body == nil && x.upgrade == "" && !x.http2() && idempotent(x.r)
}

// dial connects to the Machine, and sends the client's address if the service wants that. The
// disconnect is counted where the connection is closed.
func (x *exchange) dial(ctx context.Context, permit *balance.Permit) (net.Conn, error) {
	x.p.stats.dials.Add(1)
	ctx, cancel := context.WithTimeout(ctx, x.p.limits.DialTimeout)
	defer cancel()
	ctx, stop := x.admission.withExit(ctx)
	defer stop()
	began := time.Now()
	conn, err := permit.Dial(ctx)
	if err != nil {
		permit.Failed(err)
		return nil, err
	}
	permit.Traffic.Connected(time.Since(began))
	if !x.ep.Handling.ProxyProto {
		return conn, nil
	}
	version := byte(1)
	if o := x.ep.Options.ProxyProto; o != nil && o.Version == "v2" {
		version = 2
	}
	header := proxyproto.HeaderProxyFromAddrs(version, net.TCPAddrFromAddrPort(x.client.Remote), net.TCPAddrFromAddrPort(x.client.Local))
	if _, err := header.WriteTo(conn); err != nil {
		_ = conn.Close()
		permit.Traffic.Disconnected()
		permit.Failed(err)
		return nil, err
	}
	return conn, nil
}

// roundTrip sends the request over a connection.
func (x *exchange) roundTrip(ctx context.Context, u *upstream) (*answer, *failure) {
	out, ok := x.outgoing(ctx)
	if !ok {
		return nil, &failure{err: bodyLost(x.body), final: true}
	}
	res, err := u.RoundTrip(ctx, out, http1.RoundTripOptions{Informational: x.informational, IdleTimeout: x.idleTimeout()}) //nolint:bodyclose // answer.done or answer.drop does
	if err == nil {
		return &answer{Response: res, conn: u, stop: noop}, nil
	}
	if e := x.bodyFailure(); e != nil {
		return nil, &failure{err: e, final: true}
	}
	if refused, ok := errors.AsType[*hangar.RefusedError](err); ok {
		return nil, &failure{refused: refused.Err}
	}
	f := &failure{err: exchangeError(ctx, err)}
	if rt, ok := errors.AsType[*http1.RoundTripError](err); ok {
		f.unsent, f.answers = !rt.Wrote, rt.Read
		f.stale = u.used && !rt.Read
	}
	switch {
	case f.err.Code != hangar.EdgeIncomplete:
	case f.unsent && !f.answers: // HTTP/2 and HTTP/3 can express what HTTP/1 cannot
		f.final = true
		f.err = &hangar.EdgeError{Code: hangar.EdgeBadRequest, Status: http.StatusBadRequest, Message: "the request cannot be passed on over HTTP/1", Err: err}
	case f.answers:
		f.final = true
	}
	return nil, f
}

// mayResend reports whether the request may be sent again after a failed attempt.
func (x *exchange) mayResend(ctx context.Context, permit *balance.Permit, f *failure) bool {
	switch {
	case f.final || ctx.Err() != nil:
		return false
	case f.unsent:
		return true
	case !idempotent(x.r) || x.body != nil && !x.body.repeatable():
		return false
	case x.blamedForCrash(ctx, permit):
		f.final = true
		f.err.Message = "the machine's program has ended over the request, which is therefore not sent again"
		return false
	}
	return true
}

// blamedForCrash reports whether the program crashed, and the request, whose connection broke off,
// takes the blame: because it was alone in the Machine, or because this is not its first one.
func (x *exchange) blamedForCrash(ctx context.Context, permit *balance.Permit) bool {
	if x.brokenOff++; x.brokenOff == 1 && !permit.Alone() {
		return false
	}
	for deadline := time.Now().Add(x.p.limits.CrashWait); ; {
		crashed, known := permit.Crashed()
		if known || time.Now().After(deadline) || pause.For(ctx, minPause) != nil {
			return crashed
		}
	}
}

// idempotent reports whether a request may be repeated without another effect, by its method (RFC
// 9110, section 9.2.2) or its Idempotency-Key.
func idempotent(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPut, http.MethodDelete, http.MethodTrace:
		return true
	}
	return r.Header["Idempotency-Key"] != nil || r.Header["X-Idempotency-Key"] != nil
}

// outgoing returns the request for the Machine; false: its body is no longer available.
func (x *exchange) outgoing(ctx context.Context) (*http.Request, bool) {
	out := x.r
	if out.Context() != ctx || x.body != nil {
		out = out.WithContext(ctx)
	}
	if x.body == nil {
		return out, true
	}
	reader, ok := x.body.attempt()
	out.Body = reader
	return out, ok
}

func noop() {}

// bodyFailure returns the client's error while its body was read, or nil.
func (x *exchange) bodyFailure() *hangar.EdgeError {
	if x.body == nil {
		return nil
	}
	err := x.body.failure()
	var large *http.MaxBytesError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errBodyTooBig), errors.As(err, &large):
		return tooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &hangar.EdgeError{Code: hangar.EdgeSlow, Status: http.StatusRequestTimeout, Message: "the body of the request took too long to come", Err: err}
	}
	return &hangar.EdgeError{Code: hangar.EdgeBadRequest, Status: http.StatusBadRequest, Message: "the body of the request is malformed or incomplete", Err: err}
}

// bodyLost is the reason why a request cannot be repeated.
func bodyLost(b *body) *hangar.EdgeError {
	if b.full() {
		return &hangar.EdgeError{
			Code: hangar.EdgeReplayBody, Status: http.StatusServiceUnavailable,
			Message: "the request cannot be sent again: the bodies of other requests for the apps of the organization leave no room to keep this one's",
		}
	}
	return &hangar.EdgeError{
		Code: hangar.EdgeReplayBody, Status: http.StatusRequestEntityTooLarge,
		Message: "the request cannot be sent again: its body is too large to be kept",
	}
}

var (
	errTimeout = errors.New("the Machine did not answer in time")
	errExited  = errors.New("the Machine has ended")
)

// dialError converts a failure to connect to a Machine.
func dialError(err error) *hangar.EdgeError {
	if e, ok := errors.AsType[*hangar.EdgeError](err); ok {
		return e
	}
	return &hangar.EdgeError{Code: hangar.EdgeIO, Status: http.StatusBadGateway, Message: "the connection to the machine failed", Err: err}
}

// exchangeError converts a connected Machine's failure to answer.
func exchangeError(ctx context.Context, err error) *hangar.EdgeError {
	e := &hangar.EdgeError{Code: hangar.EdgeIO, Status: http.StatusBadGateway, Message: "the connection to the machine failed", Err: err}
	var network net.Error
	switch {
	case errors.Is(context.Cause(ctx), errTimeout), errors.Is(err, os.ErrDeadlineExceeded):
		e.Code, e.Status, e.Message = hangar.EdgeIncomplete, http.StatusGatewayTimeout, "the machine has not answered in time"
	case errors.Is(context.Cause(ctx), errExited), errors.Is(err, net.ErrClosed):
		e.Code, e.Message = hangar.EdgeAborted, "the machine has ended before it answered"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		e.Code, e.Message = hangar.EdgeReset, "the machine reset the connection"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		e.Code, e.Message = hangar.EdgeAborted, "the machine closed the connection before it answered"
	case errors.Is(err, syscall.ETIMEDOUT):
		e.Code, e.Message = hangar.EdgeConnectTimeout, "the machine can no longer be reached"
	case !errors.As(err, &network) && !errors.Is(err, context.Canceled):
		e.Code, e.Message = hangar.EdgeIncomplete, "the machine's answer is no HTTP that can be passed on"
	}
	return e
}
