package alerts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/pause"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/alerts/rulefile"
	"github.com/hangar-platform/hangar/metrics/alerts/states"
)

// group is a group of rules. Its goroutine, run, evaluates the rules one after another.
type group struct {
	t      *tenant
	org    hangar.Org
	parsed rulefile.Group
	rules  []*rule

	mu     sync.Mutex        // guards what follows, and the records and health of the rules
	health hangar.AlertGroup // without its rules
}

func newGroup(t *tenant, org hangar.Org, parsed rulefile.Group) *group {
	g := &group{
		t: t, org: org, parsed: parsed,
		health: hangar.AlertGroup{Name: parsed.Name, Interval: hangar.Duration(parsed.Interval)},
	}
	same := map[string]int{}
	for i := range parsed.Rules {
		r := &parsed.Rules[i]
		id := r.Identity()
		g.rules = append(g.rules, &rule{
			Rule: r, key: ruleKey(parsed.Name, r, same[id]), records: map[string]*record{}, unsaved: map[string]bool{},
			health: hangar.AlertRule{Name: r.Alert, Expr: r.Expr, Health: hangar.AlertHealthUnknown},
		})
		same[id]++
	}
	return g
}

// first returns the first time, not before now, at which the group is due. Each group has its own
// offset from multiples of its interval.
func (g *group) first(now time.Time) time.Time {
	interval := int64(g.parsed.Interval)
	offset := int64(xxhash.Sum64String(string(g.org.ID)+"\x00"+g.parsed.Name) % uint64(interval))
	since := (now.UnixNano() - offset) % interval
	if since == 0 {
		return now
	}
	return now.Add(time.Duration(interval - since))
}

// run evaluates the group until ctx ends, at times of the wall clock, as samples have them, also if that is set.
func (g *group) run(ctx context.Context) {
	wall := func() time.Time { return g.t.e.o.Now().Round(0) }
	next := g.first(wall())
	for pause.For(ctx, next.Sub(wall())) == nil {
		if now := wall(); next.Sub(now) > g.parsed.Interval/2 { // the clock was set back
			next = g.first(now)
			continue
		}
		g.evaluate(ctx, next)
		following := next.Add(g.parsed.Interval)
		if now := wall(); following.Before(now) {
			after := g.first(now)
			missed := int(after.Sub(following) / g.parsed.Interval)
			g.t.e.counts.missed.Add(float64(missed))
			g.mu.Lock()
			g.health.Missed += missed
			g.mu.Unlock()
			following = after
		}
		next = following
	}
}

// evaluate evaluates all rules once, at a time.
func (g *group) evaluate(ctx context.Context, at time.Time) {
	now := g.t.e.o.Now
	begun := now()
	for _, r := range g.rules {
		// The rules of a group see the same time, unless the previous ones took long.
		if now().Sub(at) > g.parsed.Interval {
			at = now()
		}
		if !g.evaluateRule(ctx, r, at) {
			return
		}
	}
	g.mu.Lock()
	g.health.EvaluatedAt, g.health.Took = at, hangar.Duration(now().Sub(begun))
	g.mu.Unlock()
}

