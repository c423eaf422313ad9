package edge_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestNothingIsLoggedUnderALock: a log may block, and what is locked in the edge is what all of its
// connections need. It looks at what a function does itself, not at what it calls.
func TestNothingIsLoggedUnderALock(t *testing.T) {
	for _, dir := range []string{".", "../internal/connlimit"} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			files := token.NewFileSet()
			parsed, err := parser.ParseFile(files, path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				if f, ok := n.(*ast.FuncDecl); ok && f.Body != nil {
					for _, at := range loggedUnderLock(f.Body) {
						t.Errorf("%s logs with a lock held", files.Position(at))
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestLoggedUnderLock(t *testing.T) {
	for body, want := range map[string]int{
		`x.mu.Lock(); defer x.mu.Unlock(); x.log.Warn("a")`:                      1,
		`x.mu.RLock(); x.p.log.DebugContext(ctx, "a"); x.mu.RUnlock()`:           1,
		`x.mu.Lock(); if bad { gate.LogEdge(ref, "a", "b") }; x.mu.Unlock()`:     1,
		`x.mu.Lock(); x.mu.Unlock(); log.Warn("a")`:                              0,
		`log.Warn("a"); x.mu.Lock(); defer x.mu.Unlock(); x.log = nil`:           0,
		`x.mu.Lock(); defer x.mu.Unlock(); go func() { x.log.Warn("a") }()`:      0,
		`go func() { x.mu.Lock(); defer x.mu.Unlock(); x.log.Warn("a") }()`:      1,
		`x.mu.Lock(); defer x.mu.Unlock(); return t.Error("a")`:                  0,
		`for range y { x.mu.Lock(); x.mu.Unlock() }; defer x.log.Info("a")`:      0,
		`x.mu.Lock(); if bad { x.mu.Unlock(); log.Warn("a"); return }; y.Done()`: 0,
	} {
		parsed, err := parser.ParseFile(token.NewFileSet(), "", "package p; func f() { "+body+" }", 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := loggedUnderLock(parsed.Decls[0].(*ast.FuncDecl).Body); len(got) != want {
			t.Errorf("%s logs %d times", body, len(got))
		}
	}
}

// loggedUnderLock returns where a function logs between a Lock and its Unlock, in the order of the
// text.
func loggedUnderLock(body *ast.BlockStmt) (found []token.Pos) {
	held := 0
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit: // runs at another time
			found = append(found, loggedUnderLock(n.Body)...)
			return false
		case *ast.DeferStmt:
			return false
		case *ast.CallExpr:
			call, ok := n.Fun.(*ast.SelectorExpr)
			switch {
			case !ok:
			case call.Sel.Name == "Lock", call.Sel.Name == "RLock":
				held++
			case call.Sel.Name == "Unlock", call.Sel.Name == "RUnlock":
				held--
			case held > 0 && isLog(call):
				found = append(found, n.Pos())
			}
		}
		return true
	})
	return found
}

// isLog reports whether a method is one of a log.
func isLog(call *ast.SelectorExpr) bool {
	if strings.EqualFold(call.Sel.Name, "LogEdge") {
		return true
	}
	of := ""
	switch x := call.X.(type) {
	case *ast.Ident:
		of = x.Name
	case *ast.SelectorExpr:
		of = x.Sel.Name
	}
	return strings.EqualFold(of, "log") &&
		slices.Contains([]string{"Debug", "Info", "Warn", "Error", "Log", "LogAttrs"}, strings.TrimSuffix(call.Sel.Name, "Context"))
}
