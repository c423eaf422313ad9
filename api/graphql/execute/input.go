package execute

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/vektah/gqlparser/v2/ast"

	"github.com/hangar-platform/hangar"
)

// Input is the arguments of a field, or an object in them, as the client sent them. Its methods treat a
// missing value like null.
type Input map[string]any

// Text returns a text, a number as a text, or "".
func (in Input) Text(name string) string { return text(in[name]) }

func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	default:
		return ""
	}
}

// Int returns an integer; set is false if there is none. It answers hangar.CodeInvalid for a number
// that does not fit the 32 bits of GraphQL.
func (in Input) Int(name string) (n int, set bool, err error) {
	v, ok := in[name]
	if !ok || v == nil {
		return 0, false, nil
	}
	f, err := strconv.ParseFloat(text(v), 64)
	if err != nil || f != math.Trunc(f) || f < math.MinInt32 || f > math.MaxInt32 {
		return 0, true, hangar.Errorf(hangar.CodeInvalid, "", "invalid %s: is not an integer of 32 bits", name)
	}
	return int(f), true, nil
}

// Bool returns a boolean; nil: there is none.
func (in Input) Bool(name string) *bool {
	if v, ok := in[name].(bool); ok {
		return &v
	}
	return nil
}

// Object returns an object; nil: there is none.
func (in Input) Object(name string) Input {
	v, _ := in[name].(map[string]any)
	return v
}

// Objects returns a list of objects. A single one is a list.
func (in Input) Objects(name string) []Input {
	var list []Input
	for _, v := range in.list(name) {
		if object, ok := v.(map[string]any); ok {
			list = append(list, object)
		}
	}
	return list
}

// Texts returns a list of texts. A single one is a list.
func (in Input) Texts(name string) []string {
	var list []string
	for _, v := range in.list(name) {
		list = append(list, text(v))
	}
	return list
}

func (in Input) list(name string) []any {
	switch v := in[name].(type) {
	case nil:
		return nil
	case []any:
		return v
	case []map[string]any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = v[i]
		}
		return list
	case []string:
		list := make([]any, len(v))
		for i := range v {
			list[i] = v[i]
		}
		return list
	default:
		return []any{v}
	}
}

// inputOf evaluates the arguments of a field.
func inputOf(f *ast.Field, variables map[string]any) (Input, error) {
	in := Input{}
	for _, def := range f.Definition.Arguments {
		value := def.DefaultValue
		if given := f.Arguments.ForName(def.Name); given != nil {
			if _, set := variables[given.Value.Raw]; given.Value.Kind != ast.Variable || set {
				value = given.Value
			}
		}
		if value == nil {
			continue
		}
		v, err := value.Value(variables)
		if err != nil {
			return nil, hangar.Errorf(hangar.CodeInvalid, "", "invalid %s: is not a value of the type %s", def.Name, def.Type)
		}
		in[def.Name] = v
	}
	return in, nil
}

// signature is the arguments of a field as they are written, so that two can be compared.
func signature(f *ast.Field) string {
	var b strings.Builder
	b.WriteString(f.Name)
	for _, a := range f.Arguments {
		fmt.Fprintf(&b, " %s:%s", a.Name, a.Value)
	}
	return b.String()
}
