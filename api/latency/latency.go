// Package latency measures how long the API takes to answer, for its operator.
//
// The latency of a request is the time from its header to the header of its answer, so it does not
// include a slow reader. Operations that last as long as a client or a Machine wants, such as
// waits, streams, commands and tunnels, are counted without a latency, because it would say
// nothing about the platform.
//
// The number of series depends on operations and classes of status, not on what clients
// send: a request is counted by the pattern that has served it.
//
// Counts is safe for concurrent use.
package latency

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Values of labels beside those of routes.
const (
	otherPath = "other" // all that is not served
	anyMethod = "any"
	noStatus  = "none" // the connection was taken over, or nothing was answered
)

// Route is what a pattern of http.ServeMux serves.
type Route struct {
	Method string // empty: any
	Path   string
	// Lasting says that a client or a Machine decides how long a request lasts.
	Lasting bool
}

// Counts are the requests of an API. They are a prometheus.Collector.
type Counts struct {
	latency *prometheus.HistogramVec
	lasting *prometheus.CounterVec
	open    prometheus.Gauge
	routes  map[string]Route // by pattern; never changed
}

// New returns the counts of an API with some routes. All series exist before the first request, so that
// a rate can be computed.
func New(routes []Route) *Counts {
	labels := []string{"route", "method", "status"}
	c := &Counts{
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "hangar_api_request_duration_seconds",
			Help:    "From the header of a request to the header of its answer, by operation and class of the status. Operations that last as long as a client or a Machine wants are not among them",
			Buckets: []float64{.001, .005, .025, .1, .25, 1, 5, 30},
		}, labels),
		lasting: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hangar_api_lasting_requests_total",
			Help: "Requests that have ended of operations that last as long as a client or a Machine wants: waits, streams, commands, tunnels, the registry. none: the connection was taken over",
		}, labels),
		open: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "hangar_api_open_requests", Help: "Requests that are being answered, of both kinds, except those whose connection was taken over",
		}),
		routes: make(map[string]Route, len(routes)),
	}
	for _, r := range routes {
		pattern := r.Path
		if r.Method == "" {
			r.Method = anyMethod
		} else {
			pattern = r.Method + " " + r.Path
		}
		c.routes[pattern] = r
		c.begin(r, http.StatusOK)
		c.begin(r, http.StatusInternalServerError)
	}
	c.begin(other(), http.StatusNotFound)
	return c
}

// other is the route of requests that no pattern serves.
func other() Route { return Route{Method: anyMethod, Path: otherPath} }

func (c *Counts) begin(r Route, status int) {
	if r.Lasting {
		c.lasting.WithLabelValues(r.Path, r.Method, class(status))
		return
	}
	c.latency.WithLabelValues(r.Path, r.Method, class(status))
}

// Begun counts a request that has begun.
func (c *Counts) Begun() { c.open.Inc() }

// Ended counts a request that has ended: the pattern that served it, the status of the answer, or 0
// without one, and the time until the answer began.
func (c *Counts) Ended(pattern string, status int, took time.Duration) {
	c.open.Dec()
	r, ok := c.routes[pattern]
	if !ok {
		r = other()
	}
	if r.Lasting {
		c.lasting.WithLabelValues(r.Path, r.Method, class(status)).Inc()
		return
	}
	c.latency.WithLabelValues(r.Path, r.Method, class(status)).Observe(took.Seconds())
}

// class returns the class of a status, such as 2xx.
func class(status int) string {
	if status < 100 || status > 599 {
		return noStatus
	}
	return string(rune('0'+status/100)) + "xx"
}

func (c *Counts) collectors() []prometheus.Collector {
	return []prometheus.Collector{c.latency, c.lasting, c.open}
}

// Describe implements prometheus.Collector.
func (c *Counts) Describe(ch chan<- *prometheus.Desc) {
	for _, one := range c.collectors() {
		one.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (c *Counts) Collect(ch chan<- prometheus.Metric) {
	for _, one := range c.collectors() {
		one.Collect(ch)
	}
}
