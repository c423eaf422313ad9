// Package alerts evaluates the rules of organizations and keeps the states of their alerts.
//
// An Evaluator follows the configs of a hangar.AlertFeed. It evaluates each group of rules at the
// group's interval, at an offset that derives from its name, so that the groups do not all come at
// once. Queries use a fixed number of slots that organizations share fairly (internal/fairsem): an
// organization with slow or many rules delays only itself. A Notifier receives alerts that fire or
// are resolved, after they were stored.
//
// States are pending, firing and resolved, as in hangar.AlertState. A query that fails, or returns
// too much, does not change them, and shows in the health of the rule. They survive restarts and kill
// -9: a pending alert keeps its start, and a firing one continues to fire. If the config changes,
// rules with the same group, name and labels keep their states, and firing alerts of removed rules
// are resolved.
//
// Rules, templates (metrics/alerts/rulefile) and the labels of series come from tenants: everything
// that is kept of them is bounded per organization, and so is the work of templates.
package alerts

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/fairsem"
	"github.com/hangar-platform/hangar/internal/finish"
	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/alerts/rulefile"
	"github.com/hangar-platform/hangar/metrics/alerts/states"
)

// The defaults of Options.
const (
	DefaultWorkers      = 8
	DefaultQueryTimeout = 10 * time.Second
)

// Query evaluates an expression of a tenant at a time, and ends with ctx. The tenant sees the message
// of a hangar.Error, but not the text of any other error.
type Query func(ctx context.Context, tenant metrics.Tenant, expr string, at time.Time) ([]metrics.Sample, error)

// Notifier receives alerts; metrics/alerts/notify has the implementation for receivers. Its methods
// do not wait for receivers.
type Notifier interface {
	// Run notifies until ctx ends.
	Run(ctx context.Context) error
	// Configure sets the receivers of an organization.
	Configure(org hangar.Org, config hangar.AlertConfig)
	// Update passes on alerts that have started to fire, have changed, or are resolved.
	Update(org hangar.OrgID, alerts []hangar.Alert)
	// Remove forgets an organization.
	Remove(org hangar.OrgID)
	// Status returns the statuses of an organization's receivers.
	Status(org hangar.OrgID) []hangar.AlertReceiverStatus
}

// Options of an Evaluator.
type Options struct {
	Configs  hangar.AlertFeed
	Query    Query
	States   *states.Store // stays open until Run has returned
	Notifier Notifier
	// ExternalURL is the value of $externalURL in templates.
	ExternalURL string
	// Workers is how many queries run at once; 0: DefaultWorkers. One organization never uses all of
	// them.
	Workers      int
	QueryTimeout time.Duration // of one expression; 0: DefaultQueryTimeout
	Log          *slog.Logger
	Now          func() time.Time // nil: time.Now
}

// Evaluator evaluates rules. Its methods may be called from many goroutines.
type Evaluator struct {
	o     Options
	slots *fairsem.Semaphore[hangar.OrgID]

	counts *counts

	mu      sync.Mutex // guards what follows
	orgs    map[hangar.OrgID]*tenant
	testing map[hangar.OrgID]bool // with a running test
}

var _ hangar.AlertHost = (*Evaluator)(nil)

// New returns an Evaluator that starts with Run.
func New(o Options) *Evaluator {
	o.Workers = cmp.Or(o.Workers, DefaultWorkers)
	o.QueryTimeout = cmp.Or(o.QueryTimeout, DefaultQueryTimeout)
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Evaluator{
		o: o, slots: fairsem.New[hangar.OrgID](o.Workers), counts: newCounts(),
		orgs: map[hangar.OrgID]*tenant{}, testing: map[hangar.OrgID]bool{},
	}
}

// Run evaluates and notifies until ctx ends. It may then be called again, and continues with the
// stored states.
func (e *Evaluator) Run(ctx context.Context) error {
	notifying, quiet := finish.Lifetime(ctx)
	var notifier, running sync.WaitGroup
	notifier.Go(func() { _ = e.o.Notifier.Run(notifying) }) // ends only with its context
	first := true
	_ = pause.Between(ctx, pause.Feeds, func(ctx context.Context) error {
		for set, err := range e.o.Configs.WatchAlerts(ctx) {
			if err != nil {
				return err
			}
			e.apply(ctx, set, &running)
			if first {
				e.sweep(set)
				first = false
			}
		}
		return nil
	}, func(err error) {
		e.o.Log.Warn("cannot read the configs of alerts", keyError, err)
	})
	running.Wait()
	quiet() // everything that calls the notifier has ended
	notifier.Wait()
	return nil
}

// apply takes over the configs of all organizations.
func (e *Evaluator) apply(ctx context.Context, set []hangar.OrgAlerts, running *sync.WaitGroup) {
	e.mu.Lock()
	defer e.mu.Unlock()
	there := map[hangar.OrgID]bool{}
	for _, one := range set {
		there[one.Org.ID] = true
		t := e.orgs[one.Org.ID]
		if one.Unreadable {
			continue
		}
		if t == nil || t.removed() {
			t = newTenant(e, one.Org, t)
			own, stop := context.WithCancel(ctx)
			t.stop = stop
			e.orgs[one.Org.ID] = t
			running.Go(func() { t.run(own) })
		}
		t.set(one)
	}
	for id, t := range e.orgs {
		if !there[id] {
			t.remove()
		}
	}
}

// ended removes a tenant whose goroutine ends.
func (e *Evaluator) ended(t *tenant) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.orgs[t.id] == t {
		delete(e.orgs, t.id)
	}
}

// sweep forgets the states of organizations that were removed while no Evaluator ran.
func (e *Evaluator) sweep(set []hangar.OrgAlerts) {
	kept, err := e.o.States.Orgs()
	there := map[hangar.OrgID]bool{}
	for _, one := range set {
		there[one.Org.ID] = true
	}
	for _, org := range kept {
		if err == nil && !there[org] {
			err = e.o.States.Forget(org)
		}
	}
	if err != nil {
		e.o.Log.Warn("cannot remove the states of alerts of removed organizations", keyError, err)
	}
}

// CheckAlertRules implements hangar.AlertHost. Only the store knows what a valid expression is, so it
// asks the store. Expressions pass while the store cannot be reached, and after checkTimeout.
func (e *Evaluator) CheckAlertRules(ctx context.Context, org hangar.Org, rules string) error {
	file, err := rulefile.Parse(rules)
	if err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	at := e.o.Now()
	for _, g := range file.Groups {
		for i := range g.Rules {
			_, err := e.ask(limit, org, g.Rules[i].Expr, at)
			switch {
			case hangar.CodeOf(err) == hangar.CodeInvalid:
				return invalidf("group %q, rule %d (%s), field expr: %s", g.Name, i+1, g.Rules[i].Alert, messageOf(err))
			case err != nil:
				return ctx.Err()
			}
		}
	}
	return nil
}

// AlertReport implements hangar.AlertHost.
func (e *Evaluator) AlertReport(_ context.Context, org hangar.OrgID) (hangar.AlertReport, error) {
	e.mu.Lock()
	t := e.orgs[org]
	e.mu.Unlock()
	report := hangar.AlertReport{Groups: []hangar.AlertGroup{}, Alerts: []hangar.Alert{}}
	if t != nil && !t.removed() {
		t.report(&report)
	}
	report.Receivers = e.o.Notifier.Status(org)
	sortAlerts(report.Alerts)
	return report, nil
}

// Keys of log records.
const (
	keyOrg   = "org"
	keyGroup = "group"
	keyError = "error"
)
