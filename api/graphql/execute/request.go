package execute

import (
	"errors"
	"fmt"
	"math"

	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"
	"github.com/vektah/gqlparser/v2/parser"
	"github.com/vektah/gqlparser/v2/validator"
	"github.com/vektah/gqlparser/v2/validator/rules"

	"github.com/hangar-platform/hangar"
)

// The bounds of a request. The largest query of an existing client has 2 KiB, 120 fields, and a
// depth of 7.
const (
	MaxQueryBytes = 32 << 10
	maxTokens     = 5000
	maxFragments  = 50
	maxRoots      = 30 // queries of one operation
	maxMutations  = 5  // of one operation
	MaxDepth      = 15
	maxFields     = 2000    // after fragments are inserted
	maxCost       = 200_000 // of fields, each times the items that the lists around it may have
	maxVariables  = 100

	// Bounds while the request is answered.
	maxResolved = 100_000 // fields
	maxCalls    = 1000    // of services
)

// DefaultItems is how many items of a list are shown if the client does not say. MaxItems is the most
// that are shown.
const (
	DefaultItems = 100
	MaxItems     = 500
)

// costOfList is the number of items that is assumed for a list without a bound.
const costOfList = 10

// Request is the request of a client.
type Request struct {
	Query     string         `json:"query" schema:"required"`
	Variables map[string]any `json:"variables,omitempty"`
	Operation string         `json:"operationName,omitempty"` // which is executed, if Query has several
	// Extensions are of other protocols and have no effect.
	Extensions map[string]any `json:"extensions,omitempty"`
}

// validation returns the rules of the specification that a request must follow. It omits the rules
// against harmless extras: fields that an object does not have, fragments on unknown types, unused
// fragments and variables. Conflicts of merged fields are found during the merge.
func validation() *rules.Rules {
	return rules.NewRules(
		rules.FragmentsOnCompositeTypesRule, rules.KnownArgumentNamesRule, rules.KnownDirectivesRule, rules.KnownFragmentNamesRule,
		rules.LoneAnonymousOperationRule, rules.NoFragmentCyclesRule, rules.NoUndefinedVariablesRule, rules.ProvidedRequiredArgumentsRule,
		rules.ScalarLeafsRule, rules.UniqueArgumentNamesRule, rules.UniqueDirectivesPerLocationRule, rules.UniqueFragmentNamesRule,
		rules.UniqueInputFieldNamesRule, rules.UniqueOperationNamesRule, rules.UniqueVariableNamesRule, rules.ValuesOfCorrectTypeRule,
		rules.VariablesAreInputTypesRule, rules.VariablesInAllowedPositionRule,
	)
}

// prepared is a request that may be executed.
type prepared struct {
	operation *ast.OperationDefinition
	variables map[string]any
}

// prepare reads a request, and refuses one that must not be executed.
func (s *Schema[S]) prepare(in Request) (prepared, []Fault) {
	one := func(err error) (prepared, []Fault) { return prepared{}, []Fault{faultOf(err, nil)} }
	switch {
	case in.Query == "":
		return one(refused("invalid query: is required"))
	case len(in.Query) > MaxQueryBytes:
		return one(refused("invalid query: has %d bytes, more than %d", len(in.Query), MaxQueryBytes))
	case len(in.Variables) > maxVariables:
		return one(refused("invalid variables: there are %d, more than %d", len(in.Variables), maxVariables))
	}
	doc, err := parser.ParseQueryWithTokenLimit(&ast.Source{Input: in.Query}, maxTokens)
	if err != nil {
		return one(refused("invalid query: %s", messageOf(err)))
	}
	if len(doc.Fragments) > maxFragments {
		return one(refused("invalid query: has %d fragments, more than %d", len(doc.Fragments), maxFragments))
	}
	op := doc.Operations.ForName(in.Operation)
	if op == nil {
		return one(refused("invalid operationName: the query has no operation %.80q, or several without a choice", in.Operation))
	}
	if err := s.known(op, doc); err != nil {
		return one(err)
	}
	if list := validator.ValidateWithRules(s.types, doc, validation()); len(list) > 0 {
		return prepared{}, invalid(list)
	}
	variables, err := s.variables(op, in.Variables)
	if err != nil {
		return one(refused("invalid variables: %s", messageOf(err)))
	}
	if err := s.measure(op, variables); err != nil {
		return one(err)
	}
	return prepared{op, variables}, nil
}

// messageOf is the text of an error of the parser, without the name of its source.
func messageOf(err error) string {
	if e, ok := errors.AsType[*gqlerror.Error](err); ok {
		if len(e.Path) > 0 {
			return e.Path.String() + ": " + e.Message
		}
		return e.Message
	}
	return err.Error()
}

