package proxy

import (
	"context"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/balance"
	"github.com/hangar-platform/hangar/edge/proxy/replay"
)

// replays is the state of a request's replays: Machines answered it with instructions to send it
// elsewhere.
type replays struct {
	count    int
	last     *replay.Instruction // the current one; nil: none, and the client's selector applies
	cached   bool                // last is from the replay cache
	from     origin              // the Machine that gave last
	since    time.Time           // when
	fellBack bool                // it was returned to from, and is not replayed again
}

// origin is the Machine that gave an instruction, and how the request reached it.
type origin struct {
	machine hangar.MachineID
	route   *hangar.AppRoute
	ep      *balance.Endpoint
}

// withTimeout bounds a context by the timeout of the instruction, if it has one; answered ends the
// timeout.
func (s *replays) withTimeout(ctx context.Context) (bounded context.Context, stop, answered func()) {
	if s.last == nil || s.last.Timeout == 0 || s.fellBack {
		return ctx, noop, noop
	}
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(s.last.Timeout, func() { cancel(errTimeout) })
	return ctx, func() { timer.Stop(); cancel(nil) }, func() { timer.Stop() }
}

// cacheRules are the cache rules of the origin's endpoint.
func (o *origin) cacheRules() []hangar.ReplayCache {
	if options := o.ep.Options.HTTP; options != nil {
		return options.ReplayCache
	}
	return nil
}

// chooseTarget decides where a request goes first: by the replay cache, or else by the client's
// selector.
func (x *exchange) chooseTarget() {
	in, status := x.p.memory.Lookup(x.home.route.ID, x.sent, x.home.cacheRules())
	h := x.sent.Header
	switch status {
	case replay.CacheHit:
		if e := x.applyInstruction(in, ""); e == nil {
			x.replays.last, x.replays.cached = in, true
			replayCacheState.set(h, []string{string(status)})
			return
		}
		x.p.memory.Forget(x.home.route.ID, x.sent, x.home.cacheRules())
	case replay.CacheBypass:
		replayCacheState.set(h, []string{string(status)})
	case replay.CacheMiss:
	}
	x.selector = x.clientSelector
}

// applyInstruction sets the App and the selector of a replay.
func (x *exchange) applyInstruction(in *replay.Instruction, from hangar.MachineID) *hangar.EdgeError {
	route, ep := x.route, x.ep
	if in.App != "" && in.App != route.App {
		var e *hangar.EdgeError
		if route, ep, e = x.siblingApp(in.App); e != nil {
			return e
		}
	}
	x.route, x.ep = route, ep
	x.selector = balance.Selector{
		Instance: in.Instance, Prefer: in.PreferInstance,
		Regions: in.Regions, OnlyRegions: len(in.Regions) > 0 && !in.AnyRegion,
	}
	if in.Elsewhere && from != "" {
		x.selector.Exclude = []hangar.MachineID{from}
	}
	return nil
}

// siblingApp finds another App of the same organization by the public port of the request. It needs
// no address, and its network does not matter.
func (x *exchange) siblingApp(app hangar.AppName) (*hangar.AppRoute, *balance.Endpoint, *hangar.EdgeError) {
	route, ok := x.p.routes.ByName(app)
	if !ok {
		return nil, nil, &hangar.EdgeError{Code: hangar.EdgeReplayApp, Status: http.StatusBadGateway, Message: "the request was to be replayed in an app that there is not"}
	}
	if route.Org != x.route.Org {
		return nil, nil, &hangar.EdgeError{Code: hangar.EdgeReplayForbidden, Status: http.StatusBadGateway, Message: "the request was to be replayed in an app of another organization"}
	}
	ep, ok := x.p.balancer.Endpoint(route, false, x.client.Port)
	if !ok || !ep.Handling.HTTP {
		return nil, nil, &hangar.EdgeError{Code: hangar.EdgeReplayApp, Status: http.StatusBadGateway, Message: "the app " + string(app) + " has no service for HTTP on the port that the request came to"}
	}
	return route, ep, nil
}

