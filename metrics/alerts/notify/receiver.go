package notify

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
)

// The retries of a failed notification.
const (
	maxAttempts = 8 // after which the group waits for its next interval
	firstRetry  = time.Second
	lastRetry   = time.Minute
	mailDelay   = time.Minute // after which the limit of e-mails is checked again
	sendTimeout = 10 * time.Second
)

// maxHeld bounds the alerts that a receiver holds: those that may fire, and as many resolved ones
// that were not sent yet.
const maxHeld = 2 * hangar.MaxAlerts

// receiver is one receiver of an organization: its groups, and the worker that sends them.
type receiver struct {
	n     *Notifier
	org   hangar.Org
	spec  hangar.AlertReceiver
	group hangar.AlertGrouping // with defaults
	allow func(now time.Time, mails int) bool
	id    string // prefix of its notices: the name and the target
	stop  context.CancelFunc
	wake  chan struct{} // buffered 1

	mu       sync.Mutex // guards what follows
	groups   map[string]*group
	notices  map[string]notice // from before a restart, of groups that have no alert yet, by key
	held     int               // alerts in all groups
	retryAt  time.Time         // nothing is sent before this time
	failures int               // consecutive failures
	status   hangar.AlertReceiverStatus
}

// group is a set of alerts that are sent together.
type group struct {
	key      string
	labels   map[string]string
	alerts   map[string]hangar.Alert // by fingerprint; firing, or resolved but not sent yet
	sent     notice
	due      time.Time // time of the next check
	attempts int       // of the current notification
	mails    mails     // of it; only the worker uses them
}

// notice records what was sent about a group.
type notice struct {
	At     time.Time `json:"at"`
	Firing []string  `json:"firing"` // fingerprints, sorted
}

// fired reports whether the receiver was notified that an alert fires.
func (n notice) fired(a hangar.Alert) bool {
	_, found := slices.BinarySearch(n.Firing, a.Fingerprint)
	return found
}

// target is where a receiver sends to.
func target(r hangar.AlertReceiver) string {
	switch {
	case r.Webhook != nil:
		return "webhook " + r.Webhook.URL
	case r.Email != nil:
		return "email " + strings.Join(r.Email.To, ",")
	}
	return ""
}

// newReceiver returns a receiver that continues from its notices.
func newReceiver(n *Notifier, o *recipient, spec hangar.AlertReceiver, notices map[string][]byte) *receiver {
	sum := sha256.Sum256([]byte(target(spec)))
	r := &receiver{
		n: n, org: o.org, spec: spec, group: o.grouping, id: spec.Name + "/" + hex.EncodeToString(sum[:8]) + "/",
		stop: func() {}, wake: make(chan struct{}, 1),
		groups: map[string]*group{}, notices: map[string]notice{}, status: hangar.AlertReceiverStatus{Name: spec.Name},
		allow: o.mails.AllowN,
	}
	for key, raw := range notices {
		var one notice
		if r.owns(key) && json.Unmarshal(raw, &one) == nil {
			r.notices[strings.TrimPrefix(key, r.id)] = one
		}
	}
	return r
}

// owns reports whether a notice is this receiver's.
func (r *receiver) owns(key string) bool { return strings.HasPrefix(key, r.id) }

// update passes alerts to the groups.
func (r *receiver) update(alerts []hangar.Alert) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, changed := r.n.o.Now(), false
	for _, a := range alerts {
		if r.spec.Matches(a.Labels) && r.put(a, now) {
			changed = true
		}
	}
	if changed {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// put adds an alert to its group, and reports whether it changes anything.
func (r *receiver) put(a hangar.Alert, now time.Time) bool {
	labels := groupLabels(r.group.By, a.Labels)
	key := groupKey(labels)
	g := r.groups[key]
	if g == nil {
		sent, known := r.notices[key]
		if a.State != hangar.AlertFiring && (!known || !sent.fired(a)) {
			return false // its firing was never notified
		}
		delete(r.notices, key)
		g = &group{key: key, labels: labels, alerts: map[string]hangar.Alert{}, sent: sent, due: now.Add(time.Duration(r.group.Wait))}
		r.groups[key] = g
	}
	if _, known := g.alerts[a.Fingerprint]; !known {
		if a.State != hangar.AlertFiring && !g.sent.fired(a) {
			return false
		}
		if r.held >= maxHeld {
			r.status.Dropped++
			return false
		}
		r.held++
	}
	g.alerts[a.Fingerprint] = a
	return true
}

// run sends groups when they are due, until ctx ends.
func (r *receiver) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		g, wait, some := r.next()
		if g != nil {
			r.flush(ctx, g)
			continue
		}
		var due <-chan time.Time
		if some {
			timer.Reset(wait)
			due = timer.C
		}
		select {
		case <-due:
		case <-r.wake:
		case <-ctx.Done():
		}
	}
}

