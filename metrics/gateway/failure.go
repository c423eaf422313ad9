package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/hangar-platform/hangar"
)

// failure is an error in the form of Prometheus. Its text is the gateway's own, because texts of the
// store contain its flags, its addresses and the hidden label.
type failure struct {
	status     int
	kind       string // errorType
	text       string
	retryAfter int // in seconds, or 0
}

func (f *failure) Error() string { return f.text }

// The error types of Prometheus, and one that it lacks.
const (
	kindBadData     = "bad_data"
	kindExecution   = "execution"
	kindTimeout     = "timeout"
	kindUnavailable = "unavailable"
	kindNotFound    = "not_found"
	kindTooMany     = "too_many_requests"
)

func badData(format string, args ...any) error {
	return &failure{status: http.StatusBadRequest, kind: kindBadData, text: fmt.Sprintf(format, args...)}
}

func execution(text string) *failure {
	return &failure{status: http.StatusUnprocessableEntity, kind: kindExecution, text: text}
}

func tooMany(text string, retryAfter int) error {
	return &failure{status: http.StatusTooManyRequests, kind: kindTooMany, text: text, retryAfter: max(1, retryAfter)}
}

func busy(text string) error {
	return &failure{status: http.StatusServiceUnavailable, kind: kindUnavailable, text: text, retryAfter: 5}
}

var (
	errTookTooLong = &failure{status: http.StatusServiceUnavailable, kind: kindTimeout, text: "the query took too long; narrow its selectors or its range"}
	errTooLarge    = execution("the answer is too large; narrow the selectors, the range or the resolution of the query")
)

// failureOf converts an error to the answer for the client.
func failureOf(err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return errTookTooLong
	}
	f := &failure{
		status: http.StatusServiceUnavailable, kind: kindUnavailable, retryAfter: 5,
		text: "the metrics store is not available; try again later",
	}
	if hangar.CodeOf(err) == hangar.CodeExhausted {
		f.status, f.kind = http.StatusTooManyRequests, kindTooMany
	}
	return f
}

func (f *failure) write(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	if f.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(f.retryAfter))
	}
	w.WriteHeader(f.status)
	_ = json.NewEncoder(w).Encode(struct { // fails only if the client has disconnected
		Status    string `json:"status"`
		ErrorType string `json:"errorType"`
		Error     string `json:"error"`
	}{"error", f.kind, f.text})
}

// maxRefusal bounds how much of an error of the store is read, in bytes.
const maxRefusal = 64 << 10

// refusals are the errors of VictoriaMetrics that a tenant can do something about, identified by a
// part of their text (app/vmselect and lib/storage, v1.143.0), and the errors that replace them.
var refusals = []struct {
	parts []string
	err   *failure
}{
	{[]string{"deadline", "timeout exceeded", "search.maxQueryDuration", "search.maxLabelsAPIDuration", "search.maxStatusRequestDuration"}, errTookTooLong},
	{
		[]string{"maxUniqueTimeseries", "maxSeries", "maxFederateSeries", "maxTSDBStatusSeries", "maxLabelsAPISeries", "matching timeseries exceeds", "matching time series exceeds"},
		execution("the query selects too many series; narrow its selectors"),
	},
	{[]string{"maxResponseSeries"}, execution("the answer has too many series; aggregate them or narrow the selectors")},
	{[]string{"maxSamplesPer", "maxSamples"}, execution("the query reads too many samples; narrow its selectors or its range")},
	{[]string{"maxMemoryPerQuery", "not enough memory"}, execution("the query needs too much memory; narrow its selectors, its range or its resolution")},
	{[]string{"maxPointsPerTimeseries", "maxPointsSubqueryPerTimeseries", "too many points"}, execution("the query calculates too many points; increase its step or the steps of its subqueries")},
	{[]string{"duplicate time series", "duplicate timeseries", "duplicate timestamps", "group_left", "group_right", "many-to-many"}, execution("series of an operation cannot be matched one to one; use on, ignoring, group_left or group_right")},
}

// refusal returns the error for an answer of the store with an error status.
func refusal(resp *http.Response) error {
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	if err != nil {
		return err
	}
	var own struct{ ErrorType, Error string }
	if resp.StatusCode == http.StatusBadRequest && json.Unmarshal(raw, &own) == nil && own.ErrorType == kindBadData {
		// VictoriaMetrics uses numbers as types, so this error is from package victoria, and is only
		// about the client's own text.
		return badData("%s", own.Error)
	}
	for _, r := range refusals {
		for _, part := range r.parts {
			if strings.Contains(string(raw), part) {
				return r.err
			}
		}
	}
	switch {
	case resp.StatusCode == http.StatusTooManyRequests:
		return busy("the metrics store is busy with other queries; try again later")
	case resp.StatusCode >= http.StatusBadRequest && resp.StatusCode < http.StatusInternalServerError:
		return execution("the query cannot be executed: it is not valid, or asks for what does not exist")
	default:
		return hangar.Errorf(hangar.CodeUnavailable, "", "the metrics store answered with status %d", resp.StatusCode)
	}
}
