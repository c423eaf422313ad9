package hangar_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"

	"github.com/hangar-platform/hangar"
)

// TestEdgeCodes: the list has each declared code once.
func TestEdgeCodes(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "edge_error.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var declared []hangar.EdgeCode
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		if name, ok := spec.Type.(*ast.Ident); ok && name.Name == "EdgeCode" {
			code, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			declared = append(declared, hangar.EdgeCode(code))
		}
		return true
	})
	if got := hangar.EdgeCodes(); !slices.Equal(got, declared) || len(got) == 0 {
		t.Errorf("the codes are %v, and %v are declared", got, declared)
	}
}
