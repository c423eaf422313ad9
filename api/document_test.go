package api

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"html"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/extension"
	"github.com/hangar-platform/hangar/api/openapi"
	"github.com/hangar-platform/hangar/api/openapi/openapitest"
	"github.com/hangar-platform/hangar/api/router"
)

func mounted() *server {
	return newServer(Config{
		Log: slog.New(slog.DiscardHandler), Region: "loc", Version: "1.2.3", Extensions: extension.Services{Hooks: noHooks{}},
	})
}

// noHooks receives no webhooks.
type noHooks struct{ extension.Hooks }

// serve answers a request without an id, a limit of sign-ins or a count.
func (s *server) serve(w http.ResponseWriter, r *http.Request) {
	chain, _ := s.Chain()
	chain.ServeHTTP(w, r)
}

func asJSON(t *testing.T, v any) []byte {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestDocumentIsOpenAPI validates the document with a third-party reader of OpenAPI.
func TestDocumentIsOpenAPI(t *testing.T) {
	doc, err := openapi3.NewLoader().LoadFromData(asJSON(t, mounted().document()))
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestDocumentIsServed also checks that neither document needs a token.
func TestDocumentIsServed(t *testing.T) {
	s := mounted()
	w := httptest.NewRecorder()
	s.serve(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/openapi.json", nil))
	var got, want any
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusOK {
		t.Fatalf("answered %d, %v", w.Code, err)
	}
	if err := json.Unmarshal(asJSON(t, s.document()), &want); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Error("what is served is not the document")
	}
}

// TestEveryRouteIsDescribed checks the description of each route.
func TestEveryRouteIsDescribed(t *testing.T) {
	s := mounted()
	d := s.document()
	ids := map[string]string{}
	for _, r := range s.Routes() {
		name := r.Method + " " + r.Path
		op := d.Paths[r.Path][strings.ToLower(r.Method)]
		switch {
		case op == nil:
			t.Errorf("%s is not in the document", name)
			continue
		case r.ID == "" || r.Summary == "" || strings.HasSuffix(r.Summary, "."):
			t.Errorf("%s: needs an ID, and a Summary without a full stop", name)
		case ids[r.ID] != "":
			t.Errorf("%s: %s has the ID %s, too", name, ids[r.ID], r.ID)
		case !slices.ContainsFunc(tags, func(tag openapi.Tag) bool { return tag.Name == r.Tag }):
			t.Errorf("%s: Tag %q is not one of tags", name, r.Tag)
		case r.Answer == nil && r.Stream == nil && r.Status != http.StatusNoContent && r.Status != http.StatusAccepted && r.Status != http.StatusSwitchingProtocols:
			t.Errorf("%s: needs an example of its Answer", name)
		}
		ids[r.ID] = name
		for _, p := range r.Parameters() {
			if pathParams[p].Text == "" {
				t.Errorf("%s: {%s} is not one of pathParams", name, p)
			}
		}
		for _, p := range slices.Concat(r.Query, r.Headers) {
			if p.Name == "" || p.Example == nil || p.Text == "" {
				t.Errorf("%s: parameter %q needs an example and a text", name, p.Name)
			}
		}
		for status, answer := range op.Responses {
			code, _ := strconv.Atoi(status)
			if code >= http.StatusBadRequest && d.Components.Responses[strings.TrimPrefix(answer.Ref, "#/components/responses/")] == nil {
				t.Errorf("%s: errors with status %s are not described", name, status)
			}
		}
	}
}

// TestExamplesFitTheirSchemas checks the examples, and values of their types in which nothing is empty:
// so a schema has every property that encoding/json can write.
func TestExamplesFitTheirSchemas(t *testing.T) {
	s := mounted()
	d, err := openapitest.Read(asJSON(t, s.document()))
	if err != nil {
		t.Fatal(err)
	}
	check := func(name, place string, values ...any) {
		for _, v := range values {
			if err := d.Value(place, v); err != nil {
				t.Errorf("%s: %v\n%s", name, err, asJSON(t, v))
			}
		}
	}
	at := strings.NewReplacer("{", "%7B", "}", "%7D", "/", "~1")
	for _, r := range s.Routes() {
		name := r.Method + " " + r.Path
		place := "/paths/" + at.Replace(r.Path) + "/" + strings.ToLower(r.Method)
		answers := place + "/responses/" + strconv.Itoa(max(r.Status, http.StatusOK)) + "/content/"
		if r.Status == http.StatusSwitchingProtocols {
			continue
		}
		if r.Body != nil {
			check(name+" body", place+"/requestBody/content/application~1json/schema", router.ExampleOf(r.Body), full(t, r.Body))
		}
		if r.Answer != nil {
			media := strings.ReplaceAll(cmp.Or(r.Media, router.MediaJSON), "/", "~1")
			check(name+" answer", answers+media+"/schema", r.Answer, full(t, r.Answer))
		}
		for _, other := range r.Answers {
			check(name+" other answer", answers+"application~1json/schema", full(t, other))
		}
		if r.Stream != nil {
			check(name+" line", answers+"application~1x-ndjson/schema", r.Stream, full(t, r.Stream))
		}
		for i, p := range slices.Concat(r.Query, r.Headers) {
			check(name+" "+p.Name, place+"/parameters/"+strconv.Itoa(i+len(r.Parameters()))+"/schema", p.Example)
		}
	}
}

// full returns a value of the type of v in which every field has a value. Types other than structs,
// slices, maps and pointers to them keep the value in v.
func full(t *testing.T, v any) any {
	t.Helper()
	p := reflect.New(reflect.TypeOf(v))
	p.Elem().Set(reflect.ValueOf(v))
	fill(p.Elem(), 0)
	return p.Elem().Interface()
}

// fill gives v a value if it has none. Types with few values, or with their own encoding, get a known
// one.
func fill(v reflect.Value, depth int) {
	if !v.CanSet() || depth > 12 {
		return
	}
	if known, ok := samples[v.Type()]; ok {
		v.Set(reflect.ValueOf(known))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		fill(v.Elem(), depth+1)
	case reflect.Struct:
		for _, field := range v.Fields() {
			fill(field, depth+1)
		}
	case reflect.Slice:
		if v.Len() == 0 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		}
		for i := range v.Len() {
			fill(v.Index(i), depth+1)
		}
	case reflect.Map:
		if v.Len() == 0 {
			key, elem := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(key, depth+1)
			fill(elem, depth+1)
			v.Set(reflect.MakeMap(v.Type()))
			v.SetMapIndex(key, elem)
		}
	case reflect.String:
		if v.Len() == 0 {
			v.SetString("x")
		}
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if v.IsZero() {
			v.SetInt(1)
		}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if v.IsZero() {
			v.SetUint(1)
		}
	case reflect.Float32, reflect.Float64:
		v.SetFloat(1.5)
	default:
	}
}

// samples are values of types that restrict their values.
var samples = map[reflect.Type]any{
	reflect.TypeFor[rawConfig]():              rawConfig{[]byte(`{"image":"nginx","unknown":1}`)},
	reflect.TypeFor[hangar.PersistRootfs]():   hangar.PersistNever,
	reflect.TypeFor[time.Time]():              exampleTime,
	reflect.TypeFor[json.RawMessage]():        json.RawMessage(`{"a":1}`),
	reflect.TypeFor[hangar.ReleaseStatus]():   hangar.ReleaseComplete,
	reflect.TypeFor[hangar.ReleaseStrategy](): hangar.StrategyRolling,
	reflect.TypeFor[hangar.MachineState]():    hangar.MachineStarted,
	reflect.TypeFor[hangar.EventSource]():     hangar.SourceUser,
	reflect.TypeFor[hangar.LogProvider]():     hangar.LogApp,
	reflect.TypeFor[hangar.AppStatus]():       hangar.AppDeployed,
	reflect.TypeFor[hangar.FSType]():          hangar.FSExt4,
	reflect.TypeFor[hangar.AlertState]():      hangar.AlertFiring,
	reflect.TypeFor[hangar.AlertHealth]():     hangar.AlertHealthOK,
}

// TestCheckIsStrict: what is checked is checked strictly.
func TestCheckIsStrict(t *testing.T) {
	d, err := openapitest.Read(asJSON(t, mounted().document()))
	if err != nil {
		t.Fatal(err)
	}
	for place, broken := range map[string]string{
		"/components/schemas/Error":   `{"error":"x","code":"invalid","more":1}`,
		"/components/schemas/App":     `{"id":"web"}`,
		"/components/schemas/Machine": `{"id":1}`,
		"/components/schemas/Event":   string(bytes.Replace(asJSON(t, exampleMachine().Events[0]), []byte(`"user"`), []byte(`"nobody"`), 1)),
	} {
		if d.Value(place, json.RawMessage(broken)) == nil {
			t.Errorf("%s takes %s", place, broken)
		}
	}
}

// TestReference: the page has everything that is described, each at its anchor, and a policy that keeps
// it from loading anything.
func TestReference(t *testing.T) {
	s := mounted()
	w := httptest.NewRecorder()
	s.serve(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/docs", nil))
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "text/html; charset=utf-8" || !strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'none'") {
		t.Fatalf("answered %d %v", w.Code, w.Header())
	}
	page := w.Body.String()
	ids := []string{"error-404", "schema-MachineConfig"}
	for _, r := range s.Routes() {
		ids = append(ids, r.ID, "tag-"+strings.ReplaceAll(r.Tag, " ", "-"))
	}
	for _, id := range ids {
		if !strings.Contains(page, `id="`+id+`"`) {
			t.Errorf("nothing is at #%s", id)
		}
	}
	for _, link := range regexp.MustCompile(`href="#([^"]*)"`).FindAllStringSubmatch(page, -1) {
		if !strings.Contains(page, `id="`+link[1]+`"`) {
			t.Errorf("a link leads to #%s, where nothing is", link[1])
		}
	}
	if strings.Count(page, "<script") != 1 || strings.Contains(page, "ZgotmplZ") {
		t.Error("the page has more than its own script, or what its template refuses")
	}
	script := regexp.MustCompile(`(?s)<script>(.*)</script>`).FindStringSubmatch(page)[1]
	sum := sha256.Sum256([]byte(script))
	if hash := base64.StdEncoding.EncodeToString(sum[:]); !strings.Contains(w.Header().Get("Content-Security-Policy"), "'sha256-"+hash+"'") {
		t.Error("the policy of the page does not allow its script")
	}
	if tags[0].Name != "Apps" || tags[len(tags)-1].Name != router.TagExisting {
		t.Error("the page begins with another group than Apps, or ends with another than that for existing clients")
	}
	for _, r := range s.Routes() {
		if line := commands[r.ID]; !strings.Contains(page, html.EscapeString(line)) {
			t.Errorf("%s: the page does not have %s", r.ID, line)
		}
	}
}

// TestFront opens the address of the API in a browser.
func TestFront(t *testing.T) {
	s := mounted()
	w := httptest.NewRecorder()
	s.serve(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.example.com/", nil))
	for _, want := range []string{"hangar login http://api.example.com", `href="/docs"`, `href="/v1/openapi.json"`, `href="/healthz"`} {
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), want) {
			t.Errorf("answered %d, without %s", w.Code, want)
		}
	}
}
