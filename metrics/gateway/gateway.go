// Package gateway answers queries of tenants from a metrics.Store, so that a tenant sees only
// its own series, learns nothing of others, and cannot monopolize the store.
//
// A Gateway serves seven paths of Prometheus's HTTP API
// (https://prometheus.io/docs/prometheus/latest/querying/api/). It never forwards a request. It
// makes a new one: of a path from a list, of parameters from a list whose values it has parsed,
// and of the filters of the tenant, which are in the URL, where the store lets no parameter of a
// form take precedence. From the answer it removes the label of the organization
// (metrics.OrgLabel) while copying, so that memory does not grow with an answer.
//
// Limits bound what an organization may ask for. All organizations share the slots of the store
// fairly. A client that hangs up keeps its slot until the store is done with its query, because
// the store does not stop it.
//
// A Gateway is safe for concurrent use.
package gateway

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime"
	"slices"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/fairsem"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/metrics"
)

// Limits bound the queries of one organization, but for Total. Zero values stand for the defaults.
type Limits struct {
	Concurrent int           // queries at the same time; further ones wait
	Waiting    int           // queries that wait
	Wait       time.Duration // for a turn
	Rate       float64       // queries a second, on average
	Burst      int           // queries that may come at once
	Range      time.Duration // of time that a query may span, and each window and offset in it
	Points     int           // of a series in an answer
	Time       time.Duration // that the store may take for a query
	Transfer   time.Duration // that a client may take to receive an answer
	Bytes      int64         // of an answer
	FormBytes  int64         // of the parameters of a request
	Total      int           // queries of all organizations at the same time
}

// DefaultLimits returns the limits that stand for zero values.
func DefaultLimits() Limits {
	return Limits{
		Concurrent: 4, Waiting: 64, Wait: 10 * time.Second,
		Rate: 20, Burst: 100,
		Range: 400 * 24 * time.Hour, Points: 11_000,
		Time: 30 * time.Second, Transfer: 30 * time.Second,
		Bytes: 64 << 20, FormBytes: 64 << 10,
		Total: min(16, 4+2*runtime.GOMAXPROCS(0)),
	}
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits()
	l.Concurrent = cmp.Or(l.Concurrent, d.Concurrent)
	l.Waiting = cmp.Or(l.Waiting, d.Waiting)
	l.Wait = cmp.Or(l.Wait, d.Wait)
	l.Rate = cmp.Or(l.Rate, d.Rate)
	l.Burst = cmp.Or(l.Burst, d.Burst)
	l.Range = cmp.Or(l.Range, d.Range)
	l.Points = cmp.Or(l.Points, d.Points)
	l.Time = cmp.Or(l.Time, d.Time)
	l.Transfer = cmp.Or(l.Transfer, d.Transfer)
	l.Bytes = cmp.Or(l.Bytes, d.Bytes)
	l.FormBytes = cmp.Or(l.FormBytes, d.FormBytes)
	l.Total = cmp.Or(l.Total, d.Total)
	return l
}

// Options of a Gateway.
type Options struct {
	Store  metrics.Store
	Limits Limits
	Log    *slog.Logger
}

// Scope is what of an organization a caller may see.
type Scope struct {
	// Apps are those whose series the caller may see; nil is for all series of the organization,
	// an empty list for none.
	Apps []hangar.AppName
}

// narrowed is what of a scope some Apps are; without names it is all of it.
func (s Scope) narrowed(names []string) Scope {
	if len(names) == 0 {
		return s
	}
	chosen := []hangar.AppName{}
	for _, name := range names {
		if app := hangar.AppName(name); s.Apps == nil || slices.Contains(s.Apps, app) {
			chosen = append(chosen, app)
		}
	}
	return Scope{Apps: chosen}
}

// Gateway answers queries.
type Gateway struct {
	store   metrics.Store
	limits  Limits
	log     *slog.Logger
	tenants *tenants
	slots   *fairsem.Semaphore[hangar.OrgID]
	counts  *counts
}

