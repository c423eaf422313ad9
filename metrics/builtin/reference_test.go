package builtin_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar/metrics/builtin"
)

var update = flag.Bool("update", false, "rewrite the table of docs/metrics.md")

const (
	docsFile = "../../docs/metrics.md"
	begin    = "<!-- reference: written by go test ./metrics/builtin -update -->\n"
	end      = "<!-- end of the reference -->\n"
)

// table returns the reference as in the documentation.
func table() string {
	var b strings.Builder
	b.WriteString("| series | type | labels | unit | what |\n|---|---|---|---|---|\n")
	for _, f := range builtin.Reference() {
		help := f.Help
		if f.Absent != "" {
			help = "*absent*: " + f.Absent
		}
		labels := slices.Clone(f.Labels)
		for i := range labels {
			labels[i] = "`" + labels[i] + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", f.Name, f.Type, strings.Join(labels, ", "), f.Unit, help)
	}
	return b.String()
}

func TestDocumentation(t *testing.T) {
	raw, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := bytes.Cut(raw, []byte(begin))
	_, after, closed := bytes.Cut(rest, []byte(end))
	if !ok || !closed {
		t.Fatalf("%s has no place for the reference", docsFile)
	}
	want := slices.Concat(before, []byte(begin), []byte("\n"+table()+"\n"), []byte(end), after)
	if bytes.Equal(raw, want) {
		return
	}
	if !*update {
		t.Fatalf("the table of %s is not that of Reference: run go test ./metrics/builtin -update", docsFile)
	}
	if err := os.WriteFile(docsFile, want, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestReference(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range builtin.Reference() {
		for _, name := range f.Series() {
			if seen[name] {
				t.Errorf("%s is documented twice", name)
			}
			seen[name] = true
		}
		if f.Type != builtin.Counter && f.Type != builtin.Gauge && f.Type != builtin.Histogram {
			t.Errorf("%s is of type %q", f.Name, f.Type)
		}
		if strings.HasSuffix(f.Name, "_count") != (f.Type == builtin.Counter) && strings.HasSuffix(f.Name, "_count") {
			t.Errorf("%s is no counter, as its name says", f.Name)
		}
		if f.Help != "" && f.Absent != "" {
			t.Errorf("%s is there and is not", f.Name)
		}
	}
}
