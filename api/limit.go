package api

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/hangar-platform/hangar"
)

// RateLimits says how often a caller may do the same thing to the same Machine, as a
// multiple of what the public platform allows: one action per second (three at once),
// five looks at a Machine per second (ten at once), 100 deletions of Apps per minute; and
// 50 connections to a Machine per second (200 at once), which that one has no limit for.
// Zero is no limit.
type RateLimits float64

// PublicRateLimits are those of the public platform.
const PublicRateLimits RateLimits = 1

// maxLimiters bounds the memory of each of the two generations of limiters.
const maxLimiters = 16 << 10

// pace is how often something may be done.
type pace struct {
	perSecond float64
	burst     float64
}

// refill is after how long nothing is remembered of what was done.
func (p pace) refill() time.Duration {
	return time.Duration(p.burst / p.perSecond * float64(time.Second))
}

// The paces, of which RateLimits is a multiple.
var (
	actionPace  = pace{1, 3}
	lookPace    = pace{5, 10}
	destroyPace = pace{100.0 / 60, 100}
	tunnelPace  = pace{50, 200} // a browser opens many connections at once
)

// limited is what a request counts for: it shares its pace with all that have the
// same key.
type limited struct {
	caller  string
	pattern string // of the route: its method and path
	target  string // the App, or App and Machine or volume
}

// classOf returns the pace of a route; ok is false for routes outside of the Machines
// API, which have none.
func classOf(pattern string) (p pace, ok bool) {
	switch pattern {
	case "DELETE /v1/apps/{app}":
		return destroyPace, true
	case "GET /v1/apps/{app}/machines/{machine}":
		return lookPace, true
	case "GET /v1/apps/{app}/machines/{machine}/tunnel":
		return tunnelPace, true
	default:
		_, path, _ := strings.Cut(pattern, " ")
		return actionPace, path == "/v1/apps" || strings.HasPrefix(path, "/v1/apps/")
	}
}

// limiters keeps one limiter for each key that was used lately.
//
// They are in two generations. What is used moves to the young one; when that is full,
// or old enough that whoever rested since has all of its burst again, the old one is
// dropped and the young one becomes old. So nothing is walked through, memory is
// bounded, and a limiter is forgotten early only under a flood of keys.
type limiters struct {
	scale RateLimits
	now   func() time.Time
	rest  time.Duration // after which nothing is remembered of whoever did nothing

	mu         sync.Mutex // guards what follows
	young, old map[limited]*rate.Limiter
	began      time.Time // when the young generation did
}

func newLimiters(scale RateLimits, now func() time.Time) *limiters {
	return &limiters{scale: scale, now: now, rest: destroyPace.refill(), young: map[limited]*rate.Limiter{}, began: now()}
}

// resting sets after which rest nothing is remembered.
func (l *limiters) resting(rest time.Duration) *limiters {
	l.rest = rest
	return l
}

// has reports whether something is remembered.
func (l *limiters) has(key limited) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.young[key] != nil || l.old[key] != nil
}

// take counts a request. When there were too many, it returns how long to wait.
func (l *limiters) take(key limited, p pace) time.Duration {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	limiter := l.young[key]
	if limiter == nil {
		if len(l.young) >= maxLimiters || now.Sub(l.began) > l.rest {
			l.old, l.young, l.began = l.young, map[limited]*rate.Limiter{}, now
		}
		if limiter = l.old[key]; limiter == nil {
			limiter = rate.NewLimiter(rate.Limit(p.perSecond*float64(l.scale)), max(1, int(p.burst*float64(l.scale))))
		}
		l.young[key] = limiter
	}
	reservation := limiter.ReserveN(now, 1)
	wait := reservation.DelayFrom(now)
	if wait > 0 {
		reservation.CancelAt(now)
	}
	return wait
}

// limit refuses requests that come too often. It stands behind authenticate: callers
// of one organization do not use up what others are allowed.
func (s *server) limit(next http.Handler) http.Handler {
	if s.limiters == nil {
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
		if wait := s.limiters.take(key, p); wait > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
			s.writeError(w, r, hangar.Errorf(hangar.CodeExhausted, hangar.ReasonRateLimited, "rate limit exceeded"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// caller is for whom a request counts: the organizations of its principal, or the
// Machine that it comes from.
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
		b.WriteString(string(p.User)) // who is a member of nothing shares a pace with nobody
	}
	for _, org := range p.Orgs() {
		b.WriteString(string(org) + ",")
	}
	return b.String()
}
