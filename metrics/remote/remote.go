// Package remote writes samples to a metrics.Store by the remote write protocol of Prometheus
// 1.0, and keeps them on disk while the store is away.
//
// Promises. Samples of a tenant arrive in the order in which they were written; after a crash or a
// lost response some arrive twice. A batch that the store rejects as invalid is dropped and counted.
// While the store fails, samples go to a spool: one directory for each tenant, with segments of
// checksummed records that survive kill -9. Each tenant and the whole spool have bounds. Beyond them,
// the oldest segment of the largest tenant is dropped. Tenants take turns at the store, one request
// each, so the backlog of one tenant delays the samples of another by one request.
//
// A store that accepts samples of several tenants in one request (metrics.Store, SharedWriteURL) gets
// them that way: samples in memory wait up to Limits.Gather for those of others. Only the Writer
// names the owner of a series: it sets metrics.OrgLabel, and drops that label of a sample. If the
// store rejects a shared request, each tenant's part is sent alone, so that faulty samples of one do
// not affect the others. Samples from disk are always sent alone.
//
// Unsent samples take at most Limits.PendingBytes of memory. On a full disk, samples are dropped, and
// nothing stops.
//
// Concurrency. Write may be called from many goroutines. Run has Limits.Senders senders; at most one
// of them serves a tenant at a time. One lock guards the samples of a tenant and another the queue of
// tenants; they are never held together.
package remote

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/internal/durable"
	"github.com/hangar-platform/hangar/internal/pqueue"
	"github.com/hangar-platform/hangar/metrics"
)

// Limits bound a Writer. Zero fields mean the defaults.
type Limits struct {
	TenantSpoolBytes int64         // of one tenant on disk; default 64 MiB
	SpoolBytes       int64         // of all tenants on disk; default 1 GiB
	SpoolAge         time.Duration // of a segment since its last record; default 24 h
	TenantPending    int64         // bytes of one tenant in memory; default 1 MiB
	PendingBytes     int64         // of all tenants in memory; default 16 MiB
	Senders          int           // concurrent requests; default 4
	// Gather is how long samples wait for those of other tenants, if they can share a request; default
	// 1 s. GatherBytes is the amount of samples that ends the wait; default 512 KiB.
	Gather      time.Duration
	GatherBytes int64
}

func (l Limits) orDefault() Limits {
	return Limits{
		TenantSpoolBytes: cmp.Or(l.TenantSpoolBytes, 64<<20),
		SpoolBytes:       cmp.Or(l.SpoolBytes, 1<<30),
		SpoolAge:         cmp.Or(l.SpoolAge, 24*time.Hour),
		TenantPending:    cmp.Or(l.TenantPending, 1<<20),
		PendingBytes:     cmp.Or(l.PendingBytes, 16<<20),
		Senders:          cmp.Or(l.Senders, 4),
		Gather:           cmp.Or(l.Gather, time.Second),
		GatherBytes:      cmp.Or(l.GatherBytes, 512<<10),
	}
}

// Options of a Writer.
type Options struct {
	Store  metrics.Store
	Dir    string // of the spool, for only one Writer; Open creates it
	Limits Limits
	// Admit returns an error for bytes that the disk has no room for, like diskspace.Space.Admit;
	// optional.
	Admit func(bytes int64) error
	Log   *slog.Logger
}

// Pauses after a failure, which double from the first to the last.
const (
	minPause = time.Second
	maxPause = 30 * time.Second
)

// Writer implements metrics.Writer. Use New, Open, Run and, when Run has ended, Close.
type Writer struct {
	o      Options
	limits Limits
	shared string        // URL of requests of several tenants, or ""
	wake   chan struct{} // buffered 1: turns or the store's state have changed
	counts counts

	mu      sync.Mutex // guards what follows
	closed  bool
	tenants map[metrics.Tenant]*queue
	// The queues that have samples to send and are not being served: those in turns by themselves, and
	// those in gathering with others, once Limits.Gather has passed.
	turns, gathering *pqueue.Queue[*queue]

	sending int64         // bytes of the queues that are being served
	away    bool          // the store does not respond
	probing bool          // one sender tests whether it still is
	pause   time.Duration // the last pause after a failed request
	until   time.Time     // time of the next attempt
	written uint64        // requests that the store has accepted
}

