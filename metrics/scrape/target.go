package scrape

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hangar-platform/hangar/metrics"
)

// Problems with the metrics of a Machine. They are labels of the operator's counters.
const (
	kindNone       = ""
	kindOK         = "ok" // kindNone as a label
	kindPath       = "path"
	kindConnect    = "connect"
	kindTLS        = "tls"
	kindTimeout    = "timeout"
	kindHTTP       = "http"
	kindStatus     = "status"
	kindSize       = "size"
	kindBusy       = "busy" // too many scrapes at once
	kindNotText    = "not_text"
	kindIncomplete = "incomplete"
	kindSeries     = "series"
	kindMemory     = "memory"
	kindPace       = "pace"
	kindWrite      = "write" // the Writer has failed, not the Machine

	// With these, all other samples are written.
	kindLines      = "lines"
	kindLabels     = "labels"
	kindDuplicates = "duplicates"
)

// kinds lists the values of the label.
func kinds() []string {
	return []string{
		kindOK, kindPath, kindConnect, kindTLS, kindTimeout, kindHTTP, kindStatus, kindSize, kindBusy, kindNotText, kindIncomplete,
		kindSeries, kindMemory, kindPace, kindWrite, kindLines, kindLabels, kindDuplicates,
	}
}

// failure is the reason why the metrics of a Machine were not read. Its text is for the owner.
type failure struct {
	kind, text string
	penalty    bool // it was expensive, so the Machine is scraped less often
}

func (f failure) Error() string { return f.text }

// tolerance is by how much the time of a sample may differ from that of the response.
const tolerance = 100 * time.Millisecond

// tellPause is the shortest time between two lines about a Machine.
const tellPause = time.Minute

// problem is the problem of a target, and what its owner knows of it.
type problem struct {
	now   string // kind
	times int    // consecutive occurrences
	told  string // kind
	at    time.Time
}

// changed records a result and reports whether to notify the owner. A port that cannot be reached
// once may belong to a program that is starting.
func (p *problem) changed(kind string, now time.Time) bool {
	if p.now != kind {
		p.now, p.times = kind, 0
	}
	p.times++
	need := 1
	if kind == kindConnect || kind == kindTimeout || kind == kindTLS {
		need = 2
	}
	if kind == p.told || p.times < need || !p.at.IsZero() && now.Sub(p.at) < tellPause {
		return false
	}
	p.told, p.at = kind, now
	return true
}

// scrape scrapes a target once. It returns after everything is written.
func (s *Scraper) scrape(ctx context.Context, t *target) {
	s.mu.Lock()
	fresh, due := t.spec != t.scraped, t.due
	t.scraped = t.spec
	s.mu.Unlock()
	if fresh {
		t.hangUp()
		t.penalty = 0
	}
	waiting, cancel := context.WithTimeout(ctx, metrics.Interval)
	release, err := s.slots.Acquire(waiting, t.scraped.Tenant.Org)
	cancel()
	if err != nil {
		if ctx.Err() == nil {
			s.finish(ctx, t, time.Now(), failure{kind: kindBusy, text: "too many Machines are being asked at the same time"})
		}
		return
	}
	defer release()
	sc := s.scratch.Get().(*scratch)
	defer s.recycle(sc)
	s.counts.underWay.Add(1)
	defer s.counts.underWay.Add(-1)
	began := time.Now()
	at := began
	if late := began.Sub(due); late >= 0 && late < tolerance {
		at = due // so that samples are equally spaced
	}
	err = s.read(ctx, t, sc, at)
	s.counts.duration.Observe(time.Since(began).Seconds())
	if ctx.Err() == nil { // otherwise the target or the daemon is ending
		s.finish(ctx, t, at, err)
	}
}

// read reads the response of a target and writes its samples.
func (s *Scraper) read(ctx context.Context, t *target, sc *scratch, at time.Time) error {
	if t.org.bytes.TokensAt(at) < 0 {
		return failure{kind: kindPace, text: fmt.Sprintf("the Machines of this organization on this server have answered more than %d MiB within %s", s.limits.OrgBytes>>20, metrics.Interval)}
	}
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	openMetrics, release, err := s.fetch(bounded, t, sc)
	defer release()
	defer sc.shrink() // before another large response has its turn
	t.org.charge(at, sc.cost)
	if err != nil {
		return err
	}
	if err := sc.parser.parse(sc.body, openMetrics); err != nil {
		return err
	}
	if err := s.store(ctx, t, sc, at); err != nil {
		return err
	}
	switch p := &sc.parser; {
	case p.unreadable > 0:
		return failure{kind: kindLines, text: fmt.Sprintf("%d lines cannot be read; the first is line %d", p.unreadable, p.firstBad)}
	case p.overLimit > 0:
		return failure{kind: kindLabels, text: fmt.Sprintf("%d series have more than %d labels, or one of more than %d bytes", p.overLimit, s.limits.Labels, s.limits.LabelValue)}
	case p.duplicates > 0:
		return failure{kind: kindDuplicates, text: fmt.Sprintf("%d samples are of series that were there already; labels named app, region, host or instance do not tell series apart", p.duplicates)}
	}
	return nil
}

// charge counts the cost of a response. If it exceeds the budget of an interval, the organization's
// Machines are not scraped for several intervals.
func (o *org) charge(at time.Time, cost int64) {
	for all := int64(o.bytes.Burst()); cost > 0; cost -= all {
		o.bytes.ReserveN(at, int(min(cost, all)))
	}
}

// finish handles the result of a scrape: it notifies the owner, and schedules the next scrape.
func (s *Scraper) finish(ctx context.Context, t *target, at time.Time, err error) {
	var f failure
	if err != nil && !errors.As(err, &f) {
		s.counts.scrapes.WithLabelValues(kindWrite).Inc()
		return
	}
	port, now := t.scraped.Port, time.Now()
	switch f.kind {
	case kindNone:
		s.counts.scrapes.WithLabelValues(kindOK).Inc()
		t.penalty = 0
		if t.problem.changed(kindNone, now) {
			s.o.Tell(t.scraped.Machine, "info", fmt.Sprintf("The metrics of port %d are read again without problems", port))
		}
	case kindLines, kindLabels, kindDuplicates:
		s.counts.scrapes.WithLabelValues(f.kind).Inc()
		t.penalty = 0
		if t.problem.changed(f.kind, now) {
			s.o.Tell(t.scraped.Machine, "warn", fmt.Sprintf("Some of the metrics of port %d are left out: %s", port, f.text))
		}
	default:
		s.counts.scrapes.WithLabelValues(f.kind).Inc()
		s.stale(ctx, t, at)
		if f.penalty {
			t.penalty = min(max(2, 2*t.penalty), maxPenalty)
		} else {
			t.penalty = 0
		}
		if t.problem.changed(f.kind, now) {
			s.o.Tell(t.scraped.Machine, "warn", fmt.Sprintf("The metrics of port %d cannot be read: %s", port, f.text))
		}
	}
}
