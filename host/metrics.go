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
