package gateway

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/metrics"
	"github.com/hangar-platform/hangar/metrics/metricstest"
	"github.com/hangar-platform/hangar/metrics/remote"
)

// The two organizations have the same metrics and Apps. Everything of the other one has "foreign"
// in the name or value of at least one label.
const (
	ownID     = "org-own-8f31"
	otherID   = "org-foreign-77c2"
	ownValue  = 1001
	foreign   = "foreign"
	hiddenSet = "__org__"
)

var (
	own   = metricstest.Tenant(ownID, 1)
	other = metricstest.Tenant(otherID, 2)
)

// fillTwo writes the same series for both tenants, and returns when both can be queried.
func fillTwo(t *testing.T, s metrics.Store, at time.Time) {
	t.Helper()
	for _, x := range []struct {
		tenant metrics.Tenant
		value  float64
		mark   string
	}{{own, ownValue, "own"}, {other, 777777, foreign}} {
		var all []metrics.Sample
		for _, app := range []string{"web", "db"} {
			for i := range 5 {
				moment := at.Add(time.Duration(i-5) * metrics.Interval)
				all = append(all,
					metricstest.Sample("requests_count", x.value+float64(i), moment, "app", app, "host", "h1"),
					metricstest.Sample("requests_count", x.value+float64(i), moment, "app", app, "host", "h1", "mark", x.mark),
					metricstest.Sample("mark_"+x.mark, x.value, moment, "app", app, "label_"+x.mark, "1"))
			}
		}
		metricstest.Write(t, s, x.tenant, all...)
	}
	for _, tenant := range []metrics.Tenant{own, other} {
		metricstest.Await(t, s, tenant, `count({__name__!=""})`, at, 6)
	}
}

// leaks returns the parts of an answer that belong to the other organization or are hidden.
func leaks(body string) string {
	for _, secret := range []string{foreign, otherID, "77777", hiddenSet, `\u005f`} {
		if strings.Contains(body, secret) {
			return secret
		}
	}
	return ""
}

// sneaky are parameters that a client adds to a request to get data of others. They have no effect,
// and an answer does not repeat them, so "foreign" in an answer is a leak.
func sneaky() map[string]string {
	filter := url.QueryEscape(`{__org__="` + otherID + `"}`)
	label := url.QueryEscape("__org__=" + otherID)
	return map[string]string{
		"nothing":                  "",
		"extra_filters":            "extra_filters=" + filter,
		"extra_filters[]":          "extra_filters[]=" + filter,
		"both extra_filters":       "extra_filters=" + filter + "&extra_filters[]=" + filter,
		"extra_label":              "extra_label=" + label,
		"two extra_labels":         "extra_label=" + label + "&extra_label=" + url.QueryEscape("__org__="+ownID),
		"empty extra_label":        "extra_label=",
		"extra_label[]":            "extra_label[]=" + label,
		"escaped name":             "extra%5Flabel=" + label + "&extra%5ffilters%5B%5D=" + filter,
		"other case":               "Extra_Label=" + label + "&EXTRA_FILTERS=" + filter,
		"match[]":                  "match[]=" + filter,
		"match":                    "match=" + filter,
		"any match":                "match[]=" + url.QueryEscape(`{__org__=~".*"}`) + "&match=" + url.QueryEscape(`{__org__!=""}`),
		"or match":                 "match[]=" + url.QueryEscape(`{__org__="`+ownID+`" or __org__="`+otherID+`"}`),
		"tenant headers in a form": "AccountID=2&tenant=2&db=2",
		"trace":                    "trace=1",
		"focus":                    "focusLabel=__org__&topN=500",
		"focus on a date":          "focusLabel=mark&date=1970-01-01",
		"other format":             "format=promapi&max_rows_per_line=1&reduce_mem_usage=1",
		"latency":                  "latency_offset=1ms&max_lookback=1h",
		"all time":                 "start=0&end=" + "1",
		"vmrange":                  "nocache=1&round_digits=3",
		"semicolon":                "a=1;extra_label=" + label,
		"a form in the name":       url.QueryEscape("extra_label=__org__="+otherID) + "=1",
		"a null byte":              "extra_label%00=" + label + "&extra_filters%00=" + filter,
		"a new line":               "x=%0d%0aextra_label:" + label,
		"twice escaped":            "extra%255Flabel=" + label,
		"a huge limit":             "limit=999999999",
	}
}

