package proxy

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/balance"
	"github.com/hangar-platform/hangar/edge/proxy/replay"
	"github.com/hangar-platform/hangar/edge/traffic"
	"github.com/hangar-platform/hangar/internal/pause"
)

// exchange is a client's request to a Machine and its answer. One goroutine owns it.
type exchange struct {
	p              *Proxy
	client         *clientConn
	w              http.ResponseWriter
	sent           *http.Request // as the client sent it, with the headers of identify
	r              *http.Request // as it is forwarded now: sent, or sent transformed
	id             string
	start          time.Time
	route          *hangar.AppRoute // of ep
	ep             *balance.Endpoint
	home           origin           // where the client's request arrived
	clientSelector balance.Selector // from the client's headers
	selector       balance.Selector // the current one: the client's, or a replay's
	body           *body            // nil: none
	upgrade        string           // the protocol that the client asks to switch to
	replays        replays
	admission      admission         // to the Machine that has the request
	machine        hangar.MachineRef // the one tried last
	host           hangar.HostID     // of machine
	charged        bool              // it counts for the organization of home
	mayHaveRun     bool              // a Machine may have run the request, and it is not idempotent
	brokenOff      int               // connections that broke off after it was sent
	status         int               // of the answer; 0: none
	took           time.Duration     // until the status was known
	unanswered     bool              // the client disconnected before the answer
	bytes          int64             // of its body that were read from the Machine, or from a file
	code           hangar.EdgeCode   // of the edge's own answer

	values [12]string // that headers consist of; see value
	used   int
}

// value returns a header's value with one line. It saves an allocation for each.
func (x *exchange) value(s string) []string {
	if x.used == len(x.values) {
		return []string{s}
	}
	x.values[x.used] = s
	x.used++
	return x.values[x.used-1 : x.used : x.used]
}

// serve answers one request.
func (p *Proxy) serve(w http.ResponseWriter, r *http.Request, v *clientConn) {
	p.stats.requests.Add(1)
	p.stats.inFlight.Add(1)
	now := time.Now()
	w = p.withStallTimeouts(w, r)
	x := &exchange{p: p, client: v, w: w, sent: r, r: r, start: now, id: requestID(now, p.options.Region)}
	defer x.finish()
	if e := x.resolve(); e != nil {
		x.fail(e)
		return
	}
	if x.ep == nil {
		return // it has been answered
	}
	x.identify(now)
	if bodyless(r) {
		r.Body = http.NoBody // with HTTP/2 it is an empty reader
	} else {
		x.body = &body{src: r.Body, of: r, announced: r.Trailer, org: x.home.route.Org, limits: p.bodies, max: p.limits.MaxBody}
	}
	if x.statics() {
		return
	}
	x.chooseTarget()
	x.forward()
}

// finish ends an exchange, successful or not.
func (x *exchange) finish() {
	x.admission.abort()
	if x.body != nil {
		x.body.close()
	}
	x.record()
	x.count()
	if x.charged {
		x.p.orgs.Leave(x.home.route.Org)
	}
	x.p.stats.inFlight.Add(-1)
}

// answered records the status of the answer, whose header is about to be written.
func (x *exchange) answered(status int) { x.status, x.took = status, time.Since(x.start) }

// count counts the answer for the App that the client requested. A client that has disconnected got
// none.
func (x *exchange) count() {
	route := x.route
	if x.home.route != nil {
		route = x.home.route
	}
	if route == nil || x.status == 0 || x.unanswered {
		return
	}
	x.traffic(route.ID).Response(x.status, x.took)
}

// traffic counts the client's connection for an App, and returns the App's counts.
func (x *exchange) traffic(app hangar.AppID) *traffic.App {
	if x.client.Flow != nil {
		return x.client.Flow.For(app)
	}
	return x.p.options.Traffic.App(app)
}

// resolve finds the App of the request and its endpoint. If it finds no endpoint, it has answered
// the request.
func (x *exchange) resolve() *hangar.EdgeError {
	p, v, r := x.p, x.client, x.sent
	if v.TLS == nil && v.Port == 80 && p.challenged(x.w, r) {
		x.answered(http.StatusOK)
		return nil
	}
	e := ambiguous(r)
	if e != nil {
		return e
	}
	own, e := p.platformOf(v, r)
	if e == nil && own == nil {
		x.route, e = p.routeOf(v, r)
	}
	if x.route != nil {
		x.traffic(x.route.ID)
	}
	if e != nil {
		return e
	}
	if r.Method == http.MethodConnect {
		return &hangar.EdgeError{Code: hangar.EdgeNoMethod, Status: http.StatusMethodNotAllowed, Message: "CONNECT is not offered"}
	}
	if own != nil {
		return x.servePlatform(own)
	}
	ep, ok := p.balancer.Endpoint(x.route, false, v.Port)
	if !ok || !ep.Handling.HTTP || ep.Handling.TLS != (v.TLS != nil) {
		return &hangar.EdgeError{
			Code: hangar.EdgeNoApp, Status: http.StatusNotFound,
			Message: "the app " + string(x.route.App) + " has no service for " + scheme(v) + " on port " + strconv.Itoa(v.Port),
		}
	}
	if ep.Options.ForceHTTPS && v.TLS == nil && !v.Private {
		x.redirectHTTPS()
		return nil
	}
	if p.limits.MaxBody > 0 && r.ContentLength > p.limits.MaxBody {
		return tooLarge()
	}
	x.ep, x.home = ep, origin{route: x.route, ep: ep}
	if r.ProtoMajor == 1 {
		v.setTimeouts(ep)
	}
	if x.clientSelector, e = selectorOf(r.Header); e != nil {
		return e
	}
	if x.charged = p.orgs.Take(x.route.Org); !x.charged {
		p.stats.refused.Add(1)
		return &hangar.EdgeError{
			Code: hangar.EdgeOrgLimit, Status: http.StatusServiceUnavailable,
			Message: "too many requests for apps of the organization of " + string(x.route.App) + " are in flight",
		}
	}
	return nil
}

