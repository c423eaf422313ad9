package remote

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Reasons why samples are dropped.
const (
	reasonInvalid   = "invalid"    // the store rejects them as invalid
	reasonSpoolFull = "spool_full" // the oldest ones beyond a limit
	reasonOld       = "old"        // longer in the spool than Limits.SpoolAge
	reasonDiskFull  = "disk_full"  // the disk has no room
)

// complaints is the minimum time between two logged errors of disk or network.
const complaints = time.Minute

// counts are the metrics of a Writer.
type counts struct {
	pending, spooled *atomic.Int64 // bytes
	complained       *atomic.Int64 // time of the last logged error, in seconds since 1970

	requests, dropped *prometheus.CounterVec
	sent, damaged     prometheus.Counter
}

func newCounts() counts {
	c := counts{
		pending: new(atomic.Int64), spooled: new(atomic.Int64), complained: new(atomic.Int64),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hangar_remote_requests_total", Help: "Writes to the store of metrics, by how they ended.",
		}, []string{"result"}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hangar_remote_dropped_samples_total", Help: "Samples that never reach the store of metrics, by reason.",
		}, []string{"reason"}),
		sent: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "hangar_remote_sent_samples_total", Help: "Samples that the store of metrics has accepted.",
		}),
		damaged: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "hangar_remote_damaged_segments_total", Help: "Segments of the spool of metrics that ended inside a record",
		}),
	}
	for _, result := range []outcome{taken2xx, invalid, failed, away} {
		c.requests.WithLabelValues(string(result))
	}
	for _, reason := range []string{reasonInvalid, reasonSpoolFull, reasonOld, reasonDiskFull} {
		c.dropped.WithLabelValues(reason)
	}
	return c
}

func (c *counts) drop(reason string, samples int) {
	c.dropped.WithLabelValues(reason).Add(float64(samples))
}

// complain logs an error that may come with every batch, at most once in complaints.
func (c *counts) complain(log *slog.Logger, err error) {
	now := time.Now().Unix()
	if last := c.complained.Load(); now-last >= int64(complaints/time.Second) && c.complained.CompareAndSwap(last, now) {
		log.Warn("cannot write metrics", "error", err)
	}
}

// The metrics that Collect measures.
var (
	pendingDesc = prometheus.NewDesc("hangar_remote_pending_bytes", "Bytes of samples in memory that the store of metrics has not accepted yet.", nil, nil)
	spoolDesc   = prometheus.NewDesc("hangar_remote_spool_bytes", "Bytes of samples on disk that the store of metrics has not accepted yet.", nil, nil)
	waitingDesc = prometheus.NewDesc("hangar_remote_waiting_tenants", "Organizations with samples that wait for the store of metrics.", nil, nil)
	awayDesc    = prometheus.NewDesc("hangar_remote_store_away", "1 while the store of metrics does not respond.", nil, nil)
)

func (c *counts) collectors() []prometheus.Collector {
	return []prometheus.Collector{c.requests, c.dropped, c.sent, c.damaged}
}

// Describe implements prometheus.Collector.
func (w *Writer) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range w.counts.collectors() {
		c.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{pendingDesc, spoolDesc, waitingDesc, awayDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (w *Writer) Collect(ch chan<- prometheus.Metric) {
	for _, c := range w.counts.collectors() {
		c.Collect(ch)
	}
	w.mu.Lock()
	tenants, away := len(w.tenants), 0.0
	if w.away {
		away = 1
	}
	w.mu.Unlock()
	gauge := func(d *prometheus.Desc, value float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value)
	}
	gauge(pendingDesc, float64(w.counts.pending.Load()))
	gauge(spoolDesc, float64(w.counts.spooled.Load()))
	gauge(waitingDesc, float64(tenants))
	gauge(awayDesc, away)
}