// queries are expressions that try to select the other organization's series or the hidden label.
func queries() []string {
	return []string{
		`requests_count`, `{__name__=~".+"}`, `{__org__="` + otherID + `"}`, `{__org__=~".*"}`, `{__org__!="` + ownID + `"}`, `{__org__=""}`,
		`{__org__="` + ownID + `" or __org__="` + otherID + `"}`, `requests_count{__org__!~"x"}`, `requests_count or {__org__="` + otherID + `"}`,
		`sum(requests_count) by (__org__)`, `count(requests_count) by (__org__, app)`, `sum(requests_count) without (app)`,
		`label_copy(requests_count, "app", "__org__")`, `label_set(requests_count, "__org__", "x")`, `label_move(requests_count, "app", "__org__")`,
		`label_keep(requests_count, "__org__")`, `label_del(requests_count, "app")`, `label_uppercase(requests_count, "__org__")`,
		`label_replace(requests_count, "__org__", "$1", "app", "(.*)")`, `label_join(requests_count, "__org__", "-", "app", "host")`,
		`label_transform(requests_count, "__org__", "o", "0")`, `label_map(requests_count, "__org__", "` + ownID + `", "y")`,
		`sort_by_label(requests_count, "__org__")`, `label_match(requests_count, "__org__", "` + otherID + `")`, `label_mismatch(requests_count, "__org__", "` + ownID + `")`,
		`requests_count * on (__org__) group_left () sum(requests_count) by (__org__)`, `requests_count + ignoring (__org__) requests_count`,
		`requests_count * on (app, host, mark) group_left (__org__) requests_count`,
		`sum(rate(requests_count)) by (__org__)`, `topk_avg(1, requests_count, "__org__=sum")`, `topk_avg(1, requests_count, "__org__")`,
		`requests_count[1h]`, `requests_count[1h:15s]`, `sum(requests_count[5m]) by (__org__)`, `sum_over_time(requests_count[1h:1m])`,
		`count_values("__org__", requests_count)`, `label_graphite_group({__org__="` + otherID + `"}, 0)`, `labels_equal(requests_count, "__org__", "app")`,
		`WITH (other = {__org__="` + otherID + `"}) requests_count{other}`, `WITH (f(l) = sum(requests_count) by (l)) f(__org__)`,
		`\x7b__org__="x"}`, `requests_count{\x5f_org__="` + otherID + `"}`, `sum(requests_count) by (\x5f_org__)`, `sum(requests_count) by (\u005f\u005forg__)`,
		`{"requests_count", "__org__"="` + otherID + `"}`, `sum(requests_count) by ("__org__")`, `drop_common_labels(requests_count)`,
		`any(requests_count) by (__org__)`, `group(requests_count) by (__org__)`, `outliersk(9, requests_count)`, `limitk(9, {__org__!=""})`,
		`absent(requests_count{__org__="x"})`, `absent({__org__="x"})`, `union(requests_count, {__org__=~".+"})`, `(requests_count, label_set(1, "__org__", "z"))`,
		`vector(1)`, `label_set(1, "__org__", "z")`, `requests_count @ 0`, `requests_count offset -1d`,
		`prometheus_buckets(requests_count)`, `histogram_over_time(requests_count[1h])`, `quantiles("__org__", 0.5, requests_count)`, `rollup(requests_count[1h])`,
		`aggr_over_time(("min_over_time","max_over_time"), requests_count[1h])`, `label_value(requests_count, "__org__")`, `range_normalize(requests_count)`,
		`requests_count / 0`, `requests_count == bool 1`, `requests_count{app="web"} unless on (app) {__org__="` + otherID + `"}`,
		`count(count(requests_count) by (__org__))`, `requests_count * on (app) requests_count`, `unknown_function(requests_count)`, `requests_count{`, `)`, `sum(`,
	}
}

// attack is a request.
type attack struct {
	path string
	form url.Values
}