func scheme(v *clientConn) string {
	if v.TLS != nil {
		return "https"
	}
	return "http"
}

func tooLarge() *hangar.EdgeError {
	return &hangar.EdgeError{Code: hangar.EdgeTooLarge, Status: http.StatusRequestEntityTooLarge, Message: "the body is larger than is allowed"}
}

// nameOf is the hostname that a request is for; empty: none.
func nameOf(v *clientConn, r *http.Request) hangar.Hostname {
	if r.Host == "" {
		return v.ServerName
	}
	return hangar.Canonical(r.Host)
}

func misdirected() *hangar.EdgeError {
	return &hangar.EdgeError{
		Code: hangar.EdgeMisdirected, Status: http.StatusMisdirectedRequest,
		Message: "the connection was made for another name than the request's",
	}
}

// routeOf finds the App that a request is for.
func (p *Proxy) routeOf(v *clientConn, r *http.Request) (*hangar.AppRoute, *hangar.EdgeError) {
	if v.Route != nil {
		return v.Route, nil
	}
	name := nameOf(v, r)
	route, ok := p.routes.ByHostname(name)
	if v.TLS != nil && v.ServerName != "" && name != v.ServerName {
		if named, known := p.routes.ByHostname(v.ServerName); known && (!ok || named.ID != route.ID) {
			return nil, misdirected()
		}
	}
	if !ok {
		return nil, &hangar.EdgeError{Code: hangar.EdgeNoApp, Status: http.StatusNotFound, Message: "no app is served under this name"}
	}
	return route, nil
}

// forward sends the request to a Machine, and to others if that one replays it, and the answer to
// the client.
func (x *exchange) forward() {
	ctx := x.sent.Context()
	for {
		a, e := x.send(ctx)
		if ctx.Err() != nil {
			if a != nil {
				a.drop()
			}
			x.clientGone()
		}
		if e != nil {
			if x.fallBack(e) {
				continue
			}
			x.fail(e)
			return
		}
		next, e := x.replayed(a)
		switch {
		case e != nil:
			x.fail(e)
			return
		case !next:
			x.pass(a)
			return
		}
	}
}

// clientGone ends an exchange whose client has disconnected.
func (x *exchange) clientGone() {
	x.status, x.unanswered = statusClientGone, true
	panic(http.ErrAbortHandler)
}

// statusClientGone is the status in the access log if the client disconnected before the answer.
const statusClientGone = 499

// Bounds of the backoff before Machines that have failed are tried again.
const (
	minPause = 5 * time.Millisecond
	maxPause = 250 * time.Millisecond
)

// send sends the request to a Machine that the selector allows, and to others as long as it may be
// resent, and returns the first answer.
func (x *exchange) send(ctx context.Context) (*answer, *hangar.EdgeError) {
	x.mayHaveRun, x.brokenOff = false, 0
	ctx, stop, answered := x.replays.withTimeout(ctx)
	refused := false // by a host that had the request already
	at := attempts{sel: x.selector, given: len(x.selector.Exclude), delay: minPause}
	at.sel.Exclude = slices.Clip(at.sel.Exclude)
	for at.n = 1; ; at.n++ {
		at.sel.Deferred = !refused && x.mayDefer()
		permit, err := x.p.balancer.Acquire(ctx, x.ep, at.sel)
		if err != nil {
			if x.mayAcquireAgain(ctx, &at) {
				continue
			}
			stop()
			if at.last == nil {
				at.last = edgeError(ctx, err)
			}
			return nil, at.last
		}
		x.machine, x.host = permit.Row.Machine.Ref(), permit.Row.Machine.Host
		x.admission.begin(permit)
		x.reportPreference(permit)
		a, f := x.try(ctx, permit)
		if f != nil && f.refused != nil {
			refused = true
			at.n--
			continue
		}
		if f == nil {
			answered()
			before := a.stop
			a.stop = func() { before(); stop() }
			return a, nil
		}
		if e := x.afterFailure(ctx, &at, permit, f); e != nil {
			stop()
			return nil, e
		}
	}
}

