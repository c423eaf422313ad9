package appconfig

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Finding is an error or a note about a key of a file.
type Finding struct {
	Path    string `json:"path"`           // e.g. services[0].ports[1].handlers; empty: the whole file
	Line    int    `json:"line,omitempty"` // from 1; 0: not known
	Text    string `json:"text"`
	Instead string `json:"instead,omitempty"` // what to do instead
}

// String returns the finding on one line, without the name of the file.
func (f Finding) String() string {
	var b strings.Builder
	if f.Path != "" {
		b.WriteString(f.Path + ": ")
	}
	b.WriteString(f.Text)
	if f.Instead != "" {
		b.WriteString("; " + f.Instead)
	}
	return b.String()
}

// Error has all errors in a file.
type Error struct {
	File     string
	Findings []Finding // at least one, in the order of lines
}

func (e *Error) Error() string {
	lines := make([]string, 0, len(e.Findings))
	for _, f := range e.Findings {
		at := e.File
		if f.Line > 0 {
			at += ":" + strconv.Itoa(f.Line)
		}
		lines = append(lines, at+": "+f.String())
	}
	return strings.Join(lines, "\n")
}

// field is a key of a table.
type field struct {
	name, doc, note, refuse string
	typ                     reflect.Type
}

// fieldsOf returns the keys of a table, including those of embedded structs.
func fieldsOf(t reflect.Type) map[string]field {
	found := map[string]field{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" || !f.IsExported() {
			continue
		}
		found[name] = field{name, f.Tag.Get("doc"), f.Tag.Get("note"), f.Tag.Get("refuse"), f.Type}
	}
	return found
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// single returns the element type if t is a Many.
func single(t reflect.Type) (reflect.Type, bool) {
	if t.Kind() == reflect.Slice && strings.HasPrefix(t.Name(), "Many[") {
		return t.Elem(), true
	}
	return nil, false
}

// checker compares a document with the types that it is decoded into.
type checker struct {
	lines  positions
	errors []Finding
	notes  []Finding
}

func (c *checker) find(list *[]Finding, path, text, instead string) {
	*list = append(*list, Finding{Path: path, Line: c.lines.of(path), Text: text, Instead: instead})
}

// value checks that a value can be decoded into a type.
func (c *checker) value(path string, v any, t reflect.Type) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	one, many := single(t)
	table, isTable := v.(map[string]any)
	switch {
	case t.Kind() == reflect.Interface:
	case many && isTable:
		c.value(path, v, one)
	case !many && reflect.PointerTo(t).Implements(unmarshaler):
		c.leaf(path, v, t)
	case t.Kind() == reflect.Struct:
		if !isTable {
			c.find(&c.errors, path, "must be a table", "")
			return
		}
		c.table(path, table, fieldsOf(t))
	case t.Kind() == reflect.Map:
		if !isTable {
			c.find(&c.errors, path, "must be a table", "")
			return
		}
		for _, key := range slices.Sorted(maps.Keys(table)) {
			c.value(join(path, key), table[key], t.Elem())
		}
	case t.Kind() == reflect.Slice:
		list, ok := v.([]any)
		if !ok {
			c.find(&c.errors, path, "must be a list", "")
			return
		}
		for i, item := range list {
			c.value(path+"["+strconv.Itoa(i)+"]", item, t.Elem())
		}
	default:
		c.leaf(path, v, t)
	}
}

func (c *checker) table(path string, table map[string]any, fields map[string]field) {
	for _, key := range slices.Sorted(maps.Keys(table)) {
		at, value := join(path, key), table[key]
		f, known := fields[key]
		switch {
		case !known:
			instead := ""
			if near := nearest(key, fields); near != "" {
				instead = "did you mean " + near + "?"
			}
			c.find(&c.errors, at, "unknown key", instead)
			continue
		case f.refuse != "" && !isZero(value):
			text, instead, _ := strings.Cut(refusals[f.refuse], "|")
			c.find(&c.errors, at, text, instead)
			continue
		case f.note != "" && !isZero(value):
			c.find(&c.notes, at, "has no effect", f.note)
		}
		c.value(at, value, f.typ)
	}
}

// leaf checks a value that is not a table or list, by decoding it.
func (c *checker) leaf(path string, v any, t reflect.Type) {
	raw, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(raw, reflect.New(t).Interface())
	}
	if err != nil {
		c.find(&c.errors, path, decodeText(err, t), "")
	}
}

// decodeText describes the error of a decoder without terms of Go and JSON.
func decodeText(err error, t reflect.Type) string {
	text := strings.TrimPrefix(err.Error(), "json: ")
	if !strings.HasPrefix(text, "cannot unmarshal") {
		return text
	}
	switch t.Kind() {
	case reflect.String:
		return "must be a text"
	case reflect.Bool:
		return "must be true or false"
	case reflect.Int, reflect.Int64, reflect.Uint32:
		return "must be a whole number"
	default:
		return fmt.Sprintf("cannot be read: %s", text)
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// isZero reports whether a value means the same as a missing key.
func isZero(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case bool:
		return !v
	case string:
		return v == ""
	case int64:
		return v == 0
	case float64:
		return v == 0
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	default:
		return false
	}
}

// nearest returns the key that is most similar to an unknown one, or "".
func nearest(key string, fields map[string]field) string {
	best, least := "", max(2, len(key)/3)+1
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if fields[name].refuse != "" {
			continue
		}
		if d := distance(strings.ToLower(key), name); d < least {
			best, least = name, d
		}
	}
	return best
}

// distance returns the Levenshtein distance of two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
