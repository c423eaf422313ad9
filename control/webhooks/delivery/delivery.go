// Package delivery delivers the events of Machines to receivers by HTTP: to the webhooks of
// organizations, and to providers of extensions.
//
// A Dispatcher takes the events of its host from a hangar.MachineEventFeed and puts them into the
// queues of the receivers that want them, on disk, in one transaction with its position in the feed.
// From there a goroutine for each receiver delivers them: an event at least once, and the events of
// one Machine in the order in which they happened, one after another. Those of several Machines are in
// flight at the same time.
//
// A failed attempt is repeated after a growing pause. A receiver that always fails gets one attempt at
// a time. An event that has failed for hangar.WebhookRetention is given up and kept for a while as a
// dead letter, as are the oldest events beyond Limits.
//
// A receiver needs little memory for any length of its queue. Receivers share the disk and the number
// of requests in flight; an organization gets a part of either. Reading the feed does not wait for
// receivers, and recording an event does not wait for either.
package delivery

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/background"
	"github.com/hangar-platform/hangar/internal/fairsem"
	"github.com/hangar-platform/hangar/internal/pause"
)

// Keys of log records.
const (
	keyReceiver = "receiver"
	keyError    = "error"
)

// Limits bound what receivers take of the server. Zero fields stand for the defaults.
type Limits struct {
	ReceiverBytes int64 // of the events that wait for one receiver
	OrgBytes      int64 // of those of all receivers of one organization
	TotalBytes    int64 // of all
	InFlight      int   // requests at a time
	OrgInFlight   int   // of all receivers of one organization
	PerReceiver   int   // of one receiver
	Log           int   // deliveries of one receiver that are kept after they succeeded
	Dead          int   // dead letters of one receiver that are kept
	DeadBytes     int64 // size of a receiver's dead letters
}

// WithDefaults returns the limits with the defaults in place of zero fields.
func (l Limits) WithDefaults() Limits {
	return Limits{
		ReceiverBytes: cmp.Or(l.ReceiverBytes, 16<<20),
		OrgBytes:      cmp.Or(l.OrgBytes, 32<<20),
		TotalBytes:    cmp.Or(l.TotalBytes, 512<<20),
		InFlight:      cmp.Or(l.InFlight, 1024),
		OrgInFlight:   cmp.Or(l.OrgInFlight, 32),
		PerReceiver:   cmp.Or(l.PerReceiver, 8),
		Log:           cmp.Or(l.Log, 200),
		Dead:          cmp.Or(l.Dead, 1000),
		DeadBytes:     cmp.Or(l.DeadBytes, 1<<20),
	}
}

// Timing has the timeouts and pauses. Zero fields stand for the defaults.
type Timing struct {
	Attempt    time.Duration // for the answer to one attempt: 10 s
	FirstPause time.Duration // after an attempt that failed: 1 s; it doubles
	LastPause  time.Duration // 5 min
	Retention  time.Duration // hangar.WebhookRetention
	Flush      time.Duration // between writes of successful deliveries to the disk: 50 ms
}

func (t Timing) withDefaults() Timing {
	return Timing{
		Attempt:    cmp.Or(t.Attempt, 10*time.Second),
		FirstPause: cmp.Or(t.FirstPause, time.Second),
		LastPause:  cmp.Or(t.LastPause, 5*time.Minute),
		Retention:  cmp.Or(t.Retention, hangar.WebhookRetention),
		Flush:      cmp.Or(t.Flush, 50*time.Millisecond),
	}
}

// Dial connects to an address, host:port.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Options of a Dispatcher.
type Options struct {
	Dir  string // of the queues; Open makes it
	Host hangar.HostID
	Feed hangar.MachineEventFeed
	// Receivers are the feeds of receivers of events.
	Receivers []hangar.EventReceiverFeed
	// Dial connects to receivers that tenants name, and refuses addresses that they may not call.
	// DialPrivate connects to receivers with AllowPrivate.
	Dial, DialPrivate Dial
	// Admit refuses a write of so many bytes to a full disk; nil: nothing is refused.
	Admit  func(bytes int64) error
	Limits Limits
	Timing Timing
	Log    *slog.Logger
	Now    func() time.Time // nil: time.Now
	// NoSync leaves out every fsync, for tests.
	NoSync bool
}

