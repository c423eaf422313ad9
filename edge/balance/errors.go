package balance

import (
	"fmt"
	"net/http"
	"time"

	"github.com/hangar-platform/hangar"
)

// giveUp is the answer that no Machine was found.
func (ep *Endpoint) giveUp(why string) *hangar.EdgeError {
	code := hangar.EdgeNoCandidate
	if !ep.Handling.HTTP {
		code = hangar.EdgeNoneHealthy
	}
	return &hangar.EdgeError{Code: code, Status: http.StatusServiceUnavailable, Message: why}
}

// unserved is the answer when the port is no longer served, or otherwise than the endpoint
// says.
func (ep *Endpoint) unserved() *hangar.EdgeError {
	return ep.giveUp(fmt.Sprintf("no machine of the app serves port %d any more as it did", ep.Port))
}

// hopeless says why no slot is worth waiting for.
func (a *app) hopeless(ep *Endpoint, g *segment, w *Wish, now int64) *hangar.EdgeError {
	if w.Instance != "" {
		s := a.slotOf(w.Instance, g)
		switch {
		case s == nil:
			return noMachine(http.StatusNotFound, fmt.Sprintf("the app has no machine %s that serves port %d", w.Instance, ep.Port))
		case w.allows(s) && s.wakeErr != nil && now < s.wakeAfter:
			return s.wakeErr
		case !w.allows(s):
			return noMachine(http.StatusServiceUnavailable, fmt.Sprintf("machine %s is excluded", w.Instance))
		default:
			return noMachine(http.StatusServiceUnavailable, fmt.Sprintf("machine %s %s", w.Instance, s.plight()))
		}
	}
	if err := a.wakeFailure(g, w, now); err != nil {
		return err
	}
	n := a.hope(g, w)
	switch {
	case n[dead] > 0:
		return ep.giveUp(fmt.Sprintf("none of the %d machines that serve port %d is started, and none may be started by a request", n[dead], ep.Port))
	case len(w.Regions) > 0 && w.OnlyRegions:
		return ep.giveUp(fmt.Sprintf("no machine in the regions %v serves port %d", w.Regions, ep.Port))
	case len(w.Except) > 0:
		return ep.giveUp("there is no other machine than those that were tried or excluded")
	default:
		return ep.giveUp(fmt.Sprintf("no machine of the app serves port %d", ep.Port))
	}
}

// wakeFailure is why a Machine could not be woken a moment ago, or nil.
func (a *app) wakeFailure(g *segment, w *Wish, now int64) *hangar.EdgeError {
	var err *hangar.EdgeError
	latest := int64(0)
	for i := range g.sources {
		for _, s := range g.sources[i].crowd.failing {
			if now < s.wakeAfter && s.wakeErr != nil && s.crowd == g.sources[i].crowd && s.wakeAfter > latest && w.allows(s) {
				err, latest = s.wakeErr, s.wakeAfter
			}
		}
	}
	return err
}

// plight says in words why a slot is dead.
func (s *slot) plight() string {
	m := &s.m.row.Machine
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

// expired says why a request waited in vain.
func (a *app) expired(w *waiter, now int64) *hangar.EdgeError {
	waited := time.Duration(now - w.since).Round(time.Millisecond)
	if w.seg == nil {
		return w.ep.unserved()
	}
	n := a.hope(w.seg, &w.wish)
	switch failure := a.wakeFailure(w.seg, &w.wish, now); {
	case n[full] > 0:
		return w.ep.giveUp(fmt.Sprintf("all %d machines that run were at their hard limit for %s", n[full], waited))
	case failure != nil:
		return failure
	case n[waking]+n[starting]+n[pending] > 0:
		return &hangar.EdgeError{
			Code: hangar.EdgeWakeTimeout, Status: http.StatusServiceUnavailable,
			Message: fmt.Sprintf("no machine was started within %s", waited),
		}
	case w.wish.Instance != "":
		return noMachine(http.StatusServiceUnavailable, fmt.Sprintf("machine %s took no request within %s", w.wish.Instance, waited))
	case n[unready] > 0:
		return w.ep.giveUp(fmt.Sprintf("the health checks of no machine passed within %s", waited))
	default:
		return w.ep.giveUp(fmt.Sprintf("no machine took the request within %s", waited))
	}
}
