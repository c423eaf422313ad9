package store

import (
	"fmt"
	"os"

	"github.com/prometheus/client_golang/prometheus"
)

// The metrics that Collect measures.
var (
	upDesc      = prometheus.NewDesc("hangar_metrics_store_up", "1 while the process of the store of metrics runs. It starts with the first sample or query", nil, nil)
	startsDesc  = prometheus.NewDesc("hangar_metrics_store_starts_total", "Processes of the store of metrics that were started", nil, nil)
	crashesDesc = prometheus.NewDesc("hangar_metrics_store_crashes_total", "Processes of the store of metrics that have ended, or could not be started, while the daemon ran", nil, nil)
	memoryDesc  = prometheus.NewDesc("hangar_metrics_store_memory_bytes", "Memory of the process of the store of metrics, without the pages of files", nil, nil)
	limitDesc   = prometheus.NewDesc("hangar_metrics_store_memory_limit_bytes", "Memory limit of that process, beyond which the kernel kills it", nil, nil)
)

// Describe implements prometheus.Collector.
func (s *Store) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{upDesc, startsDesc, crashesDesc, memoryDesc, limitDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. It starts no child.
func (s *Store) Collect(ch chan<- prometheus.Metric) {
	up, memory := 0.0, 0.0
	if pid := s.PID(); pid != 0 {
		up, memory = 1, memoryOf(pid)
	}
	for _, m := range []struct {
		desc  *prometheus.Desc
		kind  prometheus.ValueType
		value float64
	}{
		{upDesc, prometheus.GaugeValue, up},
		{startsDesc, prometheus.CounterValue, float64(s.starts.Load())},
		{crashesDesc, prometheus.CounterValue, float64(s.crashes.Load())},
		{memoryDesc, prometheus.GaugeValue, memory},
		{limitDesc, prometheus.GaugeValue, float64(s.opts.MemoryBytes)},
	} {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value)
	}
}

// memoryOf returns how many bytes of a process's memory are not pages of files; 0 once it has ended.
// See proc_pid_statm(5).
func memoryOf(pid int) float64 {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	var size, resident, shared int
	if _, err := fmt.Sscan(string(raw), &size, &resident, &shared); err != nil {
		return 0
	}
	return float64((resident - shared) * os.Getpagesize())
}
