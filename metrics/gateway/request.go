package gateway

import (
	"context"
	"errors"
	"math"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar/metrics"
)

// endpoint is one of the served paths.
type endpoint struct {
	kind        kind
	path        string // below the URL of the store
	label       string // of label values
	contentType string
}

// kind is the kind of an endpoint's answer.
type kind int

const (
	instant kind = iota
	ranged
	series
	labels
	labelValues
	statistics
	federation
)

const (
	jsonType = "application/json"
	textType = "text/plain; version=0.0.4; charset=utf-8"
)

var fixedPaths = map[string]endpoint{
	"/api/v1/query":       {kind: instant, contentType: jsonType},
	"/api/v1/query_range": {kind: ranged, contentType: jsonType},
	"/api/v1/series":      {kind: series, contentType: jsonType},
	"/api/v1/labels":      {kind: labels, contentType: jsonType},
	"/api/v1/status/tsdb": {kind: statistics, contentType: jsonType},
	"/federate":           {kind: federation, contentType: textType},
}

var (
	labelPath = regexp.MustCompile(`^/api/v1/label/([^/]*)/values$`)
	labelName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
)

// endpointOf returns the endpoint of a path.
func endpointOf(path string) (endpoint, error) {
	if e, ok := fixedPaths[path]; ok {
		e.path = path
		return e, nil
	}
	match := labelPath.FindStringSubmatch(path)
	if match == nil {
		return endpoint{}, &failure{status: http.StatusNotFound, kind: kindNotFound, text: "there is no such path"}
	}
	// VictoriaMetrics decodes names that begin with U__, so they could name any label.
	if !labelName.MatchString(match[1]) || strings.HasPrefix(match[1], "U__") {
		return endpoint{}, badData("the name of the label is not valid")
	}
	return endpoint{kind: labelValues, path: path, label: match[1], contentType: jsonType}, nil
}

// query is a parsed request.
type query struct {
	endpoint
	form    url.Values // of the request to the store
	timeout time.Duration
	limit   int      // of elements in a list; 0: none
	nothing bool     // the answer is an empty list
	apps    []string // the requested Apps; empty: all
}

// emptyList is the answer of a list without elements.
const emptyList = `{"status":"success","data":[]}` + "\n"

// parse reads the parameters of a request, from its URL and its form.
func (g *Gateway) parse(w http.ResponseWriter, r *http.Request, e endpoint) (*query, error) {
	if r.Method != http.MethodGet && r.Method != http.MethodPost {
		return nil, &failure{status: http.StatusMethodNotAllowed, kind: kindBadData, text: "the method is neither GET nor POST"}
	}
	if kind := r.Header.Get("Content-Type"); r.Method == http.MethodPost && kind != "" {
		if media, _, err := mime.ParseMediaType(kind); err != nil || media != "application/x-www-form-urlencoded" {
			return nil, &failure{status: http.StatusUnsupportedMediaType, kind: kindBadData, text: "the body is not a form (application/x-www-form-urlencoded)"}
		}
	}
	if int64(len(r.URL.RawQuery)) > g.limits.FormBytes {
		return nil, errFormTooLarge
	}
	r.Body = http.MaxBytesReader(w, r.Body, g.limits.FormBytes)
	if err := r.ParseForm(); err != nil {
		if tooLarge(err) {
			return nil, errFormTooLarge
		}
		return nil, badData("the parameters are not a valid form")
	}
	p := parameters{form: r.Form, limits: g.limits, now: time.Now()}
	q := &query{endpoint: e, form: url.Values{}, timeout: p.timeout(), apps: r.Form["app"]}
	q.form.Set("timeout", seconds(q.timeout))
	switch e.kind {
	case instant, ranged:
		p.expression(q)
	case series, labels, labelValues:
		p.list(q)
	case statistics:
		p.statistics(q)
	case federation:
		p.selectors(q, true)
		p.copyDuration(q, "max_lookback")
	}
	return q, p.err
}

var errFormTooLarge = &failure{status: http.StatusRequestEntityTooLarge, kind: kindBadData, text: "the parameters are too large"}

func tooLarge(err error) bool {
	_, ok := errors.AsType[*http.MaxBytesError](err)
	return ok
}

