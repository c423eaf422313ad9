// Package ratelimit limits the rate of actions for each of many keys, in bounded memory.
package ratelimit

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Pace is the allowed rate of an action.
type Pace struct {
	PerSecond float64
	Burst     int // at least 1
}

// Refill is how long it takes until all earlier use is forgotten.
func (p Pace) Refill() time.Duration {
	return time.Duration(float64(p.Burst) / p.PerSecond * float64(time.Second))
}

// Limiter has a limit for each key that was used recently. It is safe for concurrent use.
//
// The limits are in two generations. A limit that is used moves to the young generation. When that is
// full, or old enough that every idle key has its whole burst again, the old generation is dropped
// and the young one becomes old. So there is no sweep, memory is bounded, and a limit is forgotten
// early only under a flood of keys.
type Limiter[K comparable] struct {
	most int
	rest time.Duration
	now  func() time.Time

	mu         sync.Mutex // guards what follows
	young, old map[K]*rate.Limiter
	began      time.Time // start of the young generation
}

// New returns a Limiter with at most most limits in each generation. The paces of all keys must
// refill within rest.
func New[K comparable](most int, rest time.Duration, now func() time.Time) *Limiter[K] {
	return &Limiter[K]{most: most, rest: rest, now: now, young: map[K]*rate.Limiter{}, began: now()}
}

// Take counts one action now. If there were too many, it does not count the action, and returns how
// long to wait. A key may have another pace than before.
func (l *Limiter[K]) Take(key K, p Pace) time.Duration {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	limiter := l.young[key]
	if limiter == nil {
		if len(l.young) >= l.most || now.Sub(l.began) > l.rest {
			l.old, l.young, l.began = l.young, map[K]*rate.Limiter{}, now
		}
		if limiter = l.old[key]; limiter == nil {
			limiter = rate.NewLimiter(rate.Limit(p.PerSecond), p.Burst)
		}
		l.young[key] = limiter
	}
	if limiter.Limit() != rate.Limit(p.PerSecond) || limiter.Burst() != p.Burst {
		limiter.SetLimitAt(now, rate.Limit(p.PerSecond))
		limiter.SetBurstAt(now, p.Burst)
	}
	reservation := limiter.ReserveN(now, 1)
	wait := reservation.DelayFrom(now)
	if wait > 0 {
		reservation.CancelAt(now)
	}
	return wait
}

// Has reports whether there is a limit for a key.
func (l *Limiter[K]) Has(key K) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.young[key] != nil || l.old[key] != nil
}

// Len is the number of keys with a limit. Keys in both generations count twice.
func (l *Limiter[K]) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.young) + len(l.old)
}
