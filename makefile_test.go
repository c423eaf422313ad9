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

// TestWhatSkipsUnderTheRaceDetectorRunsWithout: `make test` also runs each test that calls
// racetest.Skip without the race detector.
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

// TestTargetsHaveRules: make silently does nothing for a phony target without a rule.
func TestTargetsHaveRules(t *testing.T) {
	text, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	phony := regexp.MustCompile(`(?m)^\.PHONY: (.*)$`).FindSubmatch(text)
	if phony == nil {
		t.Fatal("the Makefile declares no phony targets")
	}
	for target := range strings.FieldsSeq(string(phony[1])) {
		if !regexp.MustCompile(`(?m)^` + target + `:`).Match(text) {
			t.Errorf("the Makefile has no rule for %s", target)
		}
	}
}

// TestWhatStressRunsIsThere: each line of .ci/stress names tests of its package.
func TestWhatStressRunsIsThere(t *testing.T) {
	text, err := os.ReadFile(".ci/stress")
	if err != nil {
		t.Fatal(err)
	}
	files := goFiles(t)
	lines := regexp.MustCompile(`(?m)^\./(\S+) (\S+)$`).FindAllSubmatch(text, -1)
	if len(lines) == 0 {
		t.Fatal(".ci/stress names no tests")
	}
	for _, line := range lines {
		folder, run := string(line[1]), string(line[2])
		wanted, found := alternatives(run), map[string]bool{}
		for name := range files[folder] {
			if !strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range file.Decls {
				if f, ok := d.(*ast.FuncDecl); ok {
					found[f.Name.Name] = true
				}
			}
		}
		for _, name := range wanted {
			if !found[name] {
				t.Errorf(".ci/stress runs %s of ./%s, which is not there", name, folder)
			}
		}
	}
}

// alternatives are the names that an expression like Test(One|Two) matches.
func alternatives(run string) []string {
	before, rest, ok := strings.Cut(run, "(")
	if !ok {
		return []string{run}
	}
	within, after, _ := strings.Cut(rest, ")")
	names := strings.Split(within, "|")
	for i, name := range names {
		names[i] = before + name + after
	}
	return names
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
