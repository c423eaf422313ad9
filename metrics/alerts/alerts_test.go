package alerts_test

import (
	"context"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/alerts"
	"github.com/hangar-platform/hangar/metrics/alerts/states"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// feed is a hangar.AlertFeed in memory.
type feed struct {
	mu      sync.Mutex
	set     []hangar.OrgAlerts
	changed chan struct{} // closed by the next change
}

func newFeed() *feed { return &feed{changed: make(chan struct{})} }

// put sets the config of an organization; without rules, it has none.
func (f *feed) put(org hangar.Org, rules string, receivers ...hangar.AlertReceiver) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var next []hangar.OrgAlerts
	for _, one := range f.set {
		if one.Org.ID != org.ID {
			next = append(next, one)
		}
	}
	if rules != "" {
		next = append(next, hangar.OrgAlerts{Org: org, Config: hangar.AlertConfig{Rules: rules, Receivers: receivers}})
	}
	f.set = next
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *feed) WatchAlerts(ctx context.Context) iter.Seq2[[]hangar.OrgAlerts, error] {
	return func(yield func([]hangar.OrgAlerts, error) bool) {
		for {
			f.mu.Lock()
			set, changed := f.set, f.changed
			f.mu.Unlock()
			if !yield(set, nil) {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}
}

// told is a Notifier that records its calls.
type told struct {
	mu   sync.Mutex
	list []string // "org name i state", the latest last
}

func (n *told) Run(ctx context.Context) error                    { <-ctx.Done(); return nil }
func (n *told) Configure(hangar.Org, hangar.AlertConfig)         {}
func (n *told) Status(hangar.OrgID) []hangar.AlertReceiverStatus { return nil }
func (n *told) Remove(org hangar.OrgID)                          { n.add(string(org) + " removed") }
func (n *told) Update(org hangar.OrgID, list []hangar.Alert) {
	for _, a := range list {
		n.add(fmt.Sprintf("%s %s %s %s", org, a.Name, a.Labels["i"], a.State))
	}
}

func (n *told) add(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, text)
}

// take returns the notifications since the last call.
func (n *told) take() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := n.list
	n.list = nil
	return list
}

// bed is an Evaluator that can be restarted.
type bed struct {
	t     *testing.T
	feed  *feed
	told  *told
	query alerts.Query
	path  string // of the states
	log   *slog.Logger
	now   func() time.Time // nil: time.Now

	*alerts.Evaluator
	store *states.Store
	pause func() // ends Run
	stop  func()
}

func newBed(t *testing.T, query alerts.Query) *bed {
	b := &bed{t: t, feed: newFeed(), told: &told{}, query: query, path: filepath.Join(t.TempDir(), "alerts.db"), log: slog.New(slog.DiscardHandler)}
	b.start()
	return b
}

func (b *bed) start() {
	b.t.Helper()
	store, err := states.Open(b.path, b.log)
	if err != nil {
		b.t.Fatal(err)
	}
	b.store = store
	b.Evaluator = alerts.New(alerts.Options{Configs: b.feed, Query: b.query, States: store, Notifier: b.told, Workers: 4, Now: b.now, Log: b.log})
	b.run()
}

// run starts the Evaluator; stop ends it and closes its states.
func (b *bed) run() {
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = b.Run(ctx) }()
	b.pause = func() { cancel(); <-done }
	b.stop = func() {
		b.pause()
		b.store.Close()
	}
}

// report is that of an organization.
func (b *bed) report(org hangar.OrgID) hangar.AlertReport {
	b.t.Helper()
	report, err := b.AlertReport(b.t.Context(), org)
	if err != nil {
		b.t.Error(err)
	}
	return report
}

// again runs the same Evaluator again after it has ended, as when another host has evaluated in
// between.
func (b *bed) again() {
	b.pause()
	b.run()
}

// restart ends the Evaluator and starts another one with the states. With crash, it uses the states
// from before the end of the first one, as after a SIGKILL.
func (b *bed) restart(crash bool) {
	b.t.Helper()
	if !crash {
		b.stop()
		b.start()
		return
	}
	next := filepath.Join(b.t.TempDir(), "alerts.db")
	from, err := os.Open(b.path)
	if err != nil {
		b.t.Fatal(err)
	}
	defer from.Close()
	to, err := os.Create(next)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := io.Copy(to, from); err != nil {
		b.t.Fatal(err)
	}
	to.Close()
	b.stop()
	b.path = next
	b.start()
}

// sample returns a sample of a series with the label i.
func sample(i string, v float64) metrics.Sample {
	return metrics.Sample{Labels: []metrics.Label{{Name: metrics.NameLabel, Value: "m"}, {Name: "i", Value: i}}, Value: v}
}

