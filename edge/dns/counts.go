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
	resultRefused                // answered that the client or the question is not served
	resultLimited                // dropped: the client exceeds its rate
	resultInvalid                // dropped: not a question
	results
)

// String is the value of the label.
func (r result) String() string {
	return [results]string{"local", "cached", "resolved", "failed", "refused", "limited", "invalid"}[r]
}

// counts are the Prometheus metrics of a Server. Counting a message is one addition.
type counts [results]atomic.Uint64

// The metrics of Collect.
var (
	queriesDesc = prometheus.NewDesc("hangar_dns_queries_total",
		"Messages to the name server of Machines: answered as local, cached or resolved; failed, because no resolver has answered; refused, because the client or the question is not served; dropped as limited, because a client exceeds its rate, or as invalid", []string{"result"}, nil)
	lookupsDesc    = prometheus.NewDesc("hangar_dns_open_lookups", "Lookups at resolvers in progress", nil, nil)
	cacheBytesDesc = prometheus.NewDesc("hangar_dns_cache_bytes", "Bytes of resolvers' answers in the cache", nil, nil)
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
