package alerts

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/metrics"
)

// maxAnswer bounds how much of the answer to a query is read, in bytes.
const maxAnswer = 4 << 20

// queryPath is the path that evaluates expressions, one of hangar.SeriesPaths.
const queryPath = "/api/v1/query"

// QueryBy returns a Query that uses the handler of tenants' queries, with the rights of a caller who
// may query everything of an organization.
func QueryBy(q hangar.SeriesQuerier) Query {
	return func(ctx context.Context, tenant metrics.Tenant, expr string, at time.Time) ([]metrics.Sample, error) {
		form := url.Values{"query": {expr}, "time": {strconv.FormatFloat(float64(at.UnixMilli())/1e3, 'f', 3, 64)}}
		if end, ok := ctx.Deadline(); ok {
			form.Set("timeout", strconv.FormatInt(max(1, time.Until(end).Milliseconds()), 10)+"ms")
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, queryPath, strings.NewReader(form.Encode()))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		answer := &answer{header: http.Header{}, status: http.StatusOK}
		whole := answer.by(q, req, hangar.MetricsScope{Org: tenant.Org, Number: uint64(tenant.Number)})
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if !whole {
			return nil, &hangar.Error{Code: hangar.CodeUnavailable, Message: "the answer to the query was truncated"}
		}
		return answer.samples(at)
	}
}

// by lets q answer a request, and reports whether the answer is complete. As in net/http, a handler
// that cannot complete an answer panics.
func (a *answer) by(q hangar.SeriesQuerier, r *http.Request, scope hangar.MetricsScope) (whole bool) {
	defer func() {
		if v := recover(); v != nil && v != http.ErrAbortHandler { //nolint:errorlint // must be this value
			panic(v)
		}
	}()
	q.QuerySeries(a, r, scope, queryPath)
	return true
}

// answer is an http.ResponseWriter that keeps a bounded body.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
	cut    bool
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) { a.status = status }

// Write implements http.ResponseWriter.
func (a *answer) Write(b []byte) (int, error) {
	if a.body.Len()+len(b) > maxAnswer {
		a.cut = true
		return 0, errors.New("the answer is too long")
	}
	return a.body.Write(b)
}

// samples reads an instant vector, or a scalar, which is one sample without labels.
func (a *answer) samples(at time.Time) ([]metrics.Sample, error) {
	if a.cut {
		return nil, invalidf("the answer has more than the %d bytes that are allowed", maxAnswer)
	}
	var body struct {
		Error string `json:"error"`
		Data  struct {
			Type   string          `json:"resultType"`
			Result json.RawMessage `json:"result"`
		} `json:"data"`
	}
	err := json.Unmarshal(a.body.Bytes(), &body)
	switch {
	case a.status == http.StatusBadRequest && err == nil && body.Error != "":
		return nil, invalidf("%.300s", body.Error)
	case a.status != http.StatusOK && err == nil && body.Error != "":
		return nil, &hangar.Error{Code: hangar.CodeUnavailable, Message: fmt.Sprintf("%.300s", body.Error)}
	case a.status != http.StatusOK:
		return nil, &hangar.Error{Code: hangar.CodeUnavailable, Message: fmt.Sprintf("the query is answered with status %d", a.status)}
	case err != nil:
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	switch body.Data.Type {
	case "scalar":
		var one value
		if err := json.Unmarshal(body.Data.Result, &one); err != nil {
			return nil, err
		}
		return []metrics.Sample{{Value: float64(one), Time: at.UnixMilli()}}, nil
	case "vector":
		return vector(body.Data.Result, at)
	default:
		return nil, invalidf("the expression yields a %.20s, not one value for each series", body.Data.Type)
	}
}

func vector(raw json.RawMessage, at time.Time) ([]metrics.Sample, error) {
	var list []struct {
		Metric map[string]string `json:"metric"`
		Value  value             `json:"value"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	samples := make([]metrics.Sample, 0, len(list))
	for _, one := range list {
		s := metrics.Sample{Value: float64(one.Value), Time: at.UnixMilli()}
		for name, v := range one.Metric {
			if name != metrics.OrgLabel {
				s.Labels = append(s.Labels, metrics.Label{Name: name, Value: v})
			}
		}
		slices.SortFunc(s.Labels, func(a, b metrics.Label) int { return strings.Compare(a.Name, b.Name) })
		samples = append(samples, s)
	}
	return samples, nil
}

// value is a pair of a time and a number in a string.
type value float64

// UnmarshalJSON reads [1764064800, "0.5"].
func (v *value) UnmarshalJSON(b []byte) error {
	var pair [2]json.RawMessage
	var text string
	if err := errors.Join(json.Unmarshal(b, &pair), json.Unmarshal(pair[1], &text)); err != nil {
		return err
	}
	f, err := strconv.ParseFloat(text, 64)
	*v = value(f)
	return err
}
