package execute_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar/api/graphql/execute"
)

// FuzzExecute: no request makes the executor panic, and its answer is JSON that shows no cause of a
// fault.
func FuzzExecute(f *testing.F) {
	for _, query := range []string{
		`{ pet { name kind born weight owner { name pets { name } } } }`,
		`query Q($w: Wish, $n: Int = 4, $list: [Kind!]) { echo(wish: $w, n: $n, id: 7) }`,
		`{ any { __typename ... on Pet { name @skip(if: true) } ...O } } fragment O on Owner { pets { ...P } } fragment P on Pet { name }`,
		`mutation { rename(wish: {name: "x", age: 1, kinds: [cat, dog], more: {a: [1, null, {b: "c"}]}}) { name } }`,
		`{ fails faulty { kind } pets(first: 3) { strict } }`,
		`subscription { a } query A { __schema { types { name } } } { b }`,
		`{ ...A } fragment A on Query { ...B } fragment B on Query { ...A }`,
		`{ echo(wish: """block""", id: $x) }`,
	} {
		f.Add(query, `{"w": {"name": "x", "kinds": ["cat"], "more": 1}, "n": 3, "list": null}`, "")
	}
	f.Add(`query Q($w: Wish!, $m: [[Int]]) { echo(wish: $w) }`, `{"w": {"name": null, "age": 1.5}, "m": [[1], null, 2]}`, "Q")
	schema := newSchema(f)
	f.Fuzz(func(t *testing.T, query, variables, operation string) {
		in := execute.Request{Query: query, Operation: operation}
		if json.Unmarshal([]byte(variables), &in.Variables) != nil {
			in.Variables = nil
		}
		answer := schema.Execute(t.Context(), &services{}, in, func(error) {})
		raw, err := json.Marshal(answer)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(raw), "secret cause") {
			t.Errorf("shows the cause of a fault: %s", raw)
		}
		for _, fault := range answer.Errors {
			if fault.Message == "" || fault.Extensions.Code == "" {
				t.Errorf("an error without a text or a code: %+v", fault)
			}
		}
	})
}
