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

// The bounds of what a receiver has in memory of its queue.
const (
	windowSize  = 512       // entries
	windowBytes = 512 << 10 // of these
	failingSize = 64        // entries, each of another Machine, while nothing succeeds
	refillBelow = windowSize / 2
)

// shrinkAfter is after how many pauses a receiver that fails has less in memory: to read it again costs
// more than to keep it for a moment.
const shrinkAfter = 4

// blockedAttempts is after how many attempts an entry is given up that holds up others which a
// receiver would take.
const blockedAttempts = 5

// receiver is one receiver, and what serves it.
type receiver struct {
	d    *Dispatcher
	id   string
	feed int // of Options.Receivers
	spec atomic.Pointer[hangar.EventReceiver]
	wake chan struct{} // has room for one
	gone chan struct{} // closed when the receiver is no more
	once sync.Once

	head atomic.Uint64 // what waits up to this number was given up by the store

	mu     sync.Mutex // guards what follows
	report hangar.WebhookStatus
	more   bool // there may be entries after those in the window
}

func newReceiver(d *Dispatcher, feed int, spec hangar.EventReceiver) *receiver {
	r := &receiver{d: d, id: spec.ID, feed: feed, wake: make(chan struct{}, 1), gone: make(chan struct{}), more: true}
	r.spec.Store(&spec)
	return r
}

// update takes over what has changed. A receiver that leads elsewhere is tried at once.
func (r *receiver) update(spec hangar.EventReceiver) {
	r.spec.Store(&spec)
	r.signal()
}

func (r *receiver) end() { r.once.Do(func() { close(r.gone) }) }

// signal says that there is something new in the queue.
func (r *receiver) signal() {
	r.mu.Lock()
	r.more = true
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// evict takes note of what the store has given up.
func (r *receiver) evict(upTo uint64) {
	r.head.Store(upTo)
	r.signal()
}

// status is how deliveries go, without what the store knows.
func (r *receiver) status() hangar.WebhookStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.report
}

// finished is an attempt for an entry.
type finished struct {
	*flying
	attempt
}

// flying is an entry in the window.
type flying struct {
	item
	underway bool
	due      time.Time // of the next attempt
}

// line serves a receiver: it has the head of the queue in memory, and knows what may be sent.
type line struct {
	*receiver
	window  []*flying // by number
	last    uint64    // number up to which the queue was read
	flights int       // entries that are under way
	allowed int       // entries that may be: it doubles with success
	done    chan finished
	busy    map[hangar.MachineID]bool // of launch
	version uint64                    // of the spec that was used last

	// Since the last success.
	failures int                       // attempts
	failed   map[hangar.MachineID]bool // Machines with an attempt that failed
	deaf     bool                      // an attempt got no answer
	until    time.Time                 // while it is failing, nothing is sent before
	pauses   int                       // since it is failing
}