var (
	acme  = hangar.Org{ID: "org1", Slug: "acme", NumericID: 7}
	other = hangar.Org{ID: "org2", Slug: "other", NumericID: 8}
)

// rules writes a file with one group of rules.
func rules(group string, list ...string) string {
	return fmt.Sprintf("groups:\n- name: %s\n  interval: 15s\n  rules:\n  - {%s}\n", group, strings.Join(list, "}\n  - {"))
}

// TestClockIsSet: rules are evaluated at the time of the clock soon after it was set, in either direction.
func TestClockIsSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ahead atomic.Int64 // nanoseconds
		var last atomic.Pointer[time.Time]
		now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		b := newBed(t, func(_ context.Context, _ metrics.Tenant, _ string, at time.Time) ([]metrics.Sample, error) {
			last.Store(&at)
			return nil, nil
		})
		b.stop()
		b.now = now
		b.start()
		defer func() { b.stop() }()
		b.feed.put(acme, rules("g", "alert: A, expr: m > 0"))
		for _, offset := range []time.Duration{0, time.Hour, 0, -time.Hour, 24 * time.Hour} {
			ahead.Store(int64(offset))
			time.Sleep(time.Minute)
			synctest.Wait()
			if off := now().Sub(*last.Load()); off < 0 || off > 15*time.Second {
				t.Errorf("with the clock %s ahead, the last evaluation was for the time %s ago", offset, off)
			}
		}
	})
}

func TestAlertContents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tenant metrics.Tenant
		b := newBed(t, func(_ context.Context, who metrics.Tenant, expr string, _ time.Time) ([]metrics.Sample, error) {
			tenant = who
			return []metrics.Sample{sample("1", 0.25)}, nil
		})
		defer func() { b.stop() }()
		b.feed.put(acme, rules("g", `alert: A, expr: m > 0, labels: {sev: "{{ if gt $value 0.1 }}high{{ end }}", none: ""}, annotations: {s: "{{ $labels.i }} of {{ $labels.__name__ }}: {{ humanizePercentage $value }}", bad: "{{ printf 1 }}"}`))
		time.Sleep(16 * time.Second)
		synctest.Wait()
		report := b.report(acme.ID)
		if len(report.Alerts) != 1 || len(report.Groups) != 1 || len(report.Groups[0].Rules) != 1 {
			t.Fatalf("report %+v", report)
		}
		a := report.Alerts[0]
		if a.State != hangar.AlertFiring || fmt.Sprint(a.Labels) != "map[alertname:A i:1 sev:high]" || a.Annotations["s"] != "1 of m: 25%" ||
			!strings.HasPrefix(a.Annotations["bad"], "<template of bad: ") || a.Value != 0.25 || len(a.Fingerprint) != 16 || a.FiredAt.IsZero() || a.Expr != "m > 0" {
			t.Errorf("alert %+v", a)
		}
		if r := report.Groups[0].Rules[0]; r.Health != hangar.AlertHealthOK || r.Alerts != 1 || r.EvaluatedAt.IsZero() {
			t.Errorf("rule %+v", r)
		}
		if tenant != (metrics.Tenant{Org: "org1", Number: 7}) {
			t.Errorf("queried for %+v", tenant)
		}
	})
}

// TestFailingQueries: states stay unchanged, the health gives the reason, and internal causes are
// hidden.
func TestFailingQueries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var current atomic.Pointer[func() ([]metrics.Sample, error)]
		b := newBed(t, func(ctx context.Context, _ metrics.Tenant, _ string, _ time.Time) ([]metrics.Sample, error) {
			answer := *current.Load()
			if answer == nil {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return answer()
		})
		defer func() { b.stop() }()
		good := func() ([]metrics.Sample, error) { return []metrics.Sample{sample("1", 1)}, nil }
		current.Store(&good)
		b.feed.put(acme, "groups: [{name: g, interval: 15s, limit: 5, rules: [{alert: A, expr: m, labels: {x: '{{ $value }}'}}]}]")
		time.Sleep(16 * time.Second)
		synctest.Wait()
		for want, fail := range map[string]func() ([]metrics.Sample, error){
			"the query takes too long": nil,
			"the query failed":         func() ([]metrics.Sample, error) { return nil, fmt.Errorf("dial 10.1.2.3") },
			"no such function": func() ([]metrics.Sample, error) {
				return nil, hangar.Errorf(hangar.CodeInvalid, "", "no such function")
			},
			"6 series, more than the 5": func() ([]metrics.Sample, error) {
				return make([]metrics.Sample, 6), nil
			},
			"two series have the same labels": func() ([]metrics.Sample, error) { return make([]metrics.Sample, 2), nil },
			"the labels of a series have 9002 bytes": func() ([]metrics.Sample, error) {
				return []metrics.Sample{sample(strings.Repeat("x", 9000-8), 1)}, nil
			},
		} {
			current.Store(&fail)
			time.Sleep(30 * time.Second)
			synctest.Wait()
			report := b.report(acme.ID)
			if r := report.Groups[0].Rules[0]; r.Health != hangar.AlertHealthError || !strings.Contains(r.Error, want) || strings.Contains(r.Error, "10.1.2.3") {
				t.Errorf("%s: health %s %q", want, r.Health, r.Error)
			}
			if len(report.Alerts) != 1 || report.Alerts[0].State != hangar.AlertFiring {
				t.Errorf("%s: alerts %+v", want, report.Alerts)
			}
		}
		current.Store(&good)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if r := b.report(acme.ID).Groups[0].Rules[0]; r.Health != hangar.AlertHealthOK || r.Error != "" {
			t.Errorf("health %+v", r)
		}
	})
}

