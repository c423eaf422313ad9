package execute_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/graphql/execute"
)

const text = `
schema { query: Query mutation: Mutation }
scalar JSON
scalar BigInt
scalar ISO8601DateTime
enum Kind { cat dog }
interface Named { name: String! }
union Any = Pet | Owner
input Wish { name: String!, age: Int, kinds: [Kind!], more: JSON }
type Query {
  pet(name: String): Pet
  pets(first: Int): [Pet!]!
  named: [Named!]!
  any: [Any!]!
  fails: String
  faulty: Pet
  echo(wish: Wish, id: ID, n: Int = 3): JSON
}
type Mutation { rename(wish: Wish!): Pet }
type Pet implements Named {
  name: String!
  kind: Kind
  born: ISO8601DateTime
  weight: BigInt
  strict: String!
  owner: Owner
}
type Owner implements Named { name: String! pets: [Pet!]! }
`

type services struct{ calls int }

type pet struct {
	name, kind string
	weight     int64
}

type owner struct{ name string }

type (
	query  = execute.Query[*services]
	petMap = map[string]execute.Resolver[*services, *pet]
)

func newSchema(tb testing.TB) *execute.Schema[*services] {
	tb.Helper()
	s, err := execute.New[*services](text, func(name string) string {
		if name == "sell" {
			return "pets are not for sale"
		}
		return ""
	})
	if err != nil {
		tb.Fatal(err)
	}
	cat := &pet{"Tom", "cat", 1 << 40}
	execute.Define(s, "Query", map[string]execute.Resolver[*services, execute.Root]{
		"pet": func(q *query, _ execute.Root, in execute.Input) (any, error) {
			q.Services.calls++
			if err := q.Call(); err != nil {
				return nil, err
			}
			if in.Text("name") == "nobody" {
				return nil, hangar.Errorf(hangar.CodeNotFound, "pet_not_found", "no such pet")
			}
			return cat, nil
		},
		"pets": func(_ *query, _ execute.Root, in execute.Input) (any, error) {
			n, _, err := in.Int("first")
			list := make([]*pet, n)
			for i := range list {
				list[i] = cat
			}
			return list, err
		},
		"named": func(*query, execute.Root, execute.Input) (any, error) { return []any{cat, owner{"Ann"}}, nil },
		"any":   func(*query, execute.Root, execute.Input) (any, error) { return []any{owner{"Ann"}, cat}, nil },
		"fails": func(*query, execute.Root, execute.Input) (any, error) { return nil, errors.New("secret cause") },
		"faulty": func(*query, execute.Root, execute.Input) (any, error) {
			return &pet{name: "Rex", kind: "bird"}, nil
		},
		"echo": func(_ *query, _ execute.Root, in execute.Input) (any, error) {
			n, _, err := in.Int("n")
			wish := in.Object("wish")
			return map[string]any{"id": in.Text("id"), "n": n, "name": wish.Text("name"), "kinds": wish.Texts("kinds"), "more": wish["more"]}, err
		},
	})
	execute.Define(s, "Mutation", map[string]execute.Resolver[*services, execute.Root]{
		"rename": func(_ *query, _ execute.Root, in execute.Input) (any, error) {
			return &pet{name: in.Object("wish").Text("name")}, nil
		},
	})
	execute.Define(s, "Pet", petMap{
		"name":   execute.Field[*services](func(p *pet) string { return p.name }),
		"kind":   execute.Field[*services](func(p *pet) string { return p.kind }),
		"born":   execute.Field[*services](func(*pet) time.Time { return time.Time{} }),
		"weight": execute.Field[*services](func(p *pet) int64 { return p.weight }),
		"strict": func(*query, *pet, execute.Input) (any, error) { return nil, nil },
		"owner":  execute.Field[*services](func(*pet) owner { return owner{"Ann"} }),
	})
	execute.Define(s, "Owner", map[string]execute.Resolver[*services, owner]{
		"name": execute.Field[*services](func(o owner) string { return o.name }),
		"pets": execute.Field[*services](func(owner) []*pet { return []*pet{cat, cat} }),
	})
	if err := s.Check(); err != nil {
		tb.Fatal(err)
	}
	return s
}

func run(t *testing.T, in execute.Request) (answer string, faults []string) {
	t.Helper()
	response := newSchema(t).Execute(t.Context(), &services{}, in, func(err error) { faults = append(faults, err.Error()) })
	raw, err := json.Marshal(response)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw), faults
}

