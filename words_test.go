package hangar_test

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// stilted are words that CONTRIBUTING.md ("Words") has replacements for.
var stilted = regexp.MustCompile(`(?i)\b(whoever|whomever|shall|anew|(had|have|has) back|mend(s|ed|ing)?|thereby|therein|thereof|herein|of late|tells of)\b`)

// TestWords finds words that this project avoids.
func TestWords(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "git", "ls-files", "--", "*.go", "*.md", "Makefile", ".ci", "examples", "packaging").Output()
	if err != nil {
		t.Skipf("not a checkout: %v", err)
	}
	for path := range strings.FieldsSeq(string(out)) {
		if path == "words_test.go" || path == "CONTRIBUTING.md" {
			continue
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range stilted.FindAllIndex(raw, -1) {
			t.Errorf("%s:%d: %q: see Words in CONTRIBUTING.md", path, 1+bytes.Count(raw[:at[0]], []byte("\n")), raw[at[0]:at[1]])
		}
	}
}
