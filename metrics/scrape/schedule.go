package scrape

import (
	"context"
	"hash/fnv"
	"time"

	"golang.org/x/time/rate"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/metrics"
)

// Run scrapes until ctx ends. It writes no markers then, because the Machines continue.
func (s *Scraper) Run(ctx context.Context) {
	defer s.drop()
	defer s.work.Wait()
	looks := time.NewTicker(lookAgain)
	defer looks.Stop()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	s.list(ctx)
	for ctx.Err() == nil {
		t, pause := s.next(time.Now())
		if t != nil {
			s.begin(ctx, t, s.scrape)
			continue
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-looks.C:
			s.list(ctx)
		case <-s.wake:
		case <-ctx.Done():
		}
	}
}

// drop closes the connections of all targets, which have no goroutine any more.
func (s *Scraper) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.targets {
		t.hangUp()
		s.keep(t, seriesSet{})
		s.queue.Remove(t)
	}
	clear(s.targets)
	clear(s.orgs)
}

// list applies the current list of targets.
func (s *Scraper) list(ctx context.Context) {
	now := time.Now()
	s.mu.Lock()
	s.look++
	look := s.look
	s.mu.Unlock()
	for spec := range s.o.Targets() {
		s.update(spec, look, now)
	}
	var gone []*target
	s.mu.Lock()
	for _, t := range s.targets {
		if t.seen == look || t.gone {
			continue
		}
		t.gone = true
		s.queue.Remove(t)
		if t.running {
			t.cancel()
			continue
		}
		t.running = true
		gone = append(gone, t)
	}
	s.mu.Unlock()
	for _, t := range gone {
		s.begin(ctx, t, s.end)
	}
}

// update applies a listed target. A target whose labels have changed ends as if it were missing, and
// begins again with the next list.
func (s *Scraper) update(spec Target, look uint64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.targets[spec.Machine.ID]
	if t == nil {
		o := s.orgs[spec.Tenant.Org]
		if o == nil {
			o = &org{bytes: rate.NewLimiter(rate.Limit(float64(s.limits.OrgBytes)/metrics.Interval.Seconds()), int(s.limits.OrgBytes))}
			s.orgs[spec.Tenant.Org] = o
		}
		o.targets++
		t = &target{org: o, spec: spec, seen: look, due: nextDue(spec.Machine.ID, now)}
		s.targets[spec.Machine.ID] = t
		s.queue.Put(t)
		return
	}
	if t.gone || labelsOf(&t.spec) != labelsOf(&spec) || t.spec.Tenant != spec.Tenant {
		return
	}
	t.seen = look
	if t.spec != spec {
		t.spec = spec
		if t.place.Queued() { // it may have been scraped less often
			t.due = nextDue(spec.Machine.ID, now)
			s.queue.Put(t)
		}
	}
}

// nextDue is the next time at which a Machine is scraped. Its offset is the same in every interval.
func nextDue(id hangar.MachineID, now time.Time) time.Time {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id)) // never fails
	offset := time.Duration(h.Sum64() % uint64(metrics.Interval))
	sinceEpoch := time.Duration(now.UnixNano())
	due := sinceEpoch.Truncate(metrics.Interval) + offset
	if due <= sinceEpoch {
		due += metrics.Interval
	}
	return now.Add(due - sinceEpoch)
}

// next takes a due target off the queue, or returns the time until one is due.
func (s *Scraper) next(now time.Time) (*target, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.queue.First()
	if !ok {
		return nil, time.Hour
	}
	if pause := t.due.Sub(now); pause > 0 {
		return nil, pause
	}
	s.queue.Pop()
	t.running = true
	return t, 0
}

// begin works on a target in a goroutine, which then schedules the next scrape.
func (s *Scraper) begin(ctx context.Context, t *target, work func(context.Context, *target)) {
	bounded, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	t.cancel = cancel
	s.mu.Unlock()
	s.work.Go(func() {
		defer cancel()
		work(bounded, t)
		if ctx.Err() != nil {
			return
		}
		if s.isEnding(t) {
			s.end(ctx, t)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if t.running = false; t.gone {
			return
		}
		t.due = nextDue(t.spec.Machine.ID, time.Now())
		if t.scraped == t.spec {
			t.due = t.due.Add(time.Duration(max(0, t.penalty-1)) * metrics.Interval)
		}
		s.queue.Put(t)
		if first, _ := s.queue.First(); first != t {
			return // Run waits for another one
		}
		select {
		case s.wake <- struct{}{}:
		default:
		}
	})
}

// isEnding reports whether a target must end and has not ended yet.
func (s *Scraper) isEnding(t *target) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.gone && s.targets[t.spec.Machine.ID] == t
}

// end writes the ends of all series of a target, and forgets the target.
func (s *Scraper) end(ctx context.Context, t *target) {
	t.hangUp()
	s.stale(ctx, t, time.Now())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.targets[t.spec.Machine.ID] != t {
		return
	}
	delete(s.targets, t.spec.Machine.ID)
	if t.org.targets--; t.org.targets == 0 {
		delete(s.orgs, t.spec.Tenant.Org)
	}
}

func (t *target) hangUp() {
	if t.conn != nil {
		_ = t.conn.Close() // no request is in progress
		t.conn, t.request = nil, nil
	}
}
