package delivery

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hangar-platform/hangar"
)

// Bounds of the part of a receiver's queue that is in memory.
const (
	windowSize  = 512       // entries
	windowBytes = 512 << 10 // of entries
	failingSize = 64        // entries, each of another Machine, while nothing succeeds
	refillBelow = windowSize / 2
)

// shrinkAfter is the number of pauses after which a failing receiver has less of its queue in
// memory. Before that, keeping it is cheaper than reading it again.
const shrinkAfter = 4

// blockedAttempts is the number of attempts after which an entry is given up if it blocks others
// that the receiver would accept.
const blockedAttempts = 5

// receiver is one receiver of events. Its goroutine is run.
type receiver struct {
	d    *Dispatcher
	id   string
	feed int // of Options.Receivers
	spec atomic.Pointer[hangar.EventReceiver]
	wake chan struct{} // has room for one
	gone chan struct{} // closed when the receiver is removed
	once sync.Once

	head atomic.Uint64 // the store has removed the entries up to this number

	mu     sync.Mutex // guards what follows
	report hangar.WebhookStatus
	more   bool // there may be entries after those in the window
}

func newReceiver(d *Dispatcher, feed int, spec hangar.EventReceiver) *receiver {
	r := &receiver{d: d, id: spec.ID, feed: feed, wake: make(chan struct{}, 1), gone: make(chan struct{}), more: true}
	r.spec.Store(&spec)
	return r
}

// update installs a changed spec, which is tried at once.
func (r *receiver) update(spec hangar.EventReceiver) {
	r.spec.Store(&spec)
	r.signal()
}

func (r *receiver) end() { r.once.Do(func() { close(r.gone) }) }

// signal wakes the worker, because the queue has changed.
func (r *receiver) signal() {
	r.mu.Lock()
	r.more = true
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// evict records that the store has removed the entries up to a number.
func (r *receiver) evict(upTo uint64) {
	r.head.Store(upTo)
	r.signal()
}

// status returns the status of the deliveries, without the numbers that the store has.
func (r *receiver) status() hangar.WebhookStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.report
}

// finished is an entry with the result of an attempt.
type finished struct {
	*windowEntry
	attempt
}

// windowEntry is an entry of the queue that is in memory.
type windowEntry struct {
	item
	inFlight bool
	due      time.Time // of the next attempt
}

// worker delivers to one receiver. It has the head of the queue, the window, in memory. One
// goroutine uses it.
type worker struct {
	*receiver
	window   []*windowEntry // by number
	last     uint64         // number up to which the queue was read
	inFlight int            // entries whose attempt has not ended
	allowed  int            // bound of inFlight: it doubles with each success
	done     chan finished
	busy     map[hangar.MachineID]bool // scratch of launch, shrink and probe
	version  uint64                    // of the spec that was used last

	// Since the last success.
	failures    int                       // attempts
	failed      map[hangar.MachineID]bool // Machines with an attempt that failed
	unreachable bool                      // an attempt got no answer
	until       time.Time                 // while the receiver fails, no attempt begins before
	pauses      int                       // since it began to fail
}

// run delivers to the receiver until it is removed or ctx ends.
func (r *receiver) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	w := &worker{
		receiver: r, allowed: 1, done: make(chan finished, r.d.limits.PerReceiver), busy: map[hangar.MachineID]bool{},
		failed: map[hangar.MachineID]bool{}, version: r.spec.Load().Version,
	}
	defer func() {
		cancel()
		for range w.inFlight {
			<-w.done
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		w.refresh()
		w.fill(ctx)
		wait, some := w.launch(ctx)
		var due <-chan time.Time
		if some {
			timer.Reset(wait)
			due = timer.C
		}
		select {
		case f := <-w.done:
			w.attemptEnded(ctx, f)
			for more := true; more; {
				select {
				case f := <-w.done:
					w.attemptEnded(ctx, f)
				default:
					more = false
				}
			}
		case <-due:
		case <-r.wake:
		case <-r.gone:
			return
		case <-ctx.Done():
			return
		}
	}
}

// refresh ends all pauses if the receiver was changed, and drops entries that the store has
// removed.
func (w *worker) refresh() {
	if v := w.spec.Load().Version; v != w.version {
		w.version = v
		w.recover()
	}
	head, kept := w.head.Load(), w.window[:0]
	for _, f := range w.window {
		if f.inFlight || f.number > head {
			kept = append(kept, f)
		}
	}
	clear(w.window[len(kept):])
	w.window = kept
	w.last = max(w.last, head)
}

// failing reports whether the receiver itself seems to fail: since the last success an attempt got no answer, or the
// events of two Machines were not accepted.
func (w *worker) failing() bool { return w.unreachable || len(w.failed) > 1 }

// fill reads more of the queue once half of the window is free. A failing receiver needs no more than one entry.
func (w *worker) fill(ctx context.Context) {
	if len(w.window) == 0 || len(w.window) <= refillBelow && !w.failing() {
		w.read(ctx)
	}
}

