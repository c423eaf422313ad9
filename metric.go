package hangar

import "iter"

// Metric is what the platform has measured of an App or a Machine: one value of one series. Its
// name and labels are those of the public reference, without the prefix of the name and without
// the labels that all series have.
type Metric struct {
	App     AppID
	Machine MachineID // empty: of the App
	Name    string    // such as "instance_memory_mem_total"; counters and parts of histograms included
	Labels  []MetricLabel
	Value   float64
}

// MetricLabel tells series of one name apart.
type MetricLabel struct{ Name, Value string }

// MetricSource measures Apps and Machines.
type MetricSource interface {
	// Metrics yields what can be known now of every App that there is something to say of,
	// each series once. What cannot be known is left out. A counter does not run backwards
	// while its Machine, or the edge, runs.
	Metrics() iter.Seq[Metric]
}
