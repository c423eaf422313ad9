package hosts

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"

	"github.com/hangar-platform/hangar"
)

// maxQuery is how much of the parameters of a query is passed on, in bytes: more than a gateway takes, so that
// it refuses what is cut off here.
const maxQuery = 1 << 20

// question is a query of a caller whose rights another host has looked at.
type question struct {
	Scope       hangar.MetricsScope `json:"scope"`
	Path        string              `json:"path"`
	Method      string              `json:"method"`
	Query       string              `json:"query,omitempty"`
	ContentType string              `json:"content_type,omitempty"`
	Body        []byte              `json:"body,omitempty"`
}

// Queries is a hangar.SeriesQuerier that has the holder answer.
type Queries struct {
	own    hangar.SeriesQuerier
	client *Client
	failed func(http.ResponseWriter, *http.Request, error)
}

// NewQueries returns the querier over the one that this host has while it is the holder. failed answers
// a query that could not be asked.
func NewQueries(own hangar.SeriesQuerier, client *Client, failed func(http.ResponseWriter, *http.Request, error)) *Queries {
	return &Queries{own: own, client: client, failed: failed}
}

var _ hangar.SeriesQuerier = (*Queries)(nil)

// QuerySeries implements hangar.SeriesQuerier. When an answer that has begun cannot be completed, it panics
// with http.ErrAbortHandler.
func (q *Queries) QuerySeries(w http.ResponseWriter, r *http.Request, scope hangar.MetricsScope, path string) {
	if q.client.keeps() {
		q.own.QuerySeries(w, r, scope, path)
		return
	}
	resp, err := q.ask(r, scope, path)
	if err != nil {
		if r.Context().Err() != nil {
			panic(http.ErrAbortHandler) // the client has gone
		}
		q.failed(w, r, err)
		return
	}
	defer resp.Body.Close()
	for _, name := range []string{"Content-Type", "Cache-Control", "Retry-After", "Content-Length"} {
		if v := resp.Header.Values(name); len(v) > 0 {
			w.Header()[name] = v
		}
	}
	w.WriteHeader(resp.StatusCode)
	if _, err := io.Copy(w, resp.Body); err != nil {
		panic(http.ErrAbortHandler)
	}
}

func (q *Queries) ask(r *http.Request, scope hangar.MetricsScope, path string) (*http.Response, error) {
	in := question{Scope: scope, Path: path, Method: r.Method, Query: r.URL.RawQuery, ContentType: r.Header.Get("Content-Type")}
	if r.Body != nil {
		var err error
		if in.Body, err = io.ReadAll(io.LimitReader(r.Body, maxQuery)); err != nil {
			return nil, err
		}
	}
	b, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	return q.client.post(r.Context(), pathQuery, http.Header{"Content-Type": {"application/json"}}, bytes.NewReader(b))
}

// request is the question as its asker has got it.
func (q *question) request(r *http.Request) *http.Request {
	out := r.Clone(r.Context())
	out.Method, out.URL = q.Method, &url.URL{Path: q.Path, RawQuery: q.Query}
	out.Header = http.Header{}
	if q.ContentType != "" {
		out.Header.Set("Content-Type", q.ContentType)
	}
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(q.Body)), int64(len(q.Body))
	out.Form, out.PostForm = nil, nil
	return out
}