func attacks(at time.Time) []attack {
	now := milliseconds(at)
	from := milliseconds(at.Add(-time.Hour))
	var all []attack
	for _, q := range queries() {
		all = append(all,
			attack{"/api/v1/query", url.Values{"query": {q}, "time": {now}}},
			attack{"/api/v1/query_range", url.Values{"query": {q}, "start": {from}, "end": {now}, "step": {"60"}}})
	}
	for _, m := range []string{"requests_count", `{__name__!=""}`, `{__org__=~".*"}`, `{__org__="` + otherID + `"}`, `{__org__="` + ownID + `" or __org__="` + otherID + `"}`, `{app="web" or mark!=""}`} {
		form := url.Values{"match[]": {m}, "start": {from}, "end": {now}}
		all = append(all,
			attack{"/api/v1/series", form}, attack{"/api/v1/series", url.Values{"match[]": {m}, "start": {from}, "end": {now}, "limit": {"2"}}},
			attack{"/api/v1/labels", form}, attack{"/api/v1/labels", url.Values{"match[]": {m}, "start": {from}, "end": {now}, "limit": {"1"}}},
			attack{"/federate", url.Values{"match[]": {m}, "max_lookback": {"1h"}}},
			attack{"/api/v1/status/tsdb", url.Values{"match[]": {m}}})
		for _, label := range []string{"__name__", "__org__", "app", "mark", "label_foreign", "host"} {
			all = append(all, attack{"/api/v1/label/" + label + "/values", form},
				attack{"/api/v1/label/" + label + "/values", url.Values{"start": {from}, "end": {now}, "limit": {"100"}}})
		}
	}
	for _, focus := range []string{"", "__org__", "mark", "__name__"} {
		for _, date := range []string{"", at.UTC().Format(time.DateOnly), "1970-01-01"} {
			all = append(all, attack{"/api/v1/status/tsdb", url.Values{"focusLabel": {focus}, "date": {date}, "topN": {"500"}}})
		}
	}
	return append(all, attack{"/api/v1/labels", url.Values{}})
}

// TestIsolation: no request of one organization shows anything of another one, or the hidden label.
func TestIsolation(t *testing.T) {
	s := metricstest.Start(t)
	at := time.Now().Truncate(time.Second)
	fillTwo(t, s, at)
	g := newGateway(t, s, generous)
	extra := sneaky()
	answered := map[string]bool{}
	for i, a := range attacks(at) {
		for name, add := range extra {
			// All queries with the plain paths, and some of them with each of the others, in turn.
			if strings.HasPrefix(a.path, "/api/v1/query") && name != "nothing" && (i+len(name))%7 != 0 {
				continue
			}
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				encoded := strings.Trim(a.form.Encode()+"&"+add, "&")
				w := send(t, g, own, Scope{}, method, a.path, encoded)
				body := w.Body.String()
				if w.Code >= 500 {
					t.Errorf("%s %s?%s (%s) answers %d: %s", method, a.path, encoded, name, w.Code, body)
				}
				if w.Code != http.StatusOK {
					// It may repeat parts of the client's query that cannot be parsed.
					if _, text := failed(t, w); strings.Contains(text, "77777") || strings.Contains(text, "extra_") && !strings.Contains(encoded, "extra_") || strings.Contains(text, "search.") {
						t.Errorf("%s %s?%s (%s) answers %s", method, a.path, encoded, name, body)
					}
					continue
				}
				if found := leaks(body); found != "" {
					t.Errorf("%s %s?%s (%s) shows %q: %s", method, a.path, encoded, name, found, body)
				}
				if strings.Contains(body, "1001") || strings.Contains(body, "own") {
					answered[a.path] = true
				}
			}
		}
	}
	// The tests above would pass if nothing was answered at all.
	for _, path := range []string{"/api/v1/query", "/api/v1/query_range", "/api/v1/series", "/api/v1/labels", "/api/v1/label/__name__/values", "/api/v1/label/mark/values", "/federate", "/api/v1/status/tsdb"} {
		if !answered[path] {
			t.Errorf("%s answers nothing that is the organization's own", path)
		}
	}
}

