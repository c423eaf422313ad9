package gateway

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// How queries end.
const (
	resultOK      = "ok"
	resultInvalid = "invalid" // the query is invalid
	resultLimited = "limited" // the organization asks for too much at a time
	resultFailed  = "failed"  // the store is away, busy or too slow
	resultGone    = "gone"    // the client has hung up
)

// counts are what a Gateway tells its operator.
type counts struct {
	queries *prometheus.HistogramVec
	waiting atomic.Int64
}

func newCounts() *counts {
	c := &counts{queries: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "hangar_metrics_query_duration_seconds",
		Help:    "Queries of series, also by rules of alerts, and how long they took with waiting: ok, invalid, limited where an organization asks for too much, failed for the store, gone where the client has hung up",
		Buckets: []float64{.005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
	}, []string{"result"})}
	for _, result := range []string{resultOK, resultInvalid, resultLimited, resultFailed, resultGone} {
		c.queries.WithLabelValues(result)
	}
	return c
}

// answered counts a query that has ended with err.
func (c *counts) answered(ctx context.Context, err error, took time.Duration) {
	result := resultOK
	switch {
	case err == nil:
	case ctx.Err() != nil:
		result = resultGone
	default:
		switch status := failureOf(err).status; {
		case status == http.StatusTooManyRequests:
			result = resultLimited
		case status >= http.StatusInternalServerError:
			result = resultFailed
		default:
			result = resultInvalid
		}
	}
	c.queries.WithLabelValues(result).Observe(took.Seconds())
}

// waitingDesc is what Collect measures.
var waitingDesc = prometheus.NewDesc("hangar_metrics_waiting_queries", "Queries of series that wait for others", nil, nil)

// Describe implements prometheus.Collector.
func (g *Gateway) Describe(ch chan<- *prometheus.Desc) {
	g.counts.queries.Describe(ch)
	ch <- waitingDesc
}

// Collect implements prometheus.Collector.
func (g *Gateway) Collect(ch chan<- prometheus.Metric) {
	g.counts.queries.Collect(ch)
	ch <- prometheus.MustNewConstMetric(waitingDesc, prometheus.GaugeValue, float64(g.counts.waiting.Load()))
}
