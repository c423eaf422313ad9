package edge

import "github.com/prometheus/client_golang/prometheus"

// Describe implements prometheus.Collector.
func (e *Edge) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(e, ch) }

// Collect implements prometheus.Collector. It may be called once Open has returned.
func (e *Edge) Collect(ch chan<- prometheus.Metric) {
	open := prometheus.NewDesc("hangar_edge_open", "What the edge has open for Apps: connections that are known to be for one, requests in flight, sessions of datagrams.", []string{"what"}, nil)
	refused := prometheus.NewDesc("hangar_edge_refusals_total", "What the edge has refused because a client or an organization had too much open.", []string{"what"}, nil)
	l, p := e.listeners.Stats(), e.proxy.Stats()
	for _, m := range []struct {
		desc  *prometheus.Desc
		kind  prometheus.ValueType
		what  string
		value float64
	}{
		{open, prometheus.GaugeValue, "connections", float64(l.Conns)},
		{open, prometheus.GaugeValue, "requests", float64(p.InFlight)},
		{open, prometheus.GaugeValue, "datagram_sessions", float64(l.Sessions)},
		{refused, prometheus.CounterValue, "client_connections", float64(l.RefusedClients)},
		{refused, prometheus.CounterValue, "organization_connections", float64(l.RefusedConns)},
		{refused, prometheus.CounterValue, "organization_requests", float64(p.Refused)},
		{refused, prometheus.CounterValue, "datagram_sessions", float64(l.RefusedSessions)},
	} {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value, m.what)
	}
}