// next returns the group that is due, or else how long to wait for the next one. some is false
// without groups.
func (r *receiver) next() (due *group, wait time.Duration, some bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var first *group
	for _, g := range r.groups {
		if first == nil || cmp.Or(g.due.Compare(first.due), cmp.Compare(g.key, first.key)) < 0 {
			first = g
		}
	}
	if first == nil {
		return nil, 0, false
	}
	at := first.due
	if r.retryAt.After(at) {
		at = r.retryAt
	}
	if wait = at.Sub(r.n.o.Now()); wait > 0 {
		return nil, wait, true
	}
	return first, 0, true
}

// flush sends a group if there is something to send.
func (r *receiver) flush(ctx context.Context, g *group) {
	r.mu.Lock()
	m, worth := r.message(g)
	r.mu.Unlock()
	var err error
	if worth {
		limit, cancel := context.WithTimeout(ctx, sendTimeout)
		err = r.send(limit, m)
		cancel()
		if ctx.Err() != nil {
			return // it is sent after the restart
		}
		r.count(err)
	}
	if r.sent(g, m, worth, err) {
		r.record(g)
	}
}

// sent records the result of sending, and reports whether the notice of the group has changed.
func (r *receiver) sent(g *group, m *message, worth bool, err error) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.n.o.Now()
	switch {
	case !worth:
		r.settle(g, m)
		// For a receiver without notifications of ends, an alert that fires again is new.
		before := len(g.sent.Firing)
		g.sent.Firing = slices.DeleteFunc(g.sent.Firing, func(fingerprint string) bool {
			_, known := g.alerts[fingerprint]
			return !known
		})
		changed = len(g.sent.Firing) < before
	case err == nil, isUnreached(err):
		r.failures, r.retryAt, r.status.Error, r.status.SentAt = 0, time.Time{}, "", now
		if err != nil {
			r.status.FailedAt, r.status.Error = now, err.Error()
		}
		g.sent = notice{At: now, Firing: fingerprints(m.firing)}
		r.settle(g, m)
		changed = true
	case errors.Is(err, errTooManyMails):
		r.status.FailedAt, r.status.Error, r.retryAt = now, err.Error(), now.Add(mailDelay)
		return false
	default:
		r.status.FailedAt, r.status.Error = now, err.Error()
		r.failures++
		g.attempts++
		r.retryAt = now.Add(backoff(r.failures))
		if _, refused := errors.AsType[refusal](err); !refused && g.attempts < maxAttempts {
			return false
		}
		r.status.Dropped++
		r.n.counts.WithLabelValues(kindOf(r.spec), resultDropped).Inc()
		r.settle(g, m)
		if len(g.mails.received) > 0 { // who has the e-mail does not get it at each interval
			g.sent = notice{At: now, Firing: fingerprints(m.firing)}
			changed = true
		}
	}
	g.attempts, g.mails = 0, mails{}
	g.due = now.Add(time.Duration(r.group.Interval))
	if len(g.alerts) == 0 {
		delete(r.groups, g.key)
		changed = changed || len(g.sent.Firing) > 0
		g.sent = notice{}
	}
	return changed
}

// settle removes the alerts from a group that were resolved when m was made, and still are.
func (r *receiver) settle(g *group, m *message) {
	for _, a := range m.resolved {
		if now, ok := g.alerts[a.Fingerprint]; ok && now.State != hangar.AlertFiring && now.ResolvedAt.Equal(a.ResolvedAt) {
			delete(g.alerts, a.Fingerprint)
			r.held--
		}
	}
}