// TestIsolationInBothParts: a client sends different parameters in the URL and in the form.
func TestIsolationInBothParts(t *testing.T) {
	s := metricstest.Start(t)
	at := time.Now().Truncate(time.Second)
	fillTwo(t, s, at)
	g := newGateway(t, s, generous)
	for name, add := range sneaky() {
		form := url.Values{"query": {"requests_count"}, "match[]": {"requests_count"}, "time": {milliseconds(at)}}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://gateway/?"+add, strings.NewReader(form.Encode()+"&"+add))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
		r.Header.Set("Accountid", "2")
		r.Header.Set("X-Scope-Orgid", otherID)
		for path := range fixedPaths {
			again := r.Clone(t.Context())
			again.Body, again.Form, again.PostForm = http.NoBody, nil, nil
			if body, err := r.GetBody(); err == nil {
				again.Body = body
			}
			w := &recorder{header: http.Header{}}
			g.Serve(w, again, own, Scope{}, path)
			if found := leaks(w.body.String()); found != "" && w.status < 400 {
				t.Errorf("%s (%s) shows %q: %s", path, name, found, w.body.String())
			}
		}
	}
}

// TestIsolationOfSharedWrites: one request to the store has samples of two organizations, one of
// which claims that its samples are the other's.
func TestIsolationOfSharedWrites(t *testing.T) {
	s := metricstest.Start(t)
	w := remote.New(remote.Options{Store: s, Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err := w.Open(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); w.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	at := time.Now().Truncate(time.Second)
	for _, c := range []struct {
		tenant metrics.Tenant
		labels []string
	}{
		{other, []string{"mark", "other"}},
		{own, []string{"mark", "own"}},
		{own, []string{metrics.OrgLabel, otherID, "mark", "forged"}},
		{own, []string{metrics.OrgLabel, "", "mark", "emptied"}},
	} {
		if err := w.Write(t.Context(), c.tenant, []metrics.Sample{metricstest.Sample("shared", 1, at, c.labels...)}); err != nil {
			t.Fatal(err)
		}
	}
	metricstest.Await(t, s, own, "count(shared)", at, 3)
	metricstest.Await(t, s, other, "count(shared)", at, 1)
	if n := metricstest.Value(t, w, "hangar_remote_requests_total", "ok"); n != 1 {
		t.Errorf("there were %v requests", n)
	}
	g := newGateway(t, s, generous)
	for tenant, want := range map[metrics.Tenant][]string{own: {"emptied", "forged", "own"}, other: {"other"}} {
		r := call(t, g, tenant, Scope{}, http.MethodGet, "/api/v1/label/mark/values", url.Values{"match[]": {"shared"}})
		var list struct{ Data []string }
		if err := json.Unmarshal(r.Body.Bytes(), &list); err != nil || !slices.Equal(list.Data, want) {
			t.Errorf("%s sees %s, want %q", tenant.Org, r.Body.String(), want)
		}
	}
}

type recorder struct {
	header http.Header
	status int
	body   strings.Builder
}

func (w *recorder) Header() http.Header         { return w.header }
func (w *recorder) WriteHeader(status int)      { w.status = status }
func (w *recorder) Write(p []byte) (int, error) { return w.body.Write(p) }

// TestScope: a caller that may see one App sees nothing of another, on any path.
func TestScope(t *testing.T) {
	s := metricstest.Start(t)
	at := time.Now().Truncate(time.Second)
	fillTwo(t, s, at)
	metricstest.Write(t, s, own,
		metricstest.Sample("requests_count", 5, at.Add(-time.Second), "app", "webfoo", "mark", "hidden-app"),
		metricstest.Sample("requests_count", 5, at.Add(-time.Second), "mark", "hidden-none"),
		metricstest.Sample("hidden_metric", 5, at.Add(-time.Second), "app", "db", "hidden_label", "1"))
	metricstest.Await(t, s, own, `count({__name__!=""})`, at, 9)
	g := newGateway(t, s, generous)
	seen := func(scope Scope, asked ...string) []string {
		w := call(t, g, own, scope, http.MethodGet, "/api/v1/label/app/values", url.Values{"app": asked})
		var list struct{ Data []string }
		if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil {
			t.Fatalf("%s: %v", w.Body.String(), err)
		}
		return list.Data
	}
	for _, c := range []struct {
		scope Scope
		want  []string
	}{
		{Scope{}, []string{"db", "web", "webfoo"}},
		{apps("web"), []string{"web"}},
		{apps("web", "db"), []string{"db", "web"}},
		{apps("we"), nil},
		{apps(".*"), nil},
		{apps(`x"} or {app="db`), nil},
		{apps(""), nil},
		{apps(), nil},
	} {
		if got := seen(c.scope); !slices.Equal(got, c.want) && len(got)+len(c.want) > 0 {
			t.Errorf("%q sees the Apps %q, want %q", c.scope.Apps, got, c.want)
		}
	}
	for _, c := range []struct {
		scope Scope
		asked []string
		want  []string
	}{
		{Scope{}, []string{"web"}, []string{"web"}},
		{Scope{}, []string{"web", "db"}, []string{"db", "web"}},
		{Scope{}, []string{"we.*"}, nil},
		{Scope{}, []string{""}, nil},
		{apps("web"), []string{"web", "db"}, []string{"web"}},
		{apps("web"), []string{"db"}, nil},
		{apps(), []string{"db"}, nil},
	} {
		if got := seen(c.scope, c.asked...); !slices.Equal(got, c.want) && len(got)+len(c.want) > 0 {
			t.Errorf("%q that asks for %q sees the Apps %q, want %q", c.scope.Apps, c.asked, got, c.want)
		}
	}
	hide := func(filter string) []string {
		return []string{
			"", "extra_filters=" + url.QueryEscape(filter), "extra_filters[]=" + url.QueryEscape(filter), "extra_label=app=db", "app=db",
			"match[]=" + url.QueryEscape(filter), "match=" + url.QueryEscape(filter), "focusLabel=app",
		}
	}
	for _, a := range attacks(at) {
		for _, add := range hide(`{app="db"}`) {
			w := send(t, g, own, apps("web"), http.MethodPost, a.path, strings.Trim(a.form.Encode()+"&"+add, "&"))
			body := w.Body.String()
			if strings.Contains(body, `"db"`) || strings.Contains(body, "app=db") || strings.Contains(body, "hidden") || w.Code < 400 && leaks(body) != "" {
				t.Errorf("%s?%s with %q shows %s", a.path, a.form.Encode(), add, body)
			}
		}
	}
}

// TestStatisticsWithoutTheHiddenLabel: totals and lists only count visible series and labels.
func TestStatisticsWithoutTheHiddenLabel(t *testing.T) {
	s := metricstest.Start(t)
	at := time.Now().Truncate(time.Second)
	fillTwo(t, s, at)
	g := newGateway(t, s, generous)
	w := call(t, g, own, Scope{}, http.MethodGet, "/api/v1/status/tsdb", url.Values{"focusLabel": {"app"}, "date": {at.UTC().Format(time.DateOnly)}})
	var status struct {
		Data struct {
			TotalSeries, TotalLabelValuePairs int
			SeriesCountByFocusLabelValue      []statisticsEntry
			SeriesCountByLabelName            []statisticsEntry
		}
	}
	if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil {
		t.Fatal(err)
	}
	// Two series of each: with name, app and host; with a mark in addition; and mark_own with name,
	// app and label_own.
	if d := status.Data; d.TotalSeries != 6 || d.TotalLabelValuePairs != 2*(3+4+3) || len(d.SeriesCountByFocusLabelValue) != 2 || len(d.SeriesCountByLabelName) != 5 {
		t.Errorf("the statistics are %+v", d)
	}
}

func TestLimitOfLists(t *testing.T) {
	s := metricstest.Start(t)
	at := time.Now().Truncate(time.Second)
	fillTwo(t, s, at)
	g := newGateway(t, s, generous)
	for _, c := range []struct {
		path, limit string
		want        int
	}{
		{"/api/v1/labels", "", 5},
		{"/api/v1/labels", "2", 2},
		{"/api/v1/labels", "5", 5},
		{"/api/v1/labels", "100", 5},
		{"/api/v1/label/app/values", "1", 1},
		{"/api/v1/label/app/values", "0", 2},
		{"/api/v1/label/__org__/values", "", 0},
		{"/api/v1/series", "", 6},
		{"/api/v1/series", "4", 4},
	} {
		w := call(t, g, own, Scope{}, http.MethodGet, c.path, url.Values{"match[]": {`{__name__!=""}`}, "limit": {c.limit}})
		var list struct{ Data []any }
		if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || list.Data == nil || len(list.Data) != c.want {
			t.Errorf("%s with limit %q answers %s, want %d elements", c.path, c.limit, w.Body.String(), c.want)
		}
	}
}
