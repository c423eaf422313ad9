package openapi

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"
)

// Direction is which way a value crosses the wire.
type Direction int

// The directions.
const (
	// Answered values are written by encoding/json: a property without omitempty or omitzero is always
	// present.
	Answered Direction = iota
	// Sent values are read by encoding/json: only properties with the tag `schema:"required"` must be
	// present, and null is the same as leaving another one out.
	Sent
	// echoed values are sent, stored and answered unchanged, with unknown properties; see Echo.
	echoed
)

// Schemas makes schemas of Go types and collects the named ones.
type Schemas struct {
	known   map[reflect.Type]Schema
	echoes  map[reflect.Type]bool
	sameAs  map[reflect.Type]reflect.Type
	called  map[reflect.Type]string
	texts   map[reflect.Type]map[string]string
	names   map[typeIn]string
	taken   map[string]typeIn
	schemas map[string]*Schema
}

type typeIn struct {
	reflect.Type
	Direction
}

// NewSchemas returns a Schemas without types.
func NewSchemas() *Schemas {
	return &Schemas{
		known: map[reflect.Type]Schema{}, echoes: map[reflect.Type]bool{}, sameAs: map[reflect.Type]reflect.Type{}, called: map[reflect.Type]string{},
		texts: map[reflect.Type]map[string]string{},
		names: map[typeIn]string{}, taken: map[string]typeIn{}, schemas: map[string]*Schema{},
	}
}

// Know sets the schema of a type that reads and writes its JSON itself, or that has only a few values.
func (s *Schemas) Know(t reflect.Type, schema Schema) { s.known[t] = schema }

// KnowEnum says that a type has only these values.
func KnowEnum[T ~string](s *Schemas, values ...T) {
	s.Know(reflect.TypeFor[T](), Schema{Type: []string{"string"}, Enum: Enum(values)})
}

// Enum returns texts as Schema.Enum has them.
func Enum[T ~string](values []T) []any {
	list := make([]any, len(values))
	for i, v := range values {
		list[i] = string(v)
	}
	return list
}

// KnowAs says that a type has the JSON of another.
func (s *Schemas) KnowAs(t, as reflect.Type) { s.sameAs[t] = as }

// Echo says that values of a type, and what is in them, are answered as they were sent,
// with unknown properties.
func (s *Schemas) Echo(t reflect.Type) { s.echoes[t] = true }

// Name gives a type another name than it would have.
func (s *Schemas) Name(t reflect.Type, name string) { s.called[t] = name }

// Describe sets descriptions of properties of a struct, by their names in JSON.
func (s *Schemas) Describe(t reflect.Type, texts map[string]string) { s.texts[t] = texts }

// Describe is Schemas.Describe for the type T.
func Describe[T any](s *Schemas, texts map[string]string) { s.Describe(reflect.TypeFor[T](), texts) }

// Named returns the schemas with names that were made so far, by name.
func (s *Schemas) Named() map[string]*Schema { return s.schemas }

// Of returns the schema of a type: a reference for a struct that has a name. It
// panics for a type that encoding/json cannot write or that Know has to explain.
func (s *Schemas) Of(t reflect.Type, d Direction) *Schema {
	if as, ok := s.sameAs[t]; ok {
		t = as
	}
	if known, ok := s.known[t]; ok {
		return &known
	}
	if t.Kind() == reflect.Pointer {
		return Nullable(s.Of(t.Elem(), d))
	}
	if s.echoes[t] {
		d = echoed
	} else if writesItself(t) {
		panic(fmt.Sprintf("openapi: %s reads or writes its JSON itself, and has no schema", t))
	}
	switch t.Kind() {
	case reflect.Bool:
		return &Schema{Type: []string{"boolean"}}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return &Schema{Type: []string{"integer"}}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return &Schema{Type: []string{"integer"}, Minimum: new(float64)}
	case reflect.Float32, reflect.Float64:
		return &Schema{Type: []string{"number"}}
	case reflect.String:
		return &Schema{Type: []string{"string"}}
	case reflect.Interface:
		return &Schema{}
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return &Schema{Type: []string{"string"}, Format: "byte"}
		}
		return &Schema{Type: []string{"array"}, Items: s.element(t.Elem(), d)}
	case reflect.Map:
		return &Schema{Type: []string{"object"}, AdditionalProperties: s.element(t.Elem(), d)}
	case reflect.Struct:
		return s.object(t, d)
	default:
		panic(fmt.Sprintf("openapi: %s has no JSON", t))
	}
}

// element is the schema of the elements of a list or a map. A sent element may be null, which is read
// as zero.
func (s *Schemas) element(t reflect.Type, d Direction) *Schema {
	if d == Answered {
		return s.Of(t, d)
	}
	return Nullable(s.Of(t, d))
}

func (s *Schemas) object(t reflect.Type, d Direction) *Schema {
	if t.Name() == "" {
		return s.properties(t, d)
	}
	key := typeIn{t, d}
	if _, made := s.names[typeIn{t, echoed}]; made && d == Sent {
		key.Direction = echoed // which is sent, too
	}
	name, made := s.names[key]
	if !made {
		name = s.name(key)
		s.names[key], s.taken[name] = name, key
		schema := &Schema{}
		s.schemas[name] = schema // before its properties, which may hold the type itself
		*schema = *s.properties(t, d)
	}
	return &Schema{Ref: "#/components/schemas/" + name}
}

