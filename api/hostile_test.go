package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/api/openapi/openapitest"
	"github.com/hangar-platform/hangar/internal/racetest"
)

// described is an operation of the document, as those who attack it need it.
type described struct {
	method, path string
	parameters   []string // of the query
	body         []byte   // an example; nil: none is taken
}

func (d described) String() string { return d.method + " " + d.path }

// operations are those of the document, sorted.
func operations(tb testing.TB) []described {
	tb.Helper()
	w := httptest.NewRecorder()
	newAPI().ServeHTTP(w, httptest.NewRequestWithContext(tb.Context(), http.MethodGet, "/v1/openapi.json", nil))
	var document struct {
		Paths map[string]map[string]struct {
			Parameters  []struct{ Name, In string }
			RequestBody struct {
				Content map[string]struct{ Example json.RawMessage }
			}
		}
	}
	if err := json.Unmarshal(w.Body.Bytes(), &document); err != nil {
		tb.Fatal(err)
	}
	var list []described
	for _, path := range slices.Sorted(maps.Keys(document.Paths)) {
		for _, method := range slices.Sorted(maps.Keys(document.Paths[path])) {
			op := document.Paths[path][method]
			d := described{method: strings.ToUpper(method), path: path, body: op.RequestBody.Content["application/json"].Example}
			for _, p := range op.Parameters {
				if p.In == "query" {
					d.parameters = append(d.parameters, p.Name)
				}
			}
			list = append(list, d)
		}
	}
	return list
}

// target is an API with one App and one Machine, whose answers are checked.
type target struct {
	http.Handler
	machine string
}

func newTarget(tb testing.TB, document *openapitest.Document) target {
	tb.Helper()
	t := target{Handler: document.Handler(tb, newAPI())}
	t.send(tb, http.MethodPost, "/v1/apps", []byte(`{"name":"web"}`))
	w := t.send(tb, http.MethodPost, "/v1/apps/web/machines", []byte(`{"config":{"image":"nginx","metadata":{"role":"web"}}}`))
	var created struct{ ID string }
	if err := json.Unmarshal(w.Body.Bytes(), &created); err != nil || created.ID == "" {
		tb.Fatalf("the machine is answered %d %s", w.Code, w.Body)
	}
	t.machine = created.ID
	return t
}

// send makes a request whose caller leaves before long: some follow what never ends.
func (t target) send(tb testing.TB, method, path string, body []byte) *httptest.ResponseRecorder {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	defer cancel()
	defer time.AfterFunc(20*time.Millisecond, cancel).Stop()
	r := httptest.NewRequestWithContext(ctx, method, path, bytes.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+token)
	w := httptest.NewRecorder()
	t.ServeHTTP(w, r)
	return w
}

// at fills in the path of an operation.
func (t target) at(d described, value func(name string) string) string {
	return regexp.MustCompile(`\{(\w+)\}`).ReplaceAllStringFunc(d.path, func(braces string) string {
		name := strings.Trim(braces, "{}")
		if v := value(name); v != "" {
			return url.PathEscape(v)
		}
		switch name {
		case "app":
			return "web"
		case "machine":
			return t.machine
		default:
			return "role"
		}
	})
}

// about says what an error about the body of a request begins with.
var about = regexp.MustCompile(`(?s)^(invalid [a-z_]|Validation failed|the body|json: cannot unmarshal \w+ into Go value|invalid character|unexpected end of JSON|exceeded max depth)`)

// wrongRefusal says what is wrong with an answer that refuses a request.
func wrongRefusal(w *httptest.ResponseRecorder) string {
	var body struct{ Error, Status, Code string }
	switch {
	case w.Code < 400, w.Code == http.StatusServiceUnavailable && strings.Contains(w.Body.String(), "shutting down"): // the caller had left
		return ""
	case w.Code > 499:
		return "it is no 4xx"
	case w.Header().Get("Content-Type") != "application/json" || json.Unmarshal(w.Body.Bytes(), &body) != nil || body.Error == "" || body.Code == "":
		return "it is no error in JSON"
	case w.Code == http.StatusBadRequest && body.Code == "invalid" && body.Status == "" && !about.MatchString(body.Error):
		return "it does not say what it is about"
	case w.Body.Len() > 8<<10:
		return "it is very long"
	default:
		return ""
	}
}