func TestExecute(t *testing.T) {
	deep := strings.Repeat("{ owner { pets ", 10) + "{ name }" + strings.Repeat(" } }", 10)
	for name, c := range map[string]struct {
		query     string
		variables map[string]any
		operation string
		want      string // the whole answer or, after "…", a part of it
	}{
		"order and aliases":  {query: `{ pet { kind b: name a: name } }`, want: `{"data":{"pet":{"kind":"cat","b":"Tom","a":"Tom"}}}`},
		"unknown fields":     {query: `{ pet { future { more } name } }`, want: `{"data":{"pet":{"future":null,"name":"Tom"}}}`},
		"type names":         {query: `{ __typename any { __typename } }`, want: `{"data":{"__typename":"Query","any":[{"__typename":"Owner"},{"__typename":"Pet"}]}}`},
		"fragments on types": {query: `{ named { name ... on Pet { kind } ...O } } fragment O on Owner { pets { name } }`, want: `{"data":{"named":[{"name":"Tom","kind":"cat"},{"name":"Ann","pets":[{"name":"Tom"},{"name":"Tom"}]}]}}`},
		"fragments on interfaces and unions": {
			query: `{ any { ... on Named { name } ... on Any { __typename } ... on Nothing { x } } }`,
			want:  `{"data":{"any":[{"name":"Ann","__typename":"Owner"},{"name":"Tom","__typename":"Pet"}]}}`,
		},
		"fields that are merged":   {query: `{ pet { owner { name } } pet { owner { pets { name } } } }`, want: `{"data":{"pet":{"owner":{"name":"Ann","pets":[{"name":"Tom"},{"name":"Tom"}]}}}}`},
		"fields that are not":      {query: `{ pet(name: "a") { name } pet(name: "b") { name } }`, want: `…stands for different fields`},
		"skip and include":         {query: `query($yes: Boolean!) { pet @skip(if: $yes) { name } fails @include(if: false) named @include(if: $yes) { name } }`, variables: map[string]any{"yes": true}, want: `{"data":{"named":[{"name":"Tom"},{"name":"Ann"}]}}`},
		"scalars":                  {query: `{ pet { weight born } }`, want: `{"data":{"pet":{"weight":"1099511627776","born":null}}}`},
		"a default":                {query: `{ echo }`, want: `{"data":{"echo":{"id":"","kinds":null,"more":null,"n":3,"name":""}}}`},
		"numbers as ids":           {query: `{ echo(id: 7, n: 4) }`, want: `{"data":{"echo":{"id":"7","kinds":null,"more":null,"n":4,"name":""}}}`},
		"inputs":                   {query: `query($w: Wish) { echo(wish: $w) }`, variables: map[string]any{"w": map[string]any{"name": "x", "kinds": "cat", "more": map[string]any{"a": 1.0}}}, want: `{"data":{"echo":{"id":"","kinds":["cat"],"more":{"a":1},"n":3,"name":"x"}}}`},
		"variables in inputs":      {query: `query($n: String!) { echo(wish: {name: $n, kinds: [dog]}) }`, variables: map[string]any{"n": "x"}, want: `{"data":{"echo":{"id":"","kinds":["dog"],"more":null,"n":3,"name":"x"}}}`},
		"undeclared variables":     {query: `query($unused: Int) { pet { name } }`, variables: map[string]any{"status": "x"}, want: `{"data":{"pet":{"name":"Tom"}}}`},
		"one of several":           {query: `query A { pet { name } } query B { pet { kind } }`, operation: "B", want: `{"data":{"pet":{"kind":"cat"}}}`},
		"a mutation":               {query: `mutation { rename(wish: {name: "x"}) { name } }`, want: `{"data":{"rename":{"name":"x"}}}`},
		"an error":                 {query: `{ pet(name: "nobody") { name } other: pet { name } }`, want: `{"data":{"pet":null,"other":{"name":"Tom"}},"errors":[{"message":"no such pet","path":["pet"],"extensions":{"code":"NOT_FOUND","status":"pet_not_found"}}]}`},
		"a fault":                  {query: `{ fails }`, want: `{"data":{"fails":null},"errors":[{"message":"internal error","path":["fails"],"extensions":{"code":"INTERNAL"}}]}`},
		"no word of the enum":      {query: `{ faulty { name kind } }`, want: `…"path":["faulty","kind"]`},
		"null where none is":       {query: `{ pets(first: 2) { strict } }`, want: `…{"data":null,"errors":[{"message":"internal error","path":["pets","0","strict"]`},
		"several without a choice": {query: `query A { pet { name } } query B { pet { kind } }`, want: `…invalid operationName`},
		"no operation of the name": {query: `query A { pet { name } }`, operation: "B", want: `…invalid operationName`},
		"a subscription":           {query: `subscription { pet { name } }`, want: `…"code":"UNIMPLEMENTED"`},
		"an unknown query":         {query: `{ fish { name } }`, want: `…this server has no query \"fish\"`},
		"one that is not offered":  {query: `mutation { sell(name: "Tom") { price } }`, want: `…pets are not for sale`},
		"introspection":            {query: `{ __schema { types { name } } }`, want: `…this server has no query \"__schema\"`},
		"an unknown argument":      {query: `{ pet(nick: "x") { name } }`, want: `…Unknown argument`},
		"an unknown property":      {query: `query($w: Wish) { echo(wish: $w) }`, variables: map[string]any{"w": map[string]any{"name": "x", "nick": "y"}}, want: `…unknown field`},
		"a missing property":       {query: `mutation { rename(wish: {age: 1}) { name } }`, want: `…name`},
		"an unknown type":          {query: `query($w: Fish) { echo(wish: $w) }`, want: `…"code":"INVALID"`},
		"an undeclared variable":   {query: `{ pet(name: $n) { name } }`, want: `…Variable`},
		"a number too large":       {query: `{ echo(n: 99999999999999999999) }`, want: `…"code":"INVALID"`},
		"a number of 33 bits":      {query: `{ echo(n: 4294967296) }`, want: `…is not an integer of 32 bits`},
		"a cycle":                  {query: `{ pet { ...A } } fragment A on Pet { owner { pets { ...A } } }`, want: `…"code":"INVALID"`},
		"a cycle of roots":         {query: `{ ...A } fragment A on Query { ...A }`, want: `…"code":"INVALID"`},
		"nothing":                  {query: ``, want: `…invalid query: is required`},
		"no GraphQL":               {query: `{{{`, want: `…invalid query`},
		"too deep":                 {query: "{ pet " + deep + " }", want: `…levels deep`},
		"too many roots":           {query: "{ " + strings.Repeat("pet { name } ", 40) + "}", want: `…things at once`},
		"too many mutations":       {query: "mutation { " + strings.Repeat(`rename(wish: {name: "x"}) { name } `, 6) + "}", want: `…more than 5 things at once`},
		"too costly":               {query: "{ pets(first: 500) { owner { pets { owner { pets { owner { pets { owner { name } } } } } } } } }", want: `…too large an answer`},
		"too long":                 {query: "{ pet { name } } #" + strings.Repeat("x", execute.MaxQueryBytes), want: `…bytes, more than`},
		"too many tokens":          {query: "{ pet { " + strings.Repeat("a ", 6000) + "} }", want: `…token`},
		"too many fragments":       {query: "{ pet { name } } " + strings.Repeat("fragment A on Pet { name } ", 60), want: `…fragments, more than`},
		"fragments that multiply": {
			query: `{ pet { ...A } } fragment A on Pet { a: owner { ...B } b: owner { ...B } c: owner { ...B } d: owner { ...B } }
				fragment B on Owner { a: pets { ...C } b: pets { ...C } c: pets { ...C } d: pets { ...C } e: pets { ...C } }
				fragment C on Pet { a: owner { ...D } b: owner { ...D } c: owner { ...D } d: owner { ...D } e: owner { ...D } }
				fragment D on Owner { a: pets { ...E } b: pets { ...E } c: pets { ...E } d: pets { ...E } e: pets { ...E } }
				fragment E on Pet { a: name b: name c: name d: name }`, want: `…asks for more than`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := run(t, execute.Request{Query: c.query, Variables: c.variables, Operation: c.operation})
			if part, ok := strings.CutPrefix(c.want, "…"); ok && !strings.Contains(got, part) || !ok && got != c.want {
				t.Errorf("answered\n%s, want\n%s", got, c.want)
			}
		})
	}
}

