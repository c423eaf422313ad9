package api

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The labels of what is counted. A route is the path of a pattern, so that there are as many as
// the API has operations.
const (
	labelRoute  = "route"
	labelMethod = "method"
	labelStatus = "status"
)

const (
	otherRoute = "other" // all paths that are not served
	anyMethod  = "any"   // of a route that is one for all methods
	noStatus   = "none" // the connection was taken over, or nothing was answered
)

// counts are what the API tells its operator of requests.
//
// The latency is what the platform takes: from the header of a request to that of its answer, so
// that a client that reads slowly is not seen in it. Operations that last as long as their client
// or a Machine wants, such as waits, streams and tunnels, would say nothing of the platform: they
// are counted, and have no latency.
type counts struct {
	latency *prometheus.HistogramVec
	lasting *prometheus.CounterVec
	open    prometheus.Gauge

	byPattern map[string]routeCounts // of http.Request.Pattern
	other     routeCounts
}

// routeCounts count the requests of a route.
type routeCounts struct {
	route, method string
	lasting       bool
}

// newCounts returns counts of the routes of the API, with those that every one of them will have.
func newCounts(table []route, registry bool) *counts {
	labels := []string{labelRoute, labelMethod, labelStatus}
	c := &counts{
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "hangar_api_request_duration_seconds",
			Help:    "From the header of a request to that of its answer, by operation and class of the status. Operations that last as long as a client or a Machine wants are not among them",
			Buckets: []float64{.001, .005, .025, .1, .25, 1, 5, 30},
		}, labels),
		lasting: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hangar_api_lasting_requests_total",
			Help: "Requests that have ended of operations that last as long as a client or a Machine wants: waits, streams, commands, tunnels, the registry. Without a status: the connection was taken over",
		}, labels),
		open: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "hangar_api_open_requests", Help: "Requests that are being answered, of both kinds, but for waits that are parked",
		}),
		byPattern: make(map[string]routeCounts, len(table)+1),
		other:     routeCounts{route: otherRoute, method: anyMethod},
	}
	for i := range table {
		r := &table[i]
		c.byPattern[r.method+" "+r.path] = routeCounts{r.path, r.method, r.lasting}
	}
	if registry {
		c.byPattern[registryPath] = routeCounts{registryPath, anyMethod, true}
	}
	for _, r := range c.byPattern {
		for _, status := range []int{http.StatusOK, http.StatusInternalServerError} {
			c.begin(r, status)
		}
	}
	c.begin(c.other, http.StatusNotFound)
	return c
}

// begin has the series of a route there before its first request, so that a rate can be taken.
func (c *counts) begin(r routeCounts, status int) {
	if r.lasting {
		c.lasting.WithLabelValues(r.route, r.method, statusClass(status))
		return
	}
	c.latency.WithLabelValues(r.route, r.method, statusClass(status))
}

// answered counts a request that was served by a pattern, or by none.
func (c *counts) answered(pattern string, status int, took time.Duration) {
	r, ok := c.byPattern[pattern]
	if !ok {
		r = c.other
	}
	if r.lasting {
		c.lasting.WithLabelValues(r.route, r.method, statusClass(status)).Inc()
		return
	}
	c.latency.WithLabelValues(r.route, r.method, statusClass(status)).Observe(took.Seconds())
}

// statusClass is as in 2xx.
func statusClass(status int) string {
	if status < 100 || status > 599 {
		return noStatus
	}
	return string(rune('0'+status/100)) + "xx"
}

func (c *counts) collectors() []prometheus.Collector {
	return []prometheus.Collector{c.latency, c.lasting, c.open}
}

// Describe implements prometheus.Collector.
func (h *Handler) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range h.server.counts.collectors() {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (h *Handler) Collect(ch chan<- prometheus.Metric) {
	for _, c := range h.server.counts.collectors() {
		c.Collect(ch)
	}
}
