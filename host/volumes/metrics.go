package volumes

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hangar-platform/hangar"
)

// The results that are counted.
const (
	resultCreated = "created"
	resultFailed  = "failed"
	resultPassed  = "passed"
	// resultPostponed: the disk had no room for the drill, which says nothing of the
	// snapshot.
	resultPostponed = "postponed"
)

// metrics count what becomes of snapshots.
type metrics struct {
	drills    *prometheus.CounterVec
	lastDrill *prometheus.GaugeVec
	snapshots *prometheus.CounterVec
	freeze    prometheus.Histogram
}

// newMetrics registers them, unless the registerer is nil.
func newMetrics(r prometheus.Registerer) metrics {
	m := metrics{
		drills: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hangar_volume_drills_total", Help: "Trial restores of snapshots that have ended, by App and result.",
		}, []string{"app", "result"}),
		lastDrill: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "hangar_volume_drill_last_success_timestamp_seconds", Help: "When a trial restore of a snapshot of the App last passed.",
		}, []string{"app"}),
		snapshots: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hangar_volume_snapshots_total", Help: "Snapshots of volumes that have ended, by result.",
		}, []string{"result"}),
		freeze: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "hangar_volume_freeze_seconds", Help: "How long writes to a volume waited for a snapshot or a fork.",
			Buckets: []float64{.005, .01, .02, .03, .05, .075, .1, .15, .25, .5, 1, 2.5},
		}),
	}
	// Both are there before the first one ends, so that a rate can be taken.
	m.snapshots.WithLabelValues(resultCreated)
	m.snapshots.WithLabelValues(resultFailed)
	if r != nil {
		r.MustRegister(m.drills, m.lastDrill, m.snapshots, m.freeze)
	}
	return m
}

func (m metrics) drilled(app hangar.AppName, result string, at time.Time) {
	m.drills.WithLabelValues(string(app), result).Inc()
	if result == resultPassed {
		m.passed(app, at)
	}
}

// passed says when a drill passed last.
func (m metrics) passed(app hangar.AppName, at time.Time) {
	m.lastDrill.WithLabelValues(string(app)).Set(float64(at.UnixMilli()) / 1000)
}

// forget drops what was counted of an App that has no snapshots any more.
func (m metrics) forget(app hangar.AppName) {
	labels := prometheus.Labels{"app": string(app)}
	m.drills.DeletePartialMatch(labels)
	m.lastDrill.DeletePartialMatch(labels)
}
