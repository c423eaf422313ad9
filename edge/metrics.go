package edge

import "github.com/prometheus/client_golang/prometheus"

// The metrics of Collect, besides the balancer's.
var (
	openDesc        = prometheus.NewDesc("hangar_edge_open", "What the edge has open for Apps: connections that are known to be for one, requests in flight, connections that switched protocols, sessions of datagrams", []string{"what"}, nil)
	refusalsDesc    = prometheus.NewDesc("hangar_edge_refusals_total", "What the edge has refused because a client or an organization had too much open", []string{"what"}, nil)
	connectionsDesc = prometheus.NewDesc("hangar_edge_connections_total", "Connections of clients, by TCP and QUIC", nil, nil)
	requestsDesc    = prometheus.NewDesc("hangar_edge_requests_total", "Requests of clients", nil, nil)
	failuresDesc    = prometheus.NewDesc("hangar_edge_failures_total", "Requests and connections that the edge could not serve, by the code that their Apps find in the log", []string{"code"}, nil)
	dialsDesc       = prometheus.NewDesc("hangar_edge_dials_total", "Connections to Machines for requests", nil, nil)
	retriesDesc     = prometheus.NewDesc("hangar_edge_retries_total", "Requests that were sent to a Machine another time", nil, nil)
	replaysDesc     = prometheus.NewDesc("hangar_edge_replays_total", "Requests that a Machine had sent elsewhere", nil, nil)
)

// Describe implements prometheus.Collector.
func (e *Edge) Describe(ch chan<- *prometheus.Desc) {
	e.balancer.Describe(ch)
	for _, d := range []*prometheus.Desc{openDesc, refusalsDesc, connectionsDesc, requestsDesc, failuresDesc, dialsDesc, retriesDesc, replaysDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. It may be called once Open has returned. It reads
// counters that requests add to anyway.
func (e *Edge) Collect(ch chan<- prometheus.Metric) {
	e.balancer.Collect(ch)
	l, p := e.listeners.Stats(), e.proxy.Stats()
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	for what, n := range map[string]int64{
		"connections": int64(l.Conns), "requests": p.InFlight, "tunnels": p.Tunnels, "datagram_sessions": int64(l.Sessions),
	} {
		ch <- prometheus.MustNewConstMetric(openDesc, prometheus.GaugeValue, float64(n), what)
	}
	for what, n := range map[string]uint64{
		"client_connections": l.RefusedClients, "organization_connections": l.RefusedConns,
		"organization_requests": p.Refused, "datagram_sessions": l.RefusedSessions,
	} {
		count(refusalsDesc, n, what)
	}
	for code, n := range e.traffic.Failures {
		count(failuresDesc, n, string(code))
	}
	count(connectionsDesc, l.Taken)
	count(requestsDesc, p.Requests)
	count(dialsDesc, p.Dials)
	count(retriesDesc, p.Retries)
	count(replaysDesc, p.Replays)
}
