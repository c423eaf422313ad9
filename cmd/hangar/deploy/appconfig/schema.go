package appconfig

import (
	"encoding/json"
	"maps"
	"reflect"
)

// Schema returns the JSON Schema of a file, for editors.
func Schema() ([]byte, error) {
	root := schemaOf(reflect.TypeFor[File]())
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "hangar.toml"
	root["description"] = "An App of hangar, as hangar deploy reads it from hangar.toml or fly.toml."
	return json.MarshalIndent(root, "", "  ")
}

// written has the schemas of types whose values can be written in several ways.
var written = map[reflect.Type]map[string]any{
	reflect.TypeFor[Text]():     {"type": []string{"string", "number", "boolean"}},
	reflect.TypeFor[Words]():    {"anyOf": []any{map[string]any{"type": "string"}, map[string]any{"type": "array", "items": map[string]any{"type": "string"}}}},
	reflect.TypeFor[Seconds]():  {"type": []string{"string", "integer"}},
	reflect.TypeFor[Millis]():   {"type": []string{"string", "integer"}},
	reflect.TypeFor[Memory]():   {"type": []string{"string", "integer"}},
	reflect.TypeFor[Gigas]():    {"type": []string{"string", "integer"}},
	reflect.TypeFor[Fraction](): {"type": []string{"string", "number"}},
	reflect.TypeFor[Autostop](): {"enum": []any{"off", "stop", "suspend", true, false}},
	reflect.TypeFor[Strategy](): {"enum": append(Strategies(), "blue-green")},
}

// schemaOf returns the schema of a type, without refused keys.
func schemaOf(t reflect.Type) map[string]any {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if known, ok := written[t]; ok {
		return maps.Clone(known)
	}
	if one, ok := single(t); ok {
		table := schemaOf(one)
		return map[string]any{"anyOf": []any{table, map[string]any{"type": "array", "items": table}}}
	}
	switch t.Kind() {
	case reflect.Struct:
		properties := map[string]any{}
		for name, f := range fieldsOf(t) {
			if f.refuse != "" {
				continue
			}
			one := schemaOf(f.typ)
			if f.doc != "" {
				one["description"] = f.doc
			}
			if f.note != "" {
				one["deprecated"], one["description"] = true, "Has no effect: "+f.note+"."
			}
			properties[name] = one
		}
		return map[string]any{"type": "object", "additionalProperties": false, "properties": properties}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(t.Elem())}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem())}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Int64, reflect.Uint32:
		return map[string]any{"type": "integer"}
	default:
		return map[string]any{}
	}
}
