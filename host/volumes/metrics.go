package volumes

import "github.com/prometheus/client_golang/prometheus"

// The results that are counted.
const (
	resultCreated = "created"
	resultFailed  = "failed"
	resultPassed  = "passed"
	// resultPostponed: the disk had no room for the drill.
	resultPostponed = "postponed"
)

// metrics count the results of snapshots and drills.
type metrics struct {
	drills    *prometheus.CounterVec
	snapshots *prometheus.CounterVec
	freeze    prometheus.Histogram
}

// newMetrics registers those of a Store, unless the registerer is nil.
func newMetrics(r prometheus.Registerer, s *Store) metrics {
	m := metrics{
		drills: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hangar_volume_drills_total", Help: "Trial restores of snapshots that have ended: passed, failed, or postponed for a day because the disk had no room",
		}, []string{"result"}),
		snapshots: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hangar_volume_snapshots_total", Help: "Snapshots of volumes that have ended",
		}, []string{"result"}),
		freeze: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "hangar_volume_freeze_seconds", Help: "How long writes to a volume waited for a snapshot or a fork",
			Buckets: []float64{.005, .01, .02, .03, .05, .075, .1, .15, .25, .5, 1, 2.5},
		}),
	}
	// Each label value exists from the start, so that a rate has a first sample.
	for _, result := range []string{resultCreated, resultFailed} {
		m.snapshots.WithLabelValues(result)
	}
	for _, result := range []string{resultPassed, resultFailed, resultPostponed} {
		m.drills.WithLabelValues(result)
	}
	if r != nil {
		r.MustRegister(m.drills, m.snapshots, m.freeze, collector{s})
	}
	return m
}

// collector measures a Store during a collection.
type collector struct{ store *Store }

var (
	oldestDesc = prometheus.NewDesc("hangar_volume_drill_oldest_success_timestamp_seconds",
		"When a trial restore passed last of the App for which that is the longest ago; 0: none has. An alarm at eight days is a good one", nil, nil)
	waitingDesc = prometheus.NewDesc("hangar_volume_waiting", "What waits until others have had the disk, by what it is for: snapshots, fills of new volumes, drills", []string{"what"}, nil)
)

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- oldestDesc
	ch <- waitingDesc
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	oldest := 0.0
	if at := c.store.drills.oldestSuccess(); !at.IsZero() {
		oldest = float64(at.UnixMilli()) / 1000
	}
	ch <- prometheus.MustNewConstMetric(oldestDesc, prometheus.GaugeValue, oldest)
	for what, n := range map[string]int{
		"snapshots": c.store.snapshots.Waiting(), "fills": c.store.fills.Waiting(), "drills": c.store.drills.trials.Waiting(),
	} {
		ch <- prometheus.MustNewConstMetric(waitingDesc, prometheus.GaugeValue, float64(n), what)
	}
}
