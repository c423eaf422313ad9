package openapitest_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar/api/openapi/openapitest"
)

const document = `{"openapi":"3.1.0","info":{"title":"t","version":"1"},"paths":{
	"/rooms":{"get":{"operationId":"list","parameters":[{"name":"floor","in":"query","schema":{}},{"name":"tag","in":"query","schema":{}}],
		"responses":{"200":{"content":{"application/json":{"schema":{"type":"array","items":{"$ref":"#/components/schemas/Room"}}},
			"application/x-ndjson":{"schema":{"$ref":"#/components/schemas/Room"}}}}}}},
	"/rooms/{room}":{"get":{"operationId":"get","responses":{
			"200":{"content":{"application/json":{"schema":{"$ref":"#/components/schemas/Room"}}}},"404":{"$ref":"#/components/responses/NotFound"}}},
		"delete":{"operationId":"delete","responses":{"204":{"description":"gone"}}}},
	"/rooms/newest":{"get":{"operationId":"newest","responses":{"200":{"content":{"application/json":{"schema":{"type":"integer"}}}}}}}},
	"components":{
		"responses":{"NotFound":{"content":{"application/json":{"schema":{"$ref":"#/components/schemas/Error"}}}}},
		"schemas":{
			"Room":{"type":"object","properties":{"id":{"type":"integer"},"made":{"type":"string","format":"date-time"},"more":{"type":"object","properties":{"a":{}},"additionalProperties":{}}},"required":["id"]},
			"Error":{"type":"object","properties":{"error":{"type":"string"}},"required":["error"]}}}}`

const (
	jsonType = "application/json"
	lineType = "application/x-ndjson"
)

// exchanges are answers and their faults; "": none.
var exchanges = map[string]struct {
	method, path string
	status       int
	media, body  string
	wrong        string
}{
	"fine":                       {"GET", "/rooms/7", 200, jsonType, `{"id":7,"made":"2026-01-02T03:04:05Z"}`, ""},
	"with a charset":             {"GET", "/rooms/7", 200, jsonType + "; charset=utf-8", `{"id":7}`, ""},
	"a property of what is open": {"GET", "/rooms/7", 200, jsonType, `{"id":7,"more":{"b":1}}`, ""},
	"an unknown property":        {"GET", "/rooms/7", 200, jsonType, `{"id":7,"x":1}`, "additional properties 'x' not allowed"},
	"a missing property":         {"GET", "/rooms/7", 200, jsonType, `{}`, "missing property 'id'"},
	"a wrong type":               {"GET", "/rooms/7", 200, jsonType, `{"id":"7"}`, "got string, want integer"},
	"a wrong format":             {"GET", "/rooms/7", 200, jsonType, `{"id":7,"made":"today"}`, "date-time"},
	"no JSON":                    {"GET", "/rooms/7", 200, jsonType, `<html>`, "not JSON"},
	"two values":                 {"GET", "/rooms/7", 200, jsonType, `{"id":7}{}`, "not JSON"},
	"no body":                    {"GET", "/rooms/7", 200, jsonType, ``, "not JSON"},
	"another media type":         {"GET", "/rooms/7", 200, "text/plain", `{"id":7}`, `no body of type "text/plain"`},
	"an unknown status":          {"GET", "/rooms/7", 418, jsonType, `{"error":"x"}`, "no such status"},
	"an unknown parameter":       {"GET", "/rooms?wall=1", 200, jsonType, `[]`, `no parameter "wall"`},
	"a parameter":                {"GET", "/rooms?floor=1&tag.a=1", 200, jsonType, `[{"id":1}]`, ""},
	"an error":                   {"GET", "/rooms/7?x=1", 404, jsonType, `{"error":"no room"}`, ""},
	"an error without a text":    {"GET", "/rooms/7", 404, jsonType, `{"id":7}`, "missing property 'error'"},
	"an error in plain text":     {"GET", "/rooms/7", 404, "text/plain", `no room`, `no body of type "text/plain"`},
	"without a body":             {"DELETE", "/rooms/7", 204, "", ``, ""},
	"a body too many":            {"DELETE", "/rooms/7", 204, jsonType, `{}`, "no body of type"},
	"words before parameters":    {"GET", "/rooms/newest", 200, jsonType, `7`, ""},
	"an undescribed method":      {"PUT", "/rooms/7", 200, jsonType, `{}`, "no such operation"},
	"a method that is refused":   {"PUT", "/rooms/7", 405, jsonType, `{"error":"not allowed"}`, ""},
	"an unknown path":            {"GET", "/nothing", 404, jsonType, `{"error":"nothing"}`, ""},
	"an unknown path, badly":     {"GET", "/nothing", 404, jsonType, `{"x":1}`, "missing property 'error'"},
	"an unchecked path":          {"GET", "/else/x", 200, "text/plain", `x`, ""},
	"lines":                      {"GET", "/rooms", 200, lineType, "{\"id\":1}\n\n{\"id\":2}\n", ""},
	"lines with an end":          {"GET", "/rooms", 200, lineType, "{\"id\":1}\n{\"error\":\"lost\"}\n", ""},
	"a bad line":                 {"GET", "/rooms", 200, lineType, "{\"id\":1}\n{\"id\":null}\n{\"id\":2}\n", "got null, want integer"},
}