// request makes the request to the store. The tenant's filters are in the URL, where no parameter of
// the form can override them. The form only has what parse has put there.
func (q *query) request(ctx context.Context, base string, tenant metrics.Tenant, scope Scope) (*http.Request, error) {
	confine := url.Values{"extra_label": {metrics.OrgLabel + "=" + string(tenant.Org)}}
	if scope.Apps != nil {
		confine.Set("extra_filters[]", appFilter(scope))
	}
	target := base + q.path + "?" + confine.Encode()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, target, strings.NewReader(q.form.Encode())) //nolint:gosec // the path is one of a list
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	// The request changes nothing, so the transport may repeat it if a connection has ended meanwhile.
	// An empty Idempotency-Key allows that and is not sent itself.
	r.Header["Idempotency-Key"] = []string{}
	return r, nil
}

// appFilter returns a selector of the series of some Apps.
func appFilter(scope Scope) string {
	if len(scope.Apps) == 0 {
		// The other filter requires another value of the same label, so no series matches.
		return "{" + metrics.OrgLabel + `=""}`
	}
	names := make([]string, len(scope.Apps))
	for i, name := range scope.Apps {
		names[i] = regexp.QuoteMeta(string(name))
	}
	return "{app=~" + strconv.Quote(strings.Join(names, "|")) + "}"
}

// parameters reads the parameters of one request. After the first error it ignores the others.
type parameters struct {
	form   url.Values
	limits Limits
	now    time.Time
	err    error
}

func (p *parameters) fail(err error) {
	if p.err == nil && err != nil {
		p.err = err
	}
}

// timeout returns how long the store may take.
func (p *parameters) timeout() time.Duration {
	asked := p.duration("timeout", p.limits.Time)
	return min(max(asked, time.Second), p.limits.Time) // the store counts in seconds
}

// expression reads the parameters of query and query_range.
func (p *parameters) expression(q *query) {
	text := p.form.Get("query")
	if text == "" {
		p.fail(badData("the parameter query is missing"))
		return
	}
	if q.kind == ranged {
		p.span(q)
	} else {
		q.form.Set("time", milliseconds(p.time("time", p.now)))
		p.copyDuration(q, "step")
	}
	p.copyDuration(q, "max_lookback")
	p.copyNumber(q, "round_digits", -100, 100)
	if on, err := strconv.ParseBool(p.form.Get("nocache")); err == nil && on {
		q.form.Set("nocache", "1")
	}
	p.fail(checkText(text, p.limits.Range))
	q.form.Set("query", text)
}

// defaultStep is the default of the store, too.
const defaultStep = 5 * time.Minute

// span reads start, end and step of query_range.
func (p *parameters) span(q *query) {
	end := p.time("end", p.now)
	start := p.time("start", end.Add(-defaultStep))
	step := p.duration("step", defaultStep)
	if p.err != nil {
		return
	}
	if end.Before(start) {
		p.fail(badData("end is before start"))
	} else if err := p.checkRange(start, end); err != nil {
		p.fail(err)
	} else if points := int64(end.Sub(start)/step) + 1; points > int64(p.limits.Points) {
		p.fail(badData("the query asks for %d points of each series, more than %d; increase step", points, p.limits.Points))
	}
	q.form.Set("start", milliseconds(start))
	q.form.Set("end", milliseconds(end))
	q.form.Set("step", seconds(step))
}

func (p *parameters) checkRange(start, end time.Time) error {
	if end.Sub(start) > p.limits.Range {
		return badData("the range is longer than %d days", int(p.limits.Range.Hours()/24))
	}
	return nil
}

// list reads the parameters of series, labels and label values.
func (p *parameters) list(q *query) {
	p.selectors(q, q.kind == series)
	var start, end time.Time
	if p.form.Get("start") != "" {
		start = p.time("start", start)
	}
	end = p.time("end", p.now)
	if p.err == nil && !start.IsZero() {
		if outsideOfTime(p.form.Get("start")) {
			start = end.Add(-p.limits.Range)
		}
		if end.Before(start) {
			p.fail(badData("end is before start"))
		}
		p.fail(p.checkRange(start, end))
		q.form.Set("start", milliseconds(start))
	}
	q.form.Set("end", milliseconds(end))
	if text := p.form.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			p.fail(badData("the parameter limit is not a number"))
			return
		}
		q.limit = min(n, maxList)
	}
	if q.limit > 0 {
		// One more, in case the hidden label is among them.
		q.form.Set("limit", strconv.Itoa(q.limit+1))
	}
	q.nothing = q.label == metrics.OrgLabel
}

