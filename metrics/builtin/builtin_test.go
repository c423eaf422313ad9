package builtin_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/builtin"
)

// source yields the samples that a test sets.
type source []hangar.Metric

func (s *source) Metrics() iter.Seq[hangar.Metric] { return slices.Values(*s) }

// written are samples by tenant and series.
type written struct {
	mu      sync.Mutex
	samples map[string]metrics.Sample
	writes  int
	fail    func(metrics.Tenant) error
}

func (w *written) Write(_ context.Context, tenant metrics.Tenant, samples []metrics.Sample) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes++
	if w.fail != nil {
		if err := w.fail(tenant); err != nil {
			return err
		}
	}
	for _, s := range samples {
		w.samples[string(tenant.Org)+" "+text(s.Labels)] = s
	}
	return nil
}

// take returns the samples written since the last call: values by series.
func (w *written) take() map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := map[string]string{}
	for name, s := range w.samples {
		all[name] = fmt.Sprint(s.Value)
		if metrics.IsStale(s.Value) {
			all[name] = "stale"
		}
	}
	clear(w.samples)
	return all
}

func text(labels []metrics.Label) string {
	var words []string
	for _, l := range labels {
		words = append(words, l.Name+"="+l.Value)
	}
	return strings.Join(words, ",")
}

func apps(id hangar.AppID) (hangar.AppName, metrics.Tenant, bool) {
	switch id {
	case "shop-id":
		return "shop", metrics.Tenant{Org: "acme", Number: 1}, true
	case "blog-id":
		return "blog", metrics.Tenant{Org: "other", Number: 2}, true
	}
	return "", metrics.Tenant{}, false
}

func newSampler(s *source, w *written, prefixes ...string) *builtin.Sampler {
	w.samples = map[string]metrics.Sample{}
	return builtin.New(builtin.Options{Sources: []hangar.MetricSource{s}, Apps: apps, Writer: w, Region: "loc", Host: "0badcafe", Prefixes: prefixes})
}

func same(t *testing.T, got map[string]string, want ...string) {
	t.Helper()
	var list []string
	for name, value := range got {
		list = append(list, name+" "+value)
	}
	slices.Sort(list)
	slices.Sort(want)
	if !slices.Equal(list, want) {
		t.Errorf("wrote\n%s\nwant\n%s", strings.Join(list, "\n"), strings.Join(want, "\n"))
	}
}

func TestSeries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{
			{App: "shop-id", Name: "edge_http_responses_count", Labels: []hangar.MetricLabel{{Name: "status", Value: "200"}, {Name: "proxy_id", Value: "blue"}}, Value: 3},
			{App: "shop-id", Machine: "0123456789abcd", Name: "instance_up", Value: 1},
			{App: "blog-id", Name: "volume_size_bytes", Labels: []hangar.MetricLabel{{Name: "id", Value: "vol_1"}}, Value: 5},
			{App: "gone-id", Machine: "0123456789abce", Name: "instance_up", Value: 1},
			{App: "shop-id", Machine: "0123456789abcd", Name: "instance_unheard_of", Value: 1},
			{App: "shop-id", Machine: "0123456789abcd", Name: "instance_cpu_balance", Value: 1},
		}
		var w written
		sampler := newSampler(s, &w, hangar.MetricPrefixes.Neutral, hangar.MetricPrefixes.Original)
		sampler.Sample(t.Context())
		shop := ",app=shop,host=0bad"
		same(t, w.take(),
			"acme __name__=fly_edge_http_responses_count"+shop+",proxy_id=blue,region=loc,status=200 3",
			"acme __name__=platform_edge_http_responses_count"+shop+",proxy_id=blue,region=loc,status=200 3",
			"acme __name__=fly_instance_up"+shop+",instance=0123456789abcd,region=loc 1",
			"acme __name__=platform_instance_up"+shop+",instance=0123456789abcd,region=loc 1",
			"other __name__=fly_volume_size_bytes,app=blog,host=0bad,id=vol_1,region=loc 5",
			"other __name__=platform_volume_size_bytes,app=blog,host=0bad,id=vol_1,region=loc 5",
		)
	})
}

// When a series has ended, the tenant that had its samples gets one marker of the end. A marker that
// cannot be written is tried again for a time.
func TestStaleSeries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := hangar.Metric{App: "shop-id", Machine: "0123456789abcd", Name: "instance_up", Value: 1}
		s, w := &source{up}, written{}
		sampler := newSampler(s, &w)
		name := "acme __name__=platform_instance_up,app=shop,host=0bad,instance=0123456789abcd,region=loc "
		step := func(want ...string) {
			t.Helper()
			time.Sleep(metrics.Interval)
			sampler.Sample(t.Context())
			same(t, w.take(), want...)
		}
		step(name + "1")
		*s = nil
		step(name + "stale")
		step()
		*s = source{up}
		step(name + "1")
		away := &hangar.Error{Code: hangar.CodeUnavailable}
		w.fail = func(metrics.Tenant) error { return away }
		*s = nil
		step()
		w.fail = nil
		step(name + "stale")
		step()
		*s = source{up}
		step(name + "1")
		w.fail = func(metrics.Tenant) error { return away }
		*s = nil
		time.Sleep(6 * time.Minute)
		step()
		w.fail = nil
		step()
	})
}

// A failure with one tenant's samples does not affect another's.
func TestTenantsAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{
			{App: "shop-id", Machine: "0123456789abcd", Name: "instance_up", Value: 1},
			{App: "blog-id", Machine: "0123456789abce", Name: "instance_up", Value: 1},
		}
		w := written{fail: func(tenant metrics.Tenant) error {
			if tenant.Org == "acme" {
				return &hangar.Error{Code: hangar.CodeInvalid}
			}
			return nil
		}}
		newSampler(s, &w).Sample(t.Context())
		same(t, w.take(), "other __name__=platform_instance_up,app=blog,host=0bad,instance=0123456789abce,region=loc 1")
	})
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w := &source{{App: "shop-id", Machine: "0123456789abcd", Name: "instance_up", Value: 1}}, written{}
		sampler := newSampler(s, &w)
		ctx, cancel := context.WithTimeout(t.Context(), 4*metrics.Interval+time.Second)
		defer cancel()
		if err := sampler.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if w.writes != 4 {
			t.Errorf("%d samples in 4 intervals", w.writes)
		}
	})
}

func BenchmarkSample(b *testing.B) {
	var s source
	for i := range 200 {
		id := hangar.MachineID(fmt.Sprintf("%014x", i))
		for j := range 150 {
			s = append(s, hangar.Metric{
				App: "shop-id", Machine: id, Name: "instance_disk_reads_completed", Value: float64(j),
				Labels: []hangar.MetricLabel{{Name: "device", Value: fmt.Sprint(j)}},
			})
		}
	}
	sampler := builtin.New(builtin.Options{Sources: []hangar.MetricSource{&s}, Apps: apps, Writer: nothing{}, Region: "loc", Host: "0badcafe"})
	b.ReportAllocs()
	for b.Loop() {
		sampler.Sample(b.Context())
	}
}

type nothing struct{}

func (nothing) Write(context.Context, metrics.Tenant, []metrics.Sample) error { return nil }
