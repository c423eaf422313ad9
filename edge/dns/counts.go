package dns

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// result is how a client's message was handled.
type result int

const (
	resultLocal    result = iota // answered from the names of private networks
	resultCached                 // answered from the cache of resolvers' answers
	resultResolved               // answered by a resolver
	resultFailed                 // answered that no resolver has an answer
	resultRefused                // answered that it is none of the asker's business
	resultLimited                // dropped: the client asks too much
	resultInvalid                // dropped: it is no question
	results
)

// String is the value of the label.
func (r result) String() string {
	return [results]string{"local", "cached", "resolved", "failed", "refused", "limited", "invalid"}[r]
}

// counts are the Prometheus metrics of a Server. A message costs one addition.
type counts [results]atomic.Uint64

// The metrics of Collect.
var (
	queriesDesc = prometheus.NewDesc("hangar_dns_queries_total",
		"Messages to the name server of Machines: answered as local, cached or resolved; failed, as no resolver has answered; refused, for whom or what is not served; dropped as limited, where a client asks too much, or invalid", []string{"result"}, nil)
	lookupsDesc    = prometheus.NewDesc("hangar_dns_open_lookups", "Questions that resolvers are being asked", nil, nil)
	cacheBytesDesc = prometheus.NewDesc("hangar_dns_cache_bytes", "Bytes of answers of resolvers that are kept", nil, nil)
)

// Describe implements prometheus.Collector.
func (s *Server) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{queriesDesc, lookupsDesc, cacheBytesDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Server) Collect(ch chan<- prometheus.Metric) {
	for r := range results {
		ch <- prometheus.MustNewConstMetric(queriesDesc, prometheus.CounterValue, float64(s.counts[r].Load()), r.String())
	}
	s.resolver.mu.Lock()
	lookups := len(s.resolver.flights)
	s.resolver.mu.Unlock()
	ch <- prometheus.MustNewConstMetric(lookupsDesc, prometheus.GaugeValue, float64(lookups))
	ch <- prometheus.MustNewConstMetric(cacheBytesDesc, prometheus.GaugeValue, float64(s.resolver.cache.size()))
}

// count counts a message.
func (s *Server) count(r result) { s.counts[r].Add(1) }
