package hosts

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"

	"github.com/hangar-platform/hangar"
)

// maxQuery is how many bytes of a query's parameters are passed on. A gateway accepts fewer, so it
// refuses a truncated query.
const maxQuery = 1 << 20

// question is a query whose caller another host has authorized.
type question struct {
	Scope       hangar.MetricsScope `json:"scope"`
	Path        string              `json:"path"`
	Method      string              `json:"method"`
	Query       string              `json:"query,omitempty"`
	ContentType string              `json:"content_type,omitempty"`
	Body        []byte              `json:"body,omitempty"`
}

// Queries is a hangar.SeriesQuerier that lets the holder answer.
type Queries struct {
	own    hangar.SeriesQuerier
	client *Client
	failed func(http.ResponseWriter, *http.Request, error)
}

// NewQueries returns a querier over own, which answers while this host is the holder. failed answers
// a query that could not be sent.
func NewQueries(own hangar.SeriesQuerier, client *Client, failed func(http.ResponseWriter, *http.Request, error)) *Queries {
	return &Queries{own: own, client: client, failed: failed}
}

var _ hangar.SeriesQuerier = (*Queries)(nil)

// QuerySeries implements hangar.SeriesQuerier. If it cannot complete an answer that it has begun to
// send, it panics with http.ErrAbortHandler.
func (q *Queries) QuerySeries(w http.ResponseWriter, r *http.Request, scope hangar.MetricsScope, path string) {
	if q.client.keeps() {
		q.own.QuerySeries(w, r, scope, path)
		return
	}
	resp, err := q.ask(r, scope, path)
	if err != nil {
		if r.Context().Err() != nil {
			panic(http.ErrAbortHandler) // the client has disconnected
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

// request returns the request as the other host has received it.
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