// name is the name of a type without the suffix View. The sent form of a type that is also answered has
// its own name.
func (s *Schemas) name(t typeIn) string {
	n := s.called[t.Type]
	if n == "" {
		name := []rune(strings.TrimSuffix(t.Name(), "View"))
		name[0] = unicode.ToUpper(name[0])
		n = string(name)
	}
	other, taken := s.taken[n]
	switch {
	case !taken:
		return n
	case other.Type == t.Type && t.Direction == Sent:
		return n + "Input"
	default:
		panic(fmt.Sprintf("openapi: %s and %s are both named %s; Name one of them", other.Type, t.Type, n))
	}
}

func (s *Schemas) properties(t reflect.Type, d Direction) *Schema {
	schema := &Schema{Type: []string{"object"}, Properties: map[string]*Schema{}}
	if d == echoed {
		schema.AdditionalProperties = &Schema{}
	}
	fields := fieldsOf(t)
	for name := range s.texts[t] {
		if !slices.ContainsFunc(fields, func(f field) bool { return f.name == name }) {
			panic(fmt.Sprintf("openapi: %s has no property %s to describe", t, name))
		}
	}
	for _, f := range fields {
		p, required := s.Of(f.Type, d), !f.optional
		switch {
		case d != Answered:
			if required = f.Tag.Get("schema") == "required"; !required {
				p = Nullable(p)
			} else if f.Type.Kind() == reflect.Pointer {
				p = s.Of(f.Type.Elem(), d) // nil means that it is missing
			}
		case f.Type.Kind() == reflect.Pointer && f.optional:
			p = s.Of(f.Type.Elem(), d) // nil is left out
		}
		if text := s.text(t, f); text != "" {
			told := *p
			told.Description = text
			p = &told
		}
		schema.Properties[f.name] = p
		if required {
			schema.Required = append(schema.Required, f.name)
		}
	}
	slices.Sort(schema.Required)
	return schema
}

// text is the description of a property, in the struct itself or in the one that is embedded in it.
func (s *Schemas) text(t reflect.Type, f field) string {
	if text := s.texts[t][f.name]; text != "" {
		return text
	}
	return s.texts[f.of][f.name]
}

// Nullable returns a schema that also allows null.
func Nullable(s *Schema) *Schema {
	null := []string{"null"}
	if slices.ContainsFunc(s.AnyOf, func(one *Schema) bool { return slices.Contains(one.Type, "null") }) {
		return s
	}
	if s.Ref != "" || len(s.Enum) > 0 || len(s.AnyOf) > 0 {
		return &Schema{AnyOf: []*Schema{s, {Type: null}}}
	}
	if len(s.Type) == 0 || slices.Contains(s.Type, "null") {
		return s
	}
	either := *s
	either.Type = slices.Concat(s.Type, null)
	return &either
}

// field is a property of an object.
type field struct {
	reflect.StructField
	name     string // on the wire
	optional bool   // left out when it is empty
	of       reflect.Type
	depth    int
	hidden   bool // by another one of the same name and depth
}

// fieldsOf lists the fields of a struct that encoding/json writes. Of fields with the same name, that
// is the least deeply embedded one, or none if several are equally deep.
func fieldsOf(t reflect.Type) []field {
	byName := map[string]field{}
	var order []string
	var walk func(t reflect.Type, depth int)
	walk = func(t reflect.Type, depth int) {
		for f := range t.Fields() {
			tag := f.Tag.Get("json")
			name, options, _ := strings.Cut(tag, ",")
			inner := f.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			switch {
			case tag == "-" || !f.IsExported() && !f.Anonymous:
				continue
			case f.Anonymous && name == "" && inner.Kind() == reflect.Struct:
				walk(inner, depth+1)
				continue
			case !f.IsExported():
				continue
			case name == "":
				name = f.Name
			}
			old, seen := byName[name]
			if seen && old.depth <= depth {
				if old.depth == depth {
					old.hidden = true
					byName[name] = old
				}
				continue
			}
			if !seen {
				order = append(order, name)
			}
			byName[name] = field{
				StructField: f, name: name, of: t, depth: depth,
				optional: strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero"),
			}
		}
	}
	walk(t, 0)
	fields := make([]field, 0, len(order))
	for _, name := range order {
		if f := byName[name]; !f.hidden {
			fields = append(fields, f)
		}
	}
	return fields
}

// writesItself reports whether the type has methods that encoding/json calls.
func writesItself(t reflect.Type) bool {
	for _, method := range []reflect.Type{
		reflect.TypeFor[json.Marshaler](), reflect.TypeFor[json.Unmarshaler](),
		reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[encoding.TextUnmarshaler](),
	} {
		if t.Implements(method) || reflect.PointerTo(t).Implements(method) {
			return true
		}
	}
	return false
}
