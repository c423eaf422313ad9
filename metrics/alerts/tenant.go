package alerts

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/time/rate"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/alerts/rulefile"
	"github.com/hangar-platform/hangar/metrics/alerts/states"
)

// The work that the templates of an organization may do, in units of rulefile.Budget.
const (
	workPerSecond = 2 << 20
	workAtOnce    = 32 << 20
)

// tenant is an organization with rules. Its goroutine, run, starts and stops its groups.
type tenant struct {
	e       *Evaluator
	id      hangar.OrgID
	before  *tenant       // the organization's previous tenant, which must end first
	stop    func()        // ends run
	done    chan struct{} // closed when run has returned
	changed chan struct{} // buffered 1
	work    *rate.Limiter

	mu     sync.Mutex // guards what follows
	wanted hangar.OrgAlerts
	gone   bool // the organization has no config any longer
	groups []*group
	fault  string // why it has no groups
	active int    // pending and firing alerts of all groups
}

func newTenant(e *Evaluator, org hangar.Org, before *tenant) *tenant {
	return &tenant{
		e: e, id: org.ID, before: before, done: make(chan struct{}), changed: make(chan struct{}, 1),
		work: rate.NewLimiter(workPerSecond, workAtOnce),
	}
}

// set gives the tenant a config.
func (t *tenant) set(config hangar.OrgAlerts) {
	t.mu.Lock()
	t.wanted = config
	t.mu.Unlock()
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// remove ends the tenant, which then forgets its states.
func (t *tenant) remove() {
	t.mu.Lock()
	t.gone = true
	t.mu.Unlock()
	t.stop()
}

func (t *tenant) removed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.gone
}

// Spend implements rulefile.Budget.
func (t *tenant) Spend(work int) bool { return t.work.AllowN(t.e.o.Now(), work) }

// metricsTenant is the tenant whose series the rules query.
func metricsTenant(org hangar.Org) metrics.Tenant {
	return metrics.Tenant{Org: org.ID, Number: uint32(org.NumericID)}
}

// run follows the config until ctx ends.
func (t *tenant) run(ctx context.Context) {
	defer close(t.done)
	defer t.stop()
	if t.before != nil {
		<-t.before.done
		t.before = nil
	}
	kept := t.load()
	var rules string
	var running *groupRun
	for {
		select {
		case <-t.changed:
		case <-ctx.Done():
			running.end()
			if t.removed() {
				t.forget()
			}
			t.e.ended(t)
			return
		}
		t.mu.Lock()
		want := t.wanted
		t.mu.Unlock()
		t.e.o.Notifier.Configure(want.Org, want.Config)
		if running != nil && rules == want.Config.Rules && running.org == want.Org {
			continue
		}
		running.end()
		maps.Copy(kept, t.records())
		rules = want.Config.Rules
		running = t.begin(ctx, want, kept)
	}
}

// load reads the stored states.
func (t *tenant) load() map[string]*record {
	kept := map[string]*record{}
	raw, err := t.e.o.States.Load(states.Alerts, t.id)
	if err != nil {
		t.e.o.Log.Error("cannot read the states of alerts", keyOrg, t.id, keyError, err)
	}
	for key, value := range raw {
		var r record
		if err := json.Unmarshal(value, &r); err != nil {
			t.e.o.Log.Error("skipping an unreadable state of an alert", keyOrg, t.id, keyError, err)
			continue
		}
		kept[key] = &r
	}
	return kept
}

// forget removes all states of the organization.
func (t *tenant) forget() {
	t.e.o.Notifier.Remove(t.id)
	if err := t.e.o.States.Forget(t.id); err != nil {
		t.e.o.Log.Warn("cannot remove the states of alerts, which stay until the next start", keyOrg, t.id, keyError, err)
	}
}

// records returns the states of all groups, by their keys.
func (t *tenant) records() map[string]*record {
	all := map[string]*record{}
	for _, g := range t.groups { // only run changes the groups
		for _, r := range g.rules {
			for fingerprint, rec := range r.records {
				all[r.key+fingerprint] = rec
			}
		}
	}
	return all
}