func read(t *testing.T) *openapitest.Document {
	t.Helper()
	d, err := openapitest.Read([]byte(document), "/else/")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// listener is a test that records its failures.
type listener struct {
	testing.TB
	heard []string
}

func (l *listener) Helper()           {}
func (l *listener) Error(args ...any) { l.heard = append(l.heard, fmt.Sprint(args...)) }

func (l *listener) check(t *testing.T, wrong string) {
	t.Helper()
	switch {
	case wrong == "" && len(l.heard) > 0:
		t.Errorf("heard %q, want nothing", l.heard)
	case wrong != "" && (len(l.heard) != 1 || !strings.Contains(l.heard[0], wrong)):
		t.Errorf("heard %q, want once %q", l.heard, wrong)
	}
}

func TestHandler(t *testing.T) {
	d := read(t)
	for name, x := range exchanges {
		t.Run(name, func(t *testing.T) {
			l := &listener{TB: t}
			handler := d.Handler(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", x.media)
				w.WriteHeader(x.status)
				for _, half := range []string{x.body[:len(x.body)/2], x.body[len(x.body)/2:]} {
					if half != "" {
						_, _ = io.WriteString(w, half)
					}
				}
			}))
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), x.method, x.path, nil))
			if w.Code != x.status || w.Body.String() != x.body {
				t.Errorf("the answer was changed to %d %s", w.Code, w.Body)
			}
			l.check(t, x.wrong)
		})
	}
}

// transport gives every request the same answer.
type transport struct{ answer func() *http.Response }

func (tr transport) RoundTrip(*http.Request) (*http.Response, error) {
	if tr.answer == nil {
		return nil, errors.New("no connection")
	}
	return tr.answer(), nil
}

func TestTransport(t *testing.T) {
	d := read(t)
	for name, x := range exchanges {
		t.Run(name, func(t *testing.T) {
			l := &listener{TB: t}
			res, err := d.Transport(l, transport{func() *http.Response {
				return &http.Response{StatusCode: x.status, Header: http.Header{"Content-Type": {x.media}}, Body: io.NopCloser(strings.NewReader(x.body))}
			}}).RoundTrip(httptest.NewRequestWithContext(t.Context(), x.method, x.path, nil))
			if err != nil {
				t.Fatal(err)
			}
			raw, err := io.ReadAll(res.Body)
			if err != nil || string(raw) != x.body || res.StatusCode != x.status {
				t.Errorf("the answer was changed to %d %s, %v", res.StatusCode, raw, err)
			}
			_ = res.Body.Close()
			l.check(t, x.wrong)
		})
	}
}

// TestBrokenOff: a body that is not read to its end is not an error.
func TestBrokenOff(t *testing.T) {
	d := read(t)
	l := &listener{TB: t}
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/rooms/7", nil)
	if res, err := d.Transport(l, transport{}).RoundTrip(request); err == nil {
		_ = res.Body.Close()
		t.Error("an error of the connection is lost")
	}
	res, err := d.Transport(l, transport{func() *http.Response {
		body := io.MultiReader(strings.NewReader(`{"id":`), broken{})
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {jsonType}}, Body: io.NopCloser(body)}
	}}).RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.ReadAll(res.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the body ends with %v", err)
	}
	l.check(t, "")
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// TestHead: an answer to HEAD has the headers of one to GET, and no body.
func TestHead(t *testing.T) {
	l := &listener{TB: t}
	handler := read(t).Handler(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", jsonType)
		w.WriteHeader(http.StatusOK)
	}))
	handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodHead, "/rooms/7", nil))
	l.check(t, "")
}

func TestValue(t *testing.T) {
	d := read(t)
	if err := d.Value("/components/schemas/Room", map[string]int{"id": 1}); err != nil {
		t.Error(err)
	}
	for place, v := range map[string]any{
		"/components/schemas/Room":    map[string]string{"id": "1"},
		"/components/schemas/Nothing": 1,
		"/components/schemas/Error":   make(chan int),
	} {
		if d.Value(place, v) == nil {
			t.Errorf("%s takes %v", place, v)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	for name, raw := range map[string]string{
		"no JSON":           "x",
		"no object":         "[]",
		"no error":          `{"paths":{}}`,
		"no schema at all":  `{"components":{"schemas":{"Error":{"type":"nonsense"}}}}`,
		"a broken property": `{"components":{"schemas":{"Error":{"type":"object","properties":{"a":{"$ref":"#/nowhere"}}}}}}`,
	} {
		if _, err := openapitest.Read([]byte(raw)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
