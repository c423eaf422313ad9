package scrape

import (
	"context"
	"encoding/binary"
	"hash/maphash"
	"time"

	"github.com/hangar-platform/hangar/metrics"
)

// seriesSet is the series of a scrape, in the order of the response. The text of each is the number
// of its labels, followed by the name and value of each label, with their lengths, sorted by name.
// The name of the metric is one of these labels; the platform's labels are not.
type seriesSet struct {
	text  string
	count int
}

// platformLabels are the labels that a Machine cannot choose, sorted by name.
type platformLabels [4]metrics.Label

func labelsOf(t *Target) platformLabels {
	return platformLabels{
		{Name: "app", Value: string(t.Machine.App)},
		{Name: metrics.HostLabel, Value: t.Host},
		{Name: "instance", Value: string(t.Machine.ID)},
		{Name: "region", Value: string(t.Region)},
	}
}

// ofPlatform reports whether only the platform sets the label of that name.
func ofPlatform(name []byte) bool {
	switch string(name) {
	case "app", metrics.HostLabel, "instance", "region":
		return true
	}
	return len(name) >= 2 && name[0] == '_' && name[1] == '_'
}

// cut returns the text of the first series, and the rest.
func cut(text string) (series, rest string) {
	at := 0
	n := number(text, &at)
	for range 2 * n {
		at += number(text, &at)
	}
	return text[:at], text[at:]
}

// number reads a number and advances at.
func number(text string, at *int) int {
	var n uint64
	for shift := 0; ; shift += 7 {
		b := text[*at]
		*at++
		n |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return int(n)
		}
	}
}

func word(text string, at *int) string {
	n := number(text, at)
	*at += n
	return text[*at-n : *at]
}

func appendWord(b, word []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(word))), word...)
}

// appendLabels appends the labels of a series and the platform's, sorted by name.
func appendLabels(list []metrics.Label, series string, own *platformLabels) []metrics.Label {
	at, mine := 0, 0
	for range number(series, &at) {
		l := metrics.Label{Name: word(series, &at), Value: word(series, &at)}
		for mine < len(own) && own[mine].Name < l.Name {
			list = append(list, own[mine])
			mine++
		}
		list = append(list, l)
	}
	return append(list, own[mine:]...)
}

// samplesAtOnce is how many samples one call writes.
const samplesAtOnce = 1000

// output writes samples of one target.
type output struct {
	ctx     context.Context //nolint:containedctx // of the scrape that writes
	writer  metrics.Writer
	tenant  metrics.Tenant
	own     platformLabels
	time    int64
	sc      *scratch
	written int
	err     error
}

func (s *Scraper) output(ctx context.Context, t *target, sc *scratch, at time.Time) *output {
	return &output{ctx: ctx, writer: s.o.Writer, tenant: t.scraped.Tenant, own: labelsOf(&t.scraped), time: at.UnixMilli(), sc: sc}
}

func (o *output) add(series string, value float64) {
	begin := len(o.sc.labels)
	o.sc.labels = appendLabels(o.sc.labels, series, &o.own)
	o.sc.samples = append(o.sc.samples, metrics.Sample{Labels: o.sc.labels[begin:len(o.sc.labels):len(o.sc.labels)], Value: value, Time: o.time})
	if len(o.sc.samples) == samplesAtOnce {
		o.flush()
	}
}

func (o *output) flush() {
	if len(o.sc.samples) > 0 && o.err == nil {
		o.err = o.writer.Write(o.ctx, o.tenant, o.sc.samples)
		o.written += len(o.sc.samples)
	}
	clear(o.sc.samples)
	clear(o.sc.labels)
	o.sc.samples, o.sc.labels = o.sc.samples[:0], o.sc.labels[:0]
}

// store writes the parsed samples, and the ends of series of the last scrape that are missing now.
func (s *Scraper) store(ctx context.Context, t *target, sc *scratch, at time.Time) error {
	p := &sc.parser
	now := t.last
	if string(p.text) != t.last.text {
		now = seriesSet{string(p.text), len(p.values)}
	}
	before := t.last
	if !s.keep(t, now) {
		return failure{kind: kindMemory, text: "the metrics of this organization take more memory than there is for it on this server", penalty: true}
	}
	o := s.output(ctx, t, sc, at)
	rest, series := now.text, ""
	for _, v := range p.values {
		series, rest = cut(rest)
		o.add(series, v)
	}
	if before.text != now.text {
		for rest := before.text; rest != ""; {
			series, rest = cut(rest)
			if _, still := p.seen[maphash.String(p.seed, series)]; !still {
				o.add(series, metrics.Stale())
			}
		}
	}
	o.flush()
	s.counts.samples.Add(float64(o.written))
	return o.err
}

// stale writes the ends of all series of the last scrape.
func (s *Scraper) stale(ctx context.Context, t *target, at time.Time) {
	if t.last.count == 0 {
		return
	}
	sc := s.scratch.Get().(*scratch)
	defer s.recycle(sc)
	o := s.output(ctx, t, sc, at)
	for rest, series := t.last.text, ""; rest != ""; {
		series, rest = cut(rest)
		o.add(series, metrics.Stale())
	}
	o.flush()
	s.counts.samples.Add(float64(o.written))
	if o.err != nil {
		s.counts.scrapes.WithLabelValues(kindWrite).Inc()
	}
	s.keep(t, seriesSet{})
}

// keep remembers the series of a scrape, unless they take too much memory.
func (s *Scraper) keep(t *target, now seriesSet) bool {
	org := t.scraped.Tenant.Org
	switch more := len(now.text) - len(t.last.text); {
	case more > 0 && !s.kept.TakeN(org, more):
		return false
	case more < 0:
		s.kept.LeaveN(org, -more)
	}
	s.counts.series.Add(int64(now.count - t.last.count))
	t.last = now
	return true
}

// recycle returns a scratch for reuse, without the memory for a large response.
func (s *Scraper) recycle(sc *scratch) {
	sc.shrink()
	s.scratch.Put(sc)
}
