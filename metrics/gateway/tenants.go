package gateway

import (
	"context"
	"errors"
	"math"
	"sync"

	"golang.org/x/time/rate"

	"github.com/hangar-platform/hangar"
)

// tenants counts the queries of each organization. An organization without recent queries uses no
// memory.
type tenants struct {
	limits Limits

	mu    sync.Mutex // guards what follows
	known map[hangar.OrgID]*tenant
	sweep int // number of organizations at which idle ones are removed
}

// tenant is the queries of one organization.
type tenant struct {
	limiter *rate.Limiter
	running chan struct{} // has an element for each running query
	inside  int           // queries that run or wait; guarded by tenants.mu
}

// minSweep is the number of organizations below which idle ones are not removed.
const minSweep = 1024

func newTenants(limits Limits) *tenants {
	return &tenants{limits: limits, known: make(map[hangar.OrgID]*tenant), sweep: minSweep}
}

// enter waits until the organization's own limits allow a query to run.
func (t *tenants) enter(ctx context.Context, org hangar.OrgID) (leave func(), err error) {
	own, err := t.count(org)
	if err != nil {
		return nil, err
	}
	select {
	case own.running <- struct{}{}:
		return func() { <-own.running; t.uncount(own) }, nil
	case <-ctx.Done():
		t.uncount(own)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, tooMany("the organization has too many queries at the same time", int(t.limits.Wait.Seconds()))
		}
		return nil, ctx.Err()
	}
}

func (t *tenants) count(org hangar.OrgID) (*tenant, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := t.known[org]
	if own == nil {
		t.removeIdle()
		own = &tenant{
			limiter: rate.NewLimiter(rate.Limit(t.limits.Rate), t.limits.Burst),
			running: make(chan struct{}, t.limits.Concurrent),
		}
		t.known[org] = own
	}
	if own.inside >= t.limits.Concurrent+t.limits.Waiting {
		return nil, tooMany("the organization has too many queries at the same time", 1)
	}
	if !own.limiter.Allow() {
		return nil, tooMany("the organization sends queries too often", int(math.Ceil(1/t.limits.Rate)))
	}
	own.inside++
	return own, nil
}

func (t *tenants) uncount(own *tenant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	own.inside--
}

// removeIdle removes the organizations that are in the state of a new one, if there are many. The
// caller holds mu.
func (t *tenants) removeIdle() {
	if len(t.known) < t.sweep {
		return
	}
	for org, own := range t.known {
		if own.inside == 0 && own.limiter.Tokens() >= float64(t.limits.Burst) {
			delete(t.known, org)
		}
	}
	t.sweep = max(minSweep, 2*len(t.known))
}
