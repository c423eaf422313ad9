// Package notify sends alerts to the receivers of organizations: webhooks and e-mail.
//
// A Notifier receives the firing and the resolved alerts, and the receivers of each organization.
// Every receiver has a worker and groups of its own, so that one that hangs or fails does not delay
// others. Its queue has the latest state of each alert, not a list of changes, and so is bounded by
// the number of alerts. Alerts are grouped, delayed and repeated as in Alertmanager: a group is
// checked some time after its first alert and then at every interval. It is sent if a part of it was
// not sent yet, or if the last notification was long ago.
//
// A Ledger records what was sent, so that a restart repeats nothing. If the process dies between
// sending and recording, a notification is sent twice; none is lost.
//
// Addresses come from tenants. Webhooks are called with the Dial of Options, which decides about
// addresses, and redirects are not followed. Of their responses, only the status is shown. E-mail
// goes through the server of the operator, with a limit per organization.
package notify

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/hangar-platform/hangar"
)

// Ledger records what was sent. After an error it is sent again.
type Ledger interface {
	// LoadNotices returns all values of an organization by their keys.
	LoadNotices(org hangar.OrgID) (map[string][]byte, error)
	// SaveNotices writes values; nil removes one.
	SaveNotices(org hangar.OrgID, values map[string][]byte) error
}

// Options of a Notifier.
type Options struct {
	Ledger Ledger
	// Dial connects to webhooks. It must refuse addresses that tenants must not reach.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	Mail *Mail // nil: e-mail is not sent
	// ExternalURL is the URL of the platform's API, without a trailing slash. Empty: links have only a
	// path.
	ExternalURL string
	Log         *slog.Logger
	Now         func() time.Time // nil: time.Now
}

// The rate at which an organization sends e-mail, counted by recipients.
const (
	mailBurst    = 20
	mailInterval = 2 * time.Minute // after which one more is allowed
)

// Notifier sends alerts. Its methods may be called from many goroutines, and do not wait for
// receivers.
type Notifier struct {
	o       Options
	webhook *webhooks
	smtp    *mailer
	counts  *prometheus.CounterVec

	mu      sync.Mutex      // guards what follows
	ctx     context.Context //nolint:containedctx // of the workers; nil before Run
	orgs    map[hangar.OrgID]*recipient
	workers sync.WaitGroup
}

// recipient is an organization with its receivers.
type recipient struct {
	org       hangar.Org
	grouping  hangar.AlertGrouping
	receivers []*receiver
	firing    map[string]hangar.Alert // by fingerprint; for new receivers
	mails     *rate.Limiter
}

// New returns a Notifier, whose workers start with Run.
func New(o Options) *Notifier {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Notifier{o: o, webhook: newWebhooks(o.Dial), smtp: newMailer(o.Mail), counts: newCounts(), orgs: map[hangar.OrgID]*recipient{}}
}

// Run sends notifications until ctx ends, and returns when all workers have ended.
func (n *Notifier) Run(ctx context.Context) error {
	n.mu.Lock()
	n.ctx = ctx
	for _, o := range n.orgs {
		for _, r := range o.receivers {
			n.start(r)
		}
	}
	n.mu.Unlock()
	<-ctx.Done()
	n.mu.Lock()
	for _, o := range n.orgs {
		for _, r := range o.receivers {
			r.stop()
		}
	}
	n.orgs = map[hangar.OrgID]*recipient{}
	n.mu.Unlock()
	n.workers.Wait()
	return nil
}

// start starts the worker of a receiver. The caller holds mu.
func (n *Notifier) start(r *receiver) {
	if n.ctx == nil || n.ctx.Err() != nil {
		return
	}
	ctx, stop := context.WithCancel(n.ctx)
	r.stop = stop
	n.workers.Go(func() { r.run(ctx) })
}

// Configure sets the receivers of an organization. An unchanged one continues; a new or changed one
// receives the firing alerts.
func (n *Notifier) Configure(org hangar.Org, config hangar.AlertConfig) {
	notices := n.notices(org.ID)
	receivers := n.configure(org, config, notices)
	n.forget(org.ID, notices, receivers)
}

