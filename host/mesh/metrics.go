package mesh

import (
	"github.com/prometheus/client_golang/prometheus"
)

// The metrics of Collect.
var (
	handshakeDesc = prometheus.NewDesc("hangar_mesh_handshake_age_seconds",
		"Seconds since the last handshake with another host in the private network between hosts; there is one every two minutes, and none before the first", []string{"peer_host"}, nil)
	receivedDesc = prometheus.NewDesc("hangar_mesh_received_bytes_total", "Bytes received from another host in the private network between hosts", []string{"peer_host"}, nil)
	sentDesc     = prometheus.NewDesc("hangar_mesh_sent_bytes_total", "Bytes sent to another host in the private network between hosts", []string{"peer_host"}, nil)
)

// Describe implements prometheus.Collector.
func (m *Mesh) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{handshakeDesc, receivedDesc, sentDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Mesh) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	all := m.seen()
	m.mu.Unlock()
	now := m.Now()
	for id, s := range all {
		if !s.Handshake.IsZero() {
			ch <- prometheus.MustNewConstMetric(handshakeDesc, prometheus.GaugeValue, now.Sub(s.Handshake).Seconds(), string(id))
		}
		ch <- prometheus.MustNewConstMetric(receivedDesc, prometheus.CounterValue, float64(s.Received), string(id))
		ch <- prometheus.MustNewConstMetric(sentDesc, prometheus.CounterValue, float64(s.Sent), string(id))
	}
}
