package machines

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/journal"
)

// Kinds of starts.
const (
	startBoot     = "boot"     // from the image
	startResume   = "resume"   // from memory
	startFallback = "fallback" // from the image, because memory could not be resumed
	startTakeover = "takeover" // of an unrecorded sandbox that was running
)

// startKind returns the kind of a start that ended with the given record.
func startKind(rec *journal.Record, takenOver bool) string {
	switch {
	case takenOver:
		return startTakeover
	case rec.Snapshot:
		return startResume
	case rec.ColdBoot != "":
		return startFallback
	default:
		return startBoot
	}
}

// counts are the Prometheus metrics of a Store.
type counts struct {
	starts   *prometheus.HistogramVec
	failures *prometheus.CounterVec
}

func newCounts() counts {
	c := counts{
		starts: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "hangar_machine_start_duration_seconds",
			Help: "How long starts of Machines took until the program ran, with a pull of the image if it was not there: boot is from the image, resume from memory, " +
				"fallback from the image because the memory could not be used, takeover of a sandbox that ran already",
			Buckets: []float64{.025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"kind"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hangar_machine_start_failures_total", Help: "Starts of Machines that have failed, those that are tried again included",
		}, []string{"kind"}),
	}
	for _, kind := range []string{startBoot, startResume, startFallback, startTakeover} {
		c.starts.WithLabelValues(kind)
		if kind != startTakeover {
			c.failures.WithLabelValues(kind)
		}
	}
	return c
}

func (c *counts) started(kind string, took time.Duration) {
	c.starts.WithLabelValues(kind).Observe(took.Seconds())
}

// The metrics of Collect.
var (
	machinesDesc = prometheus.NewDesc("hangar_machines", "Machines of this server", []string{"state"}, nil)
	promisedDesc = prometheus.NewDesc("hangar_machine_memory_promised_bytes", "Memory that is promised to Machines that are not at rest", nil, nil)
	capacityDesc = prometheus.NewDesc("hangar_machine_memory_capacity_bytes", "Memory that may be promised to Machines", nil, nil)
)

// Describe implements prometheus.Collector.
func (s *Store) Describe(ch chan<- *prometheus.Desc) {
	s.counts.starts.Describe(ch)
	s.counts.failures.Describe(ch)
	for _, d := range []*prometheus.Desc{machinesDesc, promisedDesc, capacityDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Store) Collect(ch chan<- prometheus.Metric) {
	s.counts.starts.Collect(ch)
	s.counts.failures.Collect(ch)
	byState := map[hangar.MachineState]int{}
	for _, m := range s.all() {
		byState[m.rec.Load().Machine.State]++
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	for _, state := range hangar.MachineStates() {
		if state != hangar.MachineDestroyed { // only the journal has them
			gauge(machinesDesc, float64(byState[state]), string(state))
		}
	}
	capacity, left := s.Memory()
	gauge(promisedDesc, float64(capacity-left))
	gauge(capacityDesc, float64(capacity))
}
