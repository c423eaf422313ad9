package hangar

import (
	"context"
	"iter"
	"net/http"
)

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
	// Metrics yields the current values of all Apps, each series once. It leaves out what cannot be
	// measured. A counter never decreases while its Machine, or the edge, runs.
	Metrics() iter.Seq[Metric]
}

// MetricsEndpoint is where a started Machine exposes metrics of its own.
type MetricsEndpoint struct {
	Machine MachineRef
	Org     OrgID
	Region  Region
	Metrics Metrics
	Boot    uint64 // changes with each boot of the Machine
}

// MetricsScope bounds the series that a caller may query.
type MetricsScope struct {
	Org    OrgID
	Number uint64    // of the organization: Org.NumericID
	Apps   []AppName // the only ones, sorted; nil: all, including destroyed ones
}

// MetricsService decides which series a caller may query, which needs ActionMetrics.
type MetricsService interface {
	// MetricsScope answers CodeNotFound with ReasonOrgNotFound for an organization in which the
	// caller is allowed nothing, as for one that does not exist, and CodeForbidden where the
	// caller is allowed something else.
	MetricsScope(ctx context.Context, slug OrgSlug) (MetricsScope, error)
}

// SeriesQuerier answers queries of series in the HTTP API of Prometheus.
type SeriesQuerier interface {
	// QuerySeries answers a request for path, which is one of SeriesPaths, within a scope. It writes
	// the whole answer, including errors.
	QuerySeries(w http.ResponseWriter, r *http.Request, scope MetricsScope, path string)
}

// SeriesPaths are the paths of the HTTP API of Prometheus that are served, below
// /prometheus/ and the slug of an organization. {label} is a label's name.
func SeriesPaths() []string {
	return []string{
		"/api/v1/query", "/api/v1/query_range", "/api/v1/series", "/api/v1/labels",
		"/api/v1/label/{label}/values", "/api/v1/status/tsdb", "/federate",
	}
}
