package execute

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/vektah/gqlparser/v2/ast"

	"github.com/hangar-platform/hangar"
)

// Answer is the answer to a request.
type Answer struct {
	Data   any     `json:"data"` // null when there is none
	Errors []Fault `json:"errors,omitempty"`
}

// Query is a request that is being answered. Resolvers receive it.
type Query[S any] struct {
	context.Context

	Services S

	schema    *Schema[S]
	variables map[string]any
	report    func(error) // takes faults of the platform
	faults    []Fault
	resolved  int
	calls     int
	ended     error // why nothing more is resolved
}

// Execute answers a request. It hands faults of the platform to report, and shows the client none of
// their text.
func (s *Schema[S]) Execute(ctx context.Context, services S, in Request, report func(error)) Answer {
	ready, faults := s.prepare(in)
	if len(faults) > 0 {
		return Answer{Errors: faults}
	}
	q := &Query[S]{Context: ctx, Services: services, schema: s, variables: ready.variables, report: report}
	data, ok := q.object(s.root(ready.operation), Root{}, []ast.SelectionSet{ready.operation.SelectionSet}, nil)
	response := Answer{Errors: q.faults}
	if ok {
		response.Data = data
	}
	return response
}

// Root is the object whose fields are queries and mutations.
type Root = struct{}

// Call counts a call of a service, and ends a request that makes too many of them.
func (q *Query[S]) Call() error {
	if q.calls++; q.calls > maxCalls {
		return refused("the query asks for too much at once; ask for fewer items of lists")
	}
	return nil
}

// selected is the fields that are requested under one name.
type selected struct {
	key    string
	fields []*ast.Field
}

