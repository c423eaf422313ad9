package execute

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/vektah/gqlparser/v2"
	"github.com/vektah/gqlparser/v2/ast"
)

// Resolver returns the value of a field. of is the value of the object, and in has the arguments of the
// client.
type Resolver[S, T any] func(q *Query[S], of T, in Input) (any, error)

// resolver is a Resolver of any type.
type resolver[S any] func(q *Query[S], of any, in Input) (any, error)

// Schema is a GraphQL schema whose fields have resolvers. S is what resolvers need: the services of one
// request.
type Schema[S any] struct {
	types  *ast.Schema
	fields map[string]map[string]resolver[S]
	names  map[reflect.Type]string // of the types of values that interfaces and unions hold
	// absent says why there is no query or mutation of a name, and what to do instead. It returns ""
	// for an unknown name.
	absent func(name string) string
}

// New returns the schema that text describes in the schema definition language. Resolvers are
// added by Define, and checked by Check.
func New[S any](text string, absent func(name string) string) (*Schema[S], error) {
	types, err := gqlparser.LoadSchema(&ast.Source{Name: "schema.graphql", Input: text})
	if err != nil {
		return nil, fmt.Errorf("load the schema: %w", err)
	}
	return &Schema[S]{types: types, fields: map[string]map[string]resolver[S]{}, names: map[reflect.Type]string{}, absent: absent}, nil
}

// Define adds the resolvers of an object type. Its values have the Go type T. One Go type may stand for
// several object types, except where an interface or a union has to distinguish them.
func Define[S, T any](s *Schema[S], name string, fields map[string]Resolver[S, T]) {
	all := make(map[string]resolver[S], len(fields))
	for field, resolve := range fields {
		all[field] = func(q *Query[S], of any, in Input) (any, error) { return resolve(q, of.(T), in) }
	}
	s.fields[name] = all
	s.names[reflect.TypeFor[T]()] = name
}

// Field is a resolver that only reads a value.
func Field[S, T, V any](read func(T) V) Resolver[S, T] {
	return func(_ *Query[S], of T, _ Input) (any, error) { return read(of), nil }
}

// Check returns an error that names the fields of the schema without a resolver, and the resolvers
// without a field.
func (s *Schema[S]) Check() error {
	var wrong []string
	for name, def := range s.types.Types {
		if def.Kind != ast.Object || strings.HasPrefix(name, "__") {
			continue
		}
		for _, f := range def.Fields {
			if s.fields[name][f.Name] == nil && !strings.HasPrefix(f.Name, "__") {
				wrong = append(wrong, fmt.Sprintf("%s.%s has no resolver", name, f.Name))
			}
		}
	}
	for name, fields := range s.fields {
		def := s.types.Types[name]
		for field := range fields {
			if def == nil || def.Fields.ForName(field) == nil {
				wrong = append(wrong, fmt.Sprintf("the schema has no %s.%s", name, field))
			}
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	slices.Sort(wrong)
	return fmt.Errorf("schema and resolvers differ: %s", strings.Join(wrong, "; "))
}

// Types is the schema, for callers that build requests from it.
func (s *Schema[S]) Types() *ast.Schema { return s.types }

// objectOf returns the object type of a value where the type expected is declared.
func (s *Schema[S]) objectOf(expected *ast.Definition, value any) *ast.Definition {
	if expected.Kind == ast.Object {
		return expected
	}
	return s.types.Types[s.names[reflect.TypeOf(value)]]
}

// matches reports whether a fragment on a type applies to an object type.
func (s *Schema[S]) matches(condition string, object *ast.Definition) bool {
	if condition == "" || condition == object.Name {
		return true
	}
	return slices.ContainsFunc(s.types.PossibleTypes[condition], func(d *ast.Definition) bool { return d.Name == object.Name })
}
