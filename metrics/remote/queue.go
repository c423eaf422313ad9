package remote

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar/internal/pqueue"
	"github.com/hangar-platform/hangar/metrics"
)

// batch is an encoded WriteRequest.
type batch struct {
	request []byte
	samples int
}

// queue has the samples that one tenant still has to send. While there is a backlog on disk,
// everything goes through it, so that the order is kept: pending is empty then.
type queue struct {
	w      *Writer
	tenant metrics.Tenant
	label  string       // value of metrics.OrgLabel in encoded samples, or "" if the store sets it
	size   atomic.Int64 // pendingBytes, for readers that do not hold mu

	mu           sync.Mutex // guards what follows
	pending      []batch    // oldest first
	pendingBytes int64
	moved        int // grows when the head of pending is spilled or dropped
	log          *spool

	// Guarded by Writer.mu.
	users     int // writers, and calls that make room; while there are any, it stays in Writer.tenants
	serving   bool
	sending   int64     // bytes in memory when its turn began
	gathers   bool      // in Writer.gathering
	alone     bool      // the store has rejected a shared request with its samples
	notBefore time.Time // after a failure
	due       time.Time // time of its turn; queues that are due already come first
	place     pqueue.Place

	// Only the sender that serves it uses these.
	pause    time.Duration // the last pause after a failure
	failures int           // of the batch at the head
	written  uint64        // Writer.written at the first failure
}

func newQueue(w *Writer, tenant metrics.Tenant) *queue {
	q := &queue{w: w, tenant: tenant, log: newSpool(w, tenant)}
	if w.shared != "" {
		q.label = string(tenant.Org)
	}
	return q
}

// empty reports whether there is nothing to send.
func (q *queue) empty() bool { return q.size.Load() == 0 && q.log.segmentCount.Load() == 0 }

// backlogged reports whether samples wait on disk. q.mu is held here and in the methods below.
func (q *queue) backlogged() bool { return len(q.log.segments) > 0 }

func (q *queue) add(b batch) {
	q.pending = append(q.pending, b)
	q.grow(int64(len(b.request)))
}

func (q *queue) grow(n int64) {
	q.pendingBytes += n
	q.size.Store(q.pendingBytes)
	q.w.counts.pending.Add(n)
}

// remove removes the first n batches from memory.
func (q *queue) remove(n int) {
	for _, b := range q.pending[:n] {
		q.grow(-int64(len(b.request)))
	}
	clear(q.pending[:n])
	if q.pending = q.pending[n:]; len(q.pending) == 0 {
		q.pending = nil
	}
}

// spill moves pending to disk. If the disk has no room, it drops what exceeds the bound of memory, or
// everything if it would have to follow a backlog.
func (q *queue) spill() {
	if len(q.pending) == 0 {
		return
	}
	err := q.log.append(joined(q.pending))
	if err == nil {
		q.moved++
		q.remove(len(q.pending))
		return
	}
	q.w.counts.complain(q.w.o.Log, err)
	for len(q.pending) > 0 && (q.backlogged() || q.pendingBytes > q.w.limits.TenantPending) {
		q.dropOldest()
	}
}

// dropOldest drops the oldest batch in memory.
func (q *queue) dropOldest() {
	if len(q.pending) > 0 {
		q.moved++
		q.w.counts.drop(reasonDiskFull, q.pending[0].samples)
		q.remove(1)
	}
}

func joined(list []batch) batch {
	if len(list) == 1 {
		return list[0]
	}
	size := 0
	for _, b := range list {
		size += len(b.request)
	}
	all := batch{request: make([]byte, 0, size)}
	for _, b := range list {
		all.request = append(all.request, b.request...)
		all.samples += b.samples
	}
	return all
}

// taken is the content of a request from a queue, and where it was.
type taken struct {
	batch
	moved, pending int      // in memory: queue.moved, and number of batches
	at             position // on disk: where the next record is
	fromDisk       bool
}

// take returns the oldest samples and leaves them in the queue. It returns at most maxRequest bytes,
// unless one batch is larger, and nothing if the queue is empty.
func (q *queue) take() (taken, error) {
	if q.backlogged() {
		b, at, err := q.log.read()
		return taken{batch: b, at: at, fromDisk: true}, err
	}
	n := q.fitting(maxRequest)
	if n == 0 {
		return taken{}, nil
	}
	return taken{batch: joined(q.pending[:n]), moved: q.moved, pending: n}, nil
}

// fitting is the number of batches in memory that fit into some bytes; at least one, if there is any.
func (q *queue) fitting(bytes int) (n int) {
	size := 0
	for n < len(q.pending) && (n == 0 || size+len(q.pending[n].request) <= bytes) {
		size += len(q.pending[n].request)
		n++
	}
	return n
}

// takeInto appends the oldest samples in memory to a request with samples of other tenants, and
// leaves them in the queue. It takes nothing while samples wait on disk.
func (q *queue) takeInto(request []byte) ([]byte, taken) {
	if q.backlogged() {
		return request, taken{}
	}
	t := taken{moved: q.moved, pending: q.fitting(maxRequest)}
	for _, b := range q.pending[:t.pending] {
		request = append(request, b.request...)
		t.samples += b.samples
	}
	return request, t
}

// done removes what take has returned, unless it was moved or dropped meanwhile.
func (q *queue) done(t taken) {
	switch {
	case t.fromDisk:
		q.log.advance(t.at)
	case t.moved == q.moved:
		q.remove(t.pending)
	}
}