// attempts are those to send one request.
type attempts struct {
	sel   balance.Selector // for the next one: excludes the Machines that have failed
	given int              // how many Machines the client's selector excludes
	n     int              // attempts so far, with the current one
	delay time.Duration    // before the next one, if the same Machine is tried again
	first time.Time        // when the first one failed; zero: none has
	last  *hangar.EdgeError
}

// mayAcquireAgain reports whether another attempt makes sense although no Machine was found.
func (x *exchange) mayAcquireAgain(ctx context.Context, at *attempts) bool {
	if x.refreshEndpoint() {
		return true // the service has changed during the request
	}
	allFailed := at.last != nil && len(at.sel.Exclude) > at.given
	if ctx.Err() != nil || !allFailed || !x.mayRetry(at) || pause.For(ctx, at.delay) != nil {
		return false
	}
	at.sel.Exclude, at.delay = at.sel.Exclude[:at.given:at.given], min(2*at.delay, maxPause)
	return true
}

// afterFailure prepares another attempt, at another Machine unless the client names one, or returns
// the error to answer with.
func (x *exchange) afterFailure(ctx context.Context, at *attempts, permit *balance.Permit, f *failure) *hangar.EdgeError {
	x.mayHaveRun = !f.unsent && !idempotent(x.r)
	if at.last = f.err; at.first.IsZero() {
		at.first = time.Now()
	}
	if !x.mayResend(ctx, permit, f) || !x.mayRetry(at) {
		if at.n >= x.p.limits.MaxAttempts {
			return &hangar.EdgeError{Code: hangar.EdgeRetries, Status: f.err.Status, Message: "connections to machines failed too often: " + f.err.Message, Err: f.err.Err}
		}
		return f.err
	}
	x.p.stats.retries.Add(1)
	if at.sel.Instance == "" {
		at.sel.Exclude = append(at.sel.Exclude, permit.Row.Machine.ID)
		return nil
	}
	if pause.For(ctx, at.delay) != nil {
		return f.err
	}
	at.delay = min(2*at.delay, maxPause)
	return nil
}

// refreshEndpoint replaces the endpoint if the handling of the port has changed since the request
// arrived, and reports whether it did.
func (x *exchange) refreshEndpoint() bool {
	ep, ok := x.p.balancer.Endpoint(x.route, false, x.ep.Port)
	if !ok || ep.Handling == x.ep.Handling || !ep.Handling.HTTP || ep.Handling.TLS != x.ep.Handling.TLS {
		return false
	}
	x.ep = ep
	return true
}

// mayRetry reports whether a failed request has time and attempts left.
func (x *exchange) mayRetry(at *attempts) bool {
	return at.n < x.p.limits.MaxAttempts && time.Since(at.first) < x.p.limits.RetryFor
}

// reportPreference adds a header for the Machine if the client preferred another that was not
// available.
func (x *exchange) reportPreference(permit *balance.Permit) {
	if permit.PreferredMissed {
		preferredUnavailable.set(x.r.Header, []string{string(x.selector.Prefer)})
	} else if x.r.Header[preferredUnavailable.neutral] != nil {
		preferredUnavailable.remove(x.r.Header)
	}
}

// edgeError converts an error of the balancer to the client's.
func edgeError(ctx context.Context, err error) *hangar.EdgeError {
	var e *hangar.EdgeError
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(context.Cause(ctx), errTimeout):
		return &hangar.EdgeError{Code: hangar.EdgeNoCandidate, Status: http.StatusGatewayTimeout, Message: "no machine was found in time", Err: err}
	}
	return &hangar.EdgeError{Code: hangar.EdgeInternal, Status: http.StatusInternalServerError, Message: "the edge has failed", Err: err}
}

// idleTimeout is how long the client or the Machine may be silent; 0: no limit.
func (x *exchange) idleTimeout() time.Duration {
	if o := x.ep.Options.HTTP; o != nil && o.IdleTimeout != nil {
		return time.Duration(*o.IdleTimeout) * time.Second
	}
	return 0
}

// http2 reports whether the Machine understands HTTP/2 with prior knowledge.
func (x *exchange) http2() bool {
	o := x.ep.Options.HTTP
	return o != nil && o.H2Backend != nil && *o.H2Backend
}

// selectorOf parses which Machines the client's headers ask for.
func selectorOf(h http.Header) (sel balance.Selector, e *hangar.EdgeError) {
	sel.Instance = hangar.MachineID(forceInstance.get(h))
	sel.Prefer = hangar.MachineID(preferInstance.get(h))
	if list := preferRegion.get(h); list != "" {
		sel.Regions, _, _ = replay.Regions(list) // an invalid preference is ignored
	}
	if list := forceRegion.get(h); list != "" {
		regions, anywhere, err := replay.Regions(list)
		if err != nil || len(regions) == 0 && !anywhere {
			return sel, &hangar.EdgeError{
				Code: hangar.EdgeBadRequest, Status: http.StatusBadRequest,
				Message: "the header " + hangar.HeaderForceRegion.Neutral + " is not a list of regions", Err: err,
			}
		}
		sel.Regions, sel.OnlyRegions = regions, !anywhere
	}
	return sel, nil
}
