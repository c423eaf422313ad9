package alerts

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// How evaluations of rules end.
const (
	resultOK     = "ok"
	resultFailed = "failed"
)

// counts are the metrics of an Evaluator.
type counts struct {
	evaluations *prometheus.HistogramVec
	missed      prometheus.Counter
}

func newCounts() *counts {
	c := &counts{
		evaluations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "hangar_alert_evaluation_duration_seconds", Help: "Evaluations of alerting rules, and how long they took, including waiting",
			Buckets: []float64{.005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"result"}),
		missed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "hangar_alert_missed_evaluations_total", Help: "Evaluations of groups of rules that were skipped because the previous one took too long",
		}),
	}
	c.evaluations.WithLabelValues(resultOK)
	c.evaluations.WithLabelValues(resultFailed)
	return c
}

func (c *counts) evaluated(err error, took time.Duration) {
	result := resultOK
	if err != nil {
		result = resultFailed
	}
	c.evaluations.WithLabelValues(result).Observe(took.Seconds())
}

// waitingDesc is the metric that Collect measures.
var waitingDesc = prometheus.NewDesc("hangar_alert_waiting_evaluations", "Evaluations of rules that wait for others", nil, nil)

// Describe implements prometheus.Collector.
func (e *Evaluator) Describe(ch chan<- *prometheus.Desc) {
	e.counts.evaluations.Describe(ch)
	e.counts.missed.Describe(ch)
	ch <- waitingDesc
}

// Collect implements prometheus.Collector.
func (e *Evaluator) Collect(ch chan<- prometheus.Metric) {
	e.counts.evaluations.Collect(ch)
	e.counts.missed.Collect(ch)
	ch <- prometheus.MustNewConstMetric(waitingDesc, prometheus.GaugeValue, float64(e.slots.Waiting()))
}
