package gateway

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The results of queries.
const (
	resultOK      = "ok"
	resultInvalid = "invalid" // the query is invalid
	resultLimited = "limited" // the organization exceeds its limits
	resultFailed  = "failed"  // the store is unreachable, busy or too slow
	resultGone    = "gone"    // the client has disconnected
)

// counts are the metrics of a Gateway.
type counts struct {
	queries *prometheus.HistogramVec
	waiting atomic.Int64
}

func newCounts() *counts {
	c := &counts{queries: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "hangar_metrics_query_duration_seconds",
		Help:    "Queries of series, also by alerting rules, and how long they took, including waiting: ok, invalid, limited (the organization exceeds its limits), failed (the store), gone (the client has disconnected)",
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

// waitingDesc is the metric that Collect measures.
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
