package balance

import (
	"fmt"
	"net/http"
	"time"

	"github.com/hangar-platform/hangar"
)

// noCandidate is the error of a request for which no Machine was found.
func (ep *Endpoint) noCandidate(why string) *hangar.EdgeError {
	code := hangar.EdgeNoCandidate
	if !ep.Handling.HTTP {
		code = hangar.EdgeNoneHealthy
	}
	return &hangar.EdgeError{Code: code, Status: http.StatusServiceUnavailable, Message: why}
}

// notServed is the error when the port is no longer served, or is handled in another way than
// the endpoint says.
func (ep *Endpoint) notServed() *hangar.EdgeError {
	return ep.noCandidate(fmt.Sprintf("no machine of the app serves port %d any more as it did", ep.Port))
}

// noCandidateError says why there is no candidate to wait for.
func (a *app) noCandidateError(ep *Endpoint, e *entry, sel *Selector, now int64) *hangar.EdgeError {
	if sel.Instance != "" {
		c := a.candidateOf(sel.Instance, e)
		switch {
		case c == nil:
			return noMachine(http.StatusNotFound, fmt.Sprintf("the app has no machine %s that serves port %d", sel.Instance, ep.Port))
		case sel.allows(c) && c.wakeErr != nil && now < c.wakeBackoffUntil:
			return c.wakeErr
		case !sel.allows(c):
			return noMachine(http.StatusServiceUnavailable, fmt.Sprintf("machine %s is excluded", sel.Instance))
		default:
			return noMachine(http.StatusServiceUnavailable, fmt.Sprintf("machine %s %s", sel.Instance, c.whyUnavailable()))
		}
	}
	if err := a.latestWakeError(e, sel, now); err != nil {
		return err
	}
	n := a.countCandidates(e, sel)
	switch {
	case n[unavailable] > 0:
		return ep.noCandidate(fmt.Sprintf("none of the %d machines that serve port %d is started, and none may be started by a request", n[unavailable], ep.Port))
	case len(sel.Regions) > 0 && sel.OnlyRegions:
		return ep.noCandidate(fmt.Sprintf("no machine in the regions %v serves port %d", sel.Regions, ep.Port))
	case len(sel.Exclude) > 0:
		return ep.noCandidate("there is no other machine than those that were tried or excluded")
	default:
		return ep.noCandidate(fmt.Sprintf("no machine of the app serves port %d", ep.Port))
	}
}

// latestWakeError is why a Machine that is in wake backoff was not woken, or nil.
func (a *app) latestWakeError(e *entry, sel *Selector, now int64) *hangar.EdgeError {
	var err *hangar.EdgeError
	latest := int64(0)
	for i := range e.ports {
		for _, c := range e.ports[i].group.wakeFailed {
			if now < c.wakeBackoffUntil && c.wakeErr != nil && c.group == e.ports[i].group && c.wakeBackoffUntil > latest && sel.allows(c) {
				err, latest = c.wakeErr, c.wakeBackoffUntil
			}
		}
	}
	return err
}

// whyUnavailable says in words why a candidate is unavailable.
func (c *candidate) whyUnavailable() string {
	m := &c.machine.row.Machine
	switch {
	case m.Cordoned:
		return "is cordoned"
	case m.HostStatus == "unreachable":
		return "is on a host that cannot be reached"
	case m.State.AtRest():
		return fmt.Sprintf("is %s, and a request may not start it", m.State)
	default:
		return fmt.Sprintf("is %s", m.State)
	}
}

func noMachine(status int, why string) *hangar.EdgeError {
	return &hangar.EdgeError{Code: hangar.EdgeNoMachine, Status: status, Message: why}
}

// waitTimeout says why a request found no candidate in its time.
func (a *app) waitTimeout(w *waiter, now int64) *hangar.EdgeError {
	waited := time.Duration(now - w.since).Round(time.Millisecond)
	if w.entry == nil {
		return w.ep.notServed()
	}
	n := a.countCandidates(w.entry, &w.selector)
	switch failure := a.latestWakeError(w.entry, &w.selector, now); {
	case n[atLimit] > 0:
		return w.ep.noCandidate(fmt.Sprintf("all %d machines that run were at their hard limit for %s", n[atLimit], waited))
	case failure != nil:
		return failure
	case n[waking]+n[starting]+n[pending] > 0:
		return &hangar.EdgeError{
			Code: hangar.EdgeWakeTimeout, Status: http.StatusServiceUnavailable,
			Message: fmt.Sprintf("no machine was started within %s", waited),
		}
	case w.selector.Instance != "":
		return noMachine(http.StatusServiceUnavailable, fmt.Sprintf("machine %s took no request within %s", w.selector.Instance, waited))
	case n[unhealthy] > 0:
		return w.ep.noCandidate(fmt.Sprintf("the health checks of no machine passed within %s", waited))
	default:
		return w.ep.noCandidate(fmt.Sprintf("no machine took the request within %s", waited))
	}
}
