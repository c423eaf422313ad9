package router

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/ratelimit"
)

// RateLimits says how often a caller may do the same thing to the same Machine, as a multiple of these
// rates. As on the public platform: one action per second (three at once), five reads of a Machine per
// second (ten at once), 100 deletions of Apps per minute. Without a counterpart there: 50 connections
// to a Machine per second (200 at once), 10 requests for elections of each kind (50 at once) and 5
// GraphQL requests (20 at once). Zero means no limit.
type RateLimits float64

// PublicRateLimits are the rates of the public platform.
const PublicRateLimits RateLimits = 1

// MaxLimiters bounds the memory of a ratelimit.Limiter.
const MaxLimiters = 16 << 10

// The paces that RateLimits multiplies.
var (
	actionPace  = ratelimit.Pace{PerSecond: 1, Burst: 3}
	lookPace    = ratelimit.Pace{PerSecond: 5, Burst: 10}
	destroyPace = ratelimit.Pace{PerSecond: 100.0 / 60, Burst: 100}
	electPace   = ratelimit.Pace{PerSecond: 10, Burst: 50}  // a member renews its session at most five times a second
	graphPace   = ratelimit.Pace{PerSecond: 5, Burst: 20}   // a command of an existing client makes several at once
	tunnelPace  = ratelimit.Pace{PerSecond: 50, Burst: 200} // a browser opens many connections at once
)

// limited is the key of a request. Requests with the same key share a pace.
type limited struct {
	caller  string
	pattern string // of the route: its method and path
	target  string // the App, or App and Machine or volume
}

// classOf returns the pace of a route. ok is false for routes outside of the Machines API, which have
// none.
func classOf(pattern string) (p ratelimit.Pace, ok bool) {
	switch pattern {
	case "DELETE /v1/apps/{app}":
		return destroyPace, true
	case "GET /v1/apps/{app}/machines/{machine}":
		return lookPace, true
	case "POST /graphql":
		return graphPace, true
	case "GET /v1/apps/{app}/machines/{machine}/tunnel":
		return tunnelPace, true
	default:
		_, path, _ := strings.Cut(pattern, " ")
		if strings.HasPrefix(path, "/v1/apps/{app}/elections/") {
			return electPace, true
		}
		return actionPace, path == "/v1/apps" || strings.HasPrefix(path, "/v1/apps/")
	}
}

// of returns a pace multiplied by l.
func (l RateLimits) of(p ratelimit.Pace) ratelimit.Pace {
	return ratelimit.Pace{PerSecond: p.PerSecond * float64(l), Burst: max(1, int(float64(p.Burst)*float64(l)))}
}

// RetryAfter is the value of the header of that name.
func RetryAfter(wait time.Duration) string { return strconv.Itoa(int(math.Ceil(wait.Seconds()))) }

// limit refuses requests that come too often. It runs after authenticate, so that callers of one
// organization do not use up the pace of another.
func (rt *Router) limit(next http.Handler) http.Handler {
	if rt.limiters == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, counts := classOf(r.Pattern)
		if !counts {
			next.ServeHTTP(w, r)
			return
		}
		key := limited{caller: caller(r), pattern: r.Pattern, target: r.PathValue("app") + "/" + r.PathValue("machine") + r.PathValue("volume")}
		if p == destroyPace {
			key.target = "" // of all Apps together
		}
		if wait := rt.limiters.Take(key, rt.RateLimits.of(p)); wait > 0 {
			w.Header().Set("Retry-After", RetryAfter(wait))
			rt.WriteError(w, r, hangar.Errorf(hangar.CodeExhausted, hangar.ReasonRateLimited, "rate limit exceeded"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// caller names those whose pace a request uses: the organizations of its principal, or the Machine that
// it comes from.
func caller(r *http.Request) string {
	if ref, ok := hangar.SelfFrom(r.Context()); ok {
		return string(ref.ID)
	}
	p, err := hangar.PrincipalFrom(r.Context())
	if err != nil || p.Admin {
		return ""
	}
	var b strings.Builder
	if len(p.Grants) == 0 {
		b.WriteString(string(p.User)) // a user without a membership has a pace of its own
	}
	for _, org := range p.Orgs() {
		b.WriteString(string(org) + ",")
	}
	return b.String()
}
