package hangar_test

import (
	"flag"
	"go/ast"
	"go/build/constraint"
	"go/doc"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// subject is how a package comment begins: with its subject.
var subject = regexp.MustCompile(`^(Package|Command) (\S+) `)

// updateDocs rewrites what a test would otherwise report.
var updateDocs = flag.Bool("update-docs", false, "rewrite the list of packages in docs/architecture.md")

// The list of packages in the architecture page begins after this line, and goes to the end of the
// page.
const (
	architecturePage = "docs/architecture.md"
	packagesHeading  = "\n## Packages\n"
	packagesIntro    = "\nEach line is the first sentence of the package's own documentation, which a test\n" +
		"compares. `go test . -run Package -update-docs` rewrites them.\n\n"
)

// TestEveryPackageSaysWhatItIs: each package has exactly one package comment, and docs/architecture.md
// repeats its first sentence.
func TestEveryPackageSaysWhatItIs(t *testing.T) {
	b, err := os.ReadFile(architecturePage)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for folder, files := range goFiles(t) {
		var where []string
		comment, pkg := "", ""
		var inTests []string
		for name, f := range files {
			if strings.HasSuffix(name, "_test.go") {
				if f.Doc != nil {
					inTests = append(inTests, name)
				}
				continue
			}
			if isGenerator(f) {
				continue
			}
			pkg = f.Name.Name
			if f.Doc != nil {
				where, comment = append(where, name), f.Doc.Text()
			}
		}
		if pkg == "" { // only tests
			continue
		}
		if len(inTests) > 0 {
			t.Errorf("%v: package comments belong to files that are no tests", inTests)
		}
		if len(where) != 1 {
			t.Errorf("package in %q has %d package comments, not one: %v", folder, len(where), where)
			continue
		}
		sentence := strings.Join(strings.Fields(new(doc.Package).Synopsis(comment)), " ")
		begin := subject.FindString(sentence)
		if begin == "" {
			t.Errorf("%s: the package comment begins %q, not with Package or Command and the name", where[0], sentence)
			continue
		}
		list = append(list, "- `"+path.Join("hangar", folder)+"` "+strings.TrimPrefix(sentence, begin))
	}
	if *updateDocs {
		if err := os.WriteFile(architecturePage, []byte(rewritePackages(string(b), list)), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	_, written, _ := strings.Cut(string(b), packagesHeading)
	for _, line := range list {
		if !strings.Contains(written, line+"\n") {
			t.Errorf("%s does not have the line: %s", architecturePage, line)
		}
	}
	for line := range strings.Lines(written) {
		if line = strings.TrimSuffix(line, "\n"); strings.HasPrefix(line, "- ") && !slices.Contains(list, line) {
			t.Errorf("%s has a line that is not the comment of a package: %s", architecturePage, line)
		}
	}
}

func rewritePackages(page string, list []string) string {
	before, _, _ := strings.Cut(page, packagesHeading)
	slices.Sort(list)
	return before + packagesHeading + packagesIntro + strings.Join(list, "\n") + "\n"
}

// isGenerator reports whether a file is a separate program that generates code for the package beside
// it.
func isGenerator(f *ast.File) bool {
	for _, group := range f.Comments {
		for _, c := range group.List {
			if expr, err := constraint.Parse(c.Text); err == nil && c.Pos() < f.Package && !expr.Eval(func(tag string) bool { return tag != "ignore" }) {
				return true
			}
		}
	}
	return false
}