// TestHostileRequests asks every operation of the document for what hardly anybody
// asks for: paths, queries and bodies that are broken in ever other ways.
func TestHostileRequests(t *testing.T) {
	rounds := 200
	if testing.Short() || racetest.Enabled {
		rounds = 20
	}
	document := openapitest.Of(t, newAPI(), "/v1/openapi.json")
	for i, d := range operations(t) {
		t.Run(strings.ReplaceAll(d.String(), "/", "|"), func(t *testing.T) {
			m := mutator{rand.New(rand.NewPCG(*seed, uint64(i)))}
			target := newTarget(t, document)
			for round := range rounds {
				path := target.at(d, func(string) string {
					if m.IntN(10) == 0 {
						return m.text()
					}
					return ""
				}) + "?" + m.query(d.parameters)
				var body []byte
				if d.body != nil {
					body = m.spoilt(t, d.body)
				} else if m.IntN(10) == 0 {
					body = []byte(m.text())
				}
				if !sendable(path) {
					continue
				}
				w := target.send(t, d.method, path, body)
				if wrong := wrongRefusal(w); wrong != "" || t.Failed() {
					t.Fatalf("round %d of seed %d: %s %s is answered %d %.500s: %s\n%.4000s", round, *seed, d.method, path, w.Code, w.Body, wrong, body)
				}
			}
		})
	}
}

// sendable reports whether net/http would hand a path and a query to a handler.
func sendable(path string) bool {
	_, err := url.ParseRequestURI(path)
	return err == nil && !strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '#' })
}

// query gives some of the parameters values.
func (m mutator) query(parameters []string) string {
	values := url.Values{}
	for _, name := range parameters {
		for range m.IntN(3) {
			value := m.text()
			if n, ok := m.value().(json.Number); ok {
				value = n.String()
			}
			if m.IntN(4) == 0 {
				name += "." + m.text()
			}
			values.Add(name, value)
		}
	}
	if m.IntN(20) == 0 {
		return values.Encode() + "&%zz;" + m.text()
	}
	return values.Encode()
}

// spoilt is a body with up to three mistakes.
func (m mutator) spoilt(t *testing.T, example []byte) []byte {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(example))
	d.UseNumber()
	var tree map[string]any
	if err := d.Decode(&tree); err != nil {
		t.Fatal(err)
	}
	for range m.IntN(4) {
		m.mutate(tree)
	}
	return write(nil, tree)
}

// FuzzRequests sends any body, and any value of a parameter, to any operation of
// the document.
func FuzzRequests(f *testing.F) {
	list := operations(f)
	document := openapitest.Of(f, newAPI(), "/v1/openapi.json")
	for i, d := range list {
		for _, body := range []string{string(d.body), "{}", "null", "[]", `""`, `{"timeout":1e300,"signal":-1}`, "\xff"} {
			f.Add(uint8(i), uint8(0), "", []byte(body))
		}
		for j := range d.parameters {
			f.Add(uint8(i), uint8(j), "1", d.body)
		}
	}
	f.Fuzz(func(t *testing.T, index, parameter uint8, value string, body []byte) {
		d := list[int(index)%len(list)]
		target := newTarget(t, document)
		path := target.at(d, func(string) string { return "" })
		if n := len(d.parameters); n > 0 && value != "" {
			path += "?" + url.Values{d.parameters[int(parameter)%n]: {value}}.Encode()
		}
		w := target.send(t, d.method, path, body)
		if wrong := wrongRefusal(w); wrong != "" {
			t.Fatalf("%s %s is answered %d %.500s: %s", d.method, path, w.Code, w.Body, wrong)
		}
	})
}