// run serves the receiver until it is gone or ctx ends.
func (r *receiver) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	l := &line{
		receiver: r, allowed: 1, done: make(chan finished, r.d.limits.PerReceiver), busy: map[hangar.MachineID]bool{},
		failed: map[hangar.MachineID]bool{}, version: r.spec.Load().Version,
	}
	defer func() {
		cancel()
		for range l.flights {
			<-l.done
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		l.refresh()
		l.fill(ctx)
		wait, some := l.launch(ctx)
		var due <-chan time.Time
		if some {
			timer.Reset(wait)
			due = timer.C
		}
		select {
		case f := <-l.done:
			l.land(ctx, f)
			for more := true; more; {
				select {
				case f := <-l.done:
					l.land(ctx, f)
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

// refresh tries again at once after the receiver was changed, and drops what the store has given up.
func (l *line) refresh() {
	if v := l.spec.Load().Version; v != l.version {
		l.version = v
		l.recover()
	}
	head, kept := l.head.Load(), l.window[:0]
	for _, f := range l.window {
		if f.underway || f.number > head {
			kept = append(kept, f)
		}
	}
	clear(l.window[len(kept):])
	l.window = kept
	l.last = max(l.last, head)
}

// failing reports whether nothing succeeds at the moment: there was no answer, or two Machines' events in a
// row were not accepted.
func (l *line) failing() bool { return l.deaf || len(l.failed) > 1 }

// fill reads on in the queue.
func (l *line) fill(ctx context.Context) {
	l.mu.Lock()
	more := l.more
	l.mu.Unlock()
	if !more || len(l.window) > refillBelow || l.failing() && len(l.window) > 0 {
		return
	}
	l.mu.Lock()
	l.more = false // before reading: a new event sets it again
	l.mu.Unlock()
	want := windowSize - len(l.window)
	items, err := l.d.store.next(l.id, l.last, want, windowBytes)
	if err != nil {
		l.d.o.Log.Error("queue of a receiver cannot be read", keyReceiver, l.id, keyError, err)
		l.signal()
		return
	}
	size := int64(0)
	for _, it := range items {
		size += it.size
		l.last = it.number
		if it.ID == "" {
			l.d.store.settle(ctx, outcome{receiver: l.id, number: it.number, fate: removed})
			continue
		}
		if !slices.ContainsFunc(l.window, func(f *flying) bool { return f.number == it.number }) { // see shrink
			l.window = append(l.window, &flying{item: *it})
		}
	}
	slices.SortFunc(l.window, func(a, b *flying) int { return cmp.Compare(a.number, b.number) })
	if len(items) == want || size >= windowBytes/2 {
		l.mu.Lock()
		l.more = true
		l.mu.Unlock()
	}
}

// shrink gives back what is in memory beyond what a receiver needs that is failing.
func (l *line) shrink() {
	if len(l.window) <= failingSize {
		return
	}
	clear(l.busy)
	var kept []*flying
	dropped := uint64(0)
	for _, f := range l.window {
		if f.underway || len(kept) < failingSize && !l.busy[f.Event.Machine] {
			kept = append(kept, f)
			l.busy[f.Event.Machine] = true
		} else if dropped == 0 {
			dropped = f.number
		}
	}
	l.window = kept
	if dropped > 0 {
		l.last = dropped - 1 // from where fill reads again
		l.mu.Lock()
		l.more = true
		l.mu.Unlock()
	}
}

// launch sends what may be sent, and returns how long to wait for more if there is any.
func (l *line) launch(ctx context.Context) (wait time.Duration, some bool) {
	now := l.d.o.Now()
	l.expire(ctx, now)
	failing := l.failing()
	if failing && l.until.After(now) {
		return l.until.Sub(now), len(l.window) > 0
	}
	clear(l.busy)
	var first time.Time
	if failing {
		if f := l.probe(); f != nil && l.flights == 0 {
			l.start(ctx, f)
		}
		return 0, false
	}
	for _, f := range l.window {
		if l.flights >= l.allowed {
			return 0, false // the next one to land continues
		}
		machine := f.Event.Machine
		if l.busy[machine] {
			continue
		}
		l.busy[machine] = true
		if f.underway {
			continue
		}
		if f.due.After(now) {
			if first.IsZero() || f.due.Before(first) {
				first = f.due
			}
			continue
		}
		l.start(ctx, f)
	}
	if l.flights == 0 && len(l.window) >= windowSize {
		l.unblock(ctx)
	}
	return first.Sub(now), !first.IsZero()
}

// probe returns the event to try while none succeeds, or nil: of the first of each Machine, the one
// that was tried the longest ago.
func (l *line) probe() (oldest *flying) {
	for _, f := range l.window {
		if l.busy[f.Event.Machine] {
			continue
		}
		l.busy[f.Event.Machine] = true
		if oldest == nil || f.due.Before(oldest.due) {
			oldest = f
		}
	}
	return oldest
}

// unblock gives up the older half of the window if it is full of events that wait for another
// attempt, or behind one, so that later ones can proceed.
func (l *line) unblock(ctx context.Context) {
	if l.window[0].Attempts < blockedAttempts {
		return
	}
	for _, f := range slices.Clone(l.window[:len(l.window)/2]) {
		l.die(ctx, f, hangar.DeathBlocked)
	}
	l.signal()
}

// expire gives up what has failed for too long.
func (l *line) expire(ctx context.Context, now time.Time) {
	for len(l.window) > 0 {
		f := l.window[0]
		if f.underway || now.Sub(f.At) < l.d.timing.Retention || f.Attempts == 0 && !l.failing() {
			return
		}
		l.die(ctx, f, hangar.DeathExpired)
		l.signal()
	}
}

// die gives an entry up that is not under way.
func (l *line) die(ctx context.Context, f *flying, reason hangar.DeathReason) {
	f.Reason = reason
	l.remove(f)
	l.d.store.settle(ctx, outcome{receiver: l.id, number: f.number, fate: died, entry: f.entry})
}

func (l *line) remove(f *flying) {
	for i, one := range l.window {
		if one == f {
			copy(l.window[i:], l.window[i+1:])
			l.window[len(l.window)-1] = nil
			l.window = l.window[:len(l.window)-1]
			return
		}
	}
}

// start sends an entry. The attempt ends with a value in l.done.
func (l *line) start(ctx context.Context, f *flying) {
	f.underway = true
	l.flights++
	spec := l.spec.Load()
	go func() { l.done <- finished{f, l.d.fly(ctx, spec, &f.Event)} }()
}

// fly sends an event once there is room for another request.
func (d *Dispatcher) fly(ctx context.Context, spec *hangar.EventReceiver, e *hangar.MachineEvent) attempt {
	return d.flyWith(ctx, spec, func(ctx context.Context) attempt { return d.send(ctx, spec, e) })
}

// flyWith does so for any request to a receiver.
func (d *Dispatcher) flyWith(ctx context.Context, spec *hangar.EventReceiver, send func(context.Context) attempt) attempt {
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

// land takes note of how an attempt has ended.
func (l *line) land(ctx context.Context, f finished) {
	l.flights--
	f.underway = false
	if f.cut {
		return
	}
	f.Attempts++
	f.Tried, f.Took, f.Status, f.Error = f.at.UTC(), f.took, f.status, f.err
	if f.err == "" {
		l.d.counts.attempts.WithLabelValues(resultOK).Inc()
		l.d.counts.delay.Observe(l.d.o.Now().Sub(time.UnixMilli(f.Event.Event.Timestamp)).Seconds())
		l.succeeded(f.at.Add(f.took))
		l.remove(f.flying)
		l.d.store.settle(ctx, outcome{receiver: l.id, number: f.number, fate: delivered, entry: f.entry})
		return
	}
	l.d.counts.attempts.WithLabelValues(string(f.err)).Inc()
	now := l.d.o.Now()
	l.noteFailure(f, now)
	if now.Sub(f.At) >= l.d.timing.Retention {
		l.die(ctx, f.flying, hangar.DeathExpired)
		return
	}
	f.due = now.Add(max(l.d.timing.backoff(f.Attempts), f.after))
	l.d.store.settle(ctx, outcome{receiver: l.id, number: f.number, fate: retried, entry: f.entry})
}

// succeeded takes note of a delivery. After a time of failures everything is tried again.
func (l *line) succeeded(at time.Time) {
	if l.failing() {
		l.recover()
	}
	l.allowed = min(2*l.allowed, l.d.limits.PerReceiver)
	l.failures, l.deaf, l.pauses = 0, false, 0
	clear(l.failed)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.report.Failing, l.report.DeliveredAt = false, at.UTC()
}

// recover has all that waits tried without a pause.
func (l *line) recover() {
	l.deaf, l.pauses, l.until = false, 0, time.Time{}
	clear(l.failed)
	for _, f := range l.window {
		f.due = time.Time{}
	}
	l.signal()
}

// noteFailure takes note of an attempt that has failed.
func (l *line) noteFailure(f finished, now time.Time) {
	l.allowed = 1
	l.failures++
	l.failed[f.Event.Machine] = true
	l.deaf = l.deaf || f.status == 0
	failing := l.failing()
	if failing {
		if !l.until.After(now) { // of several that were under way one counts
			l.pauses++
			l.until = now.Add(max(l.d.timing.backoff(l.pauses), f.after))
		}
		if l.pauses >= shrinkAfter {
			l.shrink()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.report.Failing, l.report.FailedAt, l.report.Error, l.report.HTTPStatus = failing, now.UTC(), f.err, f.status
}

// backoff is the pause after so many failures, between half and all of a time that doubles.
func (t Timing) backoff(failures int) time.Duration {
	d := t.LastPause
	if shift := failures - 1; shift < 30 {
		d = min(t.FirstPause<<shift, t.LastPause)
	}
	return d - rand.N(d/2+1) //nolint:gosec // it only spreads attempts
}