// TestFaultsAreReported: the cause of a fault goes to the log, and to no client.
func TestFaultsAreReported(t *testing.T) {
	answer, faults := run(t, execute.Request{Query: "{ fails }"})
	if len(faults) != 1 || faults[0] != "secret cause" || strings.Contains(answer, "secret") {
		t.Errorf("answered %s and reported %q", answer, faults)
	}
}

// TestCallsAreBounded: a query asks for more calls than it may.
func TestCallsAreBounded(t *testing.T) {
	s := newSchema(t)
	asked := &services{}
	ctx, cancel := context.WithCancel(t.Context())
	response := s.Execute(ctx, asked, execute.Request{Query: "{ a: pet { name } b: pet { name } }"}, func(err error) { t.Error(err) })
	if len(response.Errors) != 0 || asked.calls != 2 {
		t.Fatalf("%d calls, %v", asked.calls, response.Errors)
	}
	cancel()
	response = s.Execute(ctx, asked, execute.Request{Query: "{ a: pet { name } }"}, func(error) {})
	if len(response.Errors) != 1 || asked.calls != 2 {
		t.Errorf("a request that has ended continues: %d calls, %v", asked.calls, response.Errors)
	}
}

func TestCheckFindsDifferences(t *testing.T) {
	s, err := execute.New[*services](`type Query { a: String b: String }`, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	execute.Define(s, "Query", map[string]execute.Resolver[*services, execute.Root]{"a": nil, "c": nil})
	execute.Define(s, "Fish", map[string]execute.Resolver[*services, *pet]{"a": nil})
	err = s.Check()
	for _, want := range []string{"Query.b has no resolver", "the schema has no Query.c", "the schema has no Fish.a"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
