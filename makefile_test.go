package hangar_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestWhatSkipsUnderTheRaceDetectorRunsWithout: a test that calls racetest.Skip is one that `make test`
// runs in another way.
func TestWhatSkipsUnderTheRaceDetectorRunsWithout(t *testing.T) {
	text, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	list := func(name string) []string {
		found := regexp.MustCompile(`(?m)^` + name + ` += (.*)$`).FindSubmatch(text)
		if found == nil {
			t.Fatalf("the Makefile has no %s", name)
		}
		return strings.Fields(string(found[1]))
	}
	whole, kills := list("NORACE"), list("KILLED")
	for folder, files := range goFiles(t) {
		for name, file := range files {
			if !strings.HasSuffix(name, "_test.go") || !slices.ContainsFunc(file.Imports, func(s *ast.ImportSpec) bool { return s.Path.Value == strconv.Quote(module+"/internal/racetest") }) {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range file.Decls {
				f, ok := d.(*ast.FuncDecl)
				if !ok || f.Body == nil || !callsSkip(f.Body) {
					continue
				}
				if !slices.Contains(whole, "./"+folder) && (!slices.Contains(kills, "./"+folder) || !strings.Contains(f.Name.Name, "Kill")) {
					t.Errorf("%s of ./%s is skipped under the race detector, and the Makefile does not run it without", f.Name.Name, folder)
				}
			}
		}
	}
}

// callsSkip reports whether racetest.Skip is called.
func callsSkip(body *ast.BlockStmt) bool {
	found := false
	ast.Inspect(body, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "Skip" {
			x, ok := s.X.(*ast.Ident)
			found = found || ok && x.Name == "racetest"
		}
		return !found
	})
	return found
}
