package client

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/prometheus/common/model"

	"github.com/hangar-platform/hangar"
)

// MetricsQuery is an expression in MetricsQL, and the series over which it is evaluated.
type MetricsQuery struct {
	Org  hangar.OrgSlug
	Apps []hangar.AppName // limits the series to these Apps; none: all
	Expr string
}

func (q MetricsQuery) form() url.Values {
	form := url.Values{"query": {q.Expr}}
	for _, app := range q.Apps {
		form.Add("app", string(app))
	}
	return form
}

// QueryMetrics evaluates a query at one time, which is now if at is zero. It returns a sample
// for each series of the answer.
func (c *Client) QueryMetrics(ctx context.Context, q MetricsQuery, at time.Time) (model.Vector, error) {
	form := q.form()
	if !at.IsZero() {
		form.Set("time", unixSeconds(at))
	}
	return queryMetrics[model.Vector](ctx, c, q.Org, "/api/v1/query", form)
}

// MetricsRange is the times at which an expression is evaluated: from Start to End inclusive,
// each a Step after the one before.
type MetricsRange struct {
	Start, End time.Time
	Step       time.Duration
}

// QueryMetricsRange evaluates a query at each time of a range. It returns the series of the
// answer, without the points at which they have no value.
func (c *Client) QueryMetricsRange(ctx context.Context, q MetricsQuery, in MetricsRange) (model.Matrix, error) {
	form := q.form()
	form.Set("start", unixSeconds(in.Start))
	form.Set("end", unixSeconds(in.End))
	form.Set("step", strconv.FormatFloat(in.Step.Seconds(), 'f', -1, 64))
	return queryMetrics[model.Matrix](ctx, c, q.Org, "/api/v1/query_range", form)
}

func queryMetrics[T model.Value](ctx context.Context, c *Client, org hangar.OrgSlug, path string, form url.Values) (answer T, err error) {
	var out struct {
		Data struct {
			Type   model.ValueType `json:"resultType"`
			Result T               `json:"result"`
		} `json:"data"`
	}
	in := get(pathOf("prometheus", string(org)) + path)
	in.query = form
	if err := c.do(ctx, in, &out); err != nil {
		return answer, err
	}
	if want := answer.Type(); out.Data.Type != want {
		return answer, fmt.Errorf("the server answered a %.20s instead of a %s", out.Data.Type, want)
	}
	return out.Data.Result, nil
}

func unixSeconds(t time.Time) string {
	return strconv.FormatFloat(float64(t.UnixMilli())/1e3, 'f', 3, 64)
}
