// Package gateway answers queries of tenants from a metrics.Store, so that a tenant sees only
// its own series, learns nothing of others, and cannot monopolize the store.
//
// A Gateway serves seven paths of Prometheus's HTTP API
// (https://prometheus.io/docs/prometheus/latest/querying/api/). It never forwards a request. It makes
// a new one from a list of paths, from a list of parameters whose values it has parsed, and with the
// filters of the tenant. The filters are in the URL, where no parameter of a form can override them
// in the store. While it copies the answer, it removes the label of the organization
// (metrics.OrgLabel), so that memory does not grow with the answer.
//
// Limits bound the queries of an organization. All organizations share the slots of the store fairly.
// If a client disconnects, its query keeps its slot until the store has finished it, because the
// store does not stop it.
//
// A Gateway is safe for concurrent use.
package gateway

import (
	"cmp"
	"context"
	"errors"
	"io"
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

// Limits bound the queries of one organization, except for Total. Zero values mean the defaults.
type Limits struct {
	Concurrent int           // queries at the same time; further ones wait
	Waiting    int           // queries that wait
	Wait       time.Duration // for a slot
	Rate       float64       // queries a second, on average
	Burst      int           // queries that may come at once
	Range      time.Duration // time span of a query, and of each window and offset in it
	Points     int           // of a series in an answer
	Time       time.Duration // of the store for a query
	Transfer   time.Duration // of a client to receive 8 MiB of an answer, or all of a shorter one
	Bytes      int64         // of an answer
	FormBytes  int64         // of the parameters of a request
	Total      int           // queries of all organizations at the same time
}

// DefaultLimits returns the default limits.
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

// Scope is the part of an organization that a caller may see.
type Scope struct {
	// Apps are the Apps whose series the caller may see; nil: all series of the organization; an empty
	// list: none.
	Apps []hangar.AppName
}

// narrowed returns the part of a scope that belongs to some Apps; without names, the whole scope.
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

// Serve answers a request of a tenant. The path is the decoded part after /prometheus/<org>. The
// caller has authenticated the request; scope is the part of the organization that it may see. Errors
// are answers in the form of Prometheus. If Serve cannot complete an answer that it has begun to
// send, it panics with http.ErrAbortHandler, so that the client notices that it is incomplete.
func (g *Gateway) Serve(w http.ResponseWriter, r *http.Request, tenant metrics.Tenant, scope Scope, path string) {
	answer, began := newAnswer(w, g.limits), time.Now()
	defer answer.close()
	err := g.serve(answer, r, tenant, scope, path)
	g.counts.answered(r.Context(), err, time.Since(began))
	switch {
	case err == nil:
	case r.Context().Err() != nil:
		panic(http.ErrAbortHandler) // the client has disconnected
	case answer.begun:
		g.log.WarnContext(r.Context(), "Answer to a query of metrics is incomplete", "org", tenant.Org, "error", err)
		panic(http.ErrAbortHandler)
	default:
		f := failureOf(err)
		if f.status >= http.StatusInternalServerError {
			g.log.WarnContext(r.Context(), "Query of metrics failed", "org", tenant.Org, "error", err)
		}
		f.write(w)
	}
}

// Refuse answers a query that could not be run, in the form of Serve's errors.
func (g *Gateway) Refuse(w http.ResponseWriter, r *http.Request, err error) {
	g.log.WarnContext(r.Context(), "Query of metrics was not run", "error", err)
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
	parts := time.Duration(1 + g.limits.Bytes/partBytes)
	return finish.Do(r.Context(), q.timeout+stoppingGrace+parts*g.limits.Transfer, func(ctx finish.Context) error {
		return g.run(ctx, answer, r, tenant, scope, q)
	})
}

// stoppingGrace is how much later than its timeout the store may answer a query that it stops.
const stoppingGrace = 5 * time.Second

// admit waits until a query of an organization may run. The caller must call release when it ends.
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

// run sends a query to the store and copies the answer. Its context does not end with the client's,
// because the store continues a query whose client has disconnected.
func (g *Gateway) run(ctx finish.Context, answer *answer, r *http.Request, tenant metrics.Tenant, scope Scope, q *query) (err error) {
	asking, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer func() {
		if err != nil && errors.Is(context.Cause(asking), errTookTooLong) {
			err = errTookTooLong
		}
	}()
	request, err := q.request(asking, g.store.QueryURL(tenant), tenant, scope.narrowed(q.apps))
	if err != nil {
		return err
	}
	w := &work{left: q.timeout + stoppingGrace, end: func() { cancel(errTookTooLong) }}
	var resp *http.Response
	w.wait(func() { resp, err = g.store.Client().Do(request) }) //nolint:gosec,bodyclose // the path is from a list; closed below
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := r.Context().Err(); err != nil {
		return err
	}
	w.ReadCloser, resp.Body = resp.Body, w
	if resp.StatusCode != http.StatusOK {
		return refusal(resp)
	}
	return answer.receive(q, resp.Body)
}

// work is that of the store for a query. It ends when the store has been waited for too long; the time
// that the client takes does not count.
type work struct {
	io.ReadCloser // the answer

	left time.Duration
	end  func()
}

func (w *work) wait(step func()) {
	began, timer := time.Now(), time.AfterFunc(w.left, w.end)
	step()
	timer.Stop()
	w.left -= time.Since(began)
}

// Read implements io.Reader.
func (w *work) Read(p []byte) (n int, err error) {
	w.wait(func() { n, err = w.ReadCloser.Read(p) })
	return n, err
}