// maxList bounds the limits that clients request.
const maxList = 1_000_000

// selectors copies the parameters match[]. If needed is set, there must be at least one.
func (p *parameters) selectors(q *query, needed bool) {
	all := slices.Concat(p.form["match[]"], p.form["match"])
	if needed && len(all) == 0 {
		p.fail(badData("the parameter match[] is missing"))
	}
	for _, text := range all {
		p.fail(checkText(text, p.limits.Range))
		q.form.Add("match[]", text)
	}
}

// maxTop bounds the elements of each list of status/tsdb.
const maxTop = 500

// statistics reads the parameters of status/tsdb.
func (p *parameters) statistics(q *query) {
	p.selectors(q, false)
	q.limit = 10
	if text := p.form.Get("topN"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			p.fail(badData("the parameter topN is not a number"))
			return
		}
		q.limit = min(max(n, 1), maxTop)
	}
	q.form.Set("topN", strconv.Itoa(q.limit+1))
	if text := p.form.Get("date"); text != "" {
		date, err := time.Parse(time.DateOnly, text)
		if err != nil {
			p.fail(badData("the parameter date does not have the form 2006-01-02"))
			return
		}
		q.form.Set("date", date.Format(time.DateOnly))
	}
	if label := p.form.Get("focusLabel"); label != "" && label != metrics.OrgLabel {
		q.form.Set("focusLabel", label)
	}
}

// maxSeconds bounds times and durations, so that none overflows: up to the year 9999.
const maxSeconds = 253402300799

// time reads a time: seconds since 1970, or RFC 3339.
func (p *parameters) time(name string, missing time.Time) time.Time {
	text := p.form.Get(name)
	if text == "" {
		return missing
	}
	if n, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(n) {
		n = min(max(n, 0), maxSeconds)
		return time.UnixMilli(int64(math.Round(n * 1000)))
	}
	if outsideOfTime(text) {
		if strings.HasPrefix(text, "-") {
			return time.UnixMilli(0)
		}
		return p.now
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		p.fail(badData("the parameter %s is not a time", name))
		return missing
	}
	if t.Unix() < 0 {
		return time.UnixMilli(0)
	}
	return t
}

// outsideOfTime reports whether a text is the value with which Prometheus's Go client means the
// beginning or the end of time (github.com/prometheus/prometheus/web/api/v1, minTime and maxTime).
func outsideOfTime(text string) bool {
	return strings.HasPrefix(text, "-292273086-") || strings.HasPrefix(text, "292277025-")
}

// duration reads a positive duration: seconds, or a form like 1h30m.
func (p *parameters) duration(name string, missing time.Duration) time.Duration {
	text := p.form.Get(name)
	if text == "" {
		return missing
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		if d, length := scanDuration(text); length == len(text) {
			n, err = d.Seconds(), nil
		}
	}
	if err != nil || math.IsNaN(n) || n < 0.001 || n > p.limits.Range.Seconds() {
		p.fail(badData("the parameter %s is not a duration, or too long or too short a one", name))
		return missing
	}
	return time.Duration(math.Round(n*1000)) * time.Millisecond
}

func (p *parameters) copyDuration(q *query, name string) {
	if d := p.duration(name, 0); d > 0 {
		q.form.Set(name, seconds(d))
	}
}

func (p *parameters) copyNumber(q *query, name string, low, high int) {
	text := p.form.Get(name)
	if text == "" {
		return
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > high {
		p.fail(badData("the parameter %s is not a number from %d to %d", name, low, high))
		return
	}
	q.form.Set(name, strconv.Itoa(n))
}

// milliseconds formats a time as the store reads it: seconds since 1970, with three decimals.
func milliseconds(t time.Time) string {
	return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64)
}

func seconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', 3, 64)
}
