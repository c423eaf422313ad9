package gateway

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// lists are paths and parameters whose answers are lists, and the elements of these.
var lists = map[string]struct{ path, form, element string }{
	"all labels":   {"/api/v1/labels", "", `"name"`},
	"some labels":  {"/api/v1/labels", "limit=1000000", `"name"`},
	"label values": {"/api/v1/label/app/values", "limit=1000000", `"value"`},
	"series":       {"/api/v1/series", "match[]=up&limit=1000000", `{"__name__":"up","app":"web"}`},
}

// TestListsAreNotHeld: the client receives the beginning of a list before the store has sent the rest.
func TestListsAreNotHeld(t *testing.T) {
	for name, c := range lists {
		const size = 2 << 20
		w := &recorder{header: http.Header{}}
		n := size/len(c.element) + 1
		body := io.MultiReader(
			strings.NewReader(`{"status":"success","data":[`+strings.Repeat(c.element+",", n)),
			readerFunc(func([]byte) (int, error) {
				if w.body.Len() == 0 {
					t.Errorf("%s: the store has sent %d MiB, the client has received nothing", name, size>>20)
				}
				return 0, io.EOF
			}),
			strings.NewReader(c.element+"]}"))
		g := newGateway(t, streaming(body), generous)
		get(t, g, w, c.path, c.form)
		var list struct{ Data []any }
		if err := json.Unmarshal([]byte(w.body.String()), &list); err != nil || len(list.Data) != n+1 {
			t.Errorf("%s: the client receives %d elements, %v; want %d", name, len(list.Data), err, n+1)
		}
	}
}

// TestLists: elements beyond the limit and the hidden label are left out, wherever they are.
func TestLists(t *testing.T) {
	const (
		names  = "/api/v1/labels"
		values = "/api/v1/label/app/values"
		series = "/api/v1/series"
	)
	for _, c := range []struct{ path, limit, data, want string }{
		{names, "2", `["__org__","a","b"]`, `["a","b"]`},
		{names, "2", `["a","__org__","b"]`, `["a","b"]`},
		{names, "2", `["a","b","__org__"]`, `["a","b"]`},
		{names, "2", `["a","b","c"]`, `["a","b"]`},
		{names, "2", `["\u005f_org__","<\\\"é","b"]`, `["\u003c\\\"é","b"]`},
		{names, "0", `["a","__org__","b","c"]`, `["a","b","c"]`},
		{names, "1", `["__org__"]`, `[]`},
		{names, "1", `[]`, `[]`},
		{names, "1", `null`, `[]`},
		{values, "2", `["__org__","b","c"]`, `["__org__","b"]`},
		{values, "2", ` [ "b" ] `, `["b"]`},
		{series, "1", `[{"__org__":"o","a":"1"},{"__org__":"o"}]`, `[{"a":"1"}]`},
		{series, "2", `[{"b":"2","\u005f_org__":"o","a":"1"},{"__org__":"o"}]`, `[{"a":"1","b":"2"},{}]`},
		{series, "2", `[]`, `[]`},
	} {
		for name, whole := range map[string]string{
			"plain":        `{"status":"success","data":` + c.data + `}`,
			"of a cluster": `{"status":"success","isPartial":true,"data":` + c.data + `}`,
			"with more":    `{"status":"success","data":` + c.data + `,"warnings":["data"],"stats":{"data":["x"]}}`,
		} {
			w := &recorder{header: http.Header{}}
			get(t, newGateway(t, answering(200, whole), generous), w, c.path, "match[]=up&limit="+c.limit)
			if want := `{"status":"success","data":` + c.want + "}\n"; w.body.String() != want {
				t.Errorf("%s, limit %s, %s: %s becomes %s", c.path, c.limit, name, whole, w.body.String())
			}
		}
	}
}

// TestBrokenLists: an answer of another form, or one that is incomplete, is an error, even if the
// fault is behind the limit.
func TestBrokenLists(t *testing.T) {
	for _, body := range []string{
		``, `[]`, `null`, `{`, `{"status":"success","data":`, `{"status":"success","data":["a"`, `{"status":"success","data":["a","b",`,
		`{"status":"success","data":["a","b"`, `{"status":"success","data":["a","b"]`, `{"status":"success","data":["a" "b"]}`,
		`{"status":"success","data":["a","b"],"warnings":[}`, `{"status":"success","data":{"a":"b"}}`, `{"status":"success","data":"a"}`,
		`{"status":"success","data":["a",["b"]]}`, `{"status":"success"}`,
	} {
		for name, s := range map[string]pretended{
			"ends":  answering(200, body),
			"fails": streaming(io.MultiReader(strings.NewReader(body), readerFunc(func([]byte) (int, error) { return 0, errors.New("reset") }))),
		} {
			w := &recorder{header: http.Header{}}
			get(t, newGateway(t, s, generous), w, "/api/v1/labels", "limit=1")
			if w.status != http.StatusServiceUnavailable {
				t.Errorf("%s that %s becomes %d %s", body, name, w.status, w.body.String())
			}
		}
	}
}

// streaming returns a store that answers one request with a body.
func streaming(body io.Reader) pretended {
	return func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(body)}, nil
	}
}

func get(t *testing.T, g *Gateway, w http.ResponseWriter, path, form string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://gateway/?"+form, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	g.Serve(w, r, own, Scope{}, path)
}