// replayed reports whether the answer of a Machine is a replay. If it is, the answer is dropped,
// and the next send follows the instruction.
func (x *exchange) replayed(a *answer) (bool, *hangar.EdgeError) {
	if !replay.Asked(a.Header) {
		if forgets(a.Header) {
			x.p.memory.Forget(x.home.route.ID, x.sent, x.home.cacheRules())
		}
		return false, nil
	}
	in, err := instruction(a)
	from := origin{machine: x.machine.ID, route: x.route, ep: x.ep}
	a.drop()
	if err != nil {
		return false, edgeError(x.sent.Context(), err)
	}
	if x.replays.fellBack || x.replays.count >= hangar.MaxReplays {
		return false, &hangar.EdgeError{Code: hangar.EdgeReplayLoop, Status: http.StatusBadGateway, Message: "the request was replayed too often"}
	}
	if x.body != nil && !x.body.repeatable() {
		return false, bodyLost(x.body)
	}
	first := x.replays.count == 0 && !x.replays.cached
	x.replays.count++
	x.r = x.sent
	if in.Transform != nil {
		x.r = x.sent.Clone(x.sent.Context())
		x.r.Trailer = x.sent.Trailer // filled in at the end of the body
		if err := in.Transform.Apply(x.r); err != nil {
			return false, edgeError(x.sent.Context(), err)
		}
	}
	switch {
	case in.Cache != nil && in.Cache.Invalidate:
		// This applies to a Machine that got the request by the cache, too.
		x.p.memory.Forget(x.home.route.ID, x.sent, x.home.cacheRules())
	case first:
		x.p.memory.Learn(x.home.route.ID, x.sent, x.home.cacheRules(), in)
	}
	if x.r.Header[replayCacheState.neutral] == nil {
		replayCacheState.set(x.r.Header, []string{string(replay.CacheMiss)})
	}
	if e := x.applyInstruction(in, from.machine); e != nil {
		return false, e
	}
	now := time.Now()
	x.replays.last, x.replays.cached, x.replays.from, x.replays.since = in, false, from, now
	source := replay.Source{Instance: from.machine, Region: x.p.options.Region, Time: now.UnixMicro(), State: in.State}
	replaySource.set(x.r.Header, []string{source.String()})
	x.p.stats.replays.Add(1)
	return true, nil
}

// forgets reports whether a Machine asks the edge to drop the cached target of requests like this
// one.
func forgets(h http.Header) bool { return answerOnly[1].get(h) == "invalidate" }

// instruction parses the instruction of an answer.
func instruction(a *answer) (*replay.Instruction, error) {
	if in, ok, err := replay.Parse(a.Header); ok || err != nil {
		return in, err
	}
	text, err := io.ReadAll(io.LimitReader(a.Body, replay.MaxJSON+1))
	if err != nil {
		return nil, &hangar.EdgeError{Code: hangar.EdgeIncomplete, Status: http.StatusBadGateway, Message: "the machine did not complete its answer", Err: err}
	}
	return replay.ParseJSON(text)
}

// fallBack redirects a request whose replay failed to where it would have gone without the replay,
// and reports whether that is allowed. A Machine that asked for a fallback accepts that the request
// may have run elsewhere; after a cache hit no Machine has accepted that, so such a request is not
// run twice.
func (x *exchange) fallBack(e *hangar.EdgeError) bool {
	s := &x.replays
	if s.last == nil || s.fellBack || x.body != nil && !x.body.repeatable() {
		return false
	}
	if s.cached {
		x.p.memory.Forget(x.home.route.ID, x.sent, x.home.cacheRules())
		if x.mayHaveRun {
			return false
		}
		x.route, x.ep, x.selector = x.home.route, x.home.ep, x.clientSelector
		s.last, s.cached = nil, false
		replayCacheState.remove(x.sent.Header)
		return true
	}
	if s.last.Fallback == replay.FallbackNone {
		return false
	}
	failed := replay.Failed{
		Instance: s.last.Instance, App: x.route.App, Regions: s.last.Regions, Source: s.from.machine,
		Reason: failReason(e), Elapsed: time.Since(s.since).Milliseconds(),
	}
	x.route, x.ep, s.fellBack = s.from.route, s.from.ep, true
	x.selector = balance.Selector{Prefer: s.from.machine}
	if s.last.Fallback == replay.FallbackForce {
		x.selector = balance.Selector{Instance: s.from.machine}
	}
	x.r = x.sent
	replaySource.remove(x.r.Header)
	replayCacheState.remove(x.r.Header)
	replayFailed.set(x.r.Header, []string{failed.String()})
	return true
}

func failReason(e *hangar.EdgeError) replay.FailReason {
	switch {
	case e.Status == http.StatusGatewayTimeout:
		return replay.FailTimeout
	case slices.Contains([]hangar.EdgeCode{hangar.EdgeNoCandidate, hangar.EdgeNoMachine, hangar.EdgeNoneHealthy, hangar.EdgeQueueFull}, e.Code):
		return replay.FailNoCandidate
	}
	return replay.FailRetries
}
