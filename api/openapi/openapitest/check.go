// Package openapitest checks the answers of a server against its OpenAPI document.
//
// A Document is stricter than what it was read from: an object may have no property
// that its schema does not name, unless the schema says that it may have more. So an
// undocumented property fails a test, while clients are free to ignore it.
//
// Handler and Transport look at what passes through them and change nothing. Bodies
// that are streams are checked line by line, as they are read. Both may be used
// from many goroutines.
package openapitest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

const (
	mediaJSON  = "application/json"
	mediaLines = "application/x-ndjson"
)

// Document is an OpenAPI document against which exchanges are checked.
type Document struct {
	operations []operation
	failure    *jsonschema.Schema
	unchecked  []string

	mu       sync.Mutex // guards compiler and schemas
	compiler *jsonschema.Compiler
	schemas  map[string]*jsonschema.Schema // by place in the document
}

// operation is a method of a path.
type operation struct {
	method    string
	segments  []string // of the path; "{…}" stands for any
	query     []string
	answers   map[string]map[string]string // by status and media type, the place of the schema
	hasAnswer map[string]bool              // by status, also without a body
}

// location is the name of the document for the compiler.
const location = "https://hangar.test/openapi.json"

// Read reads a document. It does not check exchanges at paths that begin with one of unchecked.
func Read(raw []byte, unchecked ...string) (*Document, error) {
	tree, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	root, ok := tree.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("the document is no object")
	}
	tighten(root)
	d := &Document{compiler: jsonschema.NewCompiler(), schemas: map[string]*jsonschema.Schema{}, unchecked: unchecked}
	d.compiler.DefaultDraft(jsonschema.Draft2020)
	d.compiler.AssertFormat()
	if err := d.compiler.AddResource(location, root); err != nil {
		return nil, err
	}
	for path, methods := range object(root["paths"]) {
		for method, op := range object(methods) {
			d.operations = append(d.operations, readOperation(root, method, path, object(op)))
		}
	}
	if d.failure, err = d.schema("/components/schemas/Error"); err != nil {
		return nil, err
	}
	return d, nil
}