// Dispatcher delivers the events of one host.
type Dispatcher struct {
	o       Options
	limits  Limits
	timing  Timing
	counts  *counts
	store   *store // set by Open
	slots   *fairsem.Semaphore[string]
	public  *http.Client
	private *http.Client
	work    *background.Group // set by Open

	mu        sync.Mutex // guards what follows
	known     []bool     // of Options.Receivers: whether the feed has yielded a set
	receivers map[string]*receiver
	byOrg     map[hangar.OrgID][]*receiver // that want events of all of an organization
	byApp     map[hangar.AppID][]*receiver // that want events of an App
	orgs      map[string]chan struct{}     // slots of organizations
	changed   chan struct{}                // closed when the receivers change
}

var _ hangar.EventDelivery = (*Dispatcher)(nil)

// New returns a Dispatcher that Open makes usable.
func New(o Options) *Dispatcher {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Admit == nil {
		o.Admit = func(int64) error { return nil }
	}
	limits := o.Limits.WithDefaults()
	return &Dispatcher{
		o: o, limits: limits, timing: o.Timing.withDefaults(), counts: newCounts(), slots: fairsem.New[string](limits.InFlight),
		public: newClient(o.Dial), private: newClient(o.DialPrivate),
		known: make([]bool, len(o.Receivers)), receivers: map[string]*receiver{}, byOrg: map[hangar.OrgID][]*receiver{},
		byApp: map[hangar.AppID][]*receiver{}, orgs: map[string]chan struct{}{}, changed: make(chan struct{}),
	}
}

// The bounds of connections.
const (
	maxAnswerHeader = 16 << 10 // bytes
	maxAnswer       = 16 << 10 // bytes of a body that are read, so that the connection can be reused
	maxIdle         = 1024     // connections
	maxIdlePerHost  = 128      // of them, as several receivers may be at one host
	idleTimeout     = 30 * time.Second
)

var errNoDialer = errors.New("there is no dialer")

