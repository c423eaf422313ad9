package api

import (
	"net/http"
	"strings"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/router"
)

const seriesPrefix = "/prometheus/{org}"

// series describes the operations of hangar.SeriesPaths.
var series = map[string]router.Operation{
	"/api/v1/query": {
		ID: "queryMetrics", Summary: "Query metrics",
		Query: []router.Param{
			{Name: "query", Example: "sum(rate(platform_edge_http_responses_count)) by (app)", Text: "In MetricsQL."},
			seriesApp,
			{Name: "time", Example: "2026-11-25T10:00:00Z", Text: "RFC 3339, or seconds since 1970. Absent: now."},
			{Name: "step", Example: "1m", Text: "How far back a value may be, and the range of functions that name none."},
			{Name: "timeout", Example: "10s", Text: "How long it may take at most."},
		},
	},
	"/api/v1/query_range": {
		ID: "queryMetricsRange", Summary: "Query metrics over a range",
		Query: []router.Param{
			{Name: "query", Example: "platform_instance_load_average", Text: "In MetricsQL."},
			seriesApp,
			{Name: "start", Example: "2026-11-25T09:00:00Z", Text: "RFC 3339, seconds since 1970, or a duration back from now such as -1h."},
			{Name: "end", Example: "2026-11-25T10:00:00Z", Text: "Absent: now."},
			{Name: "step", Example: "15s", Text: "Between two points."},
			{Name: "timeout", Example: "10s", Text: "How long it may take at most."},
		},
	},
	"/api/v1/series": {
		ID: "findMetricsSeries", Summary: "List series",
		Query: []router.Param{{Name: "match[]", Example: `{app="web"}`, Text: "Which; it may be repeated."}, seriesApp, seriesStart, seriesEnd, seriesLimit},
	},
	"/api/v1/labels": {
		ID: "listMetricsLabels", Summary: "List label names",
		Query: []router.Param{{Name: "match[]", Example: `{app="web"}`, Text: "The selector of the series. It may be repeated."}, seriesApp, seriesStart, seriesEnd, seriesLimit},
	},
	"/api/v1/label/{label}/values": {
		ID: "listMetricsLabelValues", Summary: "List label values",
		Query: []router.Param{{Name: "match[]", Example: `{app="web"}`, Text: "The selector of the series. It may be repeated."}, seriesApp, seriesStart, seriesEnd, seriesLimit},
	},
	"/api/v1/status/tsdb": {
		ID: "countMetricsSeries", Summary: "Count series by name, label and value",
		Query: []router.Param{
			{Name: "topN", Example: 10, Text: "How many of each list are shown."},
			{Name: "date", Example: "2026-11-25", Text: "The day. Absent: today."},
			{Name: "focusLabel", Example: "instance", Text: "The label whose values are counted, too."},
			{Name: "match[]", Example: `{app="web"}`, Text: "Which series; it may be repeated."},
			seriesApp,
		},
	},
	"/federate": {
		ID: "federateMetrics", Summary: "Read the latest values of series",
		Text: "In the text format of Prometheus.", Media: router.MediaText,
		Query: []router.Param{{Name: "match[]", Example: `{app="web"}`, Text: "Which; it may be repeated."}, seriesApp, {Name: "max_lookback", Example: "5m", Text: "How old a value may be."}},
	},
}

var (
	seriesApp   = router.Param{Name: "app", Example: "web", Text: "Only series of this App; it may be repeated."}
	seriesStart = router.Param{Name: "start", Example: "2026-11-25T09:00:00Z", Text: "RFC 3339, seconds since 1970, or a duration back from now."}
	seriesEnd   = router.Param{Name: "end", Example: "2026-11-25T10:00:00Z", Text: "Absent: now."}
	seriesLimit = router.Param{Name: "limit", Example: 100, Text: "How many are answered at most."}
)

// seriesAnswer is the envelope of the HTTP API of Prometheus, with what VictoriaMetrics adds.
type seriesAnswer struct {
	Status    string         `json:"status"`
	Data      any            `json:"data"`
	Stats     map[string]any `json:"stats,omitempty"`     // the cost of the query
	IsPartial bool           `json:"isPartial,omitempty"` // servers of a cluster were unreachable
}

// seriesError is an error in the form of Prometheus's HTTP API. Errors of authorization have the
// API's own form.
type seriesError struct {
	Status string `json:"status"`
	Type   string `json:"errorType"`
	Text   string `json:"error"`
}

func (s *server) seriesRoutes() {
	if s.Series == nil {
		return
	}
	for _, path := range hangar.SeriesPaths() {
		op := series[path]
		op.Tag = "Metrics"
		op.Errors = []int{http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity}
		op.Error = seriesError{Status: "error", Type: "bad_data", Text: "the query has a bracket that is not closed"}
		if op.Media == "" {
			op.Answer = seriesAnswer{Status: "success", Data: map[string]any{"resultType": "vector", "result": []any{}}}
		} else {
			op.Answer = "platform_instance_up{app=\"web\",instance=\"d8912340000002\"} 1 1764064800000\n"
		}
		s.Written("GET "+seriesPrefix+path, s.querySeries, op)
		op.ID += "ByForm"
		op.Summary += ", with parameters in a form"
		s.Written("POST "+seriesPrefix+path, s.querySeries, op)
	}
}

// querySeries queries the series of an organization, or only those of its Apps that the caller may
// query.
func (s *server) querySeries(w http.ResponseWriter, r *http.Request) error {
	scope, err := s.MetricsScopes.MetricsScope(r.Context(), hangar.OrgSlug(r.PathValue("org")))
	if err != nil {
		return err
	}
	_, path, _ := strings.Cut(r.Pattern, seriesPrefix)
	r.Body = http.MaxBytesReader(w, r.Body, router.MaxBodyBytes)
	s.Series.QuerySeries(w, r, scope, strings.Replace(path, "{label}", r.PathValue("label"), 1))
	return nil
}