// evaluateRule evaluates a rule. It reports false if ctx has ended.
func (g *group) evaluateRule(ctx context.Context, r *rule, at time.Time) bool {
	began := time.Now()
	found, err := g.t.e.find(ctx, g.org, r.Rule, g.parsed, at, g.t)
	if ctx.Err() != nil {
		return false
	}
	g.t.e.counts.evaluated(err, time.Since(began))
	g.mu.Lock()
	var tell []hangar.Alert
	var save map[string][]byte
	if err == nil {
		tell, err = r.update(at, found, g.t)
		save = r.save()
	}
	g.mu.Unlock()
	saved := g.t.e.o.States.Save(states.Alerts, g.t.id, save)
	if saved != nil {
		g.t.e.o.Log.Error("cannot save the states of alerts", keyOrg, g.t.id, keyGroup, g.parsed.Name, keyError, saved)
	}
	if len(tell) > 0 {
		g.t.e.o.Notifier.Update(g.t.id, tell)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if saved == nil && save != nil {
		clear(r.unsaved)
	}
	r.health.EvaluatedAt, r.health.Alerts = at, r.active()
	r.health.Health, r.health.Error = hangar.AlertHealthOK, ""
	if err != nil {
		r.health.Health, r.health.Error = hangar.AlertHealthError, messageOf(err)
	}
	return true
}

// report adds the group to a report.
func (g *group) report(to *hangar.AlertReport) {
	g.mu.Lock()
	defer g.mu.Unlock()
	health := g.health
	health.Rules = []hangar.AlertRule{}
	for _, r := range g.rules {
		health.Rules = append(health.Rules, r.health)
		for _, rec := range r.records {
			to.Alerts = append(to.Alerts, rec.Alert)
		}
	}
	to.Groups = append(to.Groups, health)
}

// find returns the alerts of a rule, without states.
func (e *Evaluator) find(ctx context.Context, org hangar.Org, r *rulefile.Rule, g rulefile.Group, at time.Time, budget rulefile.Budget) ([]hangar.Alert, error) {
	samples, err := e.ask(ctx, org, r.Expr, at)
	if err != nil {
		return nil, err
	}
	return alertsOf(samples, r, g, e.o.ExternalURL, budget)
}

// ask evaluates an expression once a slot is free.
func (e *Evaluator) ask(ctx context.Context, org hangar.Org, expr string, at time.Time) ([]metrics.Sample, error) {
	release, err := e.slots.Acquire(ctx, org.ID)
	if err != nil {
		return nil, err
	}
	defer release()
	limit, cancel := context.WithTimeoutCause(ctx, e.o.QueryTimeout, errSlow)
	defer cancel()
	samples, err := e.o.Query(limit, metricsTenant(org), expr, at)
	if err != nil && limit.Err() != nil && ctx.Err() == nil {
		err = errSlow
	}
	return samples, err
}

var errSlow = &hangar.Error{Code: hangar.CodeTimeout, Message: "the query takes too long"}

// messageOf is the part of an error that a tenant may see.
func messageOf(err error) string {
	if e, ok := errors.AsType[*hangar.Error](err); ok {
		return fmt.Sprintf("%.500s", e.Message)
	}
	return "the query failed"
}

// maxAlertBytes bounds the labels and annotations of an alert.
const maxAlertBytes = 8 << 10

// alertsOf converts samples to alerts.
func alertsOf(samples []metrics.Sample, r *rulefile.Rule, g rulefile.Group, external string, budget rulefile.Budget) ([]hangar.Alert, error) {
	most := hangar.MaxAlerts
	if g.Limit > 0 {
		most = min(most, g.Limit)
	}
	if len(samples) > most {
		return nil, invalidf("the expression yields %d series, more than the %d that are allowed", len(samples), most)
	}
	list := make([]hangar.Alert, 0, len(samples))
	seen := make(map[string]bool, len(samples))
	for _, s := range samples {
		a, err := alertOf(s, r, g.Name, external, budget)
		if err != nil {
			return nil, err
		}
		if seen[a.Fingerprint] {
			return nil, invalidf("two series have the same labels once those of the rule are set")
		}
		seen[a.Fingerprint] = true
		list = append(list, a)
	}
	return list, nil
}

func invalidf(format string, args ...any) error {
	return hangar.Errorf(hangar.CodeInvalid, "", format, args...)
}

func alertOf(s metrics.Sample, r *rulefile.Rule, group, external string, budget rulefile.Budget) (hangar.Alert, error) {
	data := rulefile.Data{Labels: make(map[string]string, len(s.Labels)), Value: s.Value, ExternalURL: external}
	labels := make(map[string]string, len(s.Labels)+len(r.Labels)+1)
	size := 0
	for _, l := range s.Labels {
		size += len(l.Name) + len(l.Value)
		data.Labels[l.Name] = l.Value
		if l.Name != metrics.NameLabel {
			labels[l.Name] = l.Value
		}
	}
	if size > maxAlertBytes {
		return hangar.Alert{}, invalidf("the labels of a series have %d bytes, more than the %d that are allowed", size, maxAlertBytes)
	}
	expand := func(list []rulefile.Template, to map[string]string) error {
		for _, t := range list {
			text, err := t.Execute(data, budget)
			switch {
			case errors.Is(err, rulefile.ErrBudget):
				return invalidf("%s", err)
			case err != nil: // an alert with a faulty text is better than none
				text = fmt.Sprintf("<%s>", err)
			}
			size += len(t.Name) + len(text)
			to[t.Name] = text
		}
		return nil
	}
	annotations := make(map[string]string, len(r.Annotations))
	if err := errors.Join(expand(r.Labels, labels), expand(r.Annotations, annotations)); err != nil {
		return hangar.Alert{}, err
	}
	if size > maxAlertBytes {
		return hangar.Alert{}, invalidf("the labels and annotations of an alert have %d bytes, more than the %d that are allowed", size, maxAlertBytes)
	}
	labels[hangar.AlertNameLabel] = r.Alert
	for name, value := range labels {
		if value == "" {
			delete(labels, name)
		}
	}
	return hangar.Alert{
		Group: group, Name: r.Alert, Labels: labels, Annotations: annotations, Value: hangar.AlertValue(s.Value),
		Fingerprint: fingerprint(labels), Expr: r.Expr,
	}, nil
}

// encode encodes a record for the states; nil removes the record.
func encode(r *record) []byte {
	if r == nil {
		return nil
	}
	raw, _ := json.Marshal(r) //nolint:errchkjson // cannot fail for this type
	return raw
}
