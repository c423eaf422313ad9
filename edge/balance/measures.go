package balance

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// How wakes have ended.
const (
	wakeOK     = "ok"
	wakeFailed = "failed"
)

// measures are the Prometheus metrics of a Balancer. A request that finds a Machine at once
// counts nothing.
type measures struct {
	wakes   *prometheus.HistogramVec
	waited  prometheus.Histogram
	waiting atomic.Int64 // requests in the queues of all Apps
}

func newMeasures() *measures {
	c := &measures{
		wakes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "hangar_edge_wake_duration_seconds", Help: "How long Machines took that the edge had started, until their port accepted connections or the start had failed",
			Buckets: []float64{.025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"result"}),
		waited: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "hangar_edge_wait_duration_seconds", Help: "How long requests and connections waited for a Machine that had to be started or was busy, including those that gave up or failed. Requests that did not have to wait are not counted",
			Buckets: []float64{.005, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}),
	}
	c.wakes.WithLabelValues(wakeOK)
	c.wakes.WithLabelValues(wakeFailed)
	return c
}

// woke counts a wake that began at a time.
func (c *measures) woke(began time.Time, err error) {
	result := wakeOK
	if err != nil {
		result = wakeFailed
	}
	c.wakes.WithLabelValues(result).Observe(time.Since(began).Seconds())
}

// waitingDesc is the metric of Collect.
var waitingDesc = prometheus.NewDesc("hangar_edge_waiting_requests", "Requests and connections that wait for a Machine, in the queues of all Apps", nil, nil)

// Describe implements prometheus.Collector.
func (b *Balancer) Describe(ch chan<- *prometheus.Desc) {
	b.measures.wakes.Describe(ch)
	b.measures.waited.Describe(ch)
	ch <- waitingDesc
}

// Collect implements prometheus.Collector.
func (b *Balancer) Collect(ch chan<- prometheus.Metric) {
	b.measures.wakes.Collect(ch)
	b.measures.waited.Collect(ch)
	ch <- prometheus.MustNewConstMetric(waitingDesc, prometheus.GaugeValue, float64(b.measures.waiting.Load()))
}