// New returns a Writer that has nothing to send.
func New(o Options) *Writer {
	inTurn := func() *pqueue.Queue[*queue] {
		return pqueue.New(
			func(a, b *queue) bool { return a.due.Before(b.due) },
			func(q *queue) *pqueue.Place { return &q.place },
		)
	}
	return &Writer{
		o: o, limits: o.Limits.orDefault(), shared: o.Store.SharedWriteURL(), wake: make(chan struct{}, 1), counts: newCounts(),
		tenants: make(map[metrics.Tenant]*queue), turns: inTurn(), gathering: inTurn(),
	}
}

// Open finds the samples that an earlier Writer has left in the spool.
func (w *Writer) Open() error {
	if err := durable.MkdirAll(w.o.Dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(w.o.Dir)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range entries {
		tenant, ok := parseTenantDir(e.Name())
		if !ok || !e.IsDir() {
			w.o.Log.Warn("ignoring a directory in the spool of metrics that is not a tenant's", "name", e.Name())
			continue
		}
		q := w.queue(tenant)
		if err := q.log.load(); err != nil {
			return err
		}
		w.schedule(q)
	}
	return nil
}

// Write implements metrics.Writer. It waits for the disk, but never for the store. It returns
// CodeUnavailable after Close and CodeInvalid for a tenant without a valid id. Samples that are lost
// to a bound or a full disk are counted; they are not an error.
func (w *Writer) Write(_ context.Context, tenant metrics.Tenant, samples []metrics.Sample) error {
	if !validOrg(tenant.Org) {
		return hangar.Errorf(hangar.CodeInvalid, "", "cannot write metrics of an organization without a valid id")
	}
	if len(samples) == 0 {
		return nil
	}
	q, away, err := w.enter(tenant)
	if err != nil {
		return err
	}
	defer w.leave(q)
	q.mu.Lock()
	for len(samples) > 0 {
		b, n := encode(samples, q.label)
		q.add(batch{b, n})
		samples = samples[n:]
	}
	if away || q.backlogged() || q.pendingBytes > w.limits.TenantPending || w.counts.pending.Load() > w.limits.PendingBytes {
		q.spill()
	}
	q.mu.Unlock()
	w.enforce()
	return nil
}

// Waiting returns how many bytes of samples the store has not accepted yet: those in memory,
// uncompressed, and those in the spool, compressed.
func (w *Writer) Waiting() (memory, disk int64) {
	return w.counts.pending.Load(), w.counts.spooled.Load()
}

// enter returns the queue of a tenant, which is not removed until leave.
func (w *Writer) enter(tenant metrics.Tenant) (q *queue, away bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, false, hangar.Errorf(hangar.CodeUnavailable, "", "metrics cannot be written: the platform shuts down")
	}
	q = w.queue(tenant)
	q.users++
	return q, w.away, nil
}

func (w *Writer) leave(q *queue) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q.users--
	w.schedule(q)
}

// queue returns the queue of a tenant. w.mu is held.
func (w *Writer) queue(tenant metrics.Tenant) *queue {
	q := w.tenants[tenant]
	if q == nil {
		q = newQueue(w, tenant)
		w.tenants[tenant] = q
	}
	return q
}

// schedule gives a queue its turn if it has something to send, and otherwise forgets it. w.mu is
// held.
func (w *Writer) schedule(q *queue) {
	switch {
	case q.users > 0 || q.serving:
	case q.place.Queued():
		if q.gathers && !w.gathers(q) { // it was moved to disk meanwhile, or has become large
			w.gathering.Remove(q)
			q.gathers = false
			w.turns.Put(q)
			w.signal()
		} else if q.gathers && w.gathered() {
			w.signal()
		}
	case q.empty():
		delete(w.tenants, q.tenant)
	default:
		if q.due = time.Now(); q.notBefore.After(q.due) {
			q.due = q.notBefore
		}
		if q.gathers = w.gathers(q); !q.gathers {
			w.turns.Put(q)
			w.signal()
			return
		}
		w.gathering.Put(q)
		if first, _ := w.gathering.First(); first == q || w.gathered() {
			w.signal()
		}
	}
}

// gathers reports whether the samples of a queue may wait for those of others. w.mu is held.
func (w *Writer) gathers(q *queue) bool {
	return w.shared != "" && !q.alone && q.log.segmentCount.Load() == 0 && q.size.Load() <= w.limits.TenantPending/2
}

// gathered reports whether memory has so many samples that the wait ends. w.mu is held.
func (w *Writer) gathered() bool { return w.counts.pending.Load()-w.sending >= w.limits.GatherBytes }