// TestTooManyAlerts: the alerts of an organization are limited across all of its rules.
func TestTooManyAlerts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, func(_ context.Context, _ metrics.Tenant, expr string, _ time.Time) ([]metrics.Sample, error) {
			var list []metrics.Sample
			for i := range hangar.MaxAlerts / 2 {
				list = append(list, sample(expr+fmt.Sprint(i), 1))
			}
			return list, nil
		})
		defer func() { b.stop() }()
		b.feed.put(acme, rules("g", "alert: A, expr: a", "alert: B, expr: b", "alert: C, expr: c"))
		for range 2 {
			time.Sleep(16 * time.Second)
			synctest.Wait()
			report := b.report(acme.ID)
			if r := report.Groups[0].Rules[2]; len(report.Alerts) != hangar.MaxAlerts || r.Health != hangar.AlertHealthError || !strings.Contains(r.Error, "more than the 2000 alerts") {
				t.Errorf("%d alerts, health %+v", len(report.Alerts), r)
			}
		}
		// A removed rule makes room.
		b.feed.put(acme, rules("g", "alert: A, expr: a", "alert: C, expr: c"))
		time.Sleep(16 * time.Second)
		synctest.Wait()
		if report := b.report(acme.ID); len(report.Alerts) != hangar.MaxAlerts || report.Groups[0].Rules[1].Health != hangar.AlertHealthOK {
			t.Errorf("%d alerts, %+v", len(report.Alerts), report.Groups)
		}
	})
}

// TestConfigChanges: unchanged rules keep their alerts, removed ones resolve them, and removing
// the config removes everything.
func TestConfigChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, func(_ context.Context, _ metrics.Tenant, expr string, _ time.Time) ([]metrics.Sample, error) {
			return []metrics.Sample{sample(expr[:1], 1)}, nil
		})
		defer func() { b.stop() }()
		b.feed.put(acme, rules("g", "alert: A, expr: a", "alert: B, expr: b", "alert: P, expr: p, for: 10m"))
		time.Sleep(16 * time.Second)
		synctest.Wait()
		b.told.take()
		before := b.report(acme.ID)
		b.feed.put(acme, rules("g", "alert: P, expr: p > 1, for: 10m", "alert: A, expr: a > 1, annotations: {x: y}"))
		synctest.Wait()
		if got := fmt.Sprint(b.told.take()); got != "[org1 A a firing org1 B b resolved]" {
			t.Errorf("told %s", got)
		}
		time.Sleep(16 * time.Second)
		synctest.Wait()
		after := b.report(acme.ID)
		if len(after.Alerts) != 2 || !after.Alerts[0].FiredAt.Equal(before.Alerts[0].FiredAt) || !after.Alerts[1].ActiveAt.Equal(before.Alerts[2].ActiveAt) || after.Alerts[0].Expr != "a > 1" {
			t.Errorf("before %+v, after %+v", before.Alerts, after.Alerts)
		}
		if got := fmt.Sprint(b.told.take()); got != "[org1 A a firing]" { // its annotations have changed
			t.Errorf("told %s", got)
		}
		b.feed.put(acme, "")
		synctest.Wait()
		if report := b.report(acme.ID); len(report.Alerts)+len(report.Groups) > 0 || fmt.Sprint(b.told.take()) != "[org1 removed]" {
			t.Errorf("after the end: %+v", report)
		}
		time.Sleep(time.Second)
		if orgs, err := b.store.Orgs(); err != nil || len(orgs) > 0 {
			t.Errorf("states of %v are kept, %v", orgs, err)
		}
		// States that were removed while nothing ran are removed, too; unreadable ones stay.
		b.feed.put(acme, rules("g", "alert: A, expr: a"))
		b.feed.put(other, rules("g", "alert: A, expr: a"))
		time.Sleep(16 * time.Second)
		synctest.Wait()
		b.stop()
		b.feed.put(acme, "")
		b.feed.set[0] = hangar.OrgAlerts{Org: other, Unreadable: true}
		b.start()
		time.Sleep(time.Second)
		if orgs, err := b.store.Orgs(); err != nil || fmt.Sprint(orgs) != "[org2]" {
			t.Errorf("states of %v are kept, %v", orgs, err)
		}
	})
}

