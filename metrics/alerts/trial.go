package alerts

import (
	"context"
	"time"

	"golang.org/x/time/rate"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/metrics/alerts/rulefile"
)

// testTimeout bounds the whole test of a rule file.
const testTimeout = 25 * time.Second

// checkTimeout bounds the check of expressions before rules are stored.
const checkTimeout = 10 * time.Second

// TestAlertRules implements hangar.AlertHost.
func (e *Evaluator) TestAlertRules(ctx context.Context, org hangar.Org, rules string) (hangar.AlertReport, error) {
	report := hangar.AlertReport{Groups: []hangar.AlertGroup{}, Alerts: []hangar.Alert{}, Receivers: []hangar.AlertReceiverStatus{}}
	file, err := rulefile.Parse(rules)
	if err != nil {
		return report, err
	}
	if !e.beginTest(org.ID) {
		return report, hangar.Errorf(hangar.CodeExhausted, hangar.ReasonRateLimited, "Another test of alerts of this organization is running")
	}
	defer e.endTest(org.ID)
	limit, cancel := context.WithTimeout(ctx, testTimeout)
	defer cancel()
	at, budget := e.o.Now(), testBudget{rate.NewLimiter(0, workAtOnce)}
	for _, g := range file.Groups {
		health := hangar.AlertGroup{Name: g.Name, Interval: hangar.Duration(g.Interval), EvaluatedAt: at, Rules: []hangar.AlertRule{}}
		for i := range g.Rules {
			r := &g.Rules[i]
			one := hangar.AlertRule{Name: r.Alert, Expr: r.Expr, Health: hangar.AlertHealthOK, EvaluatedAt: at}
			found, err := e.find(limit, org, r, g, at, budget)
			if err == nil && len(report.Alerts)+len(found) > hangar.MaxAlerts {
				err = invalidf("all rules together yield more than the %d alerts that are allowed at once", hangar.MaxAlerts)
			}
			switch {
			case ctx.Err() != nil:
				return report, ctx.Err()
			case limit.Err() != nil:
				one.Health, one.Error, one.EvaluatedAt = hangar.AlertHealthUnknown, "not evaluated: the test took too long", time.Time{}
			case err != nil:
				one.Health, one.Error = hangar.AlertHealthError, messageOf(err)
			}
			if one.Health == hangar.AlertHealthOK {
				one.Alerts = len(found)
				report.Alerts = append(report.Alerts, begun(found, r, at)...)
			}
			health.Rules = append(health.Rules, one)
		}
		report.Groups = append(report.Groups, health)
	}
	sortAlerts(report.Alerts)
	return report, nil
}

// begun sets the initial state of alerts.
func begun(found []hangar.Alert, r *rulefile.Rule, at time.Time) []hangar.Alert {
	for i := range found {
		a := &found[i]
		a.ActiveAt, a.State = at, hangar.AlertPending
		if r.For == 0 {
			a.State, a.FiredAt = hangar.AlertFiring, at
		}
	}
	return found
}

func (e *Evaluator) beginTest(org hangar.OrgID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.testing[org] {
		return false
	}
	e.testing[org] = true
	return true
}

func (e *Evaluator) endTest(org hangar.OrgID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.testing, org)
}

// testBudget is the work that the templates of a test may do.
type testBudget struct{ *rate.Limiter }

// Spend implements rulefile.Budget.
func (b testBudget) Spend(work int) bool { return b.AllowN(time.Now(), work) }