func (w *Writer) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// enforce drops the oldest samples of the largest tenants until the total bounds are kept.
func (w *Writer) enforce() {
	for w.counts.spooled.Load() > w.limits.SpoolBytes {
		q := w.largest(func(q *queue) int64 { return q.log.bytes.Load() })
		if q == nil {
			break
		}
		q.mu.Lock()
		q.log.dropOldest(reasonSpoolFull)
		q.mu.Unlock()
		w.leave(q)
	}
	for w.counts.pending.Load() > w.limits.PendingBytes {
		q := w.largest(func(q *queue) int64 { return q.size.Load() })
		if q == nil {
			break
		}
		q.mu.Lock()
		q.spill()
		if !q.backlogged() {
			q.dropOldest()
		}
		q.mu.Unlock()
		w.leave(q)
	}
}

// largest returns the queue that is largest by a measure, like enter; nil: all are empty.
func (w *Writer) largest(measure func(*queue) int64) *queue {
	w.mu.Lock()
	defer w.mu.Unlock()
	var found *queue
	for _, q := range w.tenants {
		if n := measure(q); n > 0 && (found == nil || n > measure(found)) {
			found = q
		}
	}
	if found != nil {
		found.users++
	}
	return found
}

// Run sends until ctx ends. Close handles the unsent rest.
func (w *Writer) Run(ctx context.Context) {
	var senders sync.WaitGroup
	for range w.limits.Senders {
		senders.Go(func() {
			s := sender{w: w}
			for {
				switch list := w.next(ctx); len(list) {
				case 0:
					return
				case 1:
					s.turn(ctx, list[0])
				default:
					s.sendTogether(ctx, list)
				}
			}
		})
	}
	senders.Wait()
}

// next waits for due queues. It returns one, or several that share a request; none: ctx has ended.
func (w *Writer) next(ctx context.Context) []*queue {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		list, pause := w.pick(time.Now())
		if len(list) > 0 {
			return list
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-w.wake:
		case <-ctx.Done():
		}
	}
	w.signal() // the other senders end, too
	return nil
}

// never is a pause that only an event ends.
const never = time.Hour

// pick takes the due queues, or returns the time until the next one is due.
func (w *Writer) pick(now time.Time) ([]*queue, time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.away && w.probing {
		return nil, never
	}
	until := func(due time.Time) time.Duration {
		if w.away && w.until.After(due) {
			due = w.until
		}
		return due.Sub(now)
	}
	from, pause := w.turns, never
	single, ok := w.turns.First()
	if ok {
		pause = until(single.due)
	}
	if oldest, ok := w.gathering.First(); ok {
		ready := oldest.due
		if !w.gathered() {
			ready = ready.Add(w.limits.Gather)
		}
		switch p := until(ready); {
		case p <= 0 && (pause > 0 || oldest.due.Before(single.due)):
			from, pause = w.gathering, 0
		case pause > 0:
			pause = min(pause, p)
		}
	}
	if pause > 0 {
		return nil, pause
	}
	return w.begin(from), 0
}

// begin takes the first queue of from, and those after it that share a request with it. w.mu is held.
func (w *Writer) begin(from *pqueue.Queue[*queue]) (list []*queue) {
	size := int64(0)
	for q, ok := from.First(); ok; q, ok = from.First() {
		n := q.size.Load()
		if len(list) > 0 && (from == w.turns || w.away || size+n > maxRequest) {
			break
		}
		from.Pop()
		q.serving, q.gathers, q.sending = true, false, n
		w.sending += n
		size += n
		list = append(list, q)
	}
	w.probing = w.away
	if w.turns.Len()+w.gathering.Len() > 0 {
		w.signal()
	}
	return list
}

// Close moves the samples in memory to the spool. Call it after Run has ended.
func (w *Writer) Close() error {
	w.mu.Lock()
	w.closed = true
	var all []*queue
	for _, q := range w.tenants {
		all = append(all, q)
	}
	w.mu.Unlock()
	lost := 0
	for _, q := range all {
		q.mu.Lock()
		q.spill()
		for len(q.pending) > 0 {
			lost += q.pending[0].samples
			q.dropOldest()
		}
		q.mu.Unlock()
	}
	if lost > 0 {
		return fmt.Errorf("%d samples of metrics are lost: the spool has no room for them", lost)
	}
	return nil
}