// room is how much more fits into the window.
func (w *worker) room() (entries int, bytes int64) {
	bytes = windowBytes
	for _, f := range w.window {
		bytes -= f.size
	}
	return windowSize - len(w.window), bytes
}

// read reads more of the queue into the window, as far as there is room, and reports whether there was any.
func (w *worker) read(ctx context.Context) bool {
	want, room := w.room()
	if want <= 0 || room <= 0 {
		return false
	}
	w.mu.Lock()
	more := w.more
	w.more = false // before reading: a new event sets it again
	w.mu.Unlock()
	if !more {
		return false
	}
	items, err := w.d.store.next(w.id, w.last, want, room)
	if err != nil {
		w.d.o.Log.Error("queue of a receiver cannot be read", keyReceiver, w.id, keyError, err)
		time.AfterFunc(readPause, w.signal)
		return false
	}
	for _, it := range items {
		room -= it.size
		w.last = it.number
		if it.ID == "" {
			w.d.store.settle(ctx, outcome{receiver: w.id, number: it.number, result: removed})
			continue
		}
		if !slices.ContainsFunc(w.window, func(f *windowEntry) bool { return f.number == it.number }) { // see shrink
			w.window = append(w.window, &windowEntry{item: *it})
		}
	}
	slices.SortFunc(w.window, func(a, b *windowEntry) int { return cmp.Compare(a.number, b.number) })
	if len(items) == want || len(items) > 0 && room < windowBytes/2 { // no entry has as many bytes
		w.mu.Lock()
		w.more = true
		w.mu.Unlock()
	}
	return len(items) > 0
}

// shrink reduces the window to what a failing receiver needs.
func (w *worker) shrink() {
	if len(w.window) <= failingSize {
		return
	}
	clear(w.busy)
	var kept []*windowEntry
	dropped := uint64(0)
	for _, f := range w.window {
		if f.inFlight || len(kept) < failingSize && !w.busy[f.Event.Machine] {
			kept = append(kept, f)
			w.busy[f.Event.Machine] = true
		} else if dropped == 0 {
			dropped = f.number
		}
	}
	w.window = kept
	if dropped > 0 {
		w.last = dropped - 1 // fill reads from there
		w.mu.Lock()
		w.more = true
		w.mu.Unlock()
	}
}

// launch starts the attempts that are due, and returns how long to wait for the next; some is false
// if there is none.
func (w *worker) launch(ctx context.Context) (wait time.Duration, some bool) {
	now := w.d.o.Now()
	w.expire(ctx, now)
	failing := w.failing()
	if failing && w.until.After(now) {
		return w.until.Sub(now), len(w.window) > 0
	}
	clear(w.busy)
	var first time.Time
	if failing {
		if f := w.probe(); f != nil && w.inFlight == 0 {
			w.start(ctx, f)
		}
		return 0, false
	}
	for _, f := range w.window {
		if w.inFlight >= w.allowed {
			return 0, false // the end of an attempt continues
		}
		machine := f.Event.Machine
		if w.busy[machine] {
			continue
		}
		w.busy[machine] = true
		if f.inFlight {
			continue
		}
		if f.due.After(now) {
			if first.IsZero() || f.due.Before(first) {
				first = f.due
			}
			continue
		}
		w.start(ctx, f)
	}
	if w.inFlight == 0 && len(w.window) > 0 {
		// All of the window waits; what comes after it may be sent.
		if entries, bytes := w.room(); entries <= 0 || bytes <= 0 {
			w.unblock(ctx)
		} else if w.read(ctx) {
			w.signal()
		}
	}
	return first.Sub(now), !first.IsZero()
}

// probe returns the entry to try while the receiver fails, or nil: of the first entries of all
// Machines, the one whose last attempt is the oldest.
func (w *worker) probe() (oldest *windowEntry) {
	for _, f := range w.window {
		if w.busy[f.Event.Machine] {
			continue
		}
		w.busy[f.Event.Machine] = true
		if oldest == nil || f.due.Before(oldest.due) {
			oldest = f
		}
	}
	return oldest
}

// unblock gives up the older half of a window that is full of entries which wait for a retry, or
// for one of the same Machine, so that later ones can proceed.
func (w *worker) unblock(ctx context.Context) {
	if w.window[0].Attempts < blockedAttempts {
		return
	}
	for _, f := range slices.Clone(w.window[:(len(w.window)+1)/2]) {
		w.giveUp(ctx, f, hangar.DeathBlocked)
	}
	w.signal()
}

// expire gives up entries that have failed for too long.
func (w *worker) expire(ctx context.Context, now time.Time) {
	for len(w.window) > 0 {
		f := w.window[0]
		if f.inFlight || now.Sub(f.At) < w.d.timing.Retention || f.Attempts == 0 && !w.failing() {
			return
		}
		w.giveUp(ctx, f, hangar.DeathExpired)
		w.signal()
	}
}