// TestSlowNeighbour: an organization with a thousand rules that hang delays no evaluation of
// another one.
func TestSlowNeighbour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, func(ctx context.Context, who metrics.Tenant, _ string, at time.Time) ([]metrics.Sample, error) {
			if who.Org == acme.ID {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			if now := time.Now(); !now.Equal(at) {
				t.Errorf("a rule that is due at %s is evaluated at %s", at, now)
			}
			return []metrics.Sample{sample("1", 1)}, nil
		})
		defer func() { b.stop() }()
		var file strings.Builder
		file.WriteString("groups:\n")
		for g := range 100 {
			fmt.Fprintf(&file, "- name: g%d\n  interval: 15s\n  rules:\n", g)
			file.WriteString(strings.Repeat("  - {alert: Slow, expr: slow}\n", 10))
		}
		b.feed.put(acme, file.String())
		time.Sleep(time.Minute)
		b.feed.put(other, rules("g", "alert: A, expr: a", "alert: B, expr: b"))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		report := b.report(other.ID)
		if g := report.Groups[0]; g.Missed > 0 || g.Took != 0 || time.Since(g.EvaluatedAt) > 15*time.Second || len(report.Alerts) != 2 {
			t.Errorf("the other organization: %+v", report)
		}
		slow := b.report(acme.ID)
		missed, errs := 0, 0
		for _, g := range slow.Groups {
			missed += g.Missed
			for _, r := range g.Rules {
				if r.Error == "the query takes too long" {
					errs++
				}
			}
		}
		// Three of four slots for eleven minutes, ten seconds each.
		if errs < 150 || errs > 3*11*6 {
			t.Errorf("%d rules of the slow organization were evaluated, %d evaluations were missed", errs, missed)
		}
	})
}

func TestTestAlertRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, func(ctx context.Context, _ metrics.Tenant, expr string, _ time.Time) ([]metrics.Sample, error) {
			switch expr {
			case "slow":
				<-ctx.Done()
				return nil, ctx.Err()
			case "bad":
				return nil, hangar.Errorf(hangar.CodeInvalid, "", "bad expression")
			}
			return []metrics.Sample{sample("1", 1)}, nil
		})
		defer func() { b.stop() }()
		report, err := b.TestAlertRules(t.Context(), acme, rules("g", "alert: A, expr: a", "alert: B, expr: bad", "alert: C, expr: c, for: 1m"))
		if err != nil || len(report.Alerts) != 2 || report.Alerts[0].State != hangar.AlertFiring || report.Alerts[1].State != hangar.AlertPending {
			t.Errorf("%+v, %v", report.Alerts, err)
		}
		if r := report.Groups[0].Rules[1]; r.Health != hangar.AlertHealthError || r.Error != "bad expression" {
			t.Errorf("rule %+v", r)
		}
		if _, err := b.TestAlertRules(t.Context(), acme, "groups: 1"); hangar.CodeOf(err) != hangar.CodeInvalid {
			t.Errorf("a bad file: %v", err)
		}
		slow := rules("g", "alert: A, expr: slow", "alert: B, expr: slow", "alert: C, expr: slow", "alert: D, expr: slow")
		done := make(chan hangar.AlertReport)
		go func() {
			report, err := b.TestAlertRules(t.Context(), acme, slow)
			if err != nil {
				t.Error(err)
			}
			done <- report
		}()
		synctest.Wait()
		if _, err := b.TestAlertRules(t.Context(), acme, slow); hangar.CodeOf(err) != hangar.CodeExhausted {
			t.Errorf("a second test: %v", err)
		}
		if _, err := b.TestAlertRules(t.Context(), other, rules("g", "alert: A, expr: a")); err != nil {
			t.Errorf("a test of another organization: %v", err)
		}
		report = <-done
		var errs []string
		for _, r := range report.Groups[0].Rules {
			errs = append(errs, string(r.Health))
		}
		if fmt.Sprint(errs) != "[err err unknown unknown]" {
			t.Errorf("health %v", errs)
		}
		if report := b.report(acme.ID); len(report.Alerts)+len(report.Groups) > 0 || len(b.told.take()) > 0 {
			t.Errorf("a test has left %+v", report)
		}
	})
}