// groupRun is the groups of one config while they run.
type groupRun struct {
	org  hangar.Org
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// end stops the groups and waits for them.
func (r *groupRun) end() {
	if r != nil {
		r.stop()
		r.wg.Wait()
	}
}

// begin starts the groups of a config. Their rules take their records out of kept; firing alerts of
// the others are resolved.
func (t *tenant) begin(ctx context.Context, want hangar.OrgAlerts, kept map[string]*record) *groupRun {
	own, stop := context.WithCancel(ctx)
	run := &groupRun{org: want.Org, stop: stop}
	file, err := rulefile.Parse(want.Config.Rules)
	fault := ""
	if err != nil { // control has checked it, but perhaps an earlier version with looser checks
		file, fault = &rulefile.File{}, hangar.MessageOf(err)
	}
	var groups []*group
	var tell []hangar.Alert
	active := 0
	for _, parsed := range file.Groups {
		g := newGroup(t, want.Org, parsed)
		for _, r := range g.rules {
			for key, rec := range kept {
				fingerprint, ok := strings.CutPrefix(key, r.key)
				if !ok {
					continue
				}
				delete(kept, key)
				r.records[fingerprint] = rec
				if rec.State != hangar.AlertPending {
					tell = append(tell, rec.Alert)
				}
			}
			active += r.active()
		}
		groups = append(groups, g)
	}
	if fault == "" {
		tell = append(tell, t.retire(kept)...)
		clear(kept)
	}
	t.mu.Lock()
	t.groups, t.fault, t.active = groups, fault, active
	t.mu.Unlock()
	t.e.o.Notifier.Update(t.id, tell)
	for _, g := range groups {
		run.wg.Go(func() { g.run(own) })
	}
	return run
}

// retire removes the records of removed rules, and returns their alerts as resolved.
func (t *tenant) retire(records map[string]*record) []hangar.Alert {
	var tell []hangar.Alert
	gone := map[string][]byte{}
	for key, rec := range records {
		gone[key] = nil
		if rec.State == hangar.AlertFiring {
			rec.State, rec.ResolvedAt = hangar.AlertResolved, t.e.o.Now()
		}
		if rec.State == hangar.AlertResolved {
			tell = append(tell, rec.Alert)
		}
	}
	if err := t.e.o.States.Save(states.Alerts, t.id, gone); err != nil {
		t.e.o.Log.Warn("cannot remove the states of removed rules", keyOrg, t.id, keyError, err)
	}
	return tell
}

// reserve counts n more alerts, if there is room for them, and reports whether there is.
func (t *tenant) reserve(n int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n > 0 && t.active+n > hangar.MaxAlerts {
		return false
	}
	t.active += n
	return true
}

// release counts alerts that are no longer active.
func (t *tenant) release(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.active -= n
}

// report adds the groups and their alerts to a report.
func (t *tenant) report(to *hangar.AlertReport) {
	t.mu.Lock()
	groups, fault := t.groups, t.fault
	t.mu.Unlock()
	if fault != "" {
		to.Groups = append(to.Groups, hangar.AlertGroup{Error: fault, Rules: []hangar.AlertRule{}})
	}
	for _, g := range groups {
		g.report(to)
	}
}

// sortAlerts sorts by group, name and labels.
func sortAlerts(list []hangar.Alert) {
	labels := func(a hangar.Alert) string {
		var b strings.Builder
		for _, name := range slices.Sorted(maps.Keys(a.Labels)) {
			fmt.Fprintf(&b, "%s\x00%s\x00", name, a.Labels[name])
		}
		return b.String()
	}
	keys := make(map[string]string, len(list))
	for _, a := range list {
		keys[a.Fingerprint] = labels(a)
	}
	slices.SortFunc(list, func(a, b hangar.Alert) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Name, b.Name), cmp.Compare(keys[a.Fingerprint], keys[b.Fingerprint]))
	})
}

// ruleKey begins the keys of a rule's records. It stays the same as long as group, name and labels
// do. number distinguishes rules for which all these are equal.
func ruleKey(group string, r *rulefile.Rule, number int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %d %s", group, number, r.Identity()))
	return hex.EncodeToString(sum[:16]) + "/"
}