// New returns a Gateway.
func New(opts Options) *Gateway {
	limits := opts.Limits.withDefaults()
	return &Gateway{
		store: opts.Store, limits: limits, log: opts.Log,
		tenants: newTenants(limits),
		slots:   fairsem.New[hangar.OrgID](limits.Total),
		counts:  newCounts(),
	}
}

// Serve answers a request of a tenant. The path is what follows /prometheus/<org>, decoded. The
// caller has authenticated the request; scope is what it may see of the organization. Errors are
// answers, in the form that Prometheus has for them. When an answer that has begun cannot be
// completed, Serve panics with http.ErrAbortHandler, so that the client does not take it for a
// whole one.
func (g *Gateway) Serve(w http.ResponseWriter, r *http.Request, tenant metrics.Tenant, scope Scope, path string) {
	answer, began := newAnswer(w, g.limits.Bytes), time.Now()
	defer answer.close()
	err := g.serve(answer, r, tenant, scope, path)
	g.counts.answered(r.Context(), err, time.Since(began))
	switch {
	case err == nil:
	case r.Context().Err() != nil:
		panic(http.ErrAbortHandler) // the client has gone
	case answer.begun:
		g.log.WarnContext(r.Context(), "Answer to a query of metrics was cut short", "org", tenant.Org, "error", err)
		panic(http.ErrAbortHandler)
	default:
		f := failureOf(err)
		if f.status >= http.StatusInternalServerError {
			g.log.WarnContext(r.Context(), "Query of metrics failed", "org", tenant.Org, "error", err)
		}
		f.write(w)
	}
}

// Refuse answers a query that could not be asked, as Serve answers an error.
func (g *Gateway) Refuse(w http.ResponseWriter, r *http.Request, err error) {
	g.log.WarnContext(r.Context(), "Query of metrics was not asked", "error", err)
	failureOf(err).write(w)
}

func (g *Gateway) serve(answer *answer, r *http.Request, tenant metrics.Tenant, scope Scope, path string) error {
	e, err := endpointOf(path)
	if err != nil {
		return err
	}
	q, err := g.parse(answer.w, r, e)
	if err != nil {
		return err
	}
	if q.nothing {
		return answer.finish(e.contentType, emptyList)
	}
	release, err := g.admit(r.Context(), tenant.Org)
	if err != nil {
		return err
	}
	defer release()
	return finish.Do(r.Context(), q.timeout+stoppingGrace+g.limits.Transfer, func(ctx finish.Context) error {
		return g.run(ctx, answer, r, tenant, scope, q)
	})
}

// stoppingGrace is how much later than its timeout the store may answer a query that it stops.
const stoppingGrace = 5 * time.Second

// admit waits until a query of an organization may run, and returns what ends its turn.
func (g *Gateway) admit(ctx context.Context, org hangar.OrgID) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, g.limits.Wait)
	defer cancel()
	g.counts.waiting.Add(1)
	defer g.counts.waiting.Add(-1)
	leave, err := g.tenants.enter(ctx, org)
	if err != nil {
		return nil, err
	}
	free, err := g.slots.Acquire(ctx, org)
	if err != nil {
		leave()
		if errors.Is(err, context.DeadlineExceeded) {
			return nil, busy("the metrics store is busy with other queries; try again later")
		}
		return nil, err
	}
	return func() { free(); leave() }, nil
}

// run sends a query to the store and copies the answer. The context does not end with the
// client's, because the store continues a query whose client has gone.
func (g *Gateway) run(ctx finish.Context, answer *answer, r *http.Request, tenant metrics.Tenant, scope Scope, q *query) error {
	asking, cancel := context.WithTimeoutCause(ctx, q.timeout+stoppingGrace, errTookTooLong)
	defer cancel()
	request, err := q.request(asking, g.store.QueryURL(tenant), tenant, scope.narrowed(q.apps))
	if err != nil {
		return err
	}
	resp, err := g.store.Client().Do(request) //nolint:gosec // the path is one of a list
	if err != nil {
		if errors.Is(context.Cause(asking), errTookTooLong) {
			return errTookTooLong
		}
		return err
	}
	defer resp.Body.Close()
	if err := r.Context().Err(); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return refusal(resp)
	}
	return answer.receive(q, resp.Body, g.limits.Transfer)
}