// giveUp makes an entry a dead letter. It must not be in flight.
func (w *worker) giveUp(ctx context.Context, f *windowEntry, reason hangar.DeathReason) {
	f.Reason = reason
	w.remove(f)
	w.d.store.settle(ctx, outcome{receiver: w.id, number: f.number, result: givenUp, entry: f.entry})
}

func (w *worker) remove(f *windowEntry) {
	for i, one := range w.window {
		if one == f {
			copy(w.window[i:], w.window[i+1:])
			w.window[len(w.window)-1] = nil
			w.window = w.window[:len(w.window)-1]
			return
		}
	}
}

// start begins an attempt, whose result arrives in w.done.
func (w *worker) start(ctx context.Context, f *windowEntry) {
	f.inFlight = true
	w.inFlight++
	spec := w.spec.Load()
	go func() { w.done <- finished{f, w.d.deliver(ctx, spec, &f.Event)} }()
}

// deliver sends an event once a slot is free.
func (d *Dispatcher) deliver(ctx context.Context, spec *hangar.EventReceiver, e *hangar.MachineEvent) attempt {
	return d.withSlots(ctx, spec, func(ctx context.Context) attempt { return d.send(ctx, spec, e) })
}

// withSlots sends any request to a receiver once slots of its organization and of the host are
// free.
func (d *Dispatcher) withSlots(ctx context.Context, spec *hangar.EventReceiver, send func(context.Context) attempt) attempt {
	key := slotKey(spec)
	slots := d.orgSlots(key)
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return attempt{cut: true}
	}
	defer func() { <-slots }()
	release, err := d.slots.Acquire(ctx, key)
	if err != nil {
		return attempt{cut: true}
	}
	defer release()
	return send(ctx)
}

// attemptEnded records the result of an attempt.
func (w *worker) attemptEnded(ctx context.Context, f finished) {
	w.inFlight--
	f.inFlight = false
	if f.cut {
		return
	}
	f.Attempts++
	f.Tried, f.Took, f.Status, f.Error = f.at.UTC(), f.took, f.status, f.err
	if f.err == "" {
		w.d.counts.attempts.WithLabelValues(resultOK).Inc()
		w.d.counts.delay.Observe(w.d.o.Now().Sub(time.UnixMilli(f.Event.Event.Timestamp)).Seconds())
		w.succeeded(f.at.Add(f.took))
		w.remove(f.windowEntry)
		w.d.store.settle(ctx, outcome{receiver: w.id, number: f.number, result: delivered, entry: f.entry})
		return
	}
	w.d.counts.attempts.WithLabelValues(string(f.err)).Inc()
	now := w.d.o.Now()
	w.noteFailure(f, now)
	if now.Sub(f.At) >= w.d.timing.Retention {
		w.giveUp(ctx, f.windowEntry, hangar.DeathExpired)
		return
	}
	f.due = now.Add(max(w.d.timing.backoff(f.Attempts), f.after))
	w.d.store.settle(ctx, outcome{receiver: w.id, number: f.number, result: retried, entry: f.entry})
}

// succeeded records a delivery. If the receiver was failing, all its entries are tried at once.
func (w *worker) succeeded(at time.Time) {
	if w.failing() {
		w.recover()
	}
	w.allowed = min(2*w.allowed, w.d.limits.PerReceiver)
	w.failures, w.unreachable, w.pauses = 0, false, 0
	clear(w.failed)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report.Failing, w.report.DeliveredAt = false, at.UTC()
}

// recover ends the pauses of all entries.
func (w *worker) recover() {
	w.unreachable, w.pauses, w.until = false, 0, time.Time{}
	clear(w.failed)
	for _, f := range w.window {
		f.due = time.Time{}
	}
	w.signal()
}

// noteFailure records a failed attempt.
func (w *worker) noteFailure(f finished, now time.Time) {
	w.allowed = 1
	w.failures++
	w.failed[f.Event.Machine] = true
	w.unreachable = w.unreachable || f.status == 0
	failing := w.failing()
	if failing {
		if !w.until.After(now) { // of several attempts in flight one counts
			w.pauses++
			w.until = now.Add(max(w.d.timing.backoff(w.pauses), f.after))
		}
		if w.pauses >= shrinkAfter {
			w.shrink()
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report.Failing, w.report.FailedAt, w.report.Error, w.report.HTTPStatus = failing, now.UTC(), f.err, f.status
}

// backoff is the pause after a number of failures: a time that doubles, less up to a half at
// random.
func (t Timing) backoff(failures int) time.Duration {
	d := t.LastPause
	if shift := failures - 1; shift < 30 {
		d = min(t.FirstPause<<shift, t.LastPause)
	}
	return d - rand.N(d/2+1) //nolint:gosec // it only spreads attempts
}