// record stores the notice of a group, which only the worker changes.
func (r *receiver) record(g *group) {
	var raw []byte
	if len(g.sent.Firing) > 0 {
		raw, _ = json.Marshal(g.sent) //nolint:errchkjson // cannot fail for this type
	}
	err := r.n.o.Ledger.SaveNotices(r.org.ID, map[string][]byte{r.id + g.key: raw})
	if err != nil {
		r.n.o.Log.Warn("cannot record a notification: it may be repeated", keyOrg, r.org.ID, keyReceiver, r.spec.Name, keyError, err)
	}
}

// message returns the message about a group, and whether it is worth sending.
func (r *receiver) message(g *group) (m *message, worth bool) {
	m = &message{group: g.key, labels: g.labels, mails: &g.mails}
	for _, a := range g.alerts {
		if a.State == hangar.AlertFiring {
			m.firing = append(m.firing, a)
		} else {
			m.resolved = append(m.resolved, a)
		}
	}
	order := func(a, b hangar.Alert) int {
		return cmp.Or(a.FiredAt.Compare(b.FiredAt), cmp.Compare(a.Fingerprint, b.Fingerprint))
	}
	slices.SortFunc(m.firing, order)
	slices.SortFunc(m.resolved, order)
	isNew := func(a hangar.Alert) bool { return !g.sent.fired(a) }
	switch {
	case slices.ContainsFunc(m.firing, isNew):
		worth = true
	case r.spec.WantsResolved() && slices.ContainsFunc(m.resolved, g.sent.fired):
		worth = true
	case len(m.firing) > 0:
		worth = !r.n.o.Now().Before(g.sent.At.Add(time.Duration(r.group.Repeat)))
	}
	m.all = m.firing
	if r.spec.WantsResolved() {
		m.all = slices.Concat(m.firing, m.resolved)
	}
	return m, worth
}

func fingerprints(alerts []hangar.Alert) []string {
	var list []string
	for _, a := range alerts {
		list = append(list, a.Fingerprint)
	}
	slices.Sort(list)
	return list
}

// backoff is the pause after a number of consecutive failures: a random time between half and all of
// a duration that doubles.
func backoff(failures int) time.Duration {
	d := min(firstRetry<<min(failures-1, 10), lastRetry)
	return d/2 + rand.N(d/2+1) //nolint:gosec // it only spreads retries
}

// send sends a message once.
func (r *receiver) send(ctx context.Context, m *message) error {
	if r.spec.Email != nil {
		to := m.mails.missing(m, r.spec.Email.To)
		if !r.allow(r.n.o.Now(), len(to)) {
			return errTooManyMails
		}
		return r.n.smtp.send(ctx, r.org, to, m, r.n.o.ExternalURL, r.logCause)
	}
	return r.n.webhook.send(ctx, *r.spec.Webhook, m.payload(r.spec.Name, r.org, r.n.o.ExternalURL))
}

// logCause logs why an e-mail was rejected, which only the operator may see.
func (r *receiver) logCause(err error) {
	r.n.o.Log.Warn("e-mail of alerts was not sent", keyOrg, r.org.ID, keyReceiver, r.spec.Name, keyError, err)
}

// report returns the status.
func (r *receiver) report() hangar.AlertReceiverStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	status := r.status
	for _, g := range r.groups {
		for _, a := range g.alerts {
			if g.sent.fired(a) != (a.State == hangar.AlertFiring) {
				status.Waiting++
			}
		}
	}
	return status
}

// errTooManyMails means that an e-mail has to wait.
var errTooManyMails = errors.New("the organization has sent as many e-mails as it may at the moment: the next one waits")

func isUnreached(err error) bool {
	_, ok := errors.AsType[unreached](err)
	return ok
}

// refusal is an error that persists when the same message is sent again.
type refusal struct{ error }

// Unwrap returns the error.
func (r refusal) Unwrap() error { return r.error }