func (n *Notifier) configure(org hangar.Org, config hangar.AlertConfig, notices map[string][]byte) []*receiver {
	n.mu.Lock()
	defer n.mu.Unlock()
	o := n.orgs[org.ID]
	if o == nil {
		o = &recipient{firing: map[string]hangar.Alert{}, mails: rate.NewLimiter(rate.Every(mailInterval), mailBurst)}
		n.orgs[org.ID] = o
	}
	grouping := config.Grouping.WithDefaults()
	same := o.org.Slug == org.Slug && reflect.DeepEqual(o.grouping, grouping)
	o.org, o.grouping = org, grouping
	old := slices.Clone(o.receivers)
	o.receivers = nil
	for _, spec := range config.Receivers {
		if i := slices.IndexFunc(old, func(r *receiver) bool { return same && equal(r.spec, spec) }); i >= 0 {
			o.receivers = append(o.receivers, old[i])
			old = slices.Delete(old, i, i+1)
			continue
		}
		r := newReceiver(n, o, spec, notices)
		o.receivers = append(o.receivers, r)
		r.update(slices.Collect(maps.Values(o.firing)))
		n.start(r)
	}
	for _, r := range old {
		r.stop()
	}
	return o.receivers
}

// equal reports whether two receivers are the same, secrets included.
func equal(a, b hangar.AlertReceiver) bool {
	secret := func(r hangar.AlertReceiver) string {
		if r.Webhook == nil {
			return ""
		}
		return r.Webhook.Secret.Reveal()
	}
	return a.Name == b.Name && target(a) == target(b) && secret(a) == secret(b) &&
		a.WantsResolved() == b.WantsResolved() && maps.Equal(a.Match, b.Match)
}

// notices are the notices of what was sent to an organization.
func (n *Notifier) notices(org hangar.OrgID) map[string][]byte {
	notices, err := n.o.Ledger.LoadNotices(org)
	if err != nil {
		n.o.Log.Error("cannot read the sent notifications: they may be repeated", keyOrg, org, keyError, err)
	}
	return notices
}

// forget removes the notices of receivers that an organization no longer has.
func (n *Notifier) forget(org hangar.OrgID, notices map[string][]byte, receivers []*receiver) {
	gone := map[string][]byte{}
	for key := range notices {
		if !slices.ContainsFunc(receivers, func(r *receiver) bool { return r.owns(key) }) {
			gone[key] = nil
		}
	}
	if err := n.o.Ledger.SaveNotices(org, gone); err != nil {
		n.o.Log.Warn("cannot remove the notices of old receivers", keyOrg, org, keyError, err)
	}
}

// Update passes on alerts that have started to fire, have changed while they fire, or are resolved.
func (n *Notifier) Update(org hangar.OrgID, alerts []hangar.Alert) {
	n.mu.Lock()
	defer n.mu.Unlock()
	o := n.orgs[org]
	if o == nil {
		return
	}
	for _, a := range alerts {
		if a.State == hangar.AlertFiring {
			o.firing[a.Fingerprint] = a
		} else {
			delete(o.firing, a.Fingerprint)
		}
	}
	for _, r := range o.receivers {
		r.update(alerts)
	}
}

// Remove ends the receivers of an organization, and drops their queues.
func (n *Notifier) Remove(org hangar.OrgID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if o := n.orgs[org]; o != nil {
		for _, r := range o.receivers {
			r.stop()
		}
		delete(n.orgs, org)
	}
}

// Status returns the statuses of an organization's receivers, in the order of its config.
func (n *Notifier) Status(org hangar.OrgID) []hangar.AlertReceiverStatus {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := []hangar.AlertReceiverStatus{}
	if o := n.orgs[org]; o != nil {
		for _, r := range o.receivers {
			list = append(list, r.report())
		}
	}
	return list
}

// Keys of log records.
const (
	keyOrg      = "org"
	keyReceiver = "receiver"
	keyError    = "error"
)
