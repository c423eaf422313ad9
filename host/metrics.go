package host

import (
	"iter"

	"github.com/hangar-platform/hangar"
)

// Metrics implements hangar.MetricSource: series of the Machines and volumes of this host. It may
// be called once Open has returned.
func (a *Agent) Metrics() iter.Seq[hangar.Metric] {
	return func(yield func(hangar.Metric) bool) {
		more := true
		each := func(m hangar.Metric) bool {
			more = yield(m)
			return more
		}
		if a.machines.Metrics(each); more {
			a.volumes.Metrics(each)
		}
	}
}

// MetricsEndpoints yields where Machines of this host that are started expose metrics of their own.
func (a *Agent) MetricsEndpoints() iter.Seq[hangar.MetricsEndpoint] {
	return a.machines.MetricsEndpoints
}

// LogMetrics adds a line about the metrics that a Machine exposes to its log. It waits for nothing.
func (a *Agent) LogMetrics(machine hangar.MachineRef, level, message string) {
	a.machines.LogMetrics(machine, level, message)
}
