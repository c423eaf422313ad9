package input

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/hangar-platform/hangar"
)

// lenientKey marks the context of a request whose operation is Lenient.
type lenientKey struct{}

// Lenient lets the bodies of a route have properties that this server does not know.
func Lenient(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), lenientKey{}, true)))
	})
}

// UnknownProperty answers CodeInvalid for the first property in a body, at any depth, that no value of
// type t has. The body must decode into t. It does not look into types that decode themselves.
func UnknownProperty(raw []byte, t reflect.Type) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var tree any
	if err := d.Decode(&tree); err != nil {
		return hangar.Errorf(hangar.CodeInvalid, "", "%w", err)
	}
	path, siblings := findUnknown(tree, t, "")
	if path == "" {
		return nil
	}
	return hangar.Errorf(hangar.CodeInvalid, "", "the body has the unknown property %q, and ignoring it could allow more than is meant; known are %s", Clip(path), strings.Join(siblings, ", "))
}

// findUnknown returns the path of an unknown property below path, and what may stand in its
// place; "": there is none.
func findUnknown(v any, t reflect.Type, path string) (unknown string, siblings []string) {
	if t.Kind() != reflect.Pointer && reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return "", nil
	}
	switch t.Kind() {
	case reflect.Pointer:
		return findUnknown(v, t.Elem(), path)
	case reflect.Slice, reflect.Array:
		list, _ := v.([]any)
		for i, item := range list {
			if unknown, siblings = findUnknown(item, t.Elem(), fmt.Sprintf("%s[%d]", path, i)); unknown != "" {
				return unknown, siblings
			}
		}
	case reflect.Map:
		object, _ := v.(map[string]any)
		for _, key := range sortedKeys(object) {
			if unknown, siblings = findUnknown(object[key], t.Elem(), below(path, key)); unknown != "" {
				return unknown, siblings
			}
		}
	case reflect.Struct:
		object, _ := v.(map[string]any)
		known := properties(t)
		for _, key := range sortedKeys(object) {
			// The decoder ignores case, too.
			i := slices.IndexFunc(known, func(p property) bool { return strings.EqualFold(p.name, key) })
			if i < 0 {
				for _, p := range known {
					siblings = append(siblings, p.name)
				}
				return below(path, key), siblings
			}
			if unknown, siblings = findUnknown(object[key], known[i].of, below(path, known[i].name)); unknown != "" {
				return unknown, siblings
			}
		}
	default: // holds no properties
	}
	return "", nil
}

func sortedKeys(object map[string]any) []string {
	keys := make([]string, 0, len(object))
	for key := range object {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// below is the path of a property. An empty name is shown as "".
func below(path, key string) string {
	if key == "" {
		key = `""`
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// property is a field of a struct as it is called in JSON.
type property struct {
	name string
	of   reflect.Type
}

// properties are the properties that a struct is decoded from, in order.
func properties(t reflect.Type) []property {
	var list []property
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "", !f.IsExported(), f.Tag.Get("json") == "-":
			continue
		case name == "":
			name = f.Name
		}
		list = append(list, property{name, f.Type})
	}
	return list
}