// known refuses an operation whose queries or mutations the schema does not have, before the rules
// find fault with their arguments.
func (s *Schema[S]) known(op *ast.OperationDefinition, doc *ast.QueryDocument) error {
	root, kind, most := s.root(op), "query", maxRoots
	switch {
	case root == nil:
		return hangar.Errorf(hangar.CodeUnimplemented, "", "this server has no GraphQL subscriptions; follow events and logs by the REST API")
	case op.Operation == ast.Mutation:
		kind, most = "mutation", maxMutations
	}
	roots := 0
	var walk func(set ast.SelectionSet, depth int) error
	walk = func(set ast.SelectionSet, depth int) error {
		if depth > maxFragments {
			return nil // a cycle, which the rules refuse
		}
		for _, selection := range set {
			var err error
			switch it := selection.(type) {
			case *ast.Field:
				if roots++; roots > most {
					return refused("invalid query: asks for more than %d things at once", most)
				}
				if it.Name != "__typename" && root.Fields.ForName(it.Name) == nil || it.Name == "__schema" || it.Name == "__type" {
					err = s.unknown(kind, it.Name)
				}
			case *ast.InlineFragment:
				err = walk(it.SelectionSet, depth+1)
			case *ast.FragmentSpread:
				if f := doc.Fragments.ForName(it.Name); f != nil {
					err = walk(f.SelectionSet, depth+1)
				}
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	return walk(op.SelectionSet, 0)
}

func (s *Schema[S]) unknown(kind, name string) error {
	if instead := s.absent(name); instead != "" {
		return hangar.Errorf(hangar.CodeUnimplemented, hangar.ReasonUnsupported, "%s", instead)
	}
	return hangar.Errorf(hangar.CodeUnimplemented, hangar.ReasonUnsupported,
		"this server has no %s %.80q; the REST API at /docs may have what it is for", kind, name)
}

func (s *Schema[S]) root(op *ast.OperationDefinition) *ast.Definition {
	switch op.Operation {
	case ast.Query:
		return s.types.Query
	case ast.Mutation:
		return s.types.Mutation
	default:
		return s.types.Subscription
	}
}

// variables checks the values of the variables that an operation declares; others have no effect.
func (s *Schema[S]) variables(op *ast.OperationDefinition, given map[string]any) (map[string]any, error) {
	for _, v := range op.VariableDefinitions {
		if v.Definition == nil {
			return nil, fmt.Errorf("the type %.80q of $%.80s is not known", v.Type, v.Variable)
		}
	}
	return validator.VariableValues(s.types, op, given)
}

// size is the size of a selection: how deep it is, how many fields it has, and what they cost.
type size struct {
	depth  int
	fields int64
	cost   int64
}

func (z *size) add(o size, depth int, times int64) {
	z.depth = max(z.depth, o.depth+depth)
	z.fields = saturate(z.fields + o.fields)
	z.cost = saturate(z.cost + saturate(o.cost*times))
}

// saturate keeps sums of products from overflowing. Values beyond the bound need not be exact.
func saturate(n int64) int64 {
	if n < 0 || n > math.MaxInt32 {
		return math.MaxInt32
	}
	return n
}

// measure refuses an operation that is too large. Each fragment is measured once, however often
// it is used.
func (s *Schema[S]) measure(op *ast.OperationDefinition, variables map[string]any) error {
	m := measuring{fragments: map[string]size{}, variables: variables}
	z := m.selection(op.SelectionSet)
	switch {
	case z.depth > MaxDepth:
		return refused("invalid query: is %d levels deep, more than %d", z.depth, MaxDepth)
	case z.fields > maxFields:
		return refused("invalid query: asks for more than %d fields", maxFields)
	case z.cost > maxCost:
		return refused("invalid query: may have too large an answer; ask for fewer items of lists (first), or for fewer lists in lists")
	default:
		return nil
	}
}

type measuring struct {
	fragments map[string]size
	variables map[string]any
}

func (m measuring) selection(set ast.SelectionSet) size {
	var z size
	for _, selection := range set {
		switch it := selection.(type) {
		case *ast.Field:
			z.add(size{depth: 0, fields: 1, cost: 1}, 1, 1)
			z.add(m.selection(it.SelectionSet), 1, m.items(it))
		case *ast.InlineFragment:
			z.add(m.selection(it.SelectionSet), 0, 1)
		case *ast.FragmentSpread:
			known, ok := m.fragments[it.Name]
			if !ok && it.Definition != nil {
				known = m.selection(it.Definition.SelectionSet)
				m.fragments[it.Name] = known
			}
			z.add(known, 0, 1)
		}
	}
	return z
}

// items is how often the selection of a field may be resolved. A connection counts for as many items as
// the client requests, and the list in it for one.
func (m measuring) items(f *ast.Field) int64 {
	if f.Definition == nil {
		return 1
	}
	if f.Definition.Arguments.ForName("first") != nil {
		in, err := inputOf(f, m.variables)
		if n, set, wrong := in.Int("first"); err == nil && wrong == nil && set {
			return int64(min(max(n, 1), MaxItems))
		}
		return costOfList
	}
	if f.Definition.Type.Elem != nil && f.Name != "nodes" && f.Name != "edges" {
		return costOfList
	}
	return 1
}
