package delivery

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hangar-platform/hangar"
)

// resultOK is the result of an attempt that has succeeded; others are a hangar.DeliveryError.
const resultOK = "ok"

// counts are for operators.
type counts struct {
	events   prometheus.Counter
	lost     prometheus.Counter
	attempts *prometheus.CounterVec
	dead     *prometheus.CounterVec
	inFlight prometheus.Gauge
	delay    prometheus.Histogram
}

func newCounts() *counts {
	c := &counts{
		events: prometheus.NewCounter(prometheus.CounterOpts{Name: "hangar_webhook_events_total", Help: "Events of Machines that were taken from their host"}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "hangar_webhook_lost_events_total", Help: "Events of Machines that their host did not keep until they were taken, because the disk was full for long",
		}),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hangar_webhook_attempts_total", Help: "Attempts to deliver an event to a receiver, by how they ended",
		}, []string{"result"}),
		dead: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hangar_webhook_dead_letters_total", Help: "Deliveries of events that were given up, by why",
		}, []string{"reason"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{Name: "hangar_webhook_in_flight", Help: "Attempts to deliver an event that are under way"}),
		delay: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "hangar_webhook_delay_seconds", Help: "How long after an event its receiver has accepted it",
			Buckets: []float64{.001, .0025, .005, .01, .02, .05, .1, .5, 1, 10, 60, 600, 3600, 86400},
		}),
	}
	c.attempts.WithLabelValues(resultOK)
	for _, e := range hangar.DeliveryErrors() {
		c.attempts.WithLabelValues(string(e))
	}
	for _, r := range hangar.DeathReasons() {
		c.dead.WithLabelValues(string(r))
	}
	return c
}

func (c *counts) collectors() []prometheus.Collector {
	return []prometheus.Collector{c.events, c.lost, c.attempts, c.dead, c.inFlight, c.delay}
}

// What Collect measures.
var (
	receiversDesc = prometheus.NewDesc("hangar_webhook_receivers", "Receivers of events of Machines: webhooks and providers", nil, nil)
	failingDesc   = prometheus.NewDesc("hangar_webhook_failing_receivers", "Receivers with which no delivery succeeds at the moment", nil, nil)
	waitingDesc   = prometheus.NewDesc("hangar_webhook_waiting_events", "Deliveries of events that wait", nil, nil)
	bytesDesc     = prometheus.NewDesc("hangar_webhook_waiting_bytes", "What waits on the disk for receivers of events", nil, nil)
)

// Describe implements prometheus.Collector.
func (d *Dispatcher) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range d.counts.collectors() {
		c.Describe(ch)
	}
	for _, desc := range []*prometheus.Desc{receiversDesc, failingDesc, waitingDesc, bytesDesc} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (d *Dispatcher) Collect(ch chan<- prometheus.Metric) {
	for _, c := range d.counts.collectors() {
		c.Collect(ch)
	}
	d.mu.Lock()
	receivers, failing := len(d.receivers), 0
	for _, r := range d.receivers {
		if r.status().Failing {
			failing++
		}
	}
	d.mu.Unlock()
	waiting, bytes := d.store.waiting()
	for desc, v := range map[*prometheus.Desc]float64{
		receiversDesc: float64(receivers), failingDesc: float64(failing), waitingDesc: float64(waiting), bytesDesc: float64(bytes),
	} {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v)
	}
}

// waiting is how much waits in all queues.
func (s *store) waiting() (events int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.metas {
		events += m.Waiting
	}
	return events, s.total
}
