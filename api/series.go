package api

import (
	"net/http"
	"strings"

	"github.com/hangar-platform/hangar"
)

const seriesPrefix = "/prometheus/{org}"

// series describes the operations of hangar.SeriesPaths.
var series = map[string]operation{
	"/api/v1/query": {
		ID: "queryMetrics", Summary: "Evaluate an expression at one time",
		Query: []param{
			{"query", "sum(rate(platform_edge_http_responses_count)) by (app)", "In MetricsQL."},
			seriesApp,
			{"time", "2026-11-25T10:00:00Z", "RFC 3339, or seconds since 1970. Absent: now."},
			{"step", "1m", "How far back a value may be, and the range of functions that name none."},
			{"timeout", "10s", "How long it may take at most."},
		},
	},
	"/api/v1/query_range": {
		ID: "queryMetricsRange", Summary: "Evaluate an expression over a range of time",
		Query: []param{
			{"query", "platform_instance_load_average", "In MetricsQL."},
			seriesApp,
			{"start", "2026-11-25T09:00:00Z", "RFC 3339, seconds since 1970, or a duration back from now such as -1h."},
			{"end", "2026-11-25T10:00:00Z", "Absent: now."},
			{"step", "15s", "Between two points."},
			{"timeout", "10s", "How long it may take at most."},
		},
	},
	"/api/v1/series": {
		ID: "findMetricsSeries", Summary: "List series",
		Query: []param{{"match[]", `{app="web"}`, "Which; it may be repeated."}, seriesApp, seriesStart, seriesEnd, seriesLimit},
	},
	"/api/v1/labels": {
		ID: "listMetricsLabels", Summary: "List the names of labels",
		Query: []param{{"match[]", `{app="web"}`, "Of which series; it may be repeated."}, seriesApp, seriesStart, seriesEnd, seriesLimit},
	},
	"/api/v1/label/{label}/values": {
		ID: "listMetricsLabelValues", Summary: "List the values of a label",
		Query: []param{{"match[]", `{app="web"}`, "Of which series; it may be repeated."}, seriesApp, seriesStart, seriesEnd, seriesLimit},
	},
	"/api/v1/status/tsdb": {
		ID: "countMetricsSeries", Summary: "Count series by name, label and value",
		Query: []param{
			{"topN", 10, "How many of each list are shown."},
			{"date", "2026-11-25", "Of which day. Absent: today."},
			{"focusLabel", "instance", "The label whose values are counted, too."},
			{"match[]", `{app="web"}`, "Which series; it may be repeated."},
			seriesApp,
		},
	},
	"/federate": {
		ID: "federateMetrics", Summary: "Read the latest values of series",
		Text: "In the text format of Prometheus.", Media: mediaText,
		Query: []param{{"match[]", `{app="web"}`, "Which; it may be repeated."}, seriesApp, {"max_lookback", "5m", "How old a value may be."}},
	},
}

var (
	seriesApp   = param{"app", "web", "Only series of this App; it may be repeated."}
	seriesStart = param{"start", "2026-11-25T09:00:00Z", "RFC 3339, seconds since 1970, or a duration back from now."}
	seriesEnd   = param{"end", "2026-11-25T10:00:00Z", "Absent: now."}
	seriesLimit = param{"limit", 100, "How many are answered at most."}
)

// seriesAnswer is the envelope of the HTTP API of Prometheus, with what VictoriaMetrics adds.
type seriesAnswer struct {
	Status    string         `json:"status"`
	Data      any            `json:"data"`
	Stats     map[string]any `json:"stats,omitempty"`     // what the query took
	IsPartial bool           `json:"isPartial,omitempty"` // servers of a cluster were away
}

// seriesError is how the HTTP API of Prometheus has errors. Whose series may be asked for is told
// by errors of the API.
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
		s.written("GET "+seriesPrefix+path, s.querySeries, op)
		op.ID += "ByForm"
		op.Summary += ", with parameters in a form"
		s.written("POST "+seriesPrefix+path, s.querySeries, op)
	}
}

// querySeries has the series of an organization queried, or those of the Apps of it that the
// caller may query.
func (s *server) querySeries(w http.ResponseWriter, r *http.Request) error {
	scope, err := s.MetricsScopes.MetricsScope(r.Context(), hangar.OrgSlug(r.PathValue("org")))
	if err != nil {
		return err
	}
	_, path, _ := strings.Cut(r.Pattern, seriesPrefix)
	r.Body = http.MaxBytesReader(w, r.Body, MaxBodyBytes)
	s.Series.QuerySeries(w, r, scope, strings.Replace(path, "{label}", r.PathValue("label"), 1))
	return nil
}