func newClient(dial Dial) *http.Client {
	if dial == nil { // http.Transport would then call every address
		dial = func(context.Context, string, string) (net.Conn, error) { return nil, errNoDialer }
	}
	return &http.Client{
		Transport: &http.Transport{
			DialContext: dial, DisableCompression: true, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
			MaxResponseHeaderBytes: maxAnswerHeader, MaxIdleConns: maxIdle, MaxIdleConnsPerHost: maxIdlePerHost, IdleConnTimeout: idleTimeout,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Open opens the queues. Run delivers the events that they hold.
func (d *Dispatcher) Open(ctx context.Context) (err error) {
	d.store, err = openStore(filepath.Join(d.o.Dir, "webhooks.db"), storeOptions{
		limits: d.limits, admit: d.o.Admit, now: d.o.Now, log: d.o.Log, noSync: d.o.NoSync, counts: d.counts, evicted: d.evicted,
	})
	if err != nil {
		return err
	}
	d.work = background.New(ctx)
	return nil
}

// Close stops the deliveries of Run, and closes the queues. It may be repeated.
func (d *Dispatcher) Close() error {
	if d.work == nil {
		return nil
	}
	d.work.Stop()
	d.work.Wait()
	d.public.CloseIdleConnections()
	d.private.CloseIdleConnections()
	return d.store.close()
}

// Run delivers until ctx ends.
func (d *Dispatcher) Run(ctx context.Context) error {
	for i, feed := range d.o.Receivers {
		d.work.Go(func() { d.follow(d.work.Context, i, feed) })
	}
	d.work.Go(func() { d.store.flushes(d.work.Context, d.timing.Flush) })
	d.work.Go(func() { d.ingest(d.work.Context) })
	<-ctx.Done()
	d.work.Stop()
	d.work.Wait()
	return nil
}

// follow keeps the receivers of one feed.
func (d *Dispatcher) follow(ctx context.Context, i int, feed hangar.EventReceiverFeed) {
	_ = pause.Between(ctx, pause.Feeds, func(ctx context.Context) error {
		for set, err := range feed.WatchEventReceivers(ctx) {
			if err != nil {
				return err
			}
			d.set(i, set)
		}
		return nil
	}, func(err error) {
		d.o.Log.Warn("receivers of events cannot be followed: what is known of them counts on", keyError, err)
	})
}

// set installs the receivers of the i-th feed, and removes the queues of receivers that are gone.
func (d *Dispatcher) set(i int, set []hangar.EventReceiver) {
	for _, id := range d.replace(i, set) {
		if err := d.store.remove(id); err != nil {
			d.o.Log.Error("queue of a receiver that is gone cannot be removed", keyReceiver, id, keyError, err)
		}
	}
}

// replace installs the receivers of the i-th feed. It returns the receivers whose queues are to be
// removed, which must happen without d.mu: the store calls evicted while it writes.
func (d *Dispatcher) replace(i int, set []hangar.EventReceiver) (gone []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	unreadable := map[hangar.OrgID]bool{}
	there := map[string]bool{}
	for _, spec := range set {
		if spec.Unreadable {
			unreadable[spec.Org] = true
			continue
		}
		there[spec.ID] = true
		r := d.receivers[spec.ID]
		if r == nil {
			r = newReceiver(d, i, spec)
			if !d.work.Go(func() { r.run(d.work.Context) }) {
				return nil // it ends, and a queue without a receiver is not one of a receiver that is gone
			}
			d.receivers[spec.ID] = r
			continue
		}
		r.update(spec)
	}
	for id, r := range d.receivers {
		if r.feed == i && !there[id] && !unreadable[r.spec.Load().Org] {
			r.end()
			delete(d.receivers, id)
		}
	}
	d.known[i] = true
	d.index()
	close(d.changed)
	d.changed = make(chan struct{})
	return d.orphans(unreadable)
}

// index rebuilds the maps of receivers by organization and App. d.mu is held.
func (d *Dispatcher) index() {
	clear(d.byOrg)
	clear(d.byApp)
	slots := make(map[string]chan struct{}, len(d.orgs))
	defer func() { d.orgs = slots }()
	for _, r := range d.receivers {
		spec := r.spec.Load()
		if own, ok := d.orgs[slotKey(spec)]; ok {
			slots[slotKey(spec)] = own
		}
		if spec.AllOf != "" {
			d.byOrg[spec.AllOf] = append(d.byOrg[spec.AllOf], r)
			continue
		}
		for _, app := range spec.Apps {
			d.byApp[app] = append(d.byApp[app], r)
		}
	}
}

// orphans returns the receivers that have a queue and are gone, once every feed has yielded its receivers. d.mu is
// held.
func (d *Dispatcher) orphans(unreadable map[hangar.OrgID]bool) (gone []string) {
	if slices.Contains(d.known, false) {
		return nil
	}
	for id, org := range d.store.queues() {
		if d.receivers[id] == nil && !unreadable[org] {
			gone = append(gone, id)
		}
	}
	return gone
}

// allKnown waits until every feed has yielded its receivers.
func (d *Dispatcher) allKnown(ctx context.Context) error {
	return d.await(ctx, func() bool { return !slices.Contains(d.known, false) })
}

// await waits until a condition holds. It checks the condition, with d.mu held, whenever the
// receivers change.
func (d *Dispatcher) await(ctx context.Context, holds func() bool) error {
	for {
		d.mu.Lock()
		ok, changed := holds(), d.changed
		d.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// AwaitReceiver implements hangar.EventDelivery.
func (d *Dispatcher) AwaitReceiver(ctx context.Context, id string, version uint64) error {
	return d.await(ctx, func() bool {
		r := d.receivers[id]
		return r != nil && r.spec.Load().Version >= version
	})
}

// receiver returns the receiver with an id, or nil.
func (d *Dispatcher) receiver(id string) *receiver {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.receivers[id]
}

// evicted reports to a receiver that the store has removed the entries of its queue up to a number.
func (d *Dispatcher) evicted(id string, upTo uint64) {
	if r := d.receiver(id); r != nil {
		r.evict(upTo)
	}
}

// slotKey is the key by which the requests to a receiver are bounded: its organization, or itself.
func slotKey(spec *hangar.EventReceiver) string {
	if spec.Org == "" {
		return spec.ID
	}
	return string(spec.Org)
}

// orgSlots returns the slots of an organization, or of a receiver that has bounds of its own.
func (d *Dispatcher) orgSlots(key string) chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	slots := d.orgs[key]
	if slots == nil {
		slots = make(chan struct{}, d.limits.OrgInFlight)
		d.orgs[key] = slots
	}
	return slots
}