func object(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

// tighten forbids the properties that an object's schema does not name.
func tighten(v any) {
	switch v := v.(type) {
	case map[string]any:
		_, isObject := v["properties"].(map[string]any)
		if _, decided := v["additionalProperties"]; isObject && !decided {
			v["additionalProperties"] = false
		}
		for _, sub := range v {
			tighten(sub)
		}
	case []any:
		for _, sub := range v {
			tighten(sub)
		}
	}
}

func readOperation(root map[string]any, method, path string, op map[string]any) operation {
	o := operation{
		method: strings.ToUpper(method), segments: strings.Split(path, "/"),
		answers: map[string]map[string]string{}, hasAnswer: map[string]bool{},
	}
	parameters, _ := op["parameters"].([]any)
	for _, p := range parameters {
		if p := object(p); p["in"] == "query" {
			name, _ := p["name"].(string)
			o.query = append(o.query, name)
		}
	}
	for status, response := range object(op["responses"]) {
		place := "/paths/" + escape(path) + "/" + method + "/responses/" + status
		r := object(response)
		if ref, ok := r["$ref"].(string); ok {
			place = strings.TrimPrefix(ref, "#")
			r = object(object(object(root["components"])["responses"])[place[strings.LastIndex(place, "/")+1:]])
		}
		o.hasAnswer[status] = true
		o.answers[status] = map[string]string{}
		for media := range object(r["content"]) {
			o.answers[status][media] = place + "/content/" + escape(media) + "/schema"
		}
	}
	return o
}

// escape writes a part of a JSON pointer, as it stands in a URL.
func escape(part string) string {
	return url.PathEscape(strings.NewReplacer("~", "~0", "/", "~1").Replace(part))
}

// schema compiles the schema at a place of the document, once.
func (d *Document) schema(place string) (*jsonschema.Schema, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s, ok := d.schemas[place]; ok {
		return s, nil
	}
	s, err := d.compiler.Compile(location + "#" + place)
	if err == nil {
		d.schemas[place] = s
	}
	return s, err
}

// find returns the operation of a request. Of several that match, it is the one with the most literal
// segments in its path, as in http.ServeMux.
func (d *Document) find(method, path string) *operation {
	if method == http.MethodHead {
		method = http.MethodGet
	}
	segments := strings.Split(path, "/")
	var best *operation
	for i, o := range d.operations {
		if o.method == method && o.matches(segments) && (best == nil || o.words() > best.words()) {
			best = &d.operations[i]
		}
	}
	return best
}

func (o *operation) matches(segments []string) bool {
	return slices.EqualFunc(o.segments, segments, func(want, got string) bool {
		return want == got || strings.HasPrefix(want, "{") && got != ""
	})
}

func (o *operation) words() int {
	n := 0
	for _, s := range o.segments {
		if !strings.HasPrefix(s, "{") {
			n++
		}
	}
	return n
}

// answered is an answer before its body is read.
type answered struct {
	document *Document
	what     string // for messages
	op       *operation
	status   int
	media    string
	head     bool
}

// begin checks the head of an answer.
func (d *Document) begin(r *http.Request, status int, header http.Header) (answered, error) {
	a := answered{document: d, what: fmt.Sprintf("%s %s, answered %d", r.Method, r.URL.Path, status), status: status, head: r.Method == http.MethodHead}
	for _, prefix := range d.unchecked {
		if strings.HasPrefix(r.URL.Path, prefix) {
			return a, nil
		}
	}
	a.op = d.find(r.Method, r.URL.EscapedPath())
	a.media, _, _ = strings.Cut(header.Get("Content-Type"), ";")
	switch {
	case a.op == nil:
		if status != http.StatusNotFound && status != http.StatusMethodNotAllowed && status/100 != 3 {
			return a, fmt.Errorf("%s: the document has no such operation", a.what)
		}
	case !a.op.hasAnswer[strconv.Itoa(status)]:
		return a, fmt.Errorf("%s: the document has no such status, only %v", a.what, slices.Sorted(maps.Keys(a.op.hasAnswer)))
	case status < http.StatusBadRequest:
		for name := range r.URL.Query() {
			if !a.op.takes(name) {
				return a, fmt.Errorf("%s: the document has no parameter %q", a.what, name)
			}
		}
	}
	return a, nil
}

// takes reports whether the document has a parameter of the query: by its name or, for a member of an
// exploded object, by the part before the first dot.
func (o *operation) takes(name string) bool {
	prefix, _, _ := strings.Cut(name, ".")
	return slices.Contains(o.query, name) || slices.Contains(o.query, prefix)
}

// body checks a whole body, or a line of a stream.
func (a answered) body(raw []byte) error {
	if a.head || a.op == nil && a.media != mediaJSON {
		return nil
	}
	schema := a.document.failure
	if a.op != nil {
		media := a.op.answers[strconv.Itoa(a.status)]
		place, known := media[a.media]
		switch {
		case len(raw) == 0 && len(media) == 0:
			return nil
		case !known:
			return fmt.Errorf("%s: the document has no body of type %q: %.200q", a.what, a.media, raw)
		case a.media != mediaJSON && a.media != mediaLines:
			return nil
		}
		var err error
		if schema, err = a.document.schema(place); err != nil {
			return fmt.Errorf("%s: the document's schema: %w", a.what, err)
		}
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return fmt.Errorf("%s: the body is not JSON: %w: %.200q", a.what, err, raw)
	}
	if err := schema.Validate(value); err != nil {
		if a.media == mediaLines && a.document.failure.Validate(value) == nil {
			return nil // a stream may end with an error
		}
		return fmt.Errorf("%s: the body is not as the document says: %w\n%.2000s", a.what, err, raw)
	}
	return nil
}

// Value checks a value against a schema of the document, given by its place, such
// as "/components/schemas/Error".
func (d *Document) Value(place string, v any) error {
	schema, err := d.schema(place)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return err
	}
	return schema.Validate(value)
}
