// Package builtin writes what the platform measures of Apps and Machines as series of their
// organizations.
//
// A Sampler reads its sources, adds the labels that all series have, and writes all series of one
// moment, tenant by tenant. Samples that cannot be written are lost; a counter has their value the
// next time. A series that has ended is marked as stale, so that queries do not still see its last
// value.
//
// Reference lists all metrics. Metrics that a source returns beyond it are not written.
package builtin

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/metrics"
)

// batch is how many samples are written at once.
const batch = 10_000

// staleFor is how long the end of a series is sent to a store that does not accept it. After that,
// queries ignore the series anyway (the default of query.lookback-delta of Prometheus).
const staleFor = 5 * time.Minute

// Options of a Sampler. All are required unless their comment says otherwise.
type Options struct {
	Sources []hangar.MetricSource
	// Apps returns the name and the tenant of an App; false: there is no such App.
	Apps   func(hangar.AppID) (hangar.AppName, metrics.Tenant, bool)
	Writer metrics.Writer
	Region hangar.Region // of this server
	Host   hangar.HostID // this server
	// Prefixes start the names of series. Each series is written once with each prefix; nil: only that
	// of the platform.
	Prefixes []string
	Interval time.Duration // 0: metrics.Interval
	Log      *slog.Logger  // nil: no log
}

// Sampler measures Apps and Machines at regular intervals. Use New and Run.
type Sampler struct {
	o        Options
	host     string
	families map[string]*Family
	known    map[string]*known // the written series, by tenant and labels
	strange  map[string]bool   // logged names that are not in the reference

	labels []metrics.Label // of the current series; reused
	key    []byte          // of the current series; reused
}

// known is a series that was written.
type known struct {
	tenant metrics.Tenant
	labels []metrics.Label
	seen   int64 // time of its last value, in milliseconds
}

// New returns a Sampler.
func New(o Options) *Sampler {
	if o.Prefixes == nil {
		o.Prefixes = []string{hangar.MetricPrefixes.Neutral}
	}
	if o.Interval == 0 {
		o.Interval = metrics.Interval
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Sampler{o: o, host: metrics.HostLabelOf(o.Host), families: make(map[string]*Family), known: make(map[string]*known), strange: make(map[string]bool)}
	for _, f := range Reference() {
		for _, name := range f.Series() {
			s.families[name] = &f
		}
	}
	return s
}

// Run samples until ctx ends, and returns its error.
func (s *Sampler) Run(ctx context.Context) error {
	tick := time.NewTicker(s.o.Interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.Sample(ctx)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Sample measures everything once and writes it. Calls must not overlap.
func (s *Sampler) Sample(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.o.Interval)
	defer cancel()
	now := time.Now().UnixMilli()
	all := s.collect(now)
	s.addStale(all, now)
	for tenant, samples := range all {
		s.write(ctx, tenant, samples)
	}
}

// collect reads the sources, and adds the series that it finds to known.
func (s *Sampler) collect(now int64) map[metrics.Tenant][]metrics.Sample {
	all := make(map[metrics.Tenant][]metrics.Sample)
	apps := make(map[hangar.AppID]*owner)
	for _, source := range s.o.Sources {
		for m := range source.Metrics() {
			of, ok := apps[m.App]
			if !ok {
				of = s.ownerOf(m.App)
				apps[m.App] = of
			}
			if of == nil || !s.documented(m.Name) {
				continue
			}
			for _, prefix := range s.o.Prefixes {
				s.labels = s.appendLabels(s.labels[:0], prefix, &m, of.name)
				s.key = appendKey(s.key[:0], of.tenant, s.labels)
				k := s.known[string(s.key)]
				if k == nil {
					k = &known{tenant: of.tenant, labels: slices.Clone(s.labels)}
					s.known[string(s.key)] = k
				}
				if k.seen == now {
					continue // a source returned the series twice
				}
				k.seen = now
				all[of.tenant] = append(all[of.tenant], metrics.Sample{Labels: k.labels, Value: m.Value, Time: now})
			}
		}
	}
	return all
}

type owner struct {
	name   string
	tenant metrics.Tenant
}

func (s *Sampler) ownerOf(app hangar.AppID) *owner {
	name, tenant, ok := s.o.Apps(app)
	if !ok {
		return nil
	}
	return &owner{string(name), tenant}
}

// documented reports whether a name is in the reference, and logs it once if it is not.
func (s *Sampler) documented(name string) bool {
	if f := s.families[name]; f != nil && f.Absent == "" {
		return true
	}
	if !s.strange[name] && len(s.strange) < len(s.families) {
		s.strange[name] = true
		s.o.Log.Error("a metric that is not in the reference is not written", "name", name)
	}
	return false
}

// appendLabels appends the labels of a series, sorted.
func (s *Sampler) appendLabels(labels []metrics.Label, prefix string, m *hangar.Metric, app string) []metrics.Label {
	labels = append(labels,
		metrics.Label{Name: metrics.NameLabel, Value: prefix + m.Name},
		metrics.Label{Name: "app", Value: app},
		metrics.Label{Name: metrics.HostLabel, Value: s.host},
		metrics.Label{Name: "region", Value: string(s.o.Region)},
	)
	if m.Machine != "" {
		labels = append(labels, metrics.Label{Name: "instance", Value: string(m.Machine)})
	}
	for _, l := range m.Labels {
		labels = append(labels, metrics.Label{Name: l.Name, Value: l.Value})
	}
	slices.SortFunc(labels, func(a, b metrics.Label) int { return cmp.Compare(a.Name, b.Name) })
	return labels
}

// appendKey appends what distinguishes the series of all tenants.
func appendKey(b []byte, tenant metrics.Tenant, labels []metrics.Label) []byte {
	b = append(b, tenant.Org...)
	for _, l := range labels {
		// Lengths, because a value may be any text.
		b = append(strconv.AppendInt(append(b, '|'), int64(len(l.Name)), 10), l.Name...)
		b = append(strconv.AppendInt(append(b, '='), int64(len(l.Value)), 10), ':')
		b = append(b, l.Value...)
	}
	return b
}

// addStale adds the ends of series that have ended. It forgets a series whose end was written, or
// that is too old.
func (s *Sampler) addStale(all map[metrics.Tenant][]metrics.Sample, now int64) {
	for key, k := range s.known {
		if k.seen == now {
			continue
		}
		if now-k.seen > staleFor.Milliseconds() {
			delete(s.known, key)
			continue
		}
		all[k.tenant] = append(all[k.tenant], metrics.Sample{Labels: k.labels, Value: metrics.Stale(), Time: now})
	}
}

// write writes the samples of a tenant.
func (s *Sampler) write(ctx context.Context, tenant metrics.Tenant, samples []metrics.Sample) {
	for part := range slices.Chunk(samples, batch) {
		err := s.o.Writer.Write(ctx, tenant, part)
		if err != nil {
			s.o.Log.WarnContext(ctx, "cannot write samples, which are lost", "org", tenant.Org, "samples", len(part), "error", err)
		}
		if err != nil && hangar.CodeOf(err) != hangar.CodeInvalid {
			continue // ends of series among them are sent again
		}
		for _, sample := range part {
			if metrics.IsStale(sample.Value) {
				s.key = appendKey(s.key[:0], tenant, sample.Labels)
				delete(s.known, string(s.key))
			}
		}
	}
}