// collect returns what is selected of an object, in the order of the request.
func (q *Query[S]) collect(object *ast.Definition, sets []ast.SelectionSet) ([]selected, error) {
	var list []selected
	places := map[string]int{}
	visited := map[string]bool{}
	var walk func(set ast.SelectionSet) error
	walk = func(set ast.SelectionSet) error {
		for _, selection := range set {
			switch it := selection.(type) {
			case *ast.Field:
				if !q.included(it.Directives) {
					continue
				}
				key := it.Alias
				i, known := places[key]
				if !known {
					i = len(list)
					places[key] = i
					list = append(list, selected{key: key})
				}
				if known && signature(list[i].fields[0]) != signature(it) {
					return refused("%.80q stands for different fields; give each an alias of its own", key)
				}
				list[i].fields = append(list[i].fields, it)
			case *ast.InlineFragment:
				if q.included(it.Directives) && q.schema.matches(it.TypeCondition, object) {
					if err := walk(it.SelectionSet); err != nil {
						return err
					}
				}
			case *ast.FragmentSpread:
				if visited[it.Name] || !q.included(it.Directives) || !q.schema.matches(it.Definition.TypeCondition, object) {
					continue
				}
				visited[it.Name] = true
				if err := walk(it.Definition.SelectionSet); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for _, set := range sets {
		if err := walk(set); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// included evaluates the directives skip and include.
func (q *Query[S]) included(directives ast.DirectiveList) bool {
	says := func(name string) (value, set bool) {
		d := directives.ForName(name)
		if d == nil || d.Arguments.ForName("if") == nil {
			return false, false
		}
		v, _ := d.Arguments.ForName("if").Value.Value(q.variables)
		value, _ = v.(bool)
		return value, true
	}
	if skip, set := says("skip"); set && skip {
		return false
	}
	include, set := says("include")
	return !set || include
}

// fail adds an error to the answer.
func (q *Query[S]) fail(err error, path []string) {
	if hangar.CodeOf(err) == hangar.CodeInternal {
		q.report(err)
	}
	if len(q.faults) < maxFaults {
		q.faults = append(q.faults, faultOf(err, slices.Clone(path)))
	}
}

// object resolves what is selected of an object. It reports false if the object is null, because a
// field that is not nullable has failed.
func (q *Query[S]) object(def *ast.Definition, of any, sets []ast.SelectionSet, path []string) (any, bool) {
	list, err := q.collect(def, sets)
	if err != nil {
		q.fail(err, path)
		return nil, false
	}
	out := make(Object, 0, len(list))
	for _, item := range list {
		value, ok := q.field(def, of, item, append(path, item.key))
		if !ok {
			return nil, false
		}
		out = append(out, Member{item.key, value})
	}
	return out, true
}

// field resolves one field. It reports false if the field has failed and is not nullable.
func (q *Query[S]) field(def *ast.Definition, of any, item selected, path []string) (any, bool) {
	f := item.fields[0]
	if f.Name == "__typename" {
		return def.Name, true
	}
	field := def.Fields.ForName(f.Name)
	if field == nil {
		return nil, true
	}
	value, err := q.resolve(def, of, f)
	if err != nil {
		q.fail(err, path)
		return nil, !field.Type.NonNull
	}
	sets := make([]ast.SelectionSet, 0, len(item.fields))
	for _, one := range item.fields {
		sets = append(sets, one.SelectionSet)
	}
	return q.complete(field.Type, value, sets, path)
}

func (q *Query[S]) resolve(def *ast.Definition, of any, f *ast.Field) (any, error) {
	if q.ended == nil {
		if q.resolved++; q.resolved > maxResolved {
			q.ended = refused("the answer is too large; ask for fewer items of lists")
		} else if q.ended = context.Cause(q.Context); q.ended == nil {
			in, err := inputOf(f, q.variables)
			if err != nil {
				return nil, err
			}
			return q.schema.fields[def.Name][f.Name](q, of, in)
		}
	}
	return nil, q.ended
}

// complete converts the value of a resolver to the type of its field.
func (q *Query[S]) complete(t *ast.Type, value any, sets []ast.SelectionSet, path []string) (any, bool) {
	if absent(value) {
		if t.NonNull {
			q.fail(fmt.Errorf("%s has no value", path), path)
		}
		return nil, !t.NonNull
	}
	if t.Elem != nil {
		list := reflect.ValueOf(value)
		out := make([]any, 0, list.Len())
		for i := range list.Len() {
			item, ok := q.complete(t.Elem, list.Index(i).Interface(), sets, append(path, strconv.Itoa(i)))
			if !ok {
				return nil, !t.NonNull
			}
			out = append(out, item)
		}
		return out, true
	}
	def := q.schema.types.Types[t.NamedType]
	switch def.Kind {
	case ast.Object, ast.Interface, ast.Union:
		out, ok := q.object(q.schema.objectOf(def, value), value, sets, path)
		return out, ok || !t.NonNull
	default:
		out, err := leaf(def, value)
		if err != nil {
			q.fail(fmt.Errorf("%s: %w", path, err), path)
			return nil, !t.NonNull
		}
		return out, true
	}
}

// absent reports whether a value is null: nil, a nil pointer, the zero time, or no JSON.
func absent(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case time.Time:
		return v.IsZero()
	case json.RawMessage:
		return len(v) == 0
	}
	v := reflect.ValueOf(value)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// leaf checks a value of a scalar or an enumeration.
func leaf(def *ast.Definition, value any) (any, error) {
	v := reflect.ValueOf(value)
	for v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	wrong := func() (any, error) { return nil, fmt.Errorf("%T is no %s", value, def.Name) }
	if def.Kind == ast.Enum {
		if v.Kind() != reflect.String || def.EnumValues.ForName(v.String()) == nil {
			return nil, fmt.Errorf("%v is not one of %s", value, def.Name)
		}
		return v.String(), nil
	}
	switch def.Name {
	case "String", "ID":
		if v.Kind() != reflect.String {
			return wrong()
		}
		return v.String(), nil
	case "Boolean":
		if v.Kind() != reflect.Bool {
			return wrong()
		}
		return v.Bool(), nil
	case "Float":
		if !v.CanFloat() {
			return wrong()
		}
		return v.Float(), nil
	case "BigInt":
		switch {
		case v.CanInt():
			return strconv.FormatInt(v.Int(), 10), nil
		case v.CanUint():
			return strconv.FormatUint(v.Uint(), 10), nil
		}
		return wrong()
	case "Int":
		switch {
		case v.CanInt() && v.Int() >= math.MinInt32 && v.Int() <= math.MaxInt32:
			return v.Int(), nil
		case v.CanUint() && v.Uint() <= math.MaxInt32:
			return v.Uint(), nil
		}
		return wrong()
	case "ISO8601DateTime":
		t, ok := reflect.TypeAssert[time.Time](v)
		if !ok {
			return wrong()
		}
		return t.UTC().Format(time.RFC3339), nil
	default: // JSON, Long
		return value, nil
	}
}
